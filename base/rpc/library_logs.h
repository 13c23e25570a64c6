// What gRPC and protobuf say by themselves goes through base/log. Their errors come back to us as a
// Status or a broken call, which the program tells in its own words and once: so their lines are
// for --log-level debug. What comes before an abort stays an error.
// Thread: once, in main(), after InitLogging and before other threads start.
#ifndef ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_
#define ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_

namespace isthmus::rpc {

void RouteLibraryLogs();

// gRPC shuts itself down with its last server or channel, and then waits for its own threads, which
// may sit in a poll of up to 10 s. A program that is told to end can't wait for that: afterwards
// gRPC stays until the process ends.
void KeepGrpcUntilExit();

}  // namespace isthmus::rpc

#endif  // ISTHMUS_BASE_RPC_LIBRARY_LOGS_H_
