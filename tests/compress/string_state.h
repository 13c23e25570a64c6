// The state of a codec as a string, for tests.
#ifndef ISTHMUS_TESTS_COMPRESS_STRING_STATE_H_
#define ISTHMUS_TESTS_COMPRESS_STRING_STATE_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "compress/state/codec_state.h"

namespace isthmus::compress {

class StringSink : public StateSink {
 public:
  absl::Status Append(absl::string_view bytes) override {
    if (text.size() + bytes.size() > limit) return absl::ResourceExhaustedError("the disk is full");
    text.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  std::string text;
  size_t limit = std::string::npos;
};

class StringSource : public StateSource {
 public:
  explicit StringSource(std::string text, size_t piece = std::string::npos)
      : text_(std::move(text)), piece_(piece) {}
  absl::StatusOr<size_t> Read(char* to, size_t bytes) override {
    const size_t n = std::min({bytes, piece_, text_.size() - at_});
    std::memcpy(to, text_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  const std::string text_;
  const size_t piece_;  // at most so many bytes a read
  size_t at_ = 0;
};

inline StateStamp Stamp() {
  StateStamp stamp;
  stamp.place = 11;
  stamp.step = 5;
  stamp.generation = 2;
  return stamp;
}

template <typename Codec>
std::string Saved(Codec* codec, const CodecSpec& spec, const CodecOptions& options) {
  StringSink sink;
  const absl::Status status = SaveState(codec, spec, options, Stamp(), &sink);
  return status.ok() ? sink.text : "";
}

}  // namespace isthmus::compress

#endif  // ISTHMUS_TESTS_COMPRESS_STRING_STATE_H_
