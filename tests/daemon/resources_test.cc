#include "daemon/resources.h"

#include <sys/resource.h>

#include <string>

#include "gtest/gtest.h"

namespace isthmus::daemon {
namespace {

TEST(Resources, ReadsMeminfo) {
  const char text[] =
      "MemTotal:       24576000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\nBad: x kB\n";
  EXPECT_EQ(MeminfoBytes(text, "MemTotal"), int64_t{24576000} * 1024);
  EXPECT_EQ(MeminfoBytes(text, "MemAvailable"), int64_t{20000000} * 1024);
  EXPECT_EQ(MeminfoBytes(text, "Mem"), 0);
  EXPECT_EQ(MeminfoBytes(text, "Bad"), 0);
  EXPECT_EQ(MeminfoBytes("", "MemTotal"), 0);
}

TEST(Resources, ReadsControlGroups) {
  EXPECT_EQ(CgroupBytes("max\n"), 0);
  EXPECT_EQ(CgroupBytes("1073741824\n"), 1 << 30);
  EXPECT_EQ(CgroupBytes("9223372036854771712\n"), 0) << "how version 1 says that there is no limit";
  EXPECT_EQ(CgroupBytes(""), 0);
  EXPECT_EQ(CgroupBytes("-5"), 0);
  EXPECT_EQ(CgroupCpus("max 100000\n"), 0);
  EXPECT_EQ(CgroupCpus("200000 100000\n"), 2);
  EXPECT_EQ(CgroupCpus("150000 100000"), 2);
  EXPECT_EQ(CgroupCpus("10000 100000"), 1);
  EXPECT_EQ(CgroupCpus("1 0"), 0);
  EXPECT_EQ(CgroupCpus("nonsense"), 0);
}

TEST(Resources, ThisHostHasSome) {
  EXPECT_GE(UsableThreads(), 1);
  EXPECT_GT(UsableMemoryBytes(), 100 << 20);
  EXPECT_GT(FreeDiskBytes("/tmp"), 0);
  EXPECT_EQ(FreeDiskBytes("/does/not/exist"), 0);
  EXPECT_GT(ResidentBytes(), 1 << 20);
}

// F72: a low hard limit is lived with.
TEST(Resources, RaisesTheFileLimitToTheHardOneAndNoFurther) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseFileLimit(), static_cast<int64_t>(before.rlim_max));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(AdvertisedHost, AListeningAddressOfOneInterfaceIsItself) {
  bool loopback = false;
  EXPECT_EQ(AdvertisedHost("127.0.0.1", "127.0.0.1:7070", &loopback), "127.0.0.1");
  EXPECT_TRUE(loopback);
  EXPECT_EQ(AdvertisedHost("host.example.invalid", "127.0.0.1:7070", &loopback),
            "host.example.invalid");
  EXPECT_FALSE(loopback);
}

// F14: a daemon beside the coordinator must not be known as 127.0.0.1 if this host has any other
// address.
TEST(AdvertisedHost, AWildcardNextToTheCoordinatorIsNotLoopbackIfThereIsARoute) {
  bool loopback = false;
  const std::string host = AdvertisedHost("0.0.0.0", "127.0.0.1:7070", &loopback);
  EXPECT_EQ(host == "127.0.0.1", loopback) << host;
  EXPECT_NE(host, "0.0.0.0");
}

}  // namespace
}  // namespace isthmus::daemon
