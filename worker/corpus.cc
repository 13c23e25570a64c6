#include "worker/corpus.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/status.h"
#include "proto/data_position.h"
#include "worker/data/watched_file.h"

namespace isthmus::worker {
namespace {

namespace fs = std::filesystem;

// llm.c's shards start with 256 int32: magic, version, count of tokens, zeros.
constexpr int64_t kHeaderBytes = 256 * 4;
constexpr int32_t kMagicUint16 = 20240520;
constexpr int32_t kMagicUint32 = 20240801;
constexpr int32_t kHeaderVersion = 1;
constexpr size_t kMaxShards = 65536;

// Opening reads at most this much of the contents, for the fingerprint and the check of token ids.
// A longer corpus is read in evenly spaced blocks; the stage checks the ids of each micro-batch
// again (and ends the session with the sample's place).
constexpr int64_t kScanBytes = int64_t{1} << 30;
constexpr int64_t kScanBlockBytes = int64_t{1} << 20;

// The tokens of one file: [first_token, first_token + tokens) of the corpus, from byte `offset` of
// the file on.
struct Shard {
  std::unique_ptr<WatchedFile> file;
  int64_t offset = 0;
  int64_t first_token = 0;
  int64_t tokens = 0;
};

int32_t ReadInt32(const char* at) {
  int32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

absl::StatusOr<Shard> OpenTokens(const std::string& path) {
  Shard shard;
  ASSIGN_OR_RETURN(shard.file, WatchedFile::Open(path));
  const int64_t bytes = shard.file->bytes();
  char header[kHeaderBytes] = {};
  if (bytes >= kHeaderBytes) RETURN_IF_ERROR(shard.file->Read(0, kHeaderBytes, header));
  const int32_t magic = ReadInt32(header);
  if (magic == kMagicUint32) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ", offset 0: a shard of 32-bit ids (magic ", magic, "); only 16-bit ids are read"));
  }
  if (magic == kMagicUint16) {
    const int32_t version = ReadInt32(header + 4);
    const int64_t claimed = ReadInt32(header + 8);
    if (version != kHeaderVersion) {
      return absl::InvalidArgumentError(absl::StrCat(path, ", offset 4: header version ", version,
                                                     " is not known (expected ", kHeaderVersion,
                                                     ")"));
    }
    if (claimed < 0 || claimed * 2 != bytes - kHeaderBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ", offset 8: the header says ", claimed, " tokens but ", bytes - kHeaderBytes,
          " bytes follow it: the shard is cut off or damaged; fetch it again"));
    }
    shard.offset = kHeaderBytes;
  } else if (bytes % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ", offset ", bytes - 1, ": ", bytes,
        " bytes are no whole number of 16-bit ids; for plain text set data.format: bytes"));
  }
  shard.tokens = (bytes - shard.offset) / 2;
  return shard;
}

// Job files come from elsewhere: they may not name files outside the data directory. (Symbolic
// links in it are its owner's choice.)
absl::Status CheckPath(const std::string& path, const std::string& data_dir) {
  if (path.empty()) return absl::InvalidArgumentError("data.path is empty");
  if (path[0] == '/') {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path '", path, "' is absolute; give it relative to the daemon's --data-dir (",
        data_dir, ")"));
  }
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.path '", path, "' leaves the daemon's --data-dir (", data_dir, "): remove '..'"));
    }
  }
  return absl::OkStatus();
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
    if (it->path().extension() == ".bin") files.push_back(it->path().string());
    if (files.size() > kMaxShards)
      return absl::InvalidArgumentError(
          absl::StrCat(full, " has more than ", kMaxShards, " shards"));
  }
  if (error) return absl::InternalError(absl::StrCat("cannot list ", full, ": ", error.message()));
  if (files.empty()) return absl::NotFoundError(absl::StrCat(full, " has no .bin shards"));
  std::sort(files.begin(), files.end());
  return files;
}

