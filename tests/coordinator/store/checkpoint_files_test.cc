#include "coordinator/store/checkpoint_files.h"

#include <filesystem>
#include <functional>

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

std::string Text(int stage) { return stage == 0 ? "{}" : "{ }"; }

CheckpointManifest Sample() {
  CheckpointManifest manifest;
  manifest.job_id = "bible-1";
  manifest.step = 40;
  manifest.generation = 7;
  manifest.stages = 2;
  for (int s = 0; s < 2; ++s) {
    for (const char* file : kCheckpointFiles) {
      const std::string text = Text(s);
      manifest.files[absl::StrCat(StageName(s), "/", file)] = {static_cast<int64_t>(text.size()),
                                                               Hash64(text)};
    }
  }
  return manifest;
}
const CheckpointIdentity kSample{"bible-1", 40, 7};

void WriteFiles(const std::string& dir) {
  for (const auto& [path, file] : Sample().files) {
    fs::create_directories(fs::path(dir) / fs::path(path).parent_path());
    ASSERT_TRUE(WriteFileDurably(absl::StrCat(dir, "/", path), Text(path[8] - '0')).ok());
  }
}

TEST(CheckpointManifest, IsReadAsItWasWritten) {
  TempDirectory scratch;
  EXPECT_EQ(CheckpointManifest::Read(scratch.path()).status().code(), absl::StatusCode::kNotFound);
  const CheckpointManifest manifest = Sample();
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/manifest.json", manifest.ToJson()).ok());
  const auto read = CheckpointManifest::Read(scratch.path());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->ToJson(), manifest.ToJson());
  EXPECT_EQ(read->bytes(), 15);
}

// Local steps: what further replicas have is named by how many there are. One of an older
// coordinator says nothing of replicas.
TEST(CheckpointManifest, OfReplicas) {
  CheckpointManifest manifest = Sample();
  EXPECT_EQ(manifest.ToJson().find("replicas"), std::string::npos);
  manifest.replicas = 2;
  EXPECT_THAT(std::string(CheckIdentity(manifest, kSample).message()),
              HasSubstr("does not name stage-000/replica-001-optimizer.safetensors"));
  for (int s = 0; s < 2; ++s) {
    for (const std::string& file : PartNames(1, false))
      manifest.files[absl::StrCat(StageName(s), "/", file)] = {2, 3};
  }
  EXPECT_TRUE(CheckIdentity(manifest, kSample).ok()) << CheckIdentity(manifest, kSample);
  TempDirectory scratch;
  ASSERT_TRUE(WriteFileDurably(scratch.path() + "/manifest.json", manifest.ToJson()).ok());
  EXPECT_EQ(CheckpointManifest::Read(scratch.path())->replicas, 2);
  manifest.replicas = 1;
  EXPECT_THAT(std::string(CheckIdentity(manifest, kSample).message()),
              HasSubstr("names stage-000/replica-001-optimizer.safetensors"));
}

