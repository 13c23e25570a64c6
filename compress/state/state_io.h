// The state of a codec as a stream of bytes, which may be larger than memory: numbers and arrays,
// little-endian, between a header and a trailer with length and checksum. Layout: README.md.
//
// Both ends keep their first error; after it a writer drops what it is given and a reader gives
// zeros, so that callers check once for each thing of unknown size. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_STATE_STATE_IO_H_
#define ISTHMUS_COMPRESS_STATE_STATE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"

namespace isthmus::compress {

class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual absl::Status Append(absl::string_view bytes) = 0;
};

class StateSource {
 public:
  virtual ~StateSource() = default;
  // At most `bytes`; 0 only at the end.
  virtual absl::StatusOr<size_t> Read(char* to, size_t bytes) = 0;
};

class StateWriter {
 public:
  explicit StateWriter(StateSink* sink) : sink_(sink) {}  // it outlives the writer

  void Bytes(const void* data, size_t bytes);
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic<T>::value, "numbers alone");
    Bytes(&value, sizeof value);
  }
  template <typename T>
  void Array(const std::vector<T>& values) {
    Put<uint64_t>(values.size());
    Bytes(values.data(), values.size() * sizeof(T));
  }
  void Fail(absl::Status why) {
    if (status_.ok()) status_ = std::move(why);
  }
  const absl::Status& status() const { return status_; }

  // The trailer. The first error of all.
  absl::Status Finish();

 private:
  void Flush();

  StateSink* const sink_;
  std::string buffer_;
  Hasher hasher_;
  uint64_t written_ = 0;
  absl::Status status_;
};

class StateReader {
 public:
  explicit StateReader(StateSource* source) : source_(source) {}  // it outlives the reader

  // DataLoss, if the state ends before; `what` is named then.
  void Bytes(void* to, size_t bytes, absl::string_view what);
  template <typename T>
  T Get(absl::string_view what) {
    static_assert(std::is_arithmetic<T>::value, "numbers alone");
    T value{};
    Bytes(&value, sizeof value, what);
    return value;
  }
  // An array of exactly `count` elements, as the plan has them; any other length is an error.
  template <typename T>
  void Array(size_t count, absl::string_view what, std::vector<T>* values) {
    if (!Expect(Get<uint64_t>(what), count, what)) return;
    values->resize(count);
    Bytes(values->data(), count * sizeof(T), what);
  }
  // False, and an error that names `what`, unless the two are equal.
  bool Expect(uint64_t found, uint64_t expected, absl::string_view what);
  void Fail(absl::Status why) {
    if (status_.ok()) status_ = std::move(why);
  }
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Checks the trailer, and that nothing comes after it. The first error of all.
  absl::Status Finish();

 private:
  bool Fill();  // false: the end, or an error

  StateSource* const source_;
  std::string buffer_;
  size_t at_ = 0;
  Hasher hasher_;
  uint64_t read_ = 0;
  absl::Status status_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_STATE_STATE_IO_H_
