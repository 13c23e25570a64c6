// The gRPC side of comparisons of plans. Thread: its calls run on gRPC's threads.
#ifndef ISTHMUS_COORDINATOR_SERVICE_COMPARISON_SERVICE_H_
#define ISTHMUS_COORDINATOR_SERVICE_COMPARISON_SERVICE_H_

#include <memory>

#include "coordinator/service/coordinator.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace isthmus::coordinator {

// `coordinator` outlives it.
std::unique_ptr<grpc::Service> MakeComparisonService(Coordinator* coordinator);

}  // namespace isthmus::coordinator

#endif  // ISTHMUS_COORDINATOR_SERVICE_COMPARISON_SERVICE_H_