TEST(CheckpointManifest, WhatIsNotOneIsRefused) {
  TempDirectory scratch;
  for (const char* text :
       {"", "[]", "null", "{}", "{\"files\": 7}",
        R"({"files": {}, "generation": 1, "stages": -1, "step": 1})",
        R"({"files": {}, "generation": 1, "stages": 257, "step": 1})",
        R"({"files": {}, "generation": 1, "stages": 1, "step": 1, "replicas": 257})",
        R"({"files": {}, "generation": 1, "stages": 1, "step": 1, "replicas": "2"})",
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
  WriteFiles(dir);
  ASSERT_TRUE(WriteFileDurably(dir + "/stage-001/state.json", "{ ]").ok());
  EXPECT_TRUE(CheckCheckpoint(dir, kSample, false, nullptr).ok()) << "the sizes are right";
  const auto words = [&](bool contents) {
    return std::string(CheckCheckpoint(dir, kSample, contents, nullptr).message());
  };
  EXPECT_THAT(words(true), HasSubstr("stage-001/state.json is damaged: its 3 bytes have the"));
  ASSERT_TRUE(WriteFileDurably(dir + "/stage-001/state.json", "{ }").ok());
  EXPECT_TRUE(CheckCheckpoint(dir, kSample, true, nullptr).ok());
  fs::resize_file(dir + "/stage-001/state.json", 2);
  EXPECT_THAT(words(false), HasSubstr("it has 2 bytes, manifest.json says 3"));
  fs::remove(dir + "/stage-000/state.json");
  EXPECT_THAT(words(false), HasSubstr("stage-000/state.json is damaged: opening"));
  fs::remove(dir + "/manifest.json");
  EXPECT_THAT(words(false), HasSubstr("manifest.json is damaged"));
}

// Checkpoints that were copied or renamed by hand, or put together from several, were taken.
TEST(CheckCheckpoint, WhatIsAnotherOneByItsNameIsRefused) {
  TempDirectory scratch;
  const std::string dir = scratch.path();
  WriteFiles(dir);
  const auto words = [&](const CheckpointIdentity& identity,
                         const std::function<void(CheckpointManifest*)>& change = nullptr) {
    CheckpointManifest manifest = Sample();
    if (change) change(&manifest);
    EXPECT_TRUE(WriteFileDurably(dir + "/manifest.json", manifest.ToJson()).ok());
    const absl::Status status = CheckCheckpoint(dir, identity, true, nullptr);
    EXPECT_EQ(status.ok(), CheckIdentity(manifest, identity).ok());
    EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(words(kSample), "");
  EXPECT_EQ(words({"bible-1", 40, {}}), "") << "its generation is not known yet";
  EXPECT_EQ(words(kSample, [](CheckpointManifest* m) { m->job_id.clear(); }), "")
      << "of an older version";
  EXPECT_THAT(words({"bible-1", 50, 7}),
              HasSubstr("manifest.json is that of checkpoint 40 of job bible-1: the directory was "
                        "copied or renamed by hand. It can be used in its own place, "
                        "bible-1/step-00000040"));
  EXPECT_THAT(words({"novel-2", 40, 7}), HasSubstr("its own place, bible-1/step-00000040"));
  EXPECT_THAT(words({"bible-1", 40, 8}), HasSubstr("is of generation 7, and the checkpoint was "
                                                   "stored by 8: another one was copied"));
  EXPECT_THAT(words(kSample, [](CheckpointManifest* m) { m->stages = 1; }),
              HasSubstr("names stage-001/optimizer.safetensors, though it says 1 stages"));
  EXPECT_THAT(words(kSample, [](CheckpointManifest* m) { m->stages = 3; }),
              HasSubstr("does not name stage-002/optimizer.safetensors, though it says 3 stages"));
  EXPECT_THAT(words(kSample, [](CheckpointManifest* m) { m->stages = 0; }),
              HasSubstr("says 0 stages"));
  EXPECT_THAT(words({"bible-1", 40, 0}, [](CheckpointManifest* m) { m->generation = 0; }),
              HasSubstr("of generation 0: it is not as it was written"));
  EXPECT_THAT(words(kSample, [](CheckpointManifest* m) { m->files.clear(); }),
              HasSubstr("does not name stage-000/"));
  EXPECT_EQ(words(kSample), "");
  for (const char* folder : {"stage-002", "stage-1"}) {
    fs::create_directories(absl::StrCat(dir, "/", folder));
    EXPECT_THAT(std::string(CheckCheckpoint(dir, kSample, true, nullptr).message()),
                HasSubstr(absl::StrCat("there is a folder ", folder)));
    fs::remove(absl::StrCat(dir, "/", folder));
  }
  ASSERT_TRUE(WriteFileDurably(dir + "/notes.txt", "mine").ok());
  EXPECT_EQ(words(kSample), "");
}

// Two stages, of which the second hides what it holds behind a damaged header.
TEST(CheckpointReader, ADamagedHeaderIsFoundAlsoWhereItHidesATensor) {
  TempDirectory scratch;
  const std::string dir = scratch.path();
  CheckpointManifest manifest = Sample();
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
    ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(dir, kSample, request));
    return reader->Verify(nullptr);
  };
  EXPECT_TRUE(verify("w0").ok()) << "the other stage's file is not needed";
  EXPECT_EQ(verify("w1").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(verify("w7").code(), absl::StatusCode::kFailedPrecondition);
  FetchCheckpointRequest request;
  request.set_what("../../etc/passwd");
  EXPECT_EQ(CheckpointReader::Open(dir, kSample, request).status().code(),
            absl::StatusCode::kInvalidArgument);
  request.set_what("weights");
  EXPECT_EQ(CheckpointReader::Open(dir, {"bible-1", 50, 7}, request).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace isthmus::coordinator
