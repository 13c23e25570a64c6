#include "base/command_line.h"

#include <CLI/CLI.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using testing::HasSubstr;

struct Ended {
  std::optional<int> code;
  std::string out, err;
};

std::string ReadAll(FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c; (c = std::fgetc(file)) != EOF;) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

Ended Parse(const char* flag) {
  CLI::App app("Counts sheep.", "isthmus-count");
  int sheep = 0;
  app.add_option("--sheep", sheep, "so many");
  const char* argv[] = {"isthmus-count", flag};
  FILE *out = std::tmpfile(), *err = std::tmpfile();
  Ended ended;
  ended.code = ParseCommandLine(flag == nullptr ? 1 : 2, argv, "isthmus-count", &app, out, err);
  ended.out = ReadAll(out);
  ended.err = ReadAll(err);
  return ended;
}

TEST(CommandLine, GoesOnOrSaysHowItEnds) {
  EXPECT_EQ(Parse(nullptr).code, std::nullopt);
  const Ended help = Parse("--help");
  EXPECT_EQ(help.code, kOk);
  EXPECT_THAT(help.out, HasSubstr("Counts sheep."));
  EXPECT_EQ(help.err, "");
  const Ended wrong = Parse("--goats");
  EXPECT_EQ(wrong.code, kUsage);
  EXPECT_EQ(wrong.out, "");
  EXPECT_THAT(wrong.err, HasSubstr("isthmus-count: "));
  EXPECT_THAT(wrong.err, HasSubstr("--goats"));
}

TEST(CommandLine, ExitCodes) {
  EXPECT_EQ(CommandExitFor(absl::OkStatus()), kOk);
  EXPECT_EQ(CommandExitFor(absl::InvalidArgumentError("")), kUsage);
  EXPECT_EQ(CommandExitFor(absl::NotFoundError("")), kUsage);
  EXPECT_EQ(CommandExitFor(absl::ResourceExhaustedError("")), kMachine);
  EXPECT_EQ(CommandExitFor(absl::InternalError("")), kFailed);
}

TEST(CommandLine, AProgramIsCalledByWhatTheUserTyped) {
  const char* const by_isthmus[] = {"isthmus study", "--help"};
  const char* const by_itself[] = {"/usr/bin/isthmus-study", "--help"};
  EXPECT_EQ(CalledAs(2, by_isthmus, "isthmus-study"), "isthmus study");
  EXPECT_EQ(CalledAs(2, by_itself, "isthmus-study"), "isthmus-study");
  EXPECT_EQ(CalledAs(0, nullptr, "isthmus-study"), "isthmus-study");
}

}  // namespace
}  // namespace isthmus
