#include "coordinator/store/checkpoint_files.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file/durable_file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_directory.h"

namespace isthmus::coordinator {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

CheckpointManifest Sample() {
  CheckpointManifest manifest;
  manifest.job_id = "bible-1";
  manifest.step = 40;
  manifest.generation = 7;
  manifest.stages = 2;
  manifest.files["stage-000/state.json"] = {2, Hash64("{}")};
  manifest.files["stage-001/state.json"] = {3, Hash64("{ }")};
  return manifest;
}

TEST(CheckpointManifest, IsReadAsItWasWritten) {
  TempDirectory scratch;
  EXPECT_EQ(CheckpointManifest::Read(scratch.path()).status().code(), absl::StatusCode::kNotFound);
  const CheckpointManifest manifest = Sample();
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/manifest.json", manifest.ToJson()).ok());
  const auto read = CheckpointManifest::Read(scratch.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToJson(), manifest.ToJson());
  EXPECT_EQ(read->bytes(), 5);
}

TEST(CheckpointManifest, WhatIsNotOneIsRefused) {
  TempDirectory scratch;
  for (const char* text : {"", "[]", "null", "{}", "{\"files\": 7}",
                           R"({"files": {}, "generation": 1, "stages": -1, "step": 1})",
                           R"({"files": {}, "generation": 1, "stages": 257, "step": 1})",
                           R"({"files": {}, "generation": 1, "stages": 1, "step": "1"})",
                           R"({"files": {}, "generation": 1.5, "stages": 1, "step": 1})"}) {
    ASSERT_TRUE(WriteFileDurably(scratch.path() + "/manifest.json", text).ok());
    EXPECT_EQ(CheckpointManifest::Read(scratch.path()).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << text;
  }
}

TEST(CheckCheckpoint, SizesAtOnceContentsOnDemand) {
  TempDirectory scratch;
  const std::string dir = scratch.path();
  ASSERT_TRUE(WriteFileDurably(dir + "/manifest.json", Sample().ToJson()).ok());
  for (const char* stage : {"/stage-000", "/stage-001"}) fs::create_directories(dir + stage);
  ASSERT_TRUE(WriteFileDurably(dir + "/stage-000/state.json", "{}").ok());
  ASSERT_TRUE(WriteFileDurably(dir + "/stage-001/state.json", "{ ]").ok());
  EXPECT_TRUE(CheckCheckpoint(dir, false, nullptr).ok()) << "the sizes are right";
  const auto words = [&](bool contents) {
    return std::string(CheckCheckpoint(dir, contents, nullptr).message());
  };
  EXPECT_THAT(words(true), HasSubstr("stage-001/state.json is damaged: its 3 bytes have the"));
  ASSERT_TRUE(WriteFileDurably(dir + "/stage-001/state.json", "{ }").ok());
  EXPECT_TRUE(CheckCheckpoint(dir, true, nullptr).ok());
  fs::resize_file(dir + "/stage-001/state.json", 2);
  EXPECT_THAT(words(false), HasSubstr("it has 2 bytes, manifest.json says 3"));
  fs::remove(dir + "/stage-000/state.json");
  EXPECT_THAT(words(false), HasSubstr("stage-000/state.json is damaged: opening"));
  fs::remove(dir + "/manifest.json");
  EXPECT_THAT(words(false), HasSubstr("manifest.json is damaged"));
}

// Two stages, of which the second hides what it holds behind a damaged header.
TEST(CheckpointReader, ADamagedHeaderIsFoundAlsoWhereItHidesATensor) {
  TempDirectory scratch;
  const std::string dir = scratch.path();
  CheckpointManifest manifest;
  manifest.stages = 2;
  for (int s = 0; s < 2; ++s) {
    const std::string bytes =
        WriteSafetensors({{absl::StrCat("w", s), "F32", {1}, "1234"}}, {}).value();
    fs::create_directories(absl::StrCat(dir, "/", StageName(s)));
    const std::string path = absl::StrCat(StageName(s), "/weights.safetensors");
    manifest.files[path] = {static_cast<int64_t>(bytes.size()), Hash64(bytes)};
    std::string stored = bytes;
    if (s == 1) stored[stored.find("w1") + 1] = '7';
    ASSERT_TRUE(WriteFileDurably(absl::StrCat(dir, "/", path), stored).ok());
  }
  ASSERT_TRUE(WriteFileDurably(dir + "/manifest.json", manifest.ToJson()).ok());
  const auto verify = [&](const char* tensor) -> absl::Status {
    FetchCheckpointRequest request;
    request.set_what("weights");
    request.add_tensors(tensor);
    ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(dir, request));
    return reader->Verify(nullptr);
  };
  EXPECT_TRUE(verify("w0").ok()) << "the other stage's file is not needed";
  EXPECT_EQ(verify("w1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(verify("w7").code(), absl::StatusCode::kFailedPrecondition);
  FetchCheckpointRequest request;
  request.set_what("../../etc/passwd");
  EXPECT_EQ(CheckpointReader::Open(dir, request).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace isthmus::coordinator
