#include "coordinator/service/comparison_service.h"

#include "absl/strings/str_cat.h"
#include "base/rpc/channel.h"
#include "base/rpc/guarded.h"
#include "base/status.h"
#include "coordinator/planner/compare.h"
#include "proto/comparison_service.grpc.pb.h"
#include "proto/valid_text.h"

namespace isthmus::coordinator {
namespace {

constexpr size_t kMaxErrorBytes = 3000;  // an error travels in the headers

// Of a new job on the daemons that are free; where these are too few, also on busy ones.
absl::StatusOr<PlanComparison> Compare(const PlanRequest& request, const Cancelled& cancelled,
                                       Submission* submission) {
  if (request.resume()) {
    return absl::InvalidArgumentError(
        "plans are compared of a new job: leave out one of --compare and --resume");
  }
  ASSIGN_OR_RETURN(const PlannerViews views, submission->ViewsOf(request.job(), cancelled));
  absl::StatusOr<PlanComparison> free = ComparePlans(views.free);
  if (free.ok() || views.all.topology.nodes_size() <= views.free.topology.nodes_size()) return free;
  absl::StatusOr<PlanComparison> all = ComparePlans(views.all);
  if (!all.ok()) return free;
  all->add_notes(absl::StrCat("these plans use daemons that are busy now: ",
                              free.status().message().substr(0, kMaxErrorBytes)));
  return all;
}

class ComparisonService final : public Comparisons::Service {
 public:
  explicit ComparisonService(Coordinator* coordinator) : coordinator_(coordinator) {}

  grpc::Status ComparePlans(grpc::ServerContext* context, const PlanRequest* request,
                            PlanComparison* reply) override {
    return rpc::Guarded("ComparePlans", [&] {
      const absl::StatusOr<PlanComparison> compared = Compare(
          *request, [context] { return context->IsCancelled(); }, coordinator_->submission());
      if (!compared.ok()) {
        return rpc::ToGrpc(absl::Status(compared.status().code(),
                                        compared.status().message().substr(0, kMaxErrorBytes)));
      }
      *reply = WithValidText(*compared);
      return grpc::Status::OK;
    });
  }

 private:
  Coordinator* const coordinator_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeComparisonService(Coordinator* coordinator) {
  return std::make_unique<ComparisonService>(coordinator);
}

}  // namespace isthmus::coordinator
