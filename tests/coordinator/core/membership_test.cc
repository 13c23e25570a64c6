#include "coordinator/core/membership.h"

#include "coordinator/service/pause_watch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::coordinator {
namespace {

using ::testing::HasSubstr;

Register Daemon(const std::string& id, const std::string& instance, uint64_t generation = 0) {
  Register r;
  r.mutable_node()->set_id(id);
  r.mutable_node()->set_name("name-" + id);
  r.mutable_node()->set_address("host-" + id + ":7071");
  r.set_instance(instance);
  r.set_running_generation(generation);
  return r;
}

Heartbeat Beat(uint64_t generation, int64_t progress) {
  Heartbeat h;
  h.set_generation(generation);
  h.set_progress(progress);
  return h;
}

class MembershipTest : public ::testing::Test {
 protected:
  absl::Time At(double s) { return absl::UnixEpoch() + absl::Seconds(s); }
  RegisterDecision Join(const Register& r, uint64_t stream, double s) {
    return m_.Register(r, stream, At(s), At(s));
  }
  Membership m_;
};

TEST_F(MembershipTest, TwentyRestartsAreOneEntry) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Join(Daemon("a", "run" + std::to_string(i)), i + 1, i).kind,
              RegisterDecision::kAccepted);
    EXPECT_TRUE(m_.OnStreamGone("a", i + 1, At(i + 0.5)));
  }
  EXPECT_EQ(m_.members().size(), 1u);
}

TEST_F(MembershipTest, TheSameProcessReplacesItsOwnStreamAtOnce) {
  Join(Daemon("a", "p"), 1, 0);
  const RegisterDecision d = Join(Daemon("a", "p", 4), 2, 1);
  EXPECT_EQ(d.kind, RegisterDecision::kAccepted);
  EXPECT_EQ(d.replaced_stream, 1u);
  EXPECT_FALSE(d.restarted);
  EXPECT_FALSE(m_.OnStreamGone("a", 1, At(2)))
      << "the end of the old stream is not the end of the daemon";
  EXPECT_TRUE(m_.Find("a")->connected());
}

TEST_F(MembershipTest, ARegistrationThatArrivesAfterItsDaemonsDeathIsNotAlive) {
  Join(Daemon("a", "p"), 1, 0);
  EXPECT_TRUE(m_.Find("a")->connected());
  EXPECT_FALSE(m_.Find("a")->alive()) << "it may have waited in a queue: nothing answered yet";
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(1)).ok());
  EXPECT_TRUE(m_.Find("a")->alive());
  Join(Daemon("a", "p"), 2, 2);
  EXPECT_FALSE(m_.Find("a")->alive());
}

TEST_F(MembershipTest, FilesThatComeLaterAreKnown) {
  Join(Daemon("a", "p"), 1, 0);
  Heartbeat beat = Beat(0, 0);
  beat.mutable_data()->add_files()->set_path("late.txt");
  beat.mutable_data()->set_complete(true);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(1)).ok());
  ASSERT_EQ(m_.Find("a")->node.data_files_size(), 1);
  EXPECT_EQ(m_.Find("a")->node.data_files(0).path(), "late.txt");
  EXPECT_TRUE(m_.Find("a")->node.data_listed());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(2)).ok());  // nothing new
  EXPECT_EQ(m_.Find("a")->node.data_files_size(), 1);
  beat.mutable_data()->clear_files();
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(3)).ok());
  EXPECT_EQ(m_.Find("a")->node.data_files_size(), 0);
  for (int i = 0; i < 1000; ++i) beat.mutable_data()->add_files()->set_path("x");
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(4)).ok());  // more than a daemon lists
  EXPECT_EQ(m_.Find("a")->node.data_files_size(), 0);
}

TEST_F(MembershipTest, ASecondLiveDaemonOfTheSameIdentityIsRefused) {
  Join(Daemon("a", "p"), 1, 0);
  ASSERT_EQ(m_.Register(Daemon("a", "q"), 2, At(1), At(1)).kind, RegisterDecision::kWait);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(3)).ok());
  const RegisterDecision d = m_.Register(Daemon("a", "q"), 2, At(1), At(3.5));
  EXPECT_EQ(d.kind, RegisterDecision::kRefused);
  EXPECT_THAT(d.reason, HasSubstr("belongs to name-a"));
  EXPECT_THAT(d.reason, HasSubstr("--state-dir"));
  EXPECT_EQ(m_.Find("a")->stream, 1u);
}

