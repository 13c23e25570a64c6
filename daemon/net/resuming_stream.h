// A LinkStream that outlives its connection: what was under way when the connection broke is sent
// again over the next one, so that the other end reads every chunk once and in order.
//
// Each end counts the chunks of either direction. It keeps what it wrote until it is told that the
// other end has read it: a chunk with neither `what` nor data, whose `sequence` is how many have
// been read (every kTellBytes or so). Where the connection breaks, a thread asks the Redialler for
// another one, over which both ends say how far they got. Reads and writes wait meanwhile.
//
// Only a connection that broke is mended (LinkStream::may_resume). What the peer said is final, as
// are an error that was read or written, Kill, and a Redialler that gives up: then reads and writes
// return false, and WhyBroken() says why. What is kept never holds writing up, which could block
// both ends for good: beyond log_bytes the oldest chunks go, and a break that would need them is
// final.
//
// Thread: as LinkStream says, Interrupt from any; one thread of its own. Limits: log_bytes and one
// chunk kept.
#ifndef ISTHMUS_DAEMON_NET_RESUMING_STREAM_H_
#define ISTHMUS_DAEMON_NET_RESUMING_STREAM_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "daemon/net/link_stream.h"

namespace isthmus::daemon {

// How often links went on over another connection.
inline constexpr char kReconnects[] = "isthmus_link_reconnects_total";
inline constexpr char kReconnectsHelp[] =
    "Broken connections to other daemons that were mended while the session went on.";

// Where the next connection comes from. Thread: Redial from one thread, Cancel from any.
class Redialler {
 public:
  struct Connection {
    std::unique_ptr<LinkStream> stream;  // hellos have been exchanged
    uint64_t received = 0;               // of this end's chunks, that have come there
  };
  virtual ~Redialler() = default;
  // `interrupt` is called where the other end knows of a break that this one has not seen, and with
  // its redial, of how many chunks it has: an error refuses that. It must not come back here. Once,
  // before the first Redial; none comes after the destructor.
  using Interrupt = std::function<absl::Status(std::optional<uint64_t> received)>;
  virtual void OnInterrupt(Interrupt interrupt) = 0;
  // What Redial wants to know beforehand; may take seconds. Once, by Redial's thread, before it.
  virtual void Prepare() {}
  // Waits for the next connection, within a limit of its own. `received`: chunks that have come
  // here. An error is final.
  virtual absl::StatusOr<Connection> Redial(uint64_t received) = 0;
  // Redial ends soon, now and later. Does not wait.
  virtual void Cancel() = 0;
};

struct ResumingOptions {
  int64_t log_bytes = 0;
  std::string words;  // which link: "link b0 to node-b"
  // Told in words that it broke, and with none that it has gone on for `settled` (what breaks again
  // before is not told again), by the stream's thread; or null.
  std::function<void(const std::string& trouble)> tell;
  std::chrono::milliseconds settled{1000};
};

class ResumingStream : public LinkStream {
 public:
  static constexpr int64_t kTellBytes = 256 << 10;
  static constexpr int64_t kChunkOverheadBytes = 128;  // what a kept chunk counts beside its bytes

  ResumingStream(ResumingOptions options, std::unique_ptr<LinkStream> stream,
                 std::unique_ptr<Redialler> redialler);
  ~ResumingStream() override;

  bool Read(LinkChunk* chunk) override;
  bool Write(const LinkChunk& chunk) override;
  void Kill(const absl::Status& why) override;
  bool kill_tells_why() const override { return kill_tells_why_; }
  absl::Status WhyBroken() override;
  absl::Status End(const absl::Status& mine) override;
  int64_t mended() const override;

  int64_t log_bytes() const;

 private:
  using Stream = std::shared_ptr<LinkStream>;

  absl::Status Interrupt(std::optional<uint64_t> received);
  // FailedPrecondition: what the other end lacks is not kept, or it has more than was sent.
  absl::Status CanGoOn(uint64_t received) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Redial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refuse(std::unique_ptr<LinkStream> stream, absl::Status why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GoOn(Redialler::Connection next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes what is due, while the connection lasts. Nobody else writes meanwhile.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CountIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Due() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Takes(LinkChunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // false: it was no news
  void Told(uint64_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the oldest that is kept
  void Trim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `stream` failed: it is to be replaced, or all ends.
  void Broke(const Stream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Done with it, which waits for its call's end if nobody else has it: not under the mutex.
  void Release(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Lose(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Die(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ResumingOptions options_;
  const bool kill_tells_why_;
  const std::unique_ptr<Redialler> redialler_;

  mutable Mutex mutex_;
  CondVar changed_;                              // reader, writer and End may go on
  CondVar work_;                                 // the thread may
  Stream stream_ ABSL_GUARDED_BY(mutex_);        // null: broken, the next one is on its way
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // why
  std::chrono::steady_clock::time_point broken_at_ ABSL_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point settled_at_ ABSL_GUARDED_BY(mutex_);  // if told_
  bool told_ ABSL_GUARDED_BY(mutex_) = false;                                 // that it broke
  int64_t mended_ ABSL_GUARDED_BY(mutex_) = 0;                                // that were mended
  absl::Status why_ ABSL_GUARDED_BY(mutex_);                                  // final
  bool last_words_ ABSL_GUARDED_BY(mutex_) = false;  // an error was read or written
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;      // in End
  bool end_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;

  std::deque<std::shared_ptr<const LinkChunk>> log_ ABSL_GUARDED_BY(mutex_);
  uint64_t first_ ABSL_GUARDED_BY(mutex_) = 1;  // the number of log_.front()
  int64_t log_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t numbered_ ABSL_GUARDED_BY(mutex_) = 0;  // chunks that Write was given
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;      // of them, over this connection or before it
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;   // of sent_ ever
  uint64_t received_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t untold_bytes_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_RESUMING_STREAM_H_
