#include "worker/data/corpus.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/data/data_files.h"
#include "proto/data/data_position.h"
#include "proto/model/family.h"
#include "worker/data/file_look.h"
#include "worker/data/permutation.h"
#include "worker/data/watched_file.h"

namespace isthmus::worker {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxShards = 65536;
constexpr uint64_t kOwners = 0x6f776e657273;  // a stream of random numbers: which replica has which

// Opening reads at most this much of the contents, for the fingerprint and the check of token ids.
// A longer corpus is read in evenly spaced blocks; the stage checks the ids of each micro-batch
// again (and ends the session with the sample's place).
constexpr int64_t kScanBytes = int64_t{1} << 30;
constexpr int64_t kScanBlockBytes = int64_t{1} << 20;
constexpr int64_t kLookBytes = 256 << 10;  // of each file, for what its contents look like

// The tokens of one file: [first_token, first_token + tokens) of the corpus, from byte `offset` of
// the file on, of `width` bytes each.
struct Shard {
  std::unique_ptr<WatchedFile> file;
  int64_t offset = 0;
  int64_t width = 1;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

// A file in its whole, as far as it can be what the job says.
absl::StatusOr<Shard> OpenShard(const std::string& path, bool as_tokens) {
  Shard shard;
  ASSIGN_OR_RETURN(shard.file, WatchedFile::Open(path));
  ASSIGN_OR_RETURN(const FileLook look, LookAt(*shard.file, kLookBytes));
  if (!look.problem.empty() && (as_tokens || !IsPlainFormat(look.format)))
    return absl::InvalidArgumentError(absl::StrCat(path, ", ", look.problem));
  if (as_tokens) {
    shard.offset = look.offset;
    shard.width = look.format == kFormatUint32 ? 4 : 2;
  }
  shard.tokens = (shard.file->bytes() - shard.offset) / shard.width;
  return shard;
}

// The file itself, or the .bin files of a directory in name order.
absl::StatusOr<std::vector<std::string>> ListFiles(const std::string& full, bool tokens) {
  std::error_code error;
  const fs::file_status status = fs::status(full, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrCat(
        full, " does not exist on this host; put it there or name another --data-dir"));
  }
  if (!fs::is_directory(status)) return std::vector<std::string>{full};
  if (!tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(full,
                     " is a directory; data.format bytes wants one text file (data.format: tokens "
                     "reads a directory of .bin shards)"));
  }
  std::vector<std::string> files;
  for (fs::directory_iterator it(full, error), end; !error && it != end; it.increment(error)) {
    if (IsShard(it->path().filename().string())) files.push_back(it->path().string());
    if (files.size() > kMaxShards)
      return absl::InvalidArgumentError(
          absl::StrCat(full, " has more than ", kMaxShards, " shards"));
  }
  if (error) return absl::InternalError(absl::StrCat("cannot list ", full, ": ", error.message()));
  if (files.empty()) return absl::NotFoundError(absl::StrCat(full, " has no .bin shards"));
  std::sort(files.begin(), files.end());
  return files;
}

// Shards that are read as if they were one file.
struct Text {
  std::vector<Shard> shards;  // none empty
  int64_t tokens = 0;
  int64_t width = 1;  // of the widest
  void Add(Shard shard) {
    if (shard.tokens == 0) return;
    shard.first_token = tokens;
    tokens += shard.tokens;
    width = std::max(width, shard.width);
    shards.push_back(std::move(shard));
  }
  const Shard& ShardOf(int64_t token) const {
    const auto after =
        std::upper_bound(shards.begin(), shards.end(), token,
                         [](int64_t t, const Shard& s) { return t < s.first_token; });
    return *std::prev(after);
  }
};

class FileCorpus : public Corpus {
 public:
  // `validation`: null where it is the last share of `all`.
  FileCorpus(Text all, std::unique_ptr<Text> validation, const JobSpec& job)
      : all_(std::move(all)),
        validation_(std::move(validation)),
        context_(job.model().context()),
        shape_(SampleShapeOf(job.model())),
        counts_(validation_ != nullptr
                    ? CutOwnValidation(all_.tokens, validation_->tokens, shape_)
                    : CutSamples(all_.tokens, shape_, job.data().validation_share())) {}

  int64_t train_samples() const override { return counts_.train; }
  int64_t validation_samples() const override { return counts_.validation; }
  int64_t context() const override { return context_; }
  uint64_t fingerprint() const override { return fingerprint_; }
  int64_t tokens() const { return all_.tokens; }

  absl::Status Read(uint32_t id, uint32_t* tokens, uint32_t* targets) const override {
    assert(id < counts_.train + counts_.validation);
    const bool own = validation_ != nullptr && id >= counts_.train;
    const int64_t sample = own ? id - counts_.train : id;
    std::vector<uint32_t> all(shape_.ids);
    RETURN_IF_ERROR(
        ReadTokens(own ? *validation_ : all_, sample * shape_.stride, absl::MakeSpan(all)));
    if (tokens != nullptr) std::copy(all.begin(), all.end() - 1, tokens);
    if (targets != nullptr) std::copy(all.end() - context_, all.end(), targets);
    return absl::OkStatus();
  }

