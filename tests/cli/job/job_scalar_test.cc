#include "coordinator/cli/job/job_scalar.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace isthmus::cli {
namespace {

TEST(JobScalar, Numbers) {
  EXPECT_EQ(ParseWholeNumber("-3").value(), -3);
  EXPECT_EQ(ParseWholeNumber("1.5e3").value(), 1500);
  EXPECT_FALSE(ParseWholeNumber("1.5").ok());
  EXPECT_FALSE(ParseWholeNumber("1e300").ok());
  EXPECT_FALSE(ParseWholeNumber("nan").ok());
  EXPECT_FALSE(ParseWholeNumber("").ok());
  EXPECT_EQ(ParseWholeNumber("030").value(), 30);  // not octal
  for (const char* text : {"0x1e", "+30", " 30", "+1e3", "1_000", "inf"})
    EXPECT_FALSE(ParseWholeNumber(text).ok()) << text;
  EXPECT_EQ(ParseByteSize("1048576").value(), 1048576);
  EXPECT_EQ(ParseByteSize("512KiB").value(), 524288);
  EXPECT_EQ(ParseByteSize("1.5 GiB").value(), 1610612736);
  EXPECT_EQ(ParseByteSize("2GB").value(), 2000000000);
  EXPECT_FALSE(ParseByteSize("-1").ok());
  EXPECT_FALSE(ParseByteSize("1 QB").ok());
  EXPECT_FALSE(ParseByteSize("MiB").ok());
}

TEST(JobScalar, NoTextHoldsANul) {
  JobSpec job;
  const auto* name = JobSpec::descriptor()->FindFieldByName("name");
  EXPECT_TRUE(SetScalar("a b", name, &job).ok());
  EXPECT_THAT(std::string(SetScalar(std::string("a\0b", 3), name, &job).message()),
              testing::HasSubstr("NUL"));
  EXPECT_EQ(job.name(), "a b");
}

}  // namespace
}  // namespace isthmus::cli
