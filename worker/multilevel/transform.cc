#include "worker/multilevel/transform.h"

#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file/durable_directory.h"
#include "base/file/durable_file.h"
#include "base/safetensors.h"
#include "base/status.h"

namespace isthmus::multilevel {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

// Rows of floats into a file, a buffer at a time.
class RowWriter {
 public:
  explicit RowWriter(DurableFile* file) : file_(file) {}
  absl::Status Take(absl::Span<const float> row) {
    buffer_.append(reinterpret_cast<const char*>(row.data()), row.size() * sizeof(float));
    return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() {
    RETURN_IF_ERROR(file_->Append(buffer_));
    buffer_.clear();
    return absl::OkStatus();
  }

 private:
  DurableFile* const file_;
  std::string buffer_;
};

ReadRow ReaderOf(const ModelFiles& files) {
  return [&files](const std::string& tensor, int64_t row, absl::Span<float> values) {
    return files.ReadRow(tensor, row, values);
  };
}

using Rows = std::function<absl::Status(const Mix& mix, const TakeRow& take)>;

absl::StatusOr<int64_t> WriteWeights(const std::string& path, const std::vector<Mix>& mixes,
                                     const std::string& history, const Rows& rows) {
  std::vector<SafetensorsSpec> specs;
  int64_t needed = 0;
  for (const Mix& mix : mixes) {
    specs.push_back({mix.name, "F32", mix.shape});
    needed += 4 * mix.rows.result * mix.columns.result;
  }
  ASSIGN_OR_RETURN(const std::string head,
                   SafetensorsHead(specs, {{"format", "pt"}, {kRecordKey, history}}));
  ASSIGN_OR_RETURN(const std::unique_ptr<DurableFile> file, DurableFile::Create(path));
  const std::string directory = path.substr(0, path.rfind('/'));
  const int64_t free_bytes = FreeBytes(directory);
  if (needed > free_bytes)
    return absl::ResourceExhaustedError(absl::StrCat("the model takes ", needed, " bytes, and ",
                                                     free_bytes, " are free where ", directory,
                                                     " is made"));
  RowWriter writer(file.get());
  RETURN_IF_ERROR(file->Append(head));
  const TakeRow take = [&](absl::Span<const float> row) { return writer.Take(row); };
  for (const Mix& mix : mixes) RETURN_IF_ERROR(rows(mix, take));
  RETURN_IF_ERROR(writer.Flush());
  RETURN_IF_ERROR(file->Commit());
  return file->bytes();
}

absl::StatusOr<Written> WriteModel(const ModelFiles& origin, const Shape& shape,
                                   const Operation& operation, const std::vector<Mix>& mixes,
                                   const Rows& rows, const Target& target) {
  const auto recorded = RecordOperation(origin.config(), shape, operation);
  if (!recorded.ok()) return Annotate(recorded.status(), origin.dir() + "/config.json");
  ASSIGN_OR_RETURN(const auto others, origin.OtherFiles());
  ASSIGN_OR_RETURN(const std::unique_ptr<DurableDirectory> out,
                   DurableDirectory::Create(target.dir, target.replace));
  Written written{shape, 0, recorded->history};
  ASSIGN_OR_RETURN(written.bytes, WriteWeights(out->path() + "/model.safetensors", mixes,
                                               recorded->history, rows));
  RETURN_IF_ERROR(WriteFileDurably(out->path() + "/config.json", recorded->config));
  for (const auto& [name, bytes] : others)
    RETURN_IF_ERROR(WriteFileDurably(absl::StrCat(out->path(), "/", name), bytes));
  RETURN_IF_ERROR(out->Commit());
  return written;
}

}  // namespace

std::string ShapeWords(const Shape& s) {
  return absl::StrCat(s.layers, s.layers == 1 ? " layer" : " layers", " of width ", s.hidden, ", ",
                      s.heads, s.heads == 1 ? " head" : " heads", ", vocabulary ", s.vocabulary,
                      ", context ", s.context);
}

absl::StatusOr<Written> Transform(const ModelFiles& source, const Operation& operation,
                                  const Target& target) {
  const bool down = operation.kind == Operator::kCoalesce;
  const Mapping& mapping = operation.mapping;
  const absl::StatusOr<Shape> shape =
      down ? Coalesced(source.shape(), mapping) : Decoalesced(source.shape(), mapping);
  if (!shape.ok()) return Annotate(shape.status(), source.dir());
  const std::vector<Mix> mixes =
      down ? CoalesceMixes(source.shape(), mapping) : DecoalesceMixes(source.shape(), mapping);
  const ReadRow read = ReaderOf(source);
  const Rows rows = [&](const Mix& mix, const TakeRow& take) { return ApplyMix(mix, read, take); };
  return WriteModel(source, *shape, operation, mixes, rows, target);
}

absl::StatusOr<Written> InterpolateModels(const ModelFiles& before, const ModelFiles& other,
                                          double alpha, const Target& target) {
  if (!(alpha >= 0 && alpha <= 1))
    return absl::InvalidArgumentError(absl::StrCat("alpha is ", alpha, ", not within 0 and 1"));
  if (before.shape() != other.shape())
    return absl::InvalidArgumentError(absl::StrCat(
        before.dir(), " has ", ShapeWords(before.shape()), ", and ", other.dir(), " has ",
        ShapeWords(other.shape()), ": only models of one shape are mixed (de-coalesce it first)"));
  if (before.norm_epsilon() != other.norm_epsilon())
    return absl::InvalidArgumentError(absl::StrCat(before.dir(), " has layer_norm_epsilon ",
                                                   before.norm_epsilon(), ", and ", other.dir(),
                                                   " has ", other.norm_epsilon()));
  const ReadRow a = ReaderOf(before), b = ReaderOf(other);
  const Rows rows = [&](const Mix& mix, const TakeRow& take) {
    return Interpolate(mix, alpha, a, b, take);
  };
  Operation operation;
  operation.kind = Operator::kInterpolate;
  operation.alpha = alpha;
  return WriteModel(before, before.shape(), operation, SameMixes(before.shape()), rows, target);
}

}  // namespace isthmus::multilevel
