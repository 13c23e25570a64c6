#include "proto/valid_text.h"

#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "proto/peer.pb.h"

namespace isthmus {
namespace {

constexpr char kLatin1[] =
    "B\xfc"
    "cher";
constexpr char kMade[] =
    "B\xef\xbf\xbd"
    "cher";

// As protobuf does for a receiver.
bool Arrives(const DaemonMessage& message) {
  DaemonMessage other;
  return other.ParseFromString(message.SerializeAsString());
}

TEST(ValidText, EveryStringOfAMessageIsMadeValid) {
  DaemonMessage message;
  NodeInfo* node = message.mutable_register_()->mutable_node();
  node->set_name(kLatin1);
  node->set_address("a:1");
  node->add_data_files()->set_path("good");
  node->add_data_files()->set_path(kLatin1);
  EXPECT_FALSE(Arrives(message));
  EXPECT_TRUE(MakeTextValid(&message));
  EXPECT_TRUE(Arrives(message));
  EXPECT_EQ(node->name(), kMade);
  EXPECT_EQ(node->address(), "a:1");
  EXPECT_EQ(node->data_files(0).path(), "good");
  EXPECT_EQ(node->data_files(1).path(), kMade);

  SubmitReply reply;
  reply.add_warnings("fine");
  reply.add_warnings(kLatin1);
  EXPECT_EQ(WithValidText(reply).warnings(1), kMade);
  EXPECT_EQ(WithValidText(reply).warnings(0), "fine");
}

TEST(ValidText, WhatIsValidStaysTheSame) {
  DaemonMessage message;
  SessionEvent* event = message.mutable_session();
  event->set_message("links to K\xc3\xb6ln broke");
  event->set_generation(3);
  const DaemonMessage before = message;
  EXPECT_FALSE(MakeTextValid(&message));
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(before, message));
}

TEST(ValidText, BytesAreNoText) {
  ProbeRequest request;
  request.set_padding("\xff\xfe");
  EXPECT_FALSE(MakeTextValid(&request));
  EXPECT_EQ(request.padding(), "\xff\xfe");
}

}  // namespace
}  // namespace isthmus