TEST_F(MembershipTest, ASecondDaemonAtAnAddressIsRefusedNamingBoth) {
  Join(Daemon("a", "p"), 1, 0);
  Register second = Daemon("b", "q");
  second.mutable_node()->set_address("host-a:7071");
  EXPECT_EQ(m_.Register(second, 2, At(1), At(1)).kind, RegisterDecision::kWait);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(3)).ok());
  const RegisterDecision d = m_.Register(second, 2, At(1), At(3.5));
  EXPECT_EQ(d.kind, RegisterDecision::kRefused);
  EXPECT_THAT(d.reason, HasSubstr("name-b (host-a:7071, identity b) advertises the address of "
                                  "name-a (host-a:7071, identity a)"));
  EXPECT_THAT(d.reason, HasSubstr("--advertise"));
  EXPECT_EQ(m_.Register(second, 2, At(4), At(10)).kind, RegisterDecision::kAccepted)
      << "the first has fallen silent";
}

TEST_F(MembershipTest, AddressesThatOthersCannotReachAreNamed) {
  for (const char* bad : {"0.0.0.0:7071", "[::]:7071"}) {
    Register r = Daemon("a", "p");
    r.mutable_node()->set_address(bad);
    EXPECT_EQ(Join(r, 1, 0).kind, RegisterDecision::kRefused) << bad;
    EXPECT_THAT(Join(r, 1, 0).reason, HasSubstr("--advertise")) << bad;
  }
  for (const char* local : {"127.0.0.1:7071", "127.0.1.1:7071", "localhost:7071", "[::1]:7071",
                            "169.254.3.4:7071", "[fe80::1%eth0]:7071"}) {
    EXPECT_THAT(LocalOnly(local), HasSubstr("--advertise HOST:PORT")) << local;
  }
  for (const char* fine : {"10.0.0.1:7071", "berlin.example.org:7071", "[2001:db8::1]:7071"})
    EXPECT_EQ(LocalOnly(fine), "") << fine;
}

TEST_F(MembershipTest, ARestartWhoseOldStreamHangsWinsWhenTheOldOneStaysSilent) {
  Join(Daemon("a", "p"), 1, 0);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(3)).ok());
  EXPECT_EQ(m_.Register(Daemon("a", "q"), 2, At(4), At(4)).kind, RegisterDecision::kWait);
  EXPECT_EQ(m_.Register(Daemon("a", "q"), 2, At(4), At(9.9)).kind, RegisterDecision::kWait);
  const RegisterDecision d = m_.Register(Daemon("a", "q"), 2, At(4), At(10));
  EXPECT_EQ(d.kind, RegisterDecision::kAccepted);
  EXPECT_EQ(d.replaced_stream, 1u);
  EXPECT_TRUE(d.restarted);
}

TEST_F(MembershipTest, ARestartAfterTheStreamEndedIsTakenAtOnce) {
  Join(Daemon("a", "p"), 1, 0);
  m_.OnStreamGone("a", 1, At(1));
  const RegisterDecision d = Join(Daemon("a", "q"), 2, 1.1);
  EXPECT_EQ(d.kind, RegisterDecision::kAccepted);
  EXPECT_EQ(d.replaced_stream, 0u);
}

TEST_F(MembershipTest, ALeaseIsADurationAndEndsOnce) {
  Join(Daemon("a", "p"), 1, 0);
  for (int s = 3; s <= 30; s += 3) {
    ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(s)).ok());
    EXPECT_TRUE(m_.Expire(At(s + 2)).empty());
  }
  EXPECT_TRUE(m_.Expire(At(44.9)).empty());
  const auto lost = m_.Expire(At(45));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].stream, 1u);
  EXPECT_THAT(lost[0].reason, HasSubstr("no heartbeat for 15 s (lease 15 s)"));
  EXPECT_TRUE(m_.Expire(At(46)).empty());
  EXPECT_FALSE(m_.Find("a")->alive());
  EXPECT_EQ(m_.OnHeartbeat("a", 1, Beat(0, 0), At(47)).code(), absl::StatusCode::kNotFound);
}

