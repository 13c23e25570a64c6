// A CheckpointStore in a scratch directory, with checkpoints of two stages. Thread: one owner.
#ifndef ISTHMUS_TESTS_COORDINATOR_STORE_CHECKPOINT_STORE_FIXTURE_H_
#define ISTHMUS_TESTS_COORDINATOR_STORE_CHECKPOINT_STORE_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file/random_access_file.h"
#include "base/safetensors.h"
#include "base/status.h"
#include "coordinator/store/checkpoint_store.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {

constexpr int kStages = 2;
inline constexpr const auto& kFiles = kCheckpointFiles;

inline std::string Tensor(const std::string& name, float value) {
  const float data[2] = {value, value};
  return WriteSafetensors({{name, "F32", {2}, {reinterpret_cast<const char*>(data), sizeof(data)}}},
                          {})
      .value();
}

inline std::string Contents(const std::string& file, int stage, float value) {
  if (file == "state.json") return absl::StrCat("{\"value\": ", value, "}");
  return Tensor(absl::StrCat("h.", stage, ".w", file[0] == 'o' ? ".exp_avg" : ""), value);
}

inline std::string ReadAll(const std::string& path) {
  const auto file = RandomAccessFile::Open(path);
  std::string bytes(file.ok() ? static_cast<size_t>(file->bytes()) : 0, '\0');
  EXPECT_TRUE(file.ok() && file->ReadAt(0, bytes.size(), bytes.data()).ok()) << path;
  return bytes;
}

class CheckpointStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<CheckpointStore> Open(CheckpointOptions options = {}) {
    auto store = CheckpointStore::Open(scratch_.path() + "/checkpoints", std::move(options));
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  static PutCheckpointHeader Header(int64_t step, int stage, const std::string& file,
                                    const std::string& bytes, uint64_t generation = 1) {
    PutCheckpointHeader h;
    h.set_job_id("job-1");
    h.set_generation(generation);
    h.set_step(step);
    h.set_stage(stage);
    h.set_stages(generation == 0 ? 1 : kStages);
    h.set_file(file);
    h.set_file_bytes(bytes.size());
    h.set_checksum(Hash64(bytes));
    return h;
  }
  static absl::StatusOr<bool> Put(CheckpointStore* store, int64_t step, int stage,
                                  const std::string& file, float value, uint64_t generation = 1) {
    const std::string bytes = Contents(file, stage, value);
    auto part = store->Begin(Header(step, stage, file, bytes, generation));
    if (!part.ok()) return part.status();
    for (size_t at = 0; at < bytes.size(); at += 7) {
      const absl::Status appended = (*part)->Append(absl::string_view(bytes).substr(at, 7));
      if (!appended.ok()) return appended;
    }
    return (*part)->Finish();
  }
  static bool PutAll(CheckpointStore* store, int64_t step, float value, uint64_t generation = 1) {
    bool complete = false;
    for (int s = 0; s < kStages; ++s) {
      for (const char* file : kFiles)
        complete = Put(store, step, s, file, value, generation).value();
    }
    return complete;
  }
  // The whole answer, read in pieces of an odd size.
  static absl::StatusOr<std::string> Fetch(CheckpointStore* store,
                                           const FetchCheckpointRequest& request, int64_t* step) {
    ASSIGN_OR_RETURN(const auto reader, store->Read(request, nullptr, step));
    std::string all, piece;
    do {
      RETURN_IF_ERROR(reader->Read(13, &piece));
      all += piece;
    } while (!piece.empty());
    EXPECT_EQ(reader->total_bytes(), static_cast<int64_t>(all.size()));
    EXPECT_EQ(reader->checksum(), Hash64(all));
    return all;
  }
  static absl::StatusOr<float> Value(CheckpointStore* store, int64_t step,
                                     const std::string& tensor,
                                     const std::string& what = "weights") {
    FetchCheckpointRequest request;
    request.set_job_id("job-1");
    request.set_step(step);
    request.set_what(what);
    request.add_tensors(tensor);
    auto bytes = Fetch(store, request, &step);
    if (!bytes.ok()) return bytes.status();
    return ToFloats(ParseSafetensors(*bytes).value().at(tensor)).value()[0];
  }
  std::string JobDir() { return scratch_.path() + "/checkpoints/job-1"; }

  TempDirectory scratch_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_STORE_CHECKPOINT_STORE_FIXTURE_H_
