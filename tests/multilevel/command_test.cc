// The command line of isthmus-multilevel on small models.
#include "worker/multilevel/command.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multilevel/random_model.h"
#include "tests/temp_directory.h"
#include "worker/multilevel/model_files.h"

namespace isthmus::multilevel {
namespace {

using testing::HasSubstr;

const Shape kLarge{4, 16, 4, 11, 5};

class MultilevelCommandTest : public testing::Test {
 protected:
  MultilevelCommandTest() { WriteModelDir(At("large"), kLarge, RandomModel(kLarge, 1)); }
  std::string At(const std::string& name) { return temp_.path() + "/" + name; }
  int Run(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "isthmus-multilevel");
    char *out = nullptr, *err = nullptr;
    size_t out_size = 0, err_size = 0;
    FILE* out_file = open_memstream(&out, &out_size);
    FILE* err_file = open_memstream(&err, &err_size);
    const int code =
        RunCommand(static_cast<int>(arguments.size()), arguments.data(), out_file, err_file);
    fclose(out_file);
    fclose(err_file);
    out_.assign(out, out_size);
    err_.assign(err, err_size);
    free(out);
    free(err);
    return code;
  }
  Shape ShapeOf(const std::string& name) { return ModelFiles::Open(At(name)).value().shape(); }

  TempDirectory temp_;
  std::string out_, err_;
};

TEST_F(MultilevelCommandTest, TheCycleOfThePaper) {
  const std::string large = At("large"), small = At("small"), grown = At("grown"),
                    start = At("start");
  ASSERT_EQ(Run({"coalesce", large.c_str(), small.c_str()}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("2 layers of width 8, 2 heads"));
  ASSERT_EQ(Run({"decoalesce", small.c_str(), grown.c_str(), "--like", large.c_str()}), 0) << err_;
  ASSERT_EQ(Run({"interpolate", large.c_str(), grown.c_str(), start.c_str(), "--json"}), 0) << err_;
  const auto object = nlohmann::json::parse(out_);
  EXPECT_EQ(object["layers"], 4);
  EXPECT_EQ(object["parameters"], Parameters(kLarge));
  EXPECT_EQ(object["isthmus_multilevel"].back()["alpha"], 0.25);
  EXPECT_EQ(ShapeOf("start"), kLarge);
  EXPECT_EQ(Run({"interpolate", large.c_str(), grown.c_str(), start.c_str()}), 2);
  EXPECT_THAT(err_, HasSubstr("--force"));
  EXPECT_EQ(Run({"interpolate", large.c_str(), grown.c_str(), start.c_str(), "--force"}), 0);
}

TEST_F(MultilevelCommandTest, DecoalesceUndoesWhatIsRecorded) {
  const std::string large = At("large"), small = At("small"), grown = At("grown");
  ASSERT_EQ(Run({"coalesce", large.c_str(), small.c_str(), "--layers", "1", "--heads", "1",
                 "--width-groups", "adjacent"}),
            0)
      << err_;
  EXPECT_EQ(ShapeOf("small"), (Shape{1, 4, 1, 11, 5}));
  ASSERT_EQ(Run({"decoalesce", small.c_str(), grown.c_str(), "--json"}), 0) << err_;
  EXPECT_EQ(ShapeOf("grown"), kLarge);
  EXPECT_EQ(nlohmann::json::parse(out_)["isthmus_multilevel"][1]["width_groups"], "adjacent");
}

TEST_F(MultilevelCommandTest, RefusalsAreUsage) {
  const std::string large = At("large"), out = At("out");
  const auto refused = [&](std::vector<const char*> more, const char* words) {
    std::vector<const char*> all = {"coalesce", large.c_str(), out.c_str()};
    all.insert(all.end(), more.begin(), more.end());
    EXPECT_EQ(Run(all), 2) << words;
    EXPECT_THAT(err_, HasSubstr(words));
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused({"--width-factor", "3"}, "width factor 3 does not divide the 4 heads");
  refused({"--depth-factor", "0"}, "--depth-factor: '0'");
  refused({"--hidden", "5"}, "5 is no divisor of 16 channels");
  refused({"--width-groups", "halves"}, "'halves' is neither 'strided' nor 'adjacent'");
  refused({"--tied", "none"}, "--tied: 'none' is neither");
  refused({"--like", "/nowhere"}, "/nowhere/config.json");
  EXPECT_EQ(Run({"interpolate", large.c_str(), large.c_str(), out.c_str(), "--alpha", "1.5"}), 2);
  EXPECT_THAT(err_, HasSubstr("--alpha: '1.5'"));
  EXPECT_EQ(Run({}), 2);
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("isthmus multilevel coalesce ./large ./small"));
  EXPECT_EQ(Run({"--help-all"}), 0);  // the manual page
  EXPECT_THAT(out_, HasSubstr("--width-groups"));
  EXPECT_EQ(Run({"decoalesce", "--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("as the recorded coalesce did"));
}

}  // namespace
}  // namespace isthmus::multilevel
