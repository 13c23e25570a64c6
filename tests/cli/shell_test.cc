// Completions and manual pages out of a small table. tests/cli/shell_check.py lets the shells and
// groff judge those of `isthmus`.
#include <CLI/CLI.hpp>

#include "base/number_flag.h"
#include "coordinator/cli/shell/command_table.h"
#include "coordinator/cli/shell/completion.h"
#include "coordinator/cli/shell/man_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace isthmus::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ShellTest : public testing::Test {
 protected:
  ShellTest() : app_("Sails.", "boat") {
    app_.add_option("--port", text_, "where it's at")->envname("BOAT_PORT")->capture_default_str();
    CLI::App* go = app_.add_subcommand("go", "sail [now]: off");
    go->add_option("FILE", text_, "a chart")->required();
    Whole(go->add_option("-k,--knots", number_, "how fast"), 1, 9);
    go->add_option("--to", list_, "a port of call")->type_name("PLACE")->expected(1)->take_all();
    go->add_flag("--fast", flag_, "all sails");
    go->footer("\n.Example: 'boat' go\\");
    app_.add_subcommand("stop", "anchor");
    table_ = TableOf(app_);
  }

  std::string text_;
  int number_ = 0;
  std::vector<std::string> list_;
  bool flag_ = false;
  CLI::App app_;
  CommandTable table_;
};

TEST_F(ShellTest, TheTableHasAllThatTheHelpHas) {
  ASSERT_EQ(table_.commands.size(), 2u);
  const CommandTable* go = FindCommand(table_, "go");
  ASSERT_NE(go, nullptr);
  EXPECT_EQ(FindCommand(table_, "dive"), nullptr);
  EXPECT_EQ(go->description, "sail [now]: off");
  ASSERT_EQ(go->options.size(), 5u);  // help is the first
  EXPECT_TRUE(go->options[1].positional);
  EXPECT_TRUE(go->options[1].required);
  EXPECT_EQ(go->options[1].value, "FILE");
  EXPECT_THAT(go->options[2].names, ElementsAre("-k", "--knots"));
  EXPECT_EQ(go->options[2].value, "INT");
  EXPECT_EQ(go->options[3].value, "PLACE");
  EXPECT_TRUE(go->options[3].repeated);
  EXPECT_EQ(go->options[4].value, "");
  EXPECT_EQ(table_.options[1].environment, "BOAT_PORT");
}

TEST_F(ShellTest, EveryShellKnowsCommandsAndOptions) {
  const std::string bash = Completion(table_, "bash").value();
  EXPECT_THAT(bash, HasSubstr("complete -o filenames -F _boat boat"));
  EXPECT_THAT(bash, HasSubstr("compgen -W 'go stop -h --help --port'"));
  EXPECT_THAT(bash, HasSubstr("compgen -f"));
  const std::string zsh = Completion(table_, "zsh").value();
  EXPECT_THAT(zsh, HasSubstr("#compdef boat"));
  EXPECT_THAT(zsh, HasSubstr("'go:sail \\[now\\]\\: off'"));
  EXPECT_THAT(zsh, HasSubstr("'--port=[where it'\\''s at]"));
  EXPECT_THAT(zsh, HasSubstr("'*--to=[a port of call]:PLACE:"));
  const std::string fish = Completion(table_, "fish").value();
  EXPECT_THAT(fish, HasSubstr("-a go -d 'sail [now]: off'"));
  EXPECT_THAT(fish, HasSubstr("'__fish_seen_subcommand_from go' -s k -l knots -r"));
  EXPECT_THAT(fish, HasSubstr("-l fast -d"));
  EXPECT_TRUE(absl::IsInvalidArgument(Completion(table_, "csh").status()));
}

TEST_F(ShellTest, AManualPageHasNothingThatRoffTakesForARequest) {
  const std::string page = ProgramPage(table_, "1.2");
  EXPECT_THAT(page, HasSubstr(".TH \"BOAT\" 1"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-k\\fR, \\fB\\-\\-knots\\fR \\fIINT\\fR"));
  EXPECT_THAT(page, HasSubstr("BOAT_PORT"));
  const std::string go = CommandPage(table_, table_.commands[0], "1.2");
  EXPECT_THAT(go, HasSubstr("\\fBboat go\\fR [\\fIOPTION\\fR...] \\fIFILE\\fR"));
  EXPECT_THAT(go, HasSubstr("\n\\&.Example: 'boat' go\\e\n"));
  EXPECT_THAT(go, HasSubstr("may be given again"));
  EXPECT_THAT(TextPage("boat-log", 5, "a log", "'quoted\n  .indented", "1"),
              HasSubstr("\\&'quoted\n  .indented"));
  EXPECT_THAT(page, Not(HasSubstr("\n.Example")));
}

}  // namespace
}  // namespace isthmus::cli
