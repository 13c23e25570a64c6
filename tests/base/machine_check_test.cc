#include "base/machine_check.h"

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(MachineCheck, FewFilesAreAWarningAndVeryFewAFailure) {
  EXPECT_EQ(JudgeFiles(1024, 1048576).level, Finding::kOk);
  EXPECT_EQ(JudgeFiles(-1, -1).level, Finding::kOk);
  EXPECT_EQ(JudgeFiles(1024, 2048).level, Finding::kWarn);
  EXPECT_EQ(JudgeFiles(256, 512).level, Finding::kFail);
  EXPECT_THAT(JudgeFiles(256, 512).cure, HasSubstr("LimitNOFILE"));
}

TEST(MachineCheck, Threads) {
  EXPECT_EQ(JudgeThreads(-1, 500).level, Finding::kOk);
  EXPECT_EQ(JudgeThreads(5000, 500).level, Finding::kOk);
  EXPECT_EQ(JudgeThreads(100, 500).level, Finding::kWarn);
  EXPECT_EQ(JudgeThreads(10, 500).level, Finding::kFail);
}

TEST(MachineCheck, AClockThatIsNotSynchronisedIsAWarning) {
  EXPECT_EQ(JudgeClock(true, 0.012).level, Finding::kOk);
  EXPECT_THAT(JudgeClock(true, 0.012).text, HasSubstr("12 ms"));
  EXPECT_EQ(JudgeClock(false, 16).level, Finding::kWarn);
}

TEST(MachineCheck, SkewCountsBeyondTheRoundTrip) {
  EXPECT_EQ(JudgeSkew(1, 0).level, Finding::kOk);
  EXPECT_EQ(JudgeSkew(-30, 0.1).level, Finding::kWarn);
  EXPECT_THAT(JudgeSkew(-30, 0.1).text, HasSubstr("30 s behind"));
  EXPECT_EQ(JudgeSkew(30, 40).level, Finding::kOk);  // the call was slow: nothing is known
}

TEST(MachineCheck, Disk) {
  EXPECT_EQ(JudgeDisk("/x", int64_t{50} << 30).level, Finding::kOk);
  EXPECT_EQ(JudgeDisk("/x", 500 << 20).level, Finding::kWarn);
  EXPECT_EQ(JudgeDisk("/x", 5 << 20).level, Finding::kFail);
  EXPECT_THAT(LookAtDisk("/tmp/not/there/yet").text, HasSubstr("free under /tmp/not/there/yet"));
  EXPECT_EQ(LookAtDisk("/proc/version/x").level, Finding::kFail);
}

TEST(MachineCheck, APortThatIsTakenIsNamed) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string at = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  EXPECT_EQ(LookAtPort("--listen", at).level, Finding::kFail);
  EXPECT_THAT(LookAtPort("--listen", at).cure, HasSubstr("another program listens there"));
  close(fd);
  EXPECT_EQ(LookAtPort("--listen", at).level, Finding::kOk);
  EXPECT_EQ(LookAtPort("--listen", "192.0.2.1:7071").level, Finding::kFail);
  EXPECT_EQ(LookAtPort("--listen", "nonsense").level, Finding::kFail);
}

TEST(MachineCheck, EveryLookSaysWhatItSaw) {
  for (const Finding& f : {LookAtFiles(), LookAtThreads(), LookAtClock(), LookAtTun()}) {
    EXPECT_THAT(f.what, Not(IsEmpty()));
    EXPECT_THAT(f.text, Not(IsEmpty())) << f.what;
    if (f.level == Finding::kOk) continue;
    EXPECT_THAT(f.cure, Not(IsEmpty())) << f.what;
  }
}

TEST(MachineCheck, FindingsAsTextAndAsJson) {
  const std::vector<Finding> findings = {{Finding::kOk, "a", "good", ""},
                                         {Finding::kWarn, "long name", "a \"bad\" one", "mend it"}};
  EXPECT_EQ(RenderFindings(findings),
            "ok    a          good\n"
            "warn  long name  a \"bad\" one\n"
            "                 -> mend it\n");
  EXPECT_THAT(FindingsJson(findings), HasSubstr("\"worst\": \"warn\""));
  EXPECT_THAT(FindingsJson(findings), HasSubstr(R"("text": "a \"bad\" one")"));
  EXPECT_EQ(Worst({}), Finding::kOk);
}

// As many as taskset and the container leave to this process.
TEST(MachineCheck, ProcessorsAreThoseOfTheMask) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(Processors(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(Processors(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

}  // namespace
}  // namespace isthmus
