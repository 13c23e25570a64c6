#include "worker/checkpoint/tensor_file.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/bare_stage.h"
#include "tests/worker/stage_files.h"
#include "tests/worker/world.h"

namespace isthmus::worker {
namespace {

using ::testing::HasSubstr;

// A stage that holds tensors and does nothing with them. Counts how much of one is asked for.
class Shelf : public BareStage {
 public:
  void Put(const std::string& name, std::vector<int64_t> shape, std::vector<float> values,
           StageTensor::Kind kind = StageTensor::kWeight, bool copy = false) {
    tensors_.push_back({name, std::move(shape), kind, copy});
    values_.push_back(std::move(values));
  }
  const std::vector<float>& values(int i) const { return values_[i]; }
  size_t most() const { return most_; }

  std::vector<StageTensor> Tensors() const override { return tensors_; }
  absl::Status ReadTensor(int i, int64_t first, absl::Span<float> out) override {
    most_ = std::max(most_, out.size());
    if (first < 0 || first + out.size() > values_[i].size()) return None();
    std::copy_n(values_[i].begin() + first, out.size(), out.begin());
    return absl::OkStatus();
  }
  absl::Status WriteTensor(int i, int64_t first, absl::Span<const float> in) override {
    most_ = std::max(most_, in.size());
    if (first < 0 || first + in.size() > values_[i].size()) return None();
    std::copy(in.begin(), in.end(), values_[i].begin() + first);
    return absl::OkStatus();
  }

 private:
  static absl::Status None() { return absl::UnimplementedError("a shelf"); }
  std::vector<StageTensor> tensors_;
  std::vector<std::vector<float>> values_;
  size_t most_ = 0;
};

std::string Bytes(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4);
}

std::vector<float> Count(size_t n, float from = 0) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = from + static_cast<float>(i);
  return values;
}

bool All(const StageTensor&) { return true; }

TEST(TensorFile, IsWhatTheWriterMakesHoweverItIsRead) {
  Shelf shelf;
  shelf.Put("z", {7}, Count(7));
  shelf.Put("a", {3, 5}, Count(15, 100));
  shelf.Put("nothing", {0, 4}, {});
  shelf.Put("other", {1}, {5}, StageTensor::kMoment);
  const auto file = StageFile::Make(&shelf, [](const StageTensor& t) { return t.weight(); });
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string z = Bytes(Count(7)), a = Bytes(Count(15, 100));
  const std::string expected =
      WriteSafetensors(
          {{"z", "F32", {7}, z}, {"a", "F32", {3, 5}, a}, {"nothing", "F32", {0, 4}, ""}},
          {{"format", "pt"}})
          .value();
  ASSERT_EQ((*file)->bytes(), static_cast<int64_t>(expected.size()));
  for (size_t piece : {size_t{1}, size_t{3}, size_t{16}, size_t{1000}}) {
    std::string all;
    ASSERT_TRUE(ForEachPiece(**file, piece, [&](absl::string_view bytes) {
                  all.append(bytes.data(), bytes.size());
                  return absl::OkStatus();
                }).ok());
    EXPECT_EQ(all, expected) << piece;
  }
  char c;
  EXPECT_FALSE((*file)->ReadAt((*file)->bytes(), 1, &c).ok());
  const auto none = StageFile::Make(&shelf, [](const StageTensor& t) { return t.copy; });
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->get(), nullptr);
}

// Neither a file nor a tensor is in memory beside the stage.
TEST(TensorFile, NoMoreThanAPieceIsAskedForAtOnce) {
  const size_t n = 3 * kPieceBytes / sizeof(float) + 5;
  Shelf shelf, other;
  shelf.Put("a", {static_cast<int64_t>(n)}, Count(n));
  other.Put("a", {static_cast<int64_t>(n)}, std::vector<float>(n));
  const auto file = StageFile::Make(&shelf, All).value();
  ASSERT_TRUE(
      ForEachPiece(*file, kPieceBytes, [](absl::string_view) { return absl::OkStatus(); }).ok());
  EXPECT_LE(shelf.most(), kPieceBytes / sizeof(float) + 2);
  EXPECT_GT(shelf.most(), 0u);
  ASSERT_TRUE(FillStage({file.get()}, All, "weights", &other).ok());
  EXPECT_LE(other.most(), kPieceBytes / sizeof(float));
  EXPECT_EQ(other.values(0), shelf.values(0));
}

