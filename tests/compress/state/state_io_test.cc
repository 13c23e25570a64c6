#include "compress/state/state_io.h"

#include <gtest/gtest.h>

#include "tests/compress/string_state.h"

namespace isthmus::compress {
namespace {

TEST(StateIo, NumbersAndArraysComeBackInPieces) {
  std::vector<float> many(200000);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<float>(i);
  StringSink sink;
  StateWriter writer(&sink);
  writer.Put<uint32_t>(7);
  writer.Array(many);
  writer.Put<int64_t>(-3);
  ASSERT_TRUE(writer.Finish().ok());
  for (size_t piece : {size_t{1000}, size_t{4096}, std::string::npos}) {
    StringSource source(sink.text, piece);
    StateReader reader(&source);
    EXPECT_EQ(reader.Get<uint32_t>("number"), 7u);
    std::vector<float> back;
    reader.Array(many.size(), "array", &back);
    EXPECT_EQ(back, many);
    EXPECT_EQ(reader.Get<int64_t>("number"), -3);
    EXPECT_TRUE(reader.Finish().ok()) << reader.status();
  }
}

TEST(StateIo, AnArrayOfAnotherLengthIsRefusedByName) {
  StringSink sink;
  StateWriter writer(&sink);
  writer.Array(std::vector<float>(3));
  ASSERT_TRUE(writer.Finish().ok());
  StringSource source(sink.text);
  StateReader reader(&source);
  std::vector<float> back;
  reader.Array(4, "residuals", &back);
  EXPECT_EQ(reader.status().message(), "residuals: 3 where 4 is right");
}

TEST(StateIo, AnErrorOfTheSinkIsKept) {
  StringSink sink;
  sink.limit = 10;
  StateWriter writer(&sink);
  writer.Array(std::vector<float>(300000));
  EXPECT_EQ(writer.Finish().message(), "the disk is full");
  EXPECT_TRUE(sink.text.empty());
}

TEST(StateIo, BytesAfterTheEndAreAnError) {
  StringSink sink;
  StateWriter writer(&sink);
  ASSERT_TRUE(writer.Finish().ok());
  StringSource source(sink.text + "x");
  StateReader reader(&source);
  EXPECT_EQ(reader.Finish().message(), "there are bytes after the end of the state");
}

}  // namespace
}  // namespace isthmus::compress