class FileCorpus : public Corpus {
 public:
  FileCorpus(std::vector<Shard> shards, const JobSpec& job)
      : shards_(std::move(shards)),
        token_bytes_(job.data().format() == "tokens" ? 2 : 1),
        context_(job.model().context()) {
    for (Shard& shard : shards_) {
      shard.first_token = tokens_;
      tokens_ += shard.tokens;
    }
    const int64_t samples = tokens_ > 0 ? (tokens_ - 1) / context_ : 0;
    validation_samples_ =
        static_cast<int64_t>(static_cast<double>(samples) * job.data().validation_share());
    train_samples_ = samples - validation_samples_;
  }

  int64_t train_samples() const override { return train_samples_; }
  int64_t validation_samples() const override { return validation_samples_; }
  int64_t context() const override { return context_; }
  uint64_t fingerprint() const override { return fingerprint_; }
  int64_t tokens() const { return tokens_; }

  absl::Status Read(uint32_t id, uint16_t* tokens, uint16_t* targets) const override {
    assert(id < train_samples_ + validation_samples_);
    std::vector<uint16_t> all(context_ + 1);
    RETURN_IF_ERROR(ReadTokens(int64_t{id} * context_, absl::MakeSpan(all)));
    if (tokens != nullptr) std::copy(all.begin(), all.end() - 1, tokens);
    if (targets != nullptr) std::copy(all.begin() + 1, all.end(), targets);
    return absl::OkStatus();
  }

  // Fingerprint, and the first id beyond `vocabulary` in what is read.
  absl::Status Scan(int64_t vocabulary) {
    Hasher hasher;
    const int64_t bytes = tokens_ * token_bytes_;
    const int64_t blocks = (bytes + kScanBlockBytes - 1) / kScanBlockBytes;
    const int64_t read = std::min(blocks, kScanBytes / kScanBlockBytes);
    for (int64_t i = 0; i < read; ++i) {
      const int64_t block =
          read == blocks ? i : i * (blocks - 1) / (read - 1);  // the first and the last among them
      const int64_t first = block * kScanBlockBytes / token_bytes_;
      const int64_t end = std::min(tokens_, first + kScanBlockBytes / token_bytes_);
      RETURN_IF_ERROR(ScanBlock(first, end, vocabulary, &hasher));
    }
    hasher.Update(&tokens_, sizeof tokens_);
    hasher.Update(&token_bytes_, sizeof token_bytes_);
    fingerprint_ = hasher.Digest();
    return absl::OkStatus();
  }

 private:
  const Shard& ShardOf(int64_t token) const {
    const auto after =
        std::upper_bound(shards_.begin(), shards_.end(), token,
                         [](int64_t t, const Shard& s) { return t < s.first_token; });
    return *std::prev(after);
  }

  absl::Status ReadTokens(int64_t first, absl::Span<uint16_t> out) const {
    std::string bytes;
    while (!out.empty()) {
      const Shard& shard = ShardOf(first);
      const int64_t index = first - shard.first_token;
      const int64_t n = std::min<int64_t>(out.size(), shard.tokens - index);
      RETURN_IF_ERROR(ReadBytes(shard, index, n, &bytes));
      if (token_bytes_ == 2) {
        std::memcpy(out.data(), bytes.data(), bytes.size());
      } else {
        for (int64_t i = 0; i < n; ++i) out[i] = static_cast<unsigned char>(bytes[i]);
      }
      out.remove_prefix(n);
      first += n;
    }
    return absl::OkStatus();
  }

  absl::Status ReadBytes(const Shard& shard, int64_t index, int64_t tokens,
                         std::string* bytes) const {
    bytes->resize(tokens * token_bytes_);
    return shard.file->Read(shard.offset + index * token_bytes_, tokens * token_bytes_,
                            &(*bytes)[0]);
  }

