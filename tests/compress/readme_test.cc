// The examples of compress/FORMATS.md: one tensor in every format, byte for byte. A row there is
// wrong, or a codec has none: the failure text shows the row as it should be.
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "proto/codec/codec_grammar.h"
#include "tests/compress/pair.h"

namespace isthmus::compress {
namespace {

struct Row {
  std::string codec;
  bool again = false;  // the second frame with it
  std::string bytes;   // hex; "/" between the parts
  std::string decoded;
};

// Lines `| codec[, again] | bytes | parts | decodes to |` below the heading of the examples.
std::vector<Row> RowsOfTheReadme() {
  std::ifstream file(ISTHMUS_SOURCE_DIR "/compress/FORMATS.md");
  std::vector<Row> rows;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "## ")) inside = line == "## One tensor in every format";
    if (!inside || !absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    EXPECT_EQ(cells.size(), 4u) << line;
    if (cells.size() != 4) continue;
    Row row;
    absl::string_view codec = absl::StripPrefix(cells[0], "| ");
    row.again = absl::ConsumeSuffix(&codec, ", again");
    row.codec = absl::StrReplaceAll(codec, {{"`", ""}, {"\\|", "|"}});
    row.bytes = absl::StrReplaceAll(cells[1], {{"`", ""}});
    row.decoded = std::string(absl::StripSuffix(cells[3], " |"));
    rows.push_back(row);
  }
  return rows;
}

std::string Hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) absl::StrAppendFormat(&out, "%s%02x", out.empty() ? "" : " ", c);
  return out;
}

// What the row says, from the codec itself.
Row Coded(const Row& row) {
  const CodecOptions options = Pair::Options(2, 3);
  const std::vector<float> x = {1, -1, 0.5f, 0.26f, -0.24f, 0};
  const std::vector<uint32_t> ids = {7}, tokens = {104, 105};
  FrameContext context;
  context.sample_ids = ids;
  context.token_ids = tokens;
  Pair forward("topk(0.3)", options);
  forward.Encode(x, ids);
  const std::vector<uint32_t> indices(forward.encoder->indices().begin(),
                                      forward.encoder->indices().end());
  context.indices = indices;
  const CodecSpec spec = Bound(Spec(row.codec), "topk(0.3)");
  std::unique_ptr<Encoder> encoder = *MakeEncoder(spec, options);
  std::unique_ptr<Decoder> decoder = *MakeDecoder(spec, options);
  std::string payload;
  std::vector<float> y(6);
  for (int frame = 0; frame < 1 + row.again; ++frame) {
    EXPECT_TRUE(encoder->Encode(View(x, {1, 2, 3}), context, &payload).ok()) << row.codec;
    EXPECT_TRUE(decoder->Decode(payload, encoder->version(), context, View(&y, {1, 2, 3})).ok())
        << row.codec;
  }
  Row out = row;
  out.bytes = Hex(payload);
  out.decoded.clear();
  for (size_t i = 0; i < y.size(); ++i)
    absl::StrAppendFormat(&out.decoded, "%s%.4g", i == 0 ? "" : i == 3 ? ", " : " ", y[i]);
  return out;
}

TEST(Readme, OneTensorInEveryFormat) {
  std::set<std::string> kinds;
  for (const Row& row : RowsOfTheReadme()) {
    SCOPED_TRACE(row.codec);
    kinds.insert(row.codec.substr(0, row.codec.find_first_of("( ")));
    if (absl::StrContains(row.codec, "zstd")) kinds.insert("zstd");
    const Row want = Coded(row);
    EXPECT_EQ(absl::StrReplaceAll(row.bytes, {{"/ ", ""}}), want.bytes);
    EXPECT_EQ(row.decoded, want.decoded);
  }
  for (const CodecForm& form : CodecForms())
    EXPECT_EQ(kinds.count(std::string(form.name)), 1u) << "no row for " << form.name;
  EXPECT_EQ(kinds.count("zstd"), 1u);
}

}  // namespace
}  // namespace isthmus::compress
