// What keeps an exception in the handler of a call from becoming gRPC's "Unexpected error in RPC
// handling": a Status with the name of the call. Thread: any.
#ifndef ISTHMUS_BASE_RPC_GUARDED_H_
#define ISTHMUS_BASE_RPC_GUARDED_H_

#include <exception>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "grpcpp/support/status.h"

namespace isthmus::rpc {

// Calls `handler`, which returns a grpc::Status. Out of memory is Unavailable: the caller may try
// again when others have ended.
template <typename F>
grpc::Status Guarded(const char* call, F handler) {
  std::string words;
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  try {
    return handler();
  } catch (const std::bad_alloc&) {
    code = grpc::StatusCode::UNAVAILABLE;
    words = absl::StrCat(call,
                         ": this process has no memory left for the call. Try again when it "
                         "has less to do, or give it more");
  } catch (const std::exception& error) {
    words = absl::StrCat(call, " failed: ", error.what());
  }
  LogError(words);
  return grpc::Status(code, words);
}

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_GUARDED_H_
