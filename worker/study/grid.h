// What a study runs: settings (a codec each way) x boundaries x seeds.
//
// A setting is written `FORWARD`, `FORWARD / BACKWARD` or `/ BACKWARD`, with codecs as in a job
// (proto/codec/codec_text.h); a side left out is `none`. Thread: pure functions.
#ifndef ISTHMUS_WORKER_STUDY_GRID_H_
#define ISTHMUS_WORKER_STUDY_GRID_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/codec.pb.h"

namespace isthmus::study {

struct Setting {
  CodecSpec forward;
  CodecSpec backward;
  bool compresses() const;
  std::string Text() const;  // "quant(4) / quant(8)"; "none" for none either way
};

// InvalidArgument names the side, the column and what was expected there.
absl::StatusOr<Setting> ParseSetting(absl::string_view text);

// Which boundaries have the codecs of a setting; the others have none.
enum class Where { kEarly, kLate, kAll };  // the first | the last | every one

const char* WhereName(Where where);
absl::StatusOr<Where> ParseWhere(absl::string_view text);

struct Grid {
  std::vector<Setting> settings;
  std::vector<Where> boundaries;
  std::vector<uint64_t> seeds;
};

struct Cell {
  Setting setting;
  Where where = Where::kAll;
  uint64_t seed = 1;
};

// A seed after the other, so that an interrupted study has whole ones; each begins with the
// uncompressed cell, which every other is compared with. No cell twice; with a single boundary
// early, late and all are one.
std::vector<Cell> Cells(const Grid& grid, int boundaries);

// Why a cell can't run (a codec that needs all boundaries, say); empty: it can.
std::string Obstacle(const Cell& cell, int boundaries);

bool HasCodec(const Cell& cell, int boundary, int boundaries);

// The settings that a study has if none are named.
std::vector<Setting> DefaultSettings();
std::vector<Setting> QuickSettings();

}  // namespace isthmus::study

#endif  // ISTHMUS_WORKER_STUDY_GRID_H_
