// Running means of rows by key, moved at the end of a frame towards the frame's means:
//
//   mean[key] += max(rate, 1 / (updates + patience)) * (mean of the frame's rows of key -
//   mean[key])
//
// Rows come into being when their key first occurs, up to a number. Two tables that were given the
// same rows in the same order are bit-identical: fp32, in the order of Add. Thread: one owner.
#ifndef ISTHMUS_COMPRESS_CODECS_MEAN_TABLE_H_
#define ISTHMUS_COMPRESS_CODECS_MEAN_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "compress/state/state_io.h"

namespace isthmus::compress {

// The keys of a saved table into an empty `rows`, each with its row. False: the reader has failed.
bool LoadMeanKeys(StateReader* from, size_t most_rows, std::unordered_map<uint32_t, size_t>* rows);

class MeanTable {
 public:
  MeanTable(size_t hidden, float rate, uint32_t patience, size_t most_rows)
      : hidden_(hidden), rate_(rate), patience_(patience), most_rows_(most_rows) {}

  const float* Find(uint32_t key) const;  // null: no mean of it
  // The frame's sum of `key`, to which the caller adds one row. Valid until the next Add.
  float* Add(uint32_t key);
  // What came of this frame under any key of `other`, under key 0.
  void AddFrame(const MeanTable& other);
  void EndFrame();

  uint64_t Hash() const;
  // Between frames.
  void Save(StateWriter* to) const;
  void Load(StateReader* from);  // into an empty table
  int64_t bytes() const { return static_cast<int64_t>(4 * means_.size()); }

 private:
  const size_t hidden_;
  const float rate_;
  const uint32_t patience_;
  const size_t most_rows_;
  std::unordered_map<uint32_t, size_t> rows_;  // key -> row of means_
  std::vector<float> means_;
  std::vector<uint32_t> updates_;  // per row

  // The frame's, in order of appearance.
  std::unordered_map<uint32_t, size_t> sum_of_;
  std::vector<uint32_t> keys_, counts_;
  std::vector<float> sums_;
};

}  // namespace isthmus::compress

#endif  // ISTHMUS_COMPRESS_CODECS_MEAN_TABLE_H_