  // Fingerprint, and the first id beyond the vocabulary, or class beyond the classes, in what is
  // read.
  absl::Status Scan(const ModelSpec& model) {
    Hasher hasher;
    RETURN_IF_ERROR(ScanText(all_, model, &hasher));
    hasher.Update(&all_.width, sizeof all_.width);
    if (validation_ != nullptr) RETURN_IF_ERROR(ScanText(*validation_, model, &hasher));
    fingerprint_ = hasher.Digest();
    return absl::OkStatus();
  }

 private:
  absl::Status ScanText(const Text& text, const ModelSpec& model, Hasher* hasher) const {
    const int64_t bytes = text.tokens * text.width;
    const int64_t blocks = (bytes + kScanBlockBytes - 1) / kScanBlockBytes;
    const int64_t read = std::min(blocks, kScanBytes / kScanBlockBytes);
    for (int64_t i = 0; i < read; ++i) {
      const int64_t block =
          read == blocks ? i : i * (blocks - 1) / (read - 1);  // the first and the last among them
      const int64_t first = block * kScanBlockBytes / text.width;
      const int64_t end = std::min(text.tokens, first + kScanBlockBytes / text.width);
      RETURN_IF_ERROR(ScanBlock(text, first, end, model, hasher));
    }
    hasher->Update(&text.tokens, sizeof text.tokens);
    return absl::OkStatus();
  }

  absl::Status ReadTokens(const Text& text, int64_t first, absl::Span<uint32_t> out) const {
    std::string bytes;
    while (!out.empty()) {
      const Shard& shard = text.ShardOf(first);
      const int64_t index = first - shard.first_token;
      const int64_t n = std::min<int64_t>(out.size(), shard.tokens - index);
      RETURN_IF_ERROR(ReadBytes(shard, index, n, &bytes));
      Widen(bytes, shard.width, out.subspan(0, n));
      out.remove_prefix(n);
      first += n;
    }
    return absl::OkStatus();
  }

  // As many tokens of `width` bytes as `out` has.
  static void Widen(const std::string& bytes, int64_t width, absl::Span<uint32_t> out) {
    if (width == 4) {
      std::memcpy(out.data(), bytes.data(), bytes.size());
    } else if (width == 2) {
      const char* from = bytes.data();
      for (uint32_t& id : out) {
        uint16_t narrow;
        std::memcpy(&narrow, from, 2);
        id = narrow;
        from += 2;
      }
    } else {
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<unsigned char>(bytes[i]);
    }
  }

  static absl::Status ReadBytes(const Shard& shard, int64_t index, int64_t tokens,
                                std::string* bytes) {
    bytes->resize(tokens * shard.width);
    return shard.file->Read(shard.offset + index * shard.width, tokens * shard.width, &(*bytes)[0]);
  }

