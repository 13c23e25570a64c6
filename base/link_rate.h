// What an upload shows of a link's rate: when how much to send, and how to read when it arrived.
// Both ends of a measurement use it, whoever they are.
//
// Rate: uploads of growing size, by the receiver's clock over the second half of each, until a
// round is long enough that TCP's slow start and the buffers on the way no longer count. Where
// packets are lost, what follows a gap reaches the receiver all at once: the sender's clock bounds
// the rate. Thread: values, one owner. Pure: no clock, no network.
#ifndef ISTHMUS_BASE_LINK_RATE_H_
#define ISTHMUS_BASE_LINK_RATE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus {

// Decides the sizes of the uploads and what rate they show. Pure.
class RateSearch {
 public:
  static constexpr int64_t kFirstBytes = 8 << 10;   // a second at 64 kbit/s
  static constexpr double kFirstSeconds = 5;        // that it may take, whatever is left
  static constexpr int64_t kEnoughBytes = 8 << 20;  // stop here if the rate no longer grows
  static constexpr int64_t kMaxBytes = 64 << 20;    // one round
  static constexpr double kEnoughSeconds = 1.0;
  static constexpr double kSteady = 1.15;  // a round this much faster than the last: still growing
  static constexpr double kFirstWindowBytes = 14600;  // of TCP: what slow start begins with

  // `max_bytes`: of one round; all rounds together have less than twice as many.
  explicit RateSearch(double round_trip_s = 0, int64_t max_bytes = kMaxBytes)
      : round_trip_s_(round_trip_s), max_bytes_(max_bytes) {}

  // Bytes of the next round; 0: done, or no time for another one in `seconds_left`. The first one
  // is made in any case: a slow path is measured rather than given up.
  int64_t NextBytes(double seconds_left) const;
  // How long that round may take.
  double Patience(double seconds_left) const;

  // A round as the receiver saw it: `elapsed_s` from its first message to its last; the second half
  // of it were `tail_bytes` in `tail_s`, which count as the rate.
  struct Round {
    int64_t received_bytes = 0;
    double elapsed_s = 0;
    int64_t tail_bytes = 0;
    double tail_s = 0;
    double sender_s =
        0;  // from the first byte sent to the answer, by the sender's clock; 0: unknown
  };
  void Add(const Round& round);
  // A round of `bytes` that had not ended after `spent_s`.
  void AddUnfinished(int64_t bytes, double spent_s);

  double rate_bits_per_s() const { return rate_; }  // 0: no round yet

 private:
  double MostBitsPerSecond(int64_t bytes, double sender_s) const;

  const double round_trip_s_;
  const int64_t max_bytes_;
  int64_t last_bytes_ = 0;
  double last_elapsed_s_ = 0;
  double rate_ = 0;
  bool tried_ = false;
  bool growing_ = true;
};

// A round goes in at least 16 messages, so that its second half is seen; this is their size.
int64_t ProbeMessageBytes(int64_t round_bytes);

// What the receiver of an upload notes: when how many bytes were there. Pure. Limits: an entry a
// message, at most kMaxEntries; later ones are merged into the last.
class ArrivalLog {
 public:
  static constexpr size_t kMaxEntries = 1 << 16;

  void Add(int64_t bytes, double at_s);  // a message arrived
  int64_t bytes() const { return entries_.empty() ? 0 : entries_.back().bytes; }
  RateSearch::Round Round() const;

 private:
  struct Entry {
    int64_t bytes;  // so far
    double at_s;
  };
  // Where the second half begins. What a lost packet held back comes at once when it was sent
  // again: among such messages the link has carried more than has come, so it is the last of them,
  // or, where too little is left after that, the last one before them.
  size_t TailFrom() const;

  std::vector<Entry> entries_;
};

}  // namespace isthmus

#endif  // ISTHMUS_BASE_LINK_RATE_H_
