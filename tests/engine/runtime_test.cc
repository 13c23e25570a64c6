#include "worker/engine/runtime.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace isthmus::engine {
namespace {

using ::testing::HasSubstr;

TEST(Runtime, Devices) {
  EXPECT_TRUE(ParseDevice("cpu")->is_cpu());
  EXPECT_TRUE(ParseDevice("")->is_cpu());
  for (const char* bad : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1000", "cuda0"}) {
    EXPECT_EQ(ParseDevice(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Runtime, ExceptionsBecomeStatus) {
  const auto thrown = [](auto e) { return Guarded("layer 3", [&]() -> absl::Status { throw e; }); };
  EXPECT_EQ(thrown(std::bad_alloc()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(thrown(std::runtime_error("CUDA out of memory")).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(thrown(std::runtime_error("broken")).message(), "layer 3: broken");
  EXPECT_EQ(thrown(7).code(), absl::StatusCode::kInternal);
  const absl::Status torch = Guarded("view", []() -> absl::Status {
    at::empty({2, 3}).view({5});
    return absl::OkStatus();
  });
  EXPECT_EQ(torch.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(torch.message()), HasSubstr("view: shape '[5]' is invalid"));
  const absl::Status memory = Guarded("huge", []() -> absl::Status {
    at::empty({int64_t{1} << 50});
    return absl::OkStatus();
  });
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted) << memory;
}

}  // namespace
}  // namespace isthmus::engine
