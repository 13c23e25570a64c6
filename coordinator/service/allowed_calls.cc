#include "coordinator/service/allowed_calls.h"

namespace isthmus::coordinator {
namespace {

using tls::Role;

constexpr rpc::Roles kWorker = {Role::kWorker};
constexpr rpc::Roles kOperator = {Role::kOperator};
constexpr rpc::Roles kLooks = {Role::kOperator, Role::kViewer};
constexpr rpc::Roles kBulk = {Role::kWorker, Role::kOperator};

constexpr rpc::AllowedCall kCalls[] = {
    {"/isthmus.Control/Session", kWorker},
    {"/isthmus.Bulk/PutCheckpoint", kBulk},    // a worker: of its own rank; service/services.cc
    {"/isthmus.Bulk/FetchCheckpoint", kBulk},  // a worker: of jobs that are planned on it
    {"/isthmus.Bulk/Echo", kBulk},
    {"/isthmus.Bulk/Upload", kBulk},
    {"/isthmus.Bulk/Download", kBulk},
    {"/isthmus.Jobs/MakePlan", kLooks},
    {"/isthmus.Jobs/List", kLooks},
    {"/isthmus.Jobs/Status", kLooks},
    {"/isthmus.Jobs/Watch", kLooks},
    {"/isthmus.Jobs/Checkpoints", kLooks},
    {"/isthmus.Jobs/Nodes", kLooks},
    {"/isthmus.Jobs/NewJobId", kOperator},
    {"/isthmus.Jobs/Submit", kOperator},
    {"/isthmus.Jobs/Stop", kOperator},
    {"/isthmus.Jobs/Remove", kOperator},
    {"/isthmus.Jobs/Drain", kOperator},
    {"/isthmus.Jobs/Trace", kOperator},
    {"/isthmus.Comparisons/ComparePlans", kLooks},
    {"/isthmus.Security/Audit", kOperator},
    {"/isthmus.Security/Revoked", kWorker},
};

}  // namespace

absl::Span<const rpc::AllowedCall> AllowedCalls() { return kCalls; }

}  // namespace isthmus::coordinator
