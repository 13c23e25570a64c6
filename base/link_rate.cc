#include "base/link_rate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace isthmus {
namespace {

constexpr double kGrowFast = 4;  // next round, while rounds are short
constexpr double kShortSeconds = 0.2;
constexpr int64_t kMinMessageBytes = 512;
constexpr int64_t kMaxMessageBytes = 64 << 10;
constexpr int kMessagesARound = 16;  // at least
constexpr double kAtOnce = 1.0 / 8;  // of the mean time between two messages

}  // namespace

int64_t RateSearch::NextBytes(double seconds_left) const {
  if (last_bytes_ == 0) return !tried_ || seconds_left > 0 ? std::min(kFirstBytes, max_bytes_) : 0;
  const bool long_enough = last_elapsed_s_ >= kEnoughSeconds;
  const bool big_enough = last_bytes_ >= kEnoughBytes && !growing_;
  if (long_enough || big_enough || last_bytes_ >= max_bytes_) return 0;
  const double factor = last_elapsed_s_ < kShortSeconds ? kGrowFast : 2;
  const int64_t next =
      std::min(static_cast<int64_t>(static_cast<double>(last_bytes_) * factor), max_bytes_);
  if (rate_ > 0 && static_cast<double>(next) * 8 / rate_ > seconds_left) return 0;
  return next;
}

double RateSearch::Patience(double seconds_left) const {
  return tried_ ? seconds_left : std::max(seconds_left, kFirstSeconds);
}

// What a link can have that needs `sender_s` for `bytes`: slow start, at its longest, sends a
// window a round trip, each twice the one before, of which the first is half of the last round or
// what a new connection begins with; the last byte and the answer are within the last of them.
double RateSearch::MostBitsPerSecond(int64_t bytes, double sender_s) const {
  const double window = std::max(kFirstWindowBytes, static_cast<double>(last_bytes_) / 2);
  const double windows = std::log2(1 + static_cast<double>(bytes) / window);
  const double sending_s = sender_s - round_trip_s_ * windows;
  return sending_s > 0 ? 8.0 * static_cast<double>(bytes) / sending_s
                       : std::numeric_limits<double>::infinity();
}

void RateSearch::Add(const Round& round) {
  tried_ = true;
  if (round.tail_bytes <= 0) return;
  const double rate =
      std::min(8.0 * static_cast<double>(round.tail_bytes) / std::max(round.tail_s, 1e-6),
               MostBitsPerSecond(round.received_bytes, round.sender_s));
  growing_ = rate > rate_ * kSteady;
  rate_ = rate;  // the longest round counts: short ones show slow start or a bucket's burst
  last_bytes_ = round.received_bytes;
  last_elapsed_s_ = round.elapsed_s;
}

void RateSearch::AddUnfinished(int64_t bytes, double spent_s) {
  tried_ = true;
  rate_ = std::min(rate_, MostBitsPerSecond(bytes, spent_s));
}

int64_t ProbeMessageBytes(int64_t round_bytes) {
  return std::clamp(round_bytes / kMessagesARound, kMinMessageBytes, kMaxMessageBytes);
}

void ArrivalLog::Add(int64_t bytes, double at_s) {
  const int64_t sum = this->bytes() + bytes;
  if (entries_.size() < kMaxEntries) {
    entries_.push_back({sum, at_s});
  } else {
    entries_.back() = {sum, at_s};
  }
}

RateSearch::Round ArrivalLog::Round() const {
  RateSearch::Round round;
  if (entries_.size() < 2) return round;
  round.received_bytes = bytes();
  round.elapsed_s = entries_.back().at_s - entries_.front().at_s;
  const Entry& from = entries_[TailFrom()];
  round.tail_bytes = bytes() - from.bytes;
  round.tail_s = entries_.back().at_s - from.at_s;
  return round;
}

size_t ArrivalLog::TailFrom() const {
  const size_t size = entries_.size();
  size_t half = 0;
  while (half + 2 < size && entries_[half].bytes < bytes() / 2) ++half;
  const double at_once_s =
      kAtOnce * (entries_.back().at_s - entries_.front().at_s) / static_cast<double>(size - 1);
  const auto at_once = [&](size_t i) {  // with the one before
    return entries_[i].at_s - entries_[i - 1].at_s < at_once_s;
  };
  size_t last = half;
  while (last + 1 < size && at_once(last + 1)) ++last;
  if (bytes() - entries_[last].bytes >= bytes() / 4) return last;
  size_t first = half;
  while (first > 0 && at_once(first)) --first;
  if (first > 0) return first - 1;
  return last + 1 < size ? last : half;
}

}  // namespace isthmus