TEST_F(MembershipTest, APauseOfTheCoordinatorIsNoSilenceOfOthers) {
  Join(Daemon("a", "p"), 1, 0);
  Join(Daemon("b", "p"), 2, 0);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(7, 1), At(10)).ok());
  ASSERT_TRUE(m_.OnHeartbeat("b", 2, Beat(7, 1), At(1)).ok());
  m_.Forgive(absl::Seconds(20), At(32));
  EXPECT_TRUE(m_.Expire(At(32)).empty());
  EXPECT_TRUE(m_.Expire(At(34.9)).empty()) << "both have a heartbeat's time at least";
  ASSERT_EQ(m_.Expire(At(36)).size(), 1u) << "b had been silent for 11 s before";
  EXPECT_EQ(m_.Expire(At(45)).size(), 1u);
}

TEST_F(MembershipTest, AForgivenPauseRefusesNoSecondDaemon) {
  Join(Daemon("a", "p"), 1, 0);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(3)).ok());
  EXPECT_EQ(m_.Register(Daemon("a", "q"), 2, At(4), At(4)).kind, RegisterDecision::kWait);
  m_.Forgive(absl::Seconds(20), At(24));
  EXPECT_EQ(m_.Register(Daemon("a", "q"), 2, At(4), At(25)).kind, RegisterDecision::kWait)
      << "no heartbeat came since it asked";
  EXPECT_EQ(m_.Register(Daemon("a", "q"), 2, At(4), At(30.5)).kind, RegisterDecision::kAccepted);
}

TEST_F(MembershipTest, AnotherLeaseKeepsTheProportions) {
  const MembershipOptions options = MembershipOptions::ForLease(absl::Seconds(60));
  EXPECT_EQ(options.lease, absl::Seconds(60));
  EXPECT_EQ(options.heartbeat, absl::Seconds(12));
  EXPECT_EQ(options.silence, absl::Seconds(28));
}

TEST(PauseWatch, SeesStopsAndSuspends) {
  const auto at = [](double s) { return absl::UnixEpoch() + absl::Seconds(s); };
  PauseWatch watch;
  EXPECT_EQ(watch.Look(at(100), at(500)), absl::ZeroDuration()) << "the first look";
  EXPECT_EQ(watch.Look(at(100.1), at(500.1)), absl::ZeroDuration());
  EXPECT_EQ(watch.Look(at(120.1), at(520.1)), absl::Seconds(20)) << "stopped";
  EXPECT_EQ(watch.Look(at(120.2), at(520.2)), absl::ZeroDuration()) << "said once";
  EXPECT_EQ(watch.Look(at(120.3), at(550.2)), absl::Seconds(30)) << "suspended";
  EXPECT_EQ(watch.Look(at(121.2), at(551.1)), absl::ZeroDuration()) << "a busy machine";
}

TEST_F(MembershipTest, ARegistrationWithoutAHeartbeatExpires) {
  Join(Daemon("a", "p"), 1, 0);
  const auto lost = m_.Expire(At(15));
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_THAT(lost[0].reason, HasSubstr("never sent a heartbeat"));
}

TEST_F(MembershipTest, LivenessIsProgress) {
  Join(Daemon("a", "p", 7), 1, 0);
  EXPECT_EQ(m_.NoProgressFor("a", 7, At(2)), absl::ZeroDuration());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(7, 5), At(3)).ok());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(7, 6), At(6)).ok());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(7, 6), At(9)).ok());
  EXPECT_EQ(m_.NoProgressFor("a", 7, At(12)), absl::Seconds(6));
  EXPECT_EQ(m_.NoProgressFor("a", 8, At(12)), absl::ZeroDuration());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(12)).ok());
  EXPECT_EQ(m_.NoProgressFor("a", 7, At(40)), absl::ZeroDuration());
}

