#include "base/file/tree.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/temp_directory.h"

namespace isthmus {
namespace {

namespace fs = std::filesystem;

TEST(Tree, GoesWithAllThatIsInItAndNothingElse) {
  TempDirectory directory;
  const std::string outside = directory.path() + "/outside", tree = directory.path() + "/tree";
  fs::create_directories(tree + "/a/b");
  fs::create_directories(tree + "/empty");
  std::ofstream(tree + "/a/b/file") << "12345";
  std::ofstream(tree + "/file") << "678";
  fs::create_directories(outside);
  std::ofstream(outside + "/stays") << "a text of another";
  ASSERT_EQ(symlink(outside.c_str(), (tree + "/a/link").c_str()), 0);
  ASSERT_EQ(symlink((outside + "/stays").c_str(), (tree + "/file-link").c_str()), 0);
  EXPECT_EQ(TreeBytes(tree), 8);
  EXPECT_TRUE(RemoveTree(tree).ok());
  EXPECT_FALSE(fs::exists(tree));
  EXPECT_TRUE(fs::exists(outside + "/stays")) << "links are not followed";
}

TEST(Tree, AFileALinkAndNothing) {
  TempDirectory directory;
  const std::string file = directory.path() + "/file", link = directory.path() + "/link";
  std::ofstream(file) << "1234";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  EXPECT_EQ(TreeBytes(file), 4);
  EXPECT_TRUE(RemoveTree(link).ok());
  EXPECT_TRUE(fs::exists(file));
  EXPECT_TRUE(RemoveTree(file).ok());
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(RemoveTree(file).ok()) << "it is gone already";
  EXPECT_TRUE(RemoveTree("").ok());
  EXPECT_EQ(TreeBytes(file), 0);
}

TEST(Tree, WhatCannotBeRemovedIsNamed) {
  const absl::Status status = RemoveTree("/proc/self/status");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/proc/self/status"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace isthmus
