#include "coordinator/planner/job_data.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "proto/data/data_files.h"
#include "proto/model/family.h"

namespace isthmus::coordinator {
namespace {

constexpr int kNamedFiles = 5;  // in words

// The files of a job among those a daemon lists.
struct JobFiles {
  bool known = false;
  bool directory = false;
  std::vector<const DataFile*> train, validation;  // validation: with shards of their own
};

bool AsTokens(const JobSpec& job) { return IsOfIds(job.data().format()); }

int64_t Tokens(const JobSpec& job, const DataFile& file) {
  if (!AsTokens(job)) return file.bytes();
  return TokenBytes(file.format()) > 0 ? file.tokens() : file.bytes() / 2;
}

int64_t Tokens(const JobSpec& job, const std::vector<const DataFile*>& files) {
  int64_t sum = 0;
  for (const DataFile* file : files) sum += Tokens(job, *file);
  return sum;
}

std::string Names(const std::vector<const DataFile*>& files) {
  std::vector<std::string> names;
  for (const DataFile* file : files) {
    if (static_cast<int>(names.size()) == kNamedFiles) {
      names.push_back("...");
      break;
    }
    names.push_back(file->path().substr(file->path().rfind('/') + 1));
  }
  return absl::StrJoin(names, ", ");
}

std::string Where(const JobSpec& job, const NodeInfo& node) {
  return absl::StrCat("data: '", job.data().path(), "' on daemon ", node.name());
}

absl::Status NotThere(const JobSpec& job, const NodeInfo& node) {
  std::string there;
  for (int i = 0; i < std::min(kNamedFiles, node.data_files_size()); ++i)
    absl::StrAppend(&there, i == 0 ? "" : ", ", node.data_files(i).path());
  if (node.data_files_size() > kNamedFiles) absl::StrAppend(&there, ", ...");
  return absl::NotFoundError(
      absl::StrCat("daemon ", node.name(), " has no '", job.data().path(),
                   "' (data.path) in its --data-dir; there ",
                   there.empty() ? "is nothing" : absl::StrCat("are: ", there)));
}

absl::StatusOr<JobFiles> Find(const JobSpec& job, const NodeInfo& node) {
  JobFiles found;
  const std::string path = NormalDataPath(job.data().path());
  const std::string prefix = path.empty() ? "" : path + "/";
  for (const DataFile& file : node.data_files()) {
    if (file.path() == path) {
      found.train = {&file};
      found.known = true;
      return found;
    }
    absl::string_view name = file.path();
    if (!absl::ConsumePrefix(&name, prefix)) continue;
    found.directory = true;
    if (absl::StrContains(name, '/') || !IsShard(name)) continue;
    (IsValidationShard(name) ? found.validation : found.train).push_back(&file);
  }
  const bool cut = !node.data_listed() && node.data_files_size() >= kMaxDataFiles;
  if (!found.directory && node.data_listed()) return NotThere(job, node);
  if (!found.directory) return found;
  if (!AsTokens(job)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(job, node),
                     " is a directory, and data.format is bytes, which wants one text file: set "
                     "data.format: tokens to read its .bin shards, or name a file"));
  }
  if (cut) return found;  // some of its shards may be missing in the list
  found.known = true;
  if (!found.train.empty()) return found;
  if (found.validation.empty()) {
    return absl::NotFoundError(
        absl::StrCat(Where(job, node), " is a directory without .bin shards"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Where(job, node), " holds validation shards alone (", Names(found.validation),
                   "): put the training shards there as well, or name one file as data.path"));
}

// What speaks against reading this file as the job says.
absl::Status CheckFile(const JobSpec& job, const NodeInfo& node, const DataFile& file) {
  if (file.format().empty()) return absl::OkStatus();  // not looked at
  const auto bad = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: '", file.path(), "' on daemon ", node.name(), ", ", problem));
  };
  const bool plain = IsPlainFormat(file.format());
  if (!file.problem().empty() && (AsTokens(job) || !plain)) return bad(file.problem());
  if (!plain) return bad(absl::StrCat("it is ", file.format(), ", not ", job.data().format()));
  if (!AsTokens(job) || TokenBytes(file.format()) == 0) return absl::OkStatus();
  if (const std::string problem = NoWholeRows(file.tokens(), SampleShapeOf(job.model()));
      !problem.empty())
    return bad(problem);
  if (file.highest_id() < job.model().vocabulary()) return absl::OkStatus();
  if (IsMlp(job.model()))
    return bad(absl::StrCat("it holds ", file.highest_id(), ", and a row's values are below ",
                            kRowValues));
  return bad(absl::StrCat(TokenWords(file.highest_id()), " is beyond model.vocabulary (",
                          job.model().vocabulary(),
                          "): raise it, or use the data's own tokeniser"));
}

std::string Doubt(const JobSpec& job, const NodeInfo& node, const JobFiles& files) {
  for (const auto* list : {&files.train, &files.validation}) {
    for (const DataFile* file : *list) {
      if (file->format().empty()) {
        return absl::StrCat("daemon ", node.name(), " has not told yet what '", file->path(),
                            "' looks like: whether it is of data.format ", job.data().format(),
                            " shows when the job starts");
      }
      if (!AsTokens(job) && file->format() != kFormatBytes) {
        return absl::StrCat("'", file->path(), "' on daemon ", node.name(), " looks like ",
                            file->format(),
                            " token ids, not like text, and data.format is bytes: set tokens if "
                            "that is meant");
      }
    }
  }
  return "";
}