TEST(TensorFile, ComesBackAndNothingChangesWhereATensorIsMissing) {
  Shelf source;
  source.Put("transformer.a", {2, 3}, Count(6));
  source.Put("b", {2, 2}, Count(4));
  const std::string bytes = FileOf(source, All).value();
  const auto fill = [&](Shelf* stage) {
    const MemorySource file(bytes);
    return FillStage({&file}, All, "weights", stage);
  };
  Shelf missing;
  missing.Put("transformer.a", {2, 3}, std::vector<float>(6));
  missing.Put("c", {7}, std::vector<float>(7));
  EXPECT_EQ(fill(&missing).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(fill(&missing).message(), "weights: tensor c is missing");
  EXPECT_EQ(missing.values(0), std::vector<float>(6));
  Shelf another;
  another.Put("b", {7}, std::vector<float>(7));
  EXPECT_EQ(fill(&another).message(), "weights: tensor b is [2, 2] but the job's model needs [7]");
  Shelf same;
  same.Put("transformer.a", {2, 3}, std::vector<float>(6));
  same.Put("transformer.b", {2, 2}, std::vector<float>(4));  // it may lack its prefix
  ASSERT_TRUE(fill(&same).ok()) << fill(&same);
  EXPECT_EQ(same.values(0), Count(6));
  EXPECT_EQ(same.values(1), Count(4));
}

TEST(TensorFile, TypesAreConvertedOrRefused) {
  const uint16_t half[] = {0x3c00, 0xc000};
  const std::string bytes(reinterpret_cast<const char*>(half), sizeof half);
  for (const auto& [type, values] :
       {std::pair<std::string, std::vector<float>>{"F16", {1, -2}}, {"BF16", {0.0078125f, -2}}}) {
    const MemorySource file(WriteSafetensors({{"a", type, {2}, bytes}}, {}).value());
    Shelf shelf;
    shelf.Put("a", {2}, {0, 0});
    ASSERT_TRUE(FillStage({&file}, All, "weights", &shelf).ok());
    EXPECT_EQ(shelf.values(0), values) << type;
  }
  const MemorySource file(WriteSafetensors({{"a", "I16", {2}, bytes}}, {}).value());
  Shelf shelf;
  shelf.Put("a", {2}, {0, 0});
  EXPECT_EQ(FillStage({&file}, All, "weights", &shelf).message(),
            "weights: tensor a has type I16; convert it to F32, F16 or BF16");
  const MemorySource garbage("garbage");
  EXPECT_THAT(std::string(FillStage({&garbage}, All, "weights", &shelf).message()),
              HasSubstr("not a valid safetensors file"));
}

// Autoencoders and the outer momentum start anew where a checkpoint has none of their shape.
TEST(TensorFile, OwnTensorsStayWhereThereAreNone) {
  Shelf source;
  source.Put("isthmus.b", {3}, Count(3));
  const std::string bytes = FileOf(source, All).value();
  const MemorySource file(bytes);
  Shelf shelf;
  shelf.Put("isthmus.a", {1}, {7});
  shelf.Put("isthmus.b", {2}, {7, 8});
  ASSERT_TRUE(FillStage({&file}, All, "weights", &shelf).ok());
  EXPECT_EQ(shelf.values(0), (std::vector<float>{7}));
  EXPECT_EQ(shelf.values(1), (std::vector<float>{7, 8}));
}

TEST(TensorFile, EachTensorIsTheFirstFiles) {
  Shelf own, tied;
  own.Put("a", {1}, {1});
  own.Put("b", {1}, {2});
  tied.Put("b", {1}, {3});
  tied.Put("c", {1}, {4});
  const MemorySource first(FileOf(own, All).value()), second(FileOf(tied, All).value());
  Shelf shelf;
  for (const char* name : {"a", "b", "c"}) shelf.Put(name, {1}, {0});
  ASSERT_TRUE(FillStage({&first, &second}, All, "weights", &shelf).ok());
  EXPECT_EQ(shelf.values(0)[0], 1);
  EXPECT_EQ(shelf.values(1)[0], 2);
  EXPECT_EQ(shelf.values(2)[0], 4);
}

}  // namespace
}  // namespace isthmus::worker
