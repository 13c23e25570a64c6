// What gRPC and protobuf say by themselves goes through base/log. Their errors come back to us as a
// Status or a broken call, which the program tells in its own words and once: so their lines are
// for --log-level debug. What comes before an abort stays an error.
// Thread: once, in main(), after InitLogging and before other threads start.
#ifndef ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_
#define ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_

namespace isthmus::rpc {

void RouteLibraryLogs();

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_