// What the training files are read as. One that was not looked at may turn out to be otherwise.
std::string ReadAs(const JobSpec& job, const JobFiles& files) {
  if (!AsTokens(job)) return "";
  std::vector<std::string> kinds;
  for (const auto& [bytes, words] : {std::pair<int64_t, const char*>(2, "16-bit tokens"),
                                     {4, "32-bit tokens"},
                                     {0, "tokens of a width that no daemon has told yet"}}) {
    const int64_t of = bytes;
    const auto count =
        std::count_if(files.train.begin(), files.train.end(),
                      [&](const DataFile* f) { return TokenBytes(f->format()) == of; });
    if (count == 0) continue;
    const bool first = kinds.empty();
    kinds.push_back(absl::StrCat(count,
                                 !first       ? " of "
                                 : count == 1 ? " shard of "
                                              : " shards of ",
                                 words));
  }
  return absl::StrCat(absl::StrJoin(kinds, " and "), ", ", Tokens(job, files.train),
                      " tokens in all");
}

absl::Status Differ(const JobSpec& job, const NodeInfo& a, const NodeInfo& b,
                    const std::string& how) {
  return absl::FailedPreconditionError(absl::StrCat(
      "data: daemons ", a.name(), " and ", b.name(), " hold different data at '", job.data().path(),
      "': ", how, ". The first and the last stage read it: put the same into both --data-dir"));
}

// `contents` is a hash of the same blocks in one version of the daemon.
absl::Status SameFiles(const JobSpec& job, const NodeInfo& a, const NodeInfo& b,
                       const std::vector<const DataFile*>& of_a,
                       const std::vector<const DataFile*>& of_b) {
  const auto seen = [](const DataFile* file) { return !file->format().empty(); };
  const bool counted =
      std::all_of(of_a.begin(), of_a.end(), seen) && std::all_of(of_b.begin(), of_b.end(), seen);
  const int64_t tokens_a = Tokens(job, of_a), tokens_b = Tokens(job, of_b);
  if (tokens_a != tokens_b && (counted || !AsTokens(job))) {  // else a header may be among them
    const char* what = AsTokens(job) ? " tokens on " : " bytes on ";
    return Differ(job, a, b,
                  absl::StrCat(tokens_a, what, a.name(), ", ", tokens_b, what, b.name()));
  }
  const bool alike = std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                                [](const DataFile* x, const DataFile* y) {
                                  return x->path() == y->path() && x->bytes() == y->bytes();
                                });
  if (!alike || a.version() != b.version()) return absl::OkStatus();  // cut in another way
  for (size_t i = 0; i < of_a.size(); ++i) {
    const DataFile &x = *of_a[i], &y = *of_b[i];
    if (x.format().empty() || y.format().empty() || x.contents() == y.contents()) continue;
    return Differ(
        job, a, b,
        absl::StrCat("'", x.path(), "' has ", x.bytes(), " bytes on both, but others on each"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DataSize> CountSamples(const JobSpec& job, const NodeInfo& node) {
  DataSize size;
  ASSIGN_OR_RETURN(const JobFiles files, Find(job, node));
  for (const auto* list : {&files.train, &files.validation}) {
    for (const DataFile* file : *list) RETURN_IF_ERROR(CheckFile(job, node, *file));
  }
  if (!files.known) return size;
  const SampleShape shape = SampleShapeOf(job.model());
  const int64_t tokens = Tokens(job, files.train);
  const SampleCounts counts = files.validation.empty()
                                  ? CutSamples(tokens, shape, job.data().validation_share())
                                  : CutOwnValidation(tokens, Tokens(job, files.validation), shape);
  size.known = true;
  size.train_samples = counts.train;
  size.validation_samples = counts.validation;
  size.validation_files = Names(files.validation);
  size.read_as = ReadAs(job, files);
  size.doubt = Doubt(job, node, files);
  if (size.train_samples < job.recipe().global_batch()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Where(job, node), " has ", size.train_samples, " training samples",
                     shape.rows() ? "" : absl::StrCat(" of context ", shape.stride),
                     "; one step needs recipe.global_batch = ", job.recipe().global_batch()));
  }
  size.passes =
      static_cast<double>(job.recipe().steps()) * job.recipe().global_batch() / size.train_samples;
  return size;
}

absl::Status SameData(const JobSpec& job, const NodeInfo& a, const NodeInfo& b) {
  const absl::StatusOr<JobFiles> of_a = Find(job, a), of_b = Find(job, b);
  if (!of_a.ok() || !of_b.ok() || !of_a->known || !of_b->known) return absl::OkStatus();
  RETURN_IF_ERROR(SameFiles(job, a, b, of_a->train, of_b->train));
  return SameFiles(job, a, b, of_a->validation, of_b->validation);
}

bool DataMayCome(const JobSpec& job, const std::vector<const NodeInfo*>& nodes,
                 absl::string_view version) {
  bool nowhere = !nodes.empty();
  for (const NodeInfo* node : nodes) {
    const absl::StatusOr<JobFiles> files = Find(job, *node);
    nowhere = nowhere && absl::IsNotFound(files.status());
    if (!files.ok() || node->version() != version) continue;
    for (const auto* list : {&files->train, &files->validation}) {
      for (const DataFile* file : *list) {
        if (file->format().empty()) return true;
      }
    }
  }
  return nowhere;
}

}  // namespace isthmus::coordinator
