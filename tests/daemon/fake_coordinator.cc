#include "tests/daemon/fake_coordinator.h"

#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rpc/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "proto/control_service.grpc.pb.h"

namespace isthmus::daemon {
namespace {

using SessionStream = grpc::ServerReaderWriter<CoordinatorMessage, DaemonMessage>;

}  // namespace

struct FakeCoordinator::State : public Control::Service, public Bulk::Service {
  grpc::Status Session(grpc::ServerContext* context, SessionStream* stream) override {
    DaemonMessage message;
    if (!stream->Read(&message) || !message.has_register_())
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no registration");
    {
      // Answered before the test can see the registration and speak on this stream.
      MutexLock lock(&mutex);
      CoordinatorMessage answer;
      if (refuse.empty()) {
        answer.mutable_registered()->set_heartbeat_ms(heartbeat_ms);
      } else {
        answer.set_refuse(refuse);
      }
      stream->Write(answer);
      if (refuse.empty()) {
        newest = stream;
        contexts.insert(context);
      }
      ++registrations;
      messages.push_back(message);
      changed.SignalAll();
    }
    while (stream->Read(&message)) {
      MutexLock lock(&mutex);
      messages.push_back(message);
      changed.SignalAll();
    }
    MutexLock lock(&mutex);
    contexts.erase(context);
    if (newest == stream) newest = nullptr;
    return grpc::Status::OK;
  }

  bool Fails(grpc::Status* status) {
    MutexLock lock(&mutex);
    if (bulk_failures == 0) return false;
    --bulk_failures;
    *status = rpc::ToGrpc(bulk_failure);
    return true;
  }

  grpc::Status PutCheckpoint(grpc::ServerContext* context,
                             grpc::ServerReader<PutCheckpointChunk>* reader,
                             PutCheckpointReply* reply) override {
    grpc::Status failure;
    if (Fails(&failure)) return failure;
    PutCheckpointChunk chunk;
    if (!reader->Read(&chunk) || !chunk.has_header())
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no header");
    const PutCheckpointHeader header = chunk.header();
    std::string bytes;
    while (reader->Read(&chunk)) bytes += chunk.data();
    if (static_cast<int64_t>(bytes.size()) != header.file_bytes() ||
        Hash64(bytes) != header.checksum()) {
      return grpc::Status(grpc::StatusCode::DATA_LOSS, "size or checksum");
    }
    MutexLock lock(&mutex);
    const std::string name = absl::StrCat(header.step(), "/", header.stage(), "/", header.file());
    files[name] = bytes;
    headers[name] = header;
    return grpc::Status::OK;
  }

  grpc::Status FetchCheckpoint(grpc::ServerContext* context, const FetchCheckpointRequest* request,
                               grpc::ServerWriter<FetchCheckpointChunk>* writer) override {
    grpc::Status failure;
    if (Fails(&failure)) return failure;
    std::string bytes;
    bool bad = false;
    {
      MutexLock lock(&mutex);
      bytes = answer;
      bad = damaged;
    }
    FetchCheckpointChunk chunk;
    for (const LocalPart& part : request->have()) {
      MutexLock lock(&mutex);
      const auto mine =
          files.find(absl::StrCat(request->step(), "/", part.stage(), "/", part.file()));
      if (mine == files.end() || Hash64(mine->second) != part.checksum()) continue;
      chunk.set_use_local(true);
      writer->Write(chunk);
      return grpc::Status::OK;
    }
    chunk.set_total_bytes(static_cast<int64_t>(bytes.size()));
    constexpr size_t kPiece = 100'000;
    for (size_t at = 0; at < bytes.size() || at == 0; at += kPiece) {
      chunk.set_data(bytes.substr(at, kPiece));
      if (at + kPiece >= bytes.size()) chunk.set_checksum(Hash64(bytes) + (bad ? 1 : 0));
      writer->Write(chunk);
      chunk.Clear();
    }
    return grpc::Status::OK;
  }

  grpc::Status Echo(grpc::ServerContext*, const ProbeRequest*, ProbeReply*) override {
    return grpc::Status::OK;
  }

  grpc::Status Upload(grpc::ServerContext*, grpc::ServerReader<ProbeRequest>* reader,
                      ProbeReply* reply) override {
    grpc::Status failure;
    if (Fails(&failure)) return failure;
    ProbeRequest message;
    int64_t bytes = 0;
    while (reader->Read(&message)) bytes += static_cast<int64_t>(message.ByteSizeLong());
    MutexLock lock(&mutex);
    probe_bytes += bytes;
    reply->set_received_bytes(bytes);  // 4 Mbit/s, whatever the clock says
    reply->set_elapsed_s(static_cast<double>(bytes) * 8 / 4e6);
    reply->set_tail_bytes(bytes / 2);
    reply->set_tail_s(reply->elapsed_s() / 2);
    return grpc::Status::OK;
  }

