#include "daemon/flags.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tls_cluster.h"

namespace isthmus::daemon {
namespace {

using ::testing::HasSubstr;

DaemonOptions Good() {
  DaemonOptions options;
  options.data_dir = testing::TempDir();
  return options;
}

TEST(DaemonFlags, AmountsOfBytes) {
  for (const auto& [text, bytes] : {std::pair<std::string, int64_t>("4GiB", int64_t{4} << 30),
                                    {"512m", 512 << 20},
                                    {"100000000", 100000000},
                                    {"1.5 gb", int64_t{3} << 29},
                                    {"64MiB", 64 << 20},
                                    {"1e9", 1000000000},
                                    {"70000000b", 70000000},
                                    {"1PiB", int64_t{1} << 50}}) {
    DaemonOptions options;
    ASSERT_TRUE(ApplyByteFlags({text, text}, &options).ok()) << text;
    EXPECT_EQ(options.memory_bytes, bytes) << text;
    EXPECT_EQ(options.disk_bytes, bytes) << text;
  }
  DaemonOptions untouched;
  ASSERT_TRUE(ApplyByteFlags({"", ""}, &untouched).ok());
  EXPECT_EQ(untouched.memory_bytes, 0);
  EXPECT_EQ(untouched.disk_bytes, 0);
}

TEST(DaemonFlags, NonsenseAmountsAreRefusedByName) {
  for (const char* text : {"-1", "-5GiB", "0", "x", "nan", "inf", "4XB", "4GiBs", "GiB", "1e400",
                           "99999999999999999999", "2PiB", "16EiB", " 4GiB", "+4"}) {
    DaemonOptions options;
    const absl::Status memory = ApplyByteFlags({text, ""}, &options);
    EXPECT_TRUE(absl::IsInvalidArgument(memory)) << text;
    EXPECT_THAT(std::string(memory.message()), HasSubstr("--memory")) << text;
    const absl::Status disk = ApplyByteFlags({"", text}, &options);
    EXPECT_TRUE(absl::IsInvalidArgument(disk)) << text;
    EXPECT_THAT(std::string(disk.message()), HasSubstr("--disk")) << text;
    EXPECT_EQ(options.memory_bytes, 0) << text;
    EXPECT_EQ(options.disk_bytes, 0) << text;
  }
  DaemonOptions options;
  EXPECT_FALSE(ApplyByteFlags({"1MiB", ""}, &options).ok()) << "no stage fits";
}

TEST(DaemonFlags, AnUplinkIsARateOrRefusedByName) {
  for (const auto& [text, rate] : {std::pair<const char*, int64_t>("20Mbit", 20'000'000),
                                   {"1.5Gbit", 1'500'000'000},
                                   {"500kbit", 500'000},
                                   {"", 0}}) {
    DaemonOptions options;
    ASSERT_TRUE(ApplyUplink(text, &options).ok()) << text;
    EXPECT_EQ(options.uplink_bits_per_s, rate) << text;
  }
  for (const char* text : {"20", "20MB", "Mbit", "-1Mbit", "nanMbit", "infGbit", "499kbit", "1kbit",
                           "20Gbitkbit", "1kbitMbit", "101Gbit", "unlimited", "0"}) {
    DaemonOptions options;
    const absl::Status status = ApplyUplink(text, &options);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--uplink")) << text;
    EXPECT_EQ(options.uplink_bits_per_s, 0) << text;
  }
}

TEST(DaemonFlags, DefaultsAreGood) { EXPECT_TRUE(CheckFlags(Good()).ok()); }

TEST(DaemonFlags, NamesTravelAsOneLineOfUtf8) {
  for (const char* name : {"", "berlin", "k\xc3\xb6ln 2", "\xe6\x97\xa5\xf0\x9f\x92\xa5"}) {
    DaemonOptions options = Good();
    options.name = name;
    EXPECT_TRUE(CheckFlags(options).ok()) << name;
  }
  for (const std::string& name :
       {std::string("a\nb"), std::string("a\x1b[31m"), std::string("\x7f"), std::string("\xff\xfe"),
        std::string("caf\xe9"), std::string("\xc3"), std::string("\xc0\xaf"),
        std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"), std::string(256, 'x')}) {
    DaemonOptions options = Good();
    options.name = name;
    EXPECT_THAT(std::string(CheckFlags(options).message()), HasSubstr("--name"));
  }
}

TEST(DaemonFlags, AddressesThatAreDialledNeedAPort) {
  DaemonOptions options = Good();
  options.listen = "127.0.0.1:0";
  options.http = "127.0.0.1:0";
  EXPECT_TRUE(CheckFlags(options).ok()) << "0 picks a port to listen on";
  options.advertise = "1.2.3.4:0";
  EXPECT_THAT(std::string(CheckFlags(options).message()), HasSubstr("--advertise '1.2.3.4:0'"));
  options = Good();
  options.coordinator = "host:00";
  EXPECT_THAT(std::string(CheckFlags(options).message()), HasSubstr("--coordinator 'host:00'"));
}

TEST(DaemonFlags, OffLoopbackACertificateIsWanted) {
  DaemonOptions options = Good();
  options.listen = "0.0.0.0:7071";
  EXPECT_THAT(CheckFlags(options).message(), HasSubstr("isthmus ca issue NAME --role worker"));
  ASSERT_TRUE(ApplyTlsDir(&options).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(rpc::CheckPeer("10.0.0.2:7071", options.dialling)));
  EXPECT_TRUE(rpc::CheckPeer("127.0.0.1:7071", options.dialling).ok());
  options.listen = "127.0.0.1:7071";
  options.coordinator = "10.0.0.1:7070";
  EXPECT_THAT(CheckFlags(options).message(), HasSubstr("--coordinator 10.0.0.1:7070 is another"));
  options.insecure = true;
  EXPECT_THAT(CheckFlags(options).message(), HasSubstr("daemons there can't reach this one"));
  options.advertise = "10.0.0.2:7071";
  EXPECT_TRUE(CheckFlags(options).ok());
  options.advertise.clear();
  options.listen = "0.0.0.0:7071";
  EXPECT_TRUE(CheckFlags(options).ok());
  ASSERT_TRUE(ApplyTlsDir(&options).ok());
  EXPECT_TRUE(rpc::CheckPeer("10.0.0.2:7071", options.dialling).ok());
}

TEST(DaemonFlags, ADaemonIsCalledWhatItsCertificateSays) {
  TlsCluster authority;
  DaemonOptions options = Good();
  options.tls_dir = authority.Issue("home-pc", tls::Role::kWorker)->folder().path;
  options.name = "other";
  EXPECT_THAT(ApplyTlsDir(&options).message(),
              HasSubstr("--name 'other': the certificate in --tls-dir is that of node home-pc"));
  options.name.clear();
  ASSERT_TRUE(ApplyTlsDir(&options).ok());
  EXPECT_EQ(options.name, "home-pc");
  EXPECT_EQ(options.dialling.tls, options.tls);
  options.tls_dir = authority.Issue("ada", tls::Role::kOperator)->folder().path;
  EXPECT_THAT(ApplyTlsDir(&options).message(), HasSubstr("this program needs one of role worker"));
}

TEST(DaemonFlags, Devices) {
  DaemonOptions options = Good();
  for (const char* device : {"cpu", "cuda", "cuda:0", "cuda:15"}) {
    options.device = device;
    EXPECT_TRUE(CheckFlags(options).ok()) << device;
  }
  for (const char* device : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1234", "cudax"}) {
    options.device = device;
    EXPECT_THAT(std::string(CheckFlags(options).message()), HasSubstr("--device")) << device;
  }
}

TEST(DaemonFlags, TheDataDirectoryMustBeOne) {
  DaemonOptions options = Good();
  options.data_dir = testing::TempDir() + "/not-there";
  EXPECT_THAT(std::string(CheckDataDir(options.data_dir).message()), HasSubstr("No such file"));
  options.data_dir = testing::TempDir() + "/flags_test_file";
  std::ofstream(options.data_dir) << "x";
  EXPECT_THAT(std::string(CheckDataDir(options.data_dir).message()), HasSubstr("is a file"));
  std::filesystem::remove(options.data_dir);
}

}  // namespace
}  // namespace isthmus::daemon
