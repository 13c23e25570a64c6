#include "base/rpc/library_logs.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"

namespace isthmus::rpc {
namespace {

void FromGrpc(gpr_log_func_args* line) {
  const bool aborts = absl::StartsWith(line->message, "assertion failed");
  LogMessage(aborts ? LogLevel::kError : LogLevel::kDebug, absl::StrCat("grpc: ", line->message));
}

void FromProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  const bool aborts = level == google::protobuf::LOGLEVEL_FATAL;
  LogMessage(aborts ? LogLevel::kError : LogLevel::kDebug, absl::StrCat("protobuf: ", message));
}

}  // namespace

void RouteLibraryLogs() {
  gpr_log_verbosity_init();  // before it gRPC says nothing, and it is begun with the first channel
  gpr_set_log_function(FromGrpc);
  google::protobuf::SetLogHandler(FromProtobuf);
}

void KeepGrpcUntilExit() { grpc_init(); }

}  // namespace isthmus::rpc