  grpc::Status Download(grpc::ServerContext*, const ProbeRequest* request,
                        grpc::ServerWriter<ProbeReply>* writer) override {
    ProbeReply reply;
    reply.mutable_padding()->resize(static_cast<size_t>(request->reply_bytes() / 16));
    for (int i = 0; i < 16; ++i) writer->Write(reply);
    MutexLock lock(&mutex);
    probe_bytes += request->reply_bytes();
    return grpc::Status::OK;
  }

  Mutex mutex;
  CondVar changed;
  int64_t probe_bytes ABSL_GUARDED_BY(mutex) = 0;
  std::string refuse ABSL_GUARDED_BY(mutex);
  int64_t heartbeat_ms ABSL_GUARDED_BY(mutex) = 50;
  int registrations ABSL_GUARDED_BY(mutex) = 0;
  std::vector<DaemonMessage> messages ABSL_GUARDED_BY(mutex);
  SessionStream* newest ABSL_GUARDED_BY(mutex) = nullptr;
  std::set<grpc::ServerContext*> contexts ABSL_GUARDED_BY(mutex);
  int bulk_failures ABSL_GUARDED_BY(mutex) = 0;
  absl::Status bulk_failure ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::string> files ABSL_GUARDED_BY(mutex);
  std::map<std::string, PutCheckpointHeader> headers ABSL_GUARDED_BY(mutex);
  std::string answer ABSL_GUARDED_BY(mutex);
  bool damaged ABSL_GUARDED_BY(mutex) = false;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

FakeCoordinator::FakeCoordinator(int port) : state_(std::make_unique<State>()) {
  // A port that a test used a moment ago may still be held by the closing of its connections.
  for (int attempt = 0; attempt < 200 && state_->server == nullptr; ++attempt) {
    grpc::ServerBuilder builder;
    rpc::ConfigureServer(&builder);
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(),
                             &state_->port);
    builder.RegisterService(static_cast<Control::Service*>(state_.get()));
    builder.RegisterService(static_cast<Bulk::Service*>(state_.get()));
    state_->server = builder.BuildAndStart();
  }
  ISTHMUS_CHECK(state_->server != nullptr);
}

FakeCoordinator::~FakeCoordinator() { state_->server->Shutdown(std::chrono::system_clock::now()); }

int FakeCoordinator::port() const { return state_->port; }
std::string FakeCoordinator::address() const { return absl::StrCat("127.0.0.1:", state_->port); }

void FakeCoordinator::set_refuse(const std::string& why) {
  MutexLock lock(&state_->mutex);
  state_->refuse = why;
}

void FakeCoordinator::set_heartbeat_ms(int64_t ms) {
  MutexLock lock(&state_->mutex);
  state_->heartbeat_ms = ms;
}

void FakeCoordinator::FailBulk(int times, absl::Status status) {
  MutexLock lock(&state_->mutex);
  state_->bulk_failures = times;
  state_->bulk_failure = std::move(status);
}

int FakeCoordinator::failures_left() const {
  MutexLock lock(&state_->mutex);
  return state_->bulk_failures;
}

void FakeCoordinator::BreakSessions() {
  MutexLock lock(&state_->mutex);
  for (grpc::ServerContext* context : state_->contexts) context->TryCancel();
}

void FakeCoordinator::Say(const CoordinatorMessage& message) {
  MutexLock lock(&state_->mutex);
  ISTHMUS_CHECK(state_->newest != nullptr);
  state_->newest->Write(message);
}

bool FakeCoordinator::WaitFor(
    const std::function<bool(const std::vector<DaemonMessage>&)>& enough) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  MutexLock lock(&state_->mutex);
  while (!enough(state_->messages)) {
    if (!state_->changed.WaitUntil(&state_->mutex, deadline)) return false;
  }
  return true;
}

std::vector<DaemonMessage> FakeCoordinator::messages() const {
  MutexLock lock(&state_->mutex);
  return state_->messages;
}

int FakeCoordinator::registrations() const {
  MutexLock lock(&state_->mutex);
  return state_->registrations;
}

std::map<std::string, PutCheckpointHeader> FakeCoordinator::headers() const {
  MutexLock lock(&state_->mutex);
  return state_->headers;
}

std::map<std::string, std::string> FakeCoordinator::files() const {
  MutexLock lock(&state_->mutex);
  return state_->files;
}

int64_t FakeCoordinator::probe_bytes() const {
  MutexLock lock(&state_->mutex);
  return state_->probe_bytes;
}

void FakeCoordinator::PutAnswer(const std::string& bytes, bool damaged) {
  MutexLock lock(&state_->mutex);
  state_->answer = bytes;
  state_->damaged = damaged;
}

bool HasEvent(const std::vector<DaemonMessage>& messages, SessionEvent::State state) {
  for (const DaemonMessage& message : messages) {
    if (message.has_session() && message.session().state() == state) return true;
  }
  return false;
}

bool HasStep(const std::vector<DaemonMessage>& messages, int64_t step) {
  for (const DaemonMessage& message : messages) {
    if (message.has_step() && message.step().step() == step) return true;
  }
  return false;
}

}  // namespace isthmus::daemon
