#include "compress/state/state_io.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace isthmus::compress {
namespace {

constexpr size_t kBufferBytes = 256 << 10;

}  // namespace

void StateWriter::Bytes(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0 && status_.ok()) {
    const size_t n = std::min(bytes, kBufferBytes - buffer_.size());
    buffer_.append(from, n);
    from += n;
    bytes -= n;
    if (buffer_.size() == kBufferBytes) Flush();
  }
}

void StateWriter::Flush() {
  if (!status_.ok()) return;
  hasher_.Update(buffer_.data(), buffer_.size());
  written_ += buffer_.size();
  status_ = sink_->Append(buffer_);
  buffer_.clear();
}

absl::Status StateWriter::Finish() {
  Flush();
  const uint64_t trailer[2] = {written_, hasher_.Digest()};
  Bytes(trailer, sizeof trailer);
  Flush();
  return status_;
}

bool StateReader::Fill() {
  buffer_.resize(kBufferBytes);
  at_ = 0;
  absl::StatusOr<size_t> n = source_->Read(buffer_.data(), kBufferBytes);
  buffer_.resize(n.ok() ? std::min(*n, kBufferBytes) : 0);
  if (!n.ok()) Fail(n.status());
  return !buffer_.empty();
}

void StateReader::Bytes(void* to, size_t bytes, absl::string_view what) {
  char* out = static_cast<char*>(to);
  while (bytes > 0 && status_.ok()) {
    if (at_ == buffer_.size() && !Fill()) {
      Fail(absl::DataLossError(absl::StrCat("the state ends in its ", what)));
      break;
    }
    const size_t n = std::min(bytes, buffer_.size() - at_);
    std::memcpy(out, buffer_.data() + at_, n);
    hasher_.Update(out, n);
    out += n;
    at_ += n;
    bytes -= n;
    read_ += n;
  }
  if (bytes > 0) std::memset(out, 0, bytes);
}

bool StateReader::Expect(uint64_t found, uint64_t expected, absl::string_view what) {
  if (!ok()) return false;
  if (found == expected) return true;
  Fail(absl::DataLossError(absl::StrCat(what, ": ", found, " where ", expected, " is right")));
  return false;
}

absl::Status StateReader::Finish() {
  const uint64_t bytes = read_, hash = hasher_.Digest();
  const uint64_t length = Get<uint64_t>("length"), checksum = Get<uint64_t>("checksum");
  Expect(length, bytes, "length of the state");
  if (ok() && checksum != hash)
    Fail(absl::DataLossError("the checksum of the state is wrong: bytes of it changed"));
  if (ok() && (at_ < buffer_.size() || Fill()))
    Fail(absl::DataLossError("there are bytes after the end of the state"));
  return status_;
}

}  // namespace isthmus::compress