TEST_F(MembershipTest, LostNodesAreForgottenAndMakeRoomFirst) {
  MembershipOptions options;
  options.max_nodes = 2;
  Membership small(options);
  auto join = [&](const std::string& id, uint64_t stream, double s) {
    return small.Register(Daemon(id, id), stream, At(s), At(s)).kind;
  };
  EXPECT_EQ(join("a", 1, 0), RegisterDecision::kAccepted);
  EXPECT_EQ(join("b", 2, 0), RegisterDecision::kAccepted);
  EXPECT_EQ(join("c", 3, 1), RegisterDecision::kRefused);
  small.OnStreamGone("a", 1, At(2));
  EXPECT_EQ(join("c", 3, 3), RegisterDecision::kAccepted);
  EXPECT_EQ(small.Find("a"), nullptr);
  small.OnStreamGone("b", 2, At(4));
  small.OnStreamGone("c", 3, At(4));
  small.Expire(At(4) + absl::Hours(24));
  EXPECT_TRUE(small.members().empty());
}

TEST_F(MembershipTest, BrokenRegistrationsAreRefusedInWords) {
  Register none;
  EXPECT_THAT(Join(none, 1, 0).reason, HasSubstr("node.id is empty"));
  Register long_name = Daemon("a", "p");
  long_name.mutable_node()->set_name(std::string(1 << 20, 'x'));
  EXPECT_THAT(Join(long_name, 1, 0).reason, HasSubstr("1048576 bytes"));
  Register control = Daemon("a", "p");
  control.mutable_node()->set_name("a\nb");
  EXPECT_THAT(Join(control, 1, 0).reason, HasSubstr("control character"));
  Register nan = Daemon("a", "p");
  nan.mutable_node()->set_block_forward_s(std::nan(""));
  EXPECT_EQ(Join(nan, 1, 0).kind, RegisterDecision::kRefused);
  EXPECT_TRUE(m_.members().empty());
}

TEST_F(MembershipTest, RestoredNodesAreKnownButNotAlive) {
  m_.Restore(Daemon("a", "").node(), false, At(0));
  ASSERT_NE(m_.Find("a"), nullptr);
  EXPECT_FALSE(m_.Find("a")->alive());
  EXPECT_EQ(AwayWords(*m_.Find("a"), At(4)), "is not heard since the coordinator started");
  const RegisterDecision joined = Join(Daemon("a", "p", 3), 1, 1);
  EXPECT_EQ(joined.kind, RegisterDecision::kAccepted);
  EXPECT_THAT(joined.reason, HasSubstr("known from before the coordinator's restart"));
  EXPECT_EQ(m_.Find("a")->heartbeat.generation(), 3u);
}

TEST_F(MembershipTest, ADrainedDaemonStaysSoUntilThatIsTakenBack) {
  Join(Daemon("a", "p"), 1, 0);
  const std::string name = m_.Find("a")->node.name();
  EXPECT_EQ(m_.Drain(name, true).value(), "a");
  m_.OnStreamGone("a", 1, At(1));
  Join(Daemon("a", "another process"), 2, 2);
  EXPECT_TRUE(m_.Find("a")->drained);
  m_.OnStreamGone("a", 2, At(3));
  m_.Expire(At(3 + 90000));
  ASSERT_NE(m_.Find("a"), nullptr) << "a day later it is still known";
  EXPECT_TRUE(m_.Drain("a", false).ok());
  m_.Expire(At(3 + 90000));
  EXPECT_EQ(m_.Find("a"), nullptr);
  EXPECT_THAT(std::string(m_.Drain("a", true).status().message()),
              HasSubstr("no daemon is called 'a'"));
  Membership after;
  after.Restore(Daemon("a", "").node(), true, At(0));
  EXPECT_TRUE(after.Find("a")->drained);
}

TEST_F(MembershipTest, TwoOfOneNameAreDrainedByIdentity) {
  Join(Daemon("a", "p"), 1, 0);
  Register twin = Daemon("b", "p");
  twin.mutable_node()->set_name(m_.Find("a")->node.name());
  twin.mutable_node()->set_address("10.9.9.9:7071");
  ASSERT_EQ(Join(twin, 2, 0).kind, RegisterDecision::kAccepted);
  const absl::Status refused = m_.Drain(twin.node().name(), true).status();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("name one by its identity, a or b"));
  EXPECT_EQ(m_.Drain("b", true).value(), "b");
  EXPECT_FALSE(m_.Find("a")->drained);
}

