// One LinkStream over several, each on a TCP connection of its own: where the round trip is long or
// packets get lost, one connection does not fill the line.
//
// Chunks are numbered by `sequence` from 1 on, through all streams. Whichever stream can take one
// takes the next, so a slow connection carries less. Within a stream numbers grow. The receiving
// end puts them in order again, and holds what came early while that is at most `window_bytes`.
// Then it stops reading, but for the chunk whose turn it is: that one is never stuck behind
// another, since all before it in its stream had smaller numbers. The last message of a direction,
// `end` or `error`, goes over every stream. A consumer that sleeps stalls the peer when the window
// here and those of the connections are full.
//
// One stream that breaks breaks the link; the reason names it. Numbers that no peer may send (one
// that does not grow, comes twice, is skipped, or lies behind the end) are InvalidArgument.
// Thread: as LinkStream says; two threads of its own for each stream, until End.
// Limits: kMaxConnections; window_bytes and one chunk a stream received, two a stream to be sent.
#ifndef ISTHMUS_DAEMON_NET_STRIPED_STREAM_H_
#define ISTHMUS_DAEMON_NET_STRIPED_STREAM_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/types/optional.h"
#include "base/mutex.h"
#include "daemon/net/link_stream.h"

namespace isthmus::daemon {

// "connection 2 of 4", for messages.
std::string ConnectionWords(int connection, int connections);

class StripedStream : public LinkStream {
 public:
  static constexpr int64_t kChunkOverheadBytes = 128;  // what a held chunk counts beside its bytes

  // Hellos have been exchanged on all `streams`, in the order of their connections.
  StripedStream(std::vector<std::unique_ptr<LinkStream>> streams, int64_t window_bytes);
  ~StripedStream() override;

  bool Read(LinkChunk* chunk) override;
  // False may come late: what a broken connection still had to send is lost with it.
  bool Write(const LinkChunk& chunk) override;
  void Kill(const absl::Status& why) override;
  bool kill_tells_why() const override { return streams_.front()->kill_tells_why(); }
  absl::Status WhyBroken() override;
  absl::Status End(const absl::Status& mine) override;
  int64_t mended() const override;

  int64_t held_bytes() const;  // that came before their turn

 private:
  void WriteLoop(int stream);
  void ReadLoop(int stream);
  // False: the stream is to be read no more.
  bool Take(int stream, LinkChunk chunk);
  bool TakeEnd(int stream, uint64_t sequence) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Refuse(int stream, const std::string& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Missing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // the next one will not come
  void Break(int stream);
  void Stop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Join();
  int count() const { return static_cast<int>(streams_.size()); }

  const std::vector<std::unique_ptr<LinkStream>> streams_;
  const int64_t window_bytes_;

  mutable Mutex mutex_;
  CondVar writable_;  // Write may go on
  CondVar queued_;    // a writing thread may
  CondVar readable_;  // Read may
  CondVar room_;      // a reading thread may
  std::deque<LinkChunk> queue_ ABSL_GUARDED_BY(mutex_);
  absl::optional<LinkChunk> last_ ABSL_GUARDED_BY(mutex_);  // to be written to every stream
  uint64_t numbered_ ABSL_GUARDED_BY(mutex_) = 0;           // chunks that got their number
  int writing_ ABSL_GUARDED_BY(mutex_) = 0;                 // threads that have not written last_

  std::map<uint64_t, LinkChunk> held_ ABSL_GUARDED_BY(mutex_);
  int64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;                // whose turn it is
  std::vector<uint64_t> seen_ ABSL_GUARDED_BY(mutex_);       // the last number of each stream
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;             // of what is no end
  absl::optional<LinkChunk> error_ ABSL_GUARDED_BY(mutex_);  // the peer's last message
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;                 // the number of the peer's end
  int ended_ ABSL_GUARDED_BY(mutex_) = 0;                    // streams on which it came
  bool end_read_ ABSL_GUARDED_BY(mutex_) = false;

  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;  // broken, refused or killed
  int broken_ ABSL_GUARDED_BY(mutex_) = -1;       // the stream that broke first
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // of whoever calls End
};

}  // namespace isthmus::daemon

#endif  // ISTHMUS_DAEMON_NET_STRIPED_STREAM_H_
