// A Store whose disk may be full. Thread: any.
#ifndef ISTHMUS_TESTS_COORDINATOR_SERVICE_REFUSING_STORE_H_
#define ISTHMUS_TESTS_COORDINATOR_SERVICE_REFUSING_STORE_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/store.h"

namespace isthmus::coordinator {

class RefusingStore : public Store {
 public:
  explicit RefusingStore(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  absl::StatusOr<uint64_t> NextGeneration() override { return store_->NextGeneration(); }
  absl::StatusOr<uint64_t> NextJobNumber() override { return store_->NextJobNumber(); }
  absl::Status StartAfter(uint64_t generation, uint64_t job_number) override {
    return store_->StartAfter(generation, job_number);
  }
  absl::Status Write(const StoreBatch& batch) override {
    if (full && !batch.empty()) {
      ++refused;
      return absl::ResourceExhaustedError("the disk is full");
    }
    return store_->Write(batch);
  }
  absl::StatusOr<StoreContents> Load() override { return store_->Load(); }
  absl::StatusOr<std::vector<JobRecord>> Records(const std::string& job_id, int64_t from_step,
                                                 int limit) override {
    return store_->Records(job_id, from_step, limit);
  }

  std::atomic<bool> full{false};
  std::atomic<int> refused{0};

 private:
  const std::unique_ptr<Store> store_;
};

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_TESTS_COORDINATOR_SERVICE_REFUSING_STORE_H_
