#include "proto/data/data_contents.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isthmus {
namespace {

uint64_t Of(const std::string& path, const std::vector<std::pair<std::string, uint64_t>>& files) {
  NodeInfo node;
  for (const auto& [name, contents] : files) {
    DataFile* file = node.add_data_files();
    file->set_path(name);
    file->set_contents(contents);
  }
  DataSpec data;
  data.set_path(path);
  return DataContents(data, node.data_files());
}

TEST(DataContents, TellsAnotherTextButNotAnotherPlace) {
  const uint64_t text = Of("a.txt", {{"a.txt", 5}, {"b.txt", 6}});
  EXPECT_NE(text, 0u);
  EXPECT_EQ(Of("./sub/b.txt", {{"a.txt", 6}, {"sub/b.txt", 5}}), text);
  EXPECT_NE(Of("a.txt", {{"a.txt", 6}}), text);
}

TEST(DataContents, OfADirectoryItsShards) {
  const uint64_t shards = Of("c4", {{"c4/0.bin", 5}, {"c4/1.bin", 6}, {"c4/README", 0}});
  EXPECT_NE(shards, 0u);
  EXPECT_EQ(Of("c4/", {{"c4/1.bin", 6}, {"c4/0.bin", 5}, {"c40/2.bin", 7}, {"c4/more/2.bin", 8}}),
            shards);
  EXPECT_NE(Of("c4", {{"c4/0.bin", 6}, {"c4/1.bin", 5}}), shards);  // in another order
  EXPECT_NE(Of("c4", {{"c4/0.bin", 5}}), shards);
  EXPECT_EQ(Of(".", {{"0.bin", 5}, {"1.bin", 6}}), shards);
}

TEST(DataContents, IsNotKnownWhereAFileIsNot) {
  EXPECT_EQ(Of("a.txt", {{"b.txt", 6}}), 0u);
  EXPECT_EQ(Of("a.txt", {{"a.txt", 0}}), 0u);
  EXPECT_EQ(Of("c4", {{"c4/0.bin", 5}, {"c4/1.bin", 0}}), 0u);
}

}  // namespace
}  // namespace isthmus
