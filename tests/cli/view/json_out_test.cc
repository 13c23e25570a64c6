#include "coordinator/cli/view/json_out.h"

#include <cmath>

#include "gtest/gtest.h"
#include "proto/control.pb.h"

namespace isthmus::cli {
namespace {

TEST(JsonOut, EveryFieldIsThereWithItsName) {
  BoundaryTotals totals;
  totals.set_link_id("b0");
  totals.set_forward(true);
  totals.set_raw_bytes(int64_t{1} << 40);
  EXPECT_EQ(ToJson(totals, false),
            R"({"link_id":"b0","direction":"forward","from_node":"","to_node":"","codec":"",)"
            R"("raw_bytes":1099511627776,"wire_bytes":0,"from_step":0})");
}

TEST(JsonOut, PrettyNestsAndNamesEnums) {
  StopJobReply reply;
  EXPECT_EQ(ToJson(reply, true), "{\n  \"status\": null\n}\n");
  reply.mutable_status()->set_state(JOB_PAUSED);
  const std::string text = ToJson(reply, true);
  EXPECT_NE(text.find("\n    \"state\": \"paused\",\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n    \"boundaries\": [],\n"), std::string::npos) << text;
  ListNodesReply nodes;
  nodes.add_nodes()->add_warnings("a");
  nodes.mutable_nodes(0)->add_warnings("b");
  EXPECT_NE(ToJson(nodes, true).find("\"warnings\": [\"a\", \"b\"]"), std::string::npos)
      << ToJson(nodes, true);
}

TEST(JsonOut, OneofsShowOnlyWhatIsSet) {
  PutCheckpointChunk chunk;
  chunk.set_data("\x01\x02");
  EXPECT_EQ(ToJson(chunk, false), R"({"data":"AQI="})");
}

TEST(JsonOut, NumbersReadBack) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(1e-9), "1e-09");
  EXPECT_EQ(JsonNumber(3), "3");
  EXPECT_EQ(JsonNumber(NAN), "null");
  EXPECT_EQ(JsonNumber(-INFINITY), "null");
}

TEST(JsonOut, StringsAreEscaped) {
  EXPECT_EQ(JsonString("a\"b\n\x1b"), "\"a\\\"b\\n\\u001b\"");
  EXPECT_EQ(JsonString("\xff"), "\"\xef\xbf\xbd\"");  // not UTF-8
}

}  // namespace
}  // namespace isthmus::cli
