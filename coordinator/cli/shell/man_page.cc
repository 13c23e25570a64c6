#include "coordinator/cli/shell/man_page.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/cli/job/job_reference.h"

namespace isthmus::cli {
namespace {

// Text for roff: nothing in it is a request or an escape.
std::string Roff(absl::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

std::string Title(absl::string_view name, int section, absl::string_view version) {
  return absl::StrCat(".TH \"", Roff(absl::AsciiStrToUpper(name)), "\" ", section,
                      " \"\" \"isthmus ", Roff(version), "\" \"Isthmus\"\n");
}

std::string Verbatim(absl::string_view text) {
  return absl::StrCat(".nf\n", Roff(absl::StripAsciiWhitespace(text)), "\n.fi\n");
}

std::string Synopsis(const std::vector<CommandOption>& options) {
  std::string out;
  bool any = false;
  for (const CommandOption& option : options) any = any || !option.positional;
  if (any) out += " [\\fIOPTION\\fR...]";
  for (const CommandOption& option : options) {
    if (!option.positional) continue;
    const std::string name = absl::StrCat("\\fI", Roff(option.names.front()), "\\fR");
    absl::StrAppend(&out, " ", option.required ? name : absl::StrCat("[", name, "]"));
  }
  return out;
}

std::string Options(const std::vector<CommandOption>& options) {
  std::string out;
  for (const CommandOption& option : options) {
    std::vector<std::string> names;
    for (const std::string& name : option.names)
      names.push_back(absl::StrCat("\\fB", Roff(name), "\\fR"));
    absl::StrAppend(&out, ".TP\n", absl::StrJoin(names, ", "));
    if (!option.positional && !option.value.empty())
      absl::StrAppend(&out, " \\fI", Roff(option.value), "\\fR");
    absl::StrAppend(&out, "\n", Roff(option.description));
    if (!option.fallback.empty()) absl::StrAppend(&out, " [", Roff(option.fallback), "]");
    if (!option.environment.empty())
      absl::StrAppend(&out, "; also by the environment variable ", Roff(option.environment));
    if (option.repeated) out += "; may be given again";
    out += "\n";
  }
  return out;
}

}  // namespace

std::string ProgramPage(const CommandTable& program, absl::string_view version) {
  std::string out =
      absl::StrCat(Title(program.name, 1, version), ".SH NAME\n", Roff(program.name), " \\- ",
                   Roff(program.description), "\n.SH SYNOPSIS\n\\fB", Roff(program.name),
                   "\\fR [\\fIOPTION\\fR...] \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n",
                   ".SH OPTIONS\n", Options(program.options), ".SH COMMANDS\n");
  for (const CommandTable& command : program.commands) {
    absl::StrAppend(&out, ".SS \"", Roff(command.name), "\"\n", Roff(command.description),
                    "\n.PP\n\\fB", Roff(program.name), " ", Roff(command.name), "\\fR",
                    Synopsis(command.options), "\n", Options(command.options));
  }
  absl::StrAppend(
      &out, ".SH NOTES\n", Verbatim(program.footer),
      ".SH SEE ALSO\n.BR isthmus\\-job (5),\n.BR isthmusd (1),\n.BR isthmus\\-coordinator (1)\n");
  return out;
}

std::string CommandPage(const CommandTable& program, const CommandTable& command,
                        absl::string_view version) {
  const std::string name = absl::StrCat(program.name, "-", command.name);
  std::string out = absl::StrCat(
      Title(name, 1, version), ".SH NAME\n", Roff(name), " \\- ", Roff(command.description),
      "\n.SH SYNOPSIS\n\\fB", Roff(program.name), " ", Roff(command.name), "\\fR",
      Synopsis(command.options), "\n.SH OPTIONS\n", Options(command.options));
  if (!command.footer.empty()) absl::StrAppend(&out, ".SH NOTES\n", Verbatim(command.footer));
  return absl::StrCat(out, ".SH SEE ALSO\n.BR ", Roff(program.name), " (1)\n");
}

std::string TextPage(absl::string_view name, int section, absl::string_view what,
                     absl::string_view text, absl::string_view version) {
  return absl::StrCat(Title(name, section, version), ".SH NAME\n", Roff(name), " \\- ", Roff(what),
                      "\n.SH DESCRIPTION\n", Verbatim(text));
}

std::string HelpPage(absl::string_view name, absl::string_view help, absl::string_view version) {
  absl::string_view what = help.substr(0, help.find('\n'));
  if (absl::ConsumePrefix(&what, name)) absl::ConsumePrefix(&what, ": ");
  return TextPage(name, 1, what, help, version);
}

absl::StatusOr<std::string> PageOf(const CommandTable& program, const std::string& topic,
                                   absl::string_view version) {
  if (topic.empty()) return ProgramPage(program, version);
  if (topic == "job")
    return TextPage("isthmus-job", 5, "the job file of Isthmus", JobReference(), version);
  const CommandTable* command = FindCommand(program, topic);
  if (command == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("there is no command '", topic, "'"));
  return CommandPage(program, *command, version);
}

}  // namespace isthmus::cli