TEST_F(MembershipTest, BytesOfACheckpointAreProgress) {
  Join(Daemon("a", "p"), 1, 0);
  Heartbeat beat = Beat(4, 7);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(1)).ok());
  beat.set_checkpoint_bytes(100);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(10)).ok());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(12)).ok());
  EXPECT_EQ(m_.NoProgressFor("a", 4, At(13)), absl::Seconds(3));
  EXPECT_TRUE(m_.Moves("a", 4, absl::Seconds(4), At(13)));
  EXPECT_FALSE(m_.Moves("a", 4, absl::Seconds(3), At(13)));
  EXPECT_FALSE(m_.Moves("a", 5, absl::Seconds(4), At(13)));
  EXPECT_FALSE(m_.Moves("b", 4, absl::Seconds(4), At(13)));
  m_.OnStreamGone("a", 1, At(13));
  EXPECT_FALSE(m_.Moves("a", 4, absl::Seconds(4), At(13)));
}

TEST_F(MembershipTest, ThePathToTheCoordinatorStaysUntilItIsMeasuredAgain) {
  Join(Daemon("a", "p"), 1, 0);
  Heartbeat beat = Beat(0, 0);
  beat.mutable_path()->set_up_bits_per_s(4e5);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(1)).ok());
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, Beat(0, 0), At(2)).ok());
  EXPECT_EQ(m_.Find("a")->path.up_bits_per_s(), 4e5);
  EXPECT_FALSE(m_.Find("a")->heartbeat.has_path());
  beat.mutable_path()->set_up_bits_per_s(-1);
  ASSERT_TRUE(m_.OnHeartbeat("a", 1, beat, At(3)).ok());
  EXPECT_EQ(m_.Find("a")->path.up_bits_per_s(), 4e5) << "that was no figure";
}

TEST_F(MembershipTest, WhoLeavesMayComeBack) {
  Join(Daemon("a", "p"), 1, 0);
  m_.OnLeaving("a", "SIGTERM");
  m_.OnLeaving("nobody", "SIGTERM");
  EXPECT_TRUE(m_.Find("a")->leaving);
  m_.OnStreamGone("a", 1, At(1));
  EXPECT_EQ(AwayWords(*m_.Find("a"), At(4)),
            "left in good order 3 s ago: it was told to end (SIGTERM)");
  Join(Daemon("a", "q"), 2, 5);
  EXPECT_FALSE(m_.Find("a")->leaving);
  m_.OnStreamGone("a", 2, At(6));
  EXPECT_EQ(AwayWords(*m_.Find("a"), At(9)), "is lost, last heard 4 s ago");
}

// Two daemons of one name were one series in the metrics, and one target's label.
TEST_F(MembershipTest, DaemonsOfOneNameHaveLabelsOfTheirOwn) {
  const auto named = [](const std::string& id, const std::string& name) {
    Register r = Daemon(id, "run");
    r.mutable_node()->set_name(name);
    return r;
  };
  Join(named("0123456789", "gpu"), 1, 0);
  Join(named("abcdef0000", "other"), 2, 0);
  EXPECT_EQ(m_.Labels(),
            (std::map<std::string, std::string>{{"0123456789", "gpu"}, {"abcdef0000", "other"}}));
  Join(named("fedcba9876", "gpu"), 3, 0);
  EXPECT_EQ(m_.Labels()["0123456789"], "gpu/012345");
  EXPECT_EQ(m_.Labels()["fedcba9876"], "gpu/fedcba");
  Join(named("0123456700", "gpu"), 4, 0);
  EXPECT_EQ(m_.Labels()["0123456789"], "gpu/012345678") << "as many digits as tell them apart";
  EXPECT_EQ(m_.Labels()["0123456700"], "gpu/012345670");
}

TEST_F(MembershipTest, ALostDaemonKeepsItsLabelUntilAnotherOfItsNameIsThere) {
  Register first = Daemon("a", "run"), second = Daemon("b", "run");
  second.mutable_node()->set_name(first.node().name());
  Join(first, 1, 0);
  EXPECT_TRUE(m_.OnStreamGone("a", 1, At(1)));
  EXPECT_EQ(m_.Labels(), (std::map<std::string, std::string>{{"a", "name-a"}}));
  Join(second, 2, 2);
  ASSERT_TRUE(m_.OnHeartbeat("b", 2, Beat(0, 0), At(3)).ok());
  EXPECT_EQ(m_.Labels(), (std::map<std::string, std::string>{{"b", "name-a"}}));
}

}  // namespace
}  // namespace isthmus::coordinator