  absl::Status ScanBlock(int64_t first, int64_t end, int64_t vocabulary, Hasher* hasher) const {
    std::string bytes;
    while (first < end) {
      const Shard& shard = ShardOf(first);
      const int64_t index = first - shard.first_token,
                    n = std::min(end - first, shard.tokens - index);
      RETURN_IF_ERROR(ReadBytes(shard, index, n, &bytes));
      hasher->Update(bytes.data(), bytes.size());
      if (token_bytes_ == 2) RETURN_IF_ERROR(CheckIds(shard, index, bytes, vocabulary));
      first += n;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckIds(const Shard& shard, int64_t index, const std::string& bytes,
                               int64_t vocabulary) {
    std::vector<uint16_t> ids(bytes.size() / 2);
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    uint16_t highest = 0;
    for (uint16_t id : ids) highest = std::max(highest, id);
    if (highest < vocabulary) return absl::OkStatus();
    const auto beyond =
        std::find_if(ids.begin(), ids.end(), [&](uint16_t id) { return id >= vocabulary; });
    return absl::InvalidArgumentError(absl::StrCat(
        shard.file->path(), ", offset ", shard.offset + 2 * (index + (beyond - ids.begin())),
        ": token ", *beyond, " is beyond model.vocabulary (", vocabulary,
        "); raise it or use the data's own tokeniser"));
  }

  std::vector<Shard> shards_;  // none empty
  int64_t token_bytes_;
  int64_t context_;
  int64_t tokens_ = 0;
  int64_t train_samples_ = 0;
  int64_t validation_samples_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const std::string& data_dir,
                                                   const JobSpec& job) {
  const std::string& path = job.data().path();
  const bool as_tokens = job.data().format() == "tokens";
  if (job.model().context() < 1 || job.recipe().global_batch() < 1)
    return absl::InvalidArgumentError(
        "the job's model.context and recipe.global_batch must be positive");
  RETURN_IF_ERROR(CheckPath(path, data_dir));
  const std::string full = (fs::path(data_dir) / path).string();
  ASSIGN_OR_RETURN(const std::vector<std::string> files, ListFiles(full, as_tokens));
  std::vector<Shard> shards;
  for (const std::string& file : files) {
    if (as_tokens) {
      ASSIGN_OR_RETURN(Shard shard, OpenTokens(file));
      if (shard.tokens > 0) shards.push_back(std::move(shard));
    } else {
      Shard shard;
      ASSIGN_OR_RETURN(shard.file, WatchedFile::Open(file));
      shard.tokens = shard.file->bytes();
      if (shard.tokens > 0) shards.push_back(std::move(shard));
    }
  }
  auto corpus = std::make_unique<FileCorpus>(std::move(shards), job);
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
  RETURN_IF_ERROR(corpus->Scan(job.model().vocabulary()));
  return corpus;
}

SampleOrder::SampleOrder(uint64_t seed, int64_t samples, int64_t global_batch, int64_t start_step,
                         const DataPosition& start)
    : seed_(seed),
      samples_(samples),
      global_batch_(global_batch),
      start_step_(start_step),
      start_(start) {
  assert(global_batch_ > 0 && samples_ >= global_batch_);  // OpenCorpus refuses less
}

DataPosition SampleOrder::At(int64_t step) const {
  assert(step >= start_step_);
  return Advance(start_, samples_, global_batch_, step - start_step_);
}

std::vector<uint32_t> SampleOrder::Step(int64_t step) {
  const DataPosition at = NextStep(At(step), samples_, global_batch_);
  if (at.epoch() != epoch_) {
    permutation_.resize(samples_);
    std::iota(permutation_.begin(), permutation_.end(), 0u);
    for (int64_t i = samples_ - 1; i > 0; --i) {  // Fisher-Yates
      std::swap(permutation_[i], permutation_[RandomBelow(seed_, at.epoch(), i, i + 1)]);
    }
    epoch_ = at.epoch();
  }
  const auto begin = permutation_.begin() + at.offset();
  return std::vector<uint32_t>(begin, begin + global_batch_);
}

}  // namespace isthmus::worker