  absl::Status ScanBlock(const Text& text, int64_t first, int64_t end, const ModelSpec& model,
                         Hasher* hasher) const {
    std::string bytes;
    while (first < end) {
      const Shard& shard = text.ShardOf(first);
      const int64_t index = first - shard.first_token,
                    n = std::min(end - first, shard.tokens - index);
      RETURN_IF_ERROR(ReadBytes(shard, index, n, &bytes));
      hasher->Update(bytes.data(), bytes.size());
      if (shard.width > 1) RETURN_IF_ERROR(CheckIds(shard, index, bytes, model.vocabulary()));
      if (shape_.rows()) RETURN_IF_ERROR(CheckClasses(shard, index, bytes, model.classes()));
      first += n;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckIds(const Shard& shard, int64_t index, const std::string& bytes,
                               int64_t vocabulary) {
    std::vector<uint32_t> ids(bytes.size() / shard.width);
    Widen(bytes, shard.width, absl::MakeSpan(ids));
    uint32_t highest = 0;
    for (uint32_t id : ids) highest = std::max(highest, id);
    if (highest < vocabulary) return absl::OkStatus();
    const auto beyond =
        std::find_if(ids.begin(), ids.end(), [&](uint32_t id) { return id >= vocabulary; });
    return absl::InvalidArgumentError(
        absl::StrCat(shard.file->path(), ", offset ",
                     shard.offset + shard.width * (index + (beyond - ids.begin())), ": ",
                     TokenWords(*beyond), " is beyond model.vocabulary (", vocabulary,
                     "); raise it or use the data's own tokeniser"));
  }

  // A shard holds whole rows.
  absl::Status CheckClasses(const Shard& shard, int64_t index, const std::string& bytes,
                            int64_t classes) const {
    std::vector<uint32_t> ids(bytes.size() / shard.width);
    Widen(bytes, shard.width, absl::MakeSpan(ids));
    for (int64_t i = shape_.stride - 1 - index % shape_.stride;
         i < static_cast<int64_t>(ids.size()); i += shape_.stride) {
      if (ids[i] < classes) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(shard.file->path(), ", offset ", shard.offset + shard.width * (index + i),
                       ": class ", ids[i], " is beyond model.classes (", classes,
                       "); is model.inputs the number of values of a row?"));
    }
    return absl::OkStatus();
  }

  const Text all_;
  const std::unique_ptr<const Text> validation_;
  const int64_t context_;
  const SampleShape shape_;
  const SampleCounts counts_;
  uint64_t fingerprint_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const std::string& data_dir,
                                                   const JobSpec& job) {
  const std::string& path = job.data().path();
  const bool as_tokens = IsOfIds(job.data().format());
  if (job.model().context() < 1 || job.recipe().global_batch() < 1)
    return absl::InvalidArgumentError(
        "the job's model.context and recipe.global_batch must be positive");
  RETURN_IF_ERROR(CheckDataPath(path));
  const std::string full = (fs::path(data_dir) / path).string();
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListFiles(full, as_tokens));
  const bool directory = fs::is_directory(full);
  Text all;
  std::unique_ptr<Text> validation;
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(Shard shard, OpenShard(file, as_tokens));
    if (const std::string problem = NoWholeRows(shard.tokens, SampleShapeOf(job.model()));
        !problem.empty())
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", problem));
    if (directory && IsValidationShard(fs::path(file).filename().string())) {
      if (validation == nullptr) validation = std::make_unique<Text>();
      validation->Add(std::move(shard));
    } else {
      all.Add(std::move(shard));
    }
  }
  if (all.tokens == 0 && validation != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        full, " holds validation shards alone (", fs::path(files[0]).filename().string(),
        "): put the training shards there as well, or name one file"));
  }
  auto corpus = std::make_unique<FileCorpus>(std::move(all), std::move(validation), job);
  if (corpus->train_samples() < job.recipe().global_batch()) {
    return absl::InvalidArgumentError(absl::StrCat(
        full, " is too small: ", corpus->tokens(), " tokens make ", corpus->train_samples(),
        " training samples of context ", corpus->context(), " and ", corpus->validation_samples(),
        " for validation, but one step needs recipe.global_batch = ", job.recipe().global_batch(),
        " training samples"));
  }
  if (corpus->train_samples() + corpus->validation_samples() >= int64_t{1} << 32) {
    return absl::InvalidArgumentError(absl::StrCat(full, " has more than 2^32 samples of context ",
                                                   corpus->context(),
                                                   "; raise model.context or use fewer shards"));
  }
  RETURN_IF_ERROR(corpus->Scan(job.model()));
  return corpus;
}

SampleOrder::SampleOrder(uint64_t seed, int64_t samples, int64_t global_batch, int64_t start_step,
                         const DataPosition& start, int64_t most_shuffled, Share share)
    : seed_(seed),
      samples_(samples),
      global_batch_(global_batch),
      start_step_(start_step),
      start_(start),
      most_shuffled_(most_shuffled),
      share_(share) {
  assert(global_batch_ > 0 && samples_ >= global_batch_);  // OpenCorpus refuses less
}

DataPosition SampleOrder::At(int64_t step) const {
  assert(step >= start_step_);
  return Advance(start_, samples_, global_batch_, step - start_step_);
}

void SampleOrder::Shuffle(int64_t epoch) {
  if (epoch == epoch_) return;
  permutation_.resize(samples_);
  std::iota(permutation_.begin(), permutation_.end(), 0u);
  for (int64_t i = samples_ - 1; i > 0; --i)  // Fisher-Yates
    std::swap(permutation_[i], permutation_[RandomBelow(seed_, epoch, i, i + 1)]);
  epoch_ = epoch;
}

std::vector<uint32_t> SampleOrder::OfShare(const DataPosition& at) const {
  const int64_t count = share_.count();
  const Share mine = SamplesOf(share_, samples_, global_batch_);
  const int64_t offset = at.offset() * count / global_batch_;
  const uint64_t owners = RandomBits(seed_, kOwners, 0);
  const uint64_t order = RandomBits(seed_, kOwners, 1 + share_.begin);
  std::vector<uint32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place = mine.begin + PermutedAt(order, at.epoch(), mine.count(), offset + i);
    ids[i] = static_cast<uint32_t>(PermutedAt(owners, 0, samples_, place));
  }
  return ids;
}

std::vector<uint32_t> SampleOrder::Step(int64_t step) {
  const DataPosition at = NextStep(At(step), samples_, global_batch_);
  if (share_.count() > 0 && share_.count() < global_batch_) return OfShare(at);
  if (samples_ <= most_shuffled_) {
    Shuffle(at.epoch());
    const auto begin = permutation_.begin() + at.offset();
    return std::vector<uint32_t>(begin, begin + global_batch_);
  }
  std::vector<uint32_t> ids(global_batch_);
  for (int64_t i = 0; i < global_batch_; ++i)
    ids[i] = static_cast<uint32_t>(PermutedAt(seed_, at.epoch(), samples_, at.offset() + i));
  return ids;
}

}  // namespace isthmus::worker
