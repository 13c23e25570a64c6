#include "daemon/net/link_header.h"

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

TEST(LinkHeader, IsReadAsItWasWritten) {
  for (const LinkHeader& header :
       {LinkHeader{}, LinkHeader{LinkHeader::kResumes, 0, 0},
        LinkHeader{LinkHeader::kRedial, 3, ~uint64_t{0}}, LinkHeader{LinkHeader::kAsk, 7, 0}}) {
    const auto read = ParseLinkHeader(LinkHeaderText(header));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->kind, header.kind);
    EXPECT_EQ(read->attempt, header.attempt);
    EXPECT_EQ(read->received, header.received);
  }
}

TEST(LinkHeader, AnythingElseIsRefused) {
  for (const char* text :
       {" ", "resume", "resumes 1", "redial", "redial 1", "redial 1 2 3", "redial -1 2",
        "redial 1 18446744073709551616", "redial  1", "ask", "ask x", "ask 1 2"}) {
    EXPECT_EQ(ParseLinkHeader(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_LT(ParseLinkHeader(std::string(100'000, 'x')).status().message().size(), 300u);
}

}  // namespace
}  // namespace isthmus::daemon
