#include "coordinator/cli/shell/completion.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace isthmus::cli {
namespace {

enum class Kind { kNone, kFile, kDirectory, kCommand, kShell, kWords, kWordsOrFile, kPreset };

// What a value or an argument is made of.
Kind KindOf(const CommandOption& option) {
  const std::string& value = option.value;
  if (value == "SHELL") return Kind::kShell;
  if (value == "TOPIC") return Kind::kCommand;
  if (absl::StrContains(value, "PRESET")) return Kind::kPreset;
  if (absl::StrContains(value, '|') && absl::EndsWith(value, ".yaml")) return Kind::kWordsOrFile;
  if (absl::StrContains(value, '|') && absl::AsciiStrToLower(value) == value) return Kind::kWords;
  if (absl::StrContains(value, "DIR") || value == "FOLDER") return Kind::kDirectory;
  if (absl::StrContains(value, "FILE") || absl::EndsWith(value, ".yaml")) return Kind::kFile;
  return Kind::kNone;
}

std::vector<std::string> CommandNames(const CommandTable& table) {
  std::vector<std::string> names;
  for (const CommandTable& command : table.commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> OptionNames(const CommandTable& table) {
  std::vector<std::string> names;
  for (const CommandOption& option : table.options) {
    if (!option.positional) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

// In single quotes, for any of the shells.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// The words of a value that is one of some, as "a|b" or "a|JOB.yaml".
std::vector<std::string> WordsOf(const CommandOption& option) {
  std::vector<std::string> words;
  for (const absl::string_view word : absl::StrSplit(option.value, '|')) {
    if (!absl::StrContains(word, '.')) words.emplace_back(word);
  }
  return words;
}

std::string BashWords(const CommandOption& option, const CommandTable& root) {
  switch (KindOf(option)) {
    case Kind::kFile:
      return "mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";
    case Kind::kDirectory:
      return "mapfile -t COMPREPLY < <(compgen -d -- \"$current\")";
    case Kind::kCommand:
      return absl::StrCat("mapfile -t COMPREPLY < <(compgen -W ",
                          Quoted(absl::StrJoin(CommandNames(root), " ") + " job"),
                          " -- \"$current\")");
    case Kind::kShell:
      return "mapfile -t COMPREPLY < <(compgen -W 'bash zsh fish' -- \"$current\")";
    case Kind::kWords:
    case Kind::kWordsOrFile:
      return absl::StrCat("mapfile -t COMPREPLY < <(compgen ",
                          KindOf(option) == Kind::kWordsOrFile ? "-f " : "", "-W ",
                          Quoted(absl::StrJoin(WordsOf(option), " ")), " -- \"$current\")");
    case Kind::kPreset:  // the emulator lies beside the program that is typed
      return "mapfile -t COMPREPLY < <(compgen -f -W \"$(\"${COMP_WORDS[0]}-wan\" presets "
             "2> /dev/null | cut -d ' ' -f 1)\" -- \"$current\")";
    case Kind::kNone:
      break;
  }
  return "COMPREPLY=()";
}

// Cases of the word before the cursor: options that take a value.
void BashValues(const CommandTable& table, const CommandTable& root, const std::string& indent,
                std::string* out) {
  for (const CommandOption& option : table.options) {
    if (option.positional || option.value.empty()) continue;
    absl::StrAppend(out, indent, absl::StrJoin(option.names, "|"), ") ", BashWords(option, root),
                    "; return ;;\n");
  }
}

// The branch of arguments that are no options. Of a first one that is one of some words, those
// alone are offered; behind it what comes next: a further argument, else what its program takes.
std::string BashArguments(const CommandTable& command, const CommandTable& root) {
  CommandOption first, second;
  for (const CommandOption& option : command.options) {
    if (!option.positional) continue;
    if (KindOf(first) == Kind::kNone) {
      first = option;
    } else if (second.value.empty()) {
      second = option;
    }
  }
  const std::string words = BashWords(first, root);
  const Kind kind = KindOf(first);
  if (kind != Kind::kWords && kind != Kind::kWordsOrFile) return words;
  CommandOption folder;
  folder.value = "DIR";
  const bool program = kind == Kind::kWords && second.value.empty();
  return absl::StrCat("for word in \"${COMP_WORDS[@]:i + 1:COMP_CWORD - i - 1}\"; do\n",
                      "          case $word in ", absl::StrJoin(WordsOf(first), "|"), ") ",
                      BashWords(program ? folder : second, root),
                      "; return ;; esac\n        done\n        ", words);
}

std::string Bash(const CommandTable& root) {
  std::string valued;
  for (const CommandOption& option : root.options) {
    if (!option.positional && !option.value.empty())
      absl::StrAppend(&valued, valued.empty() ? "" : "|", absl::StrJoin(option.names, "|"));
  }
  std::string out = absl::StrCat(
      "# bash completion of ", root.name, ", made by `", root.name, " completion bash`.\n_",
      root.name,
      "() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  local command= i word\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n      ",
      valued,
      ") ((i++)) ;;\n"
      "      -*) ;;\n"
      "      *) command=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $previous in\n");
  BashValues(root, root, "    ", &out);
  absl::StrAppend(
      &out, "  esac\n  case $command in\n    '')\n", "      mapfile -t COMPREPLY < <(compgen -W ",
      Quoted(absl::StrJoin(CommandNames(root), " ") + " " + absl::StrJoin(OptionNames(root), " ")),
      " -- \"$current\") ;;\n");
  for (const CommandTable& command : root.commands) {
    absl::StrAppend(&out, "    ", command.name, ")\n      case $previous in\n");
    BashValues(command, root, "        ", &out);
    absl::StrAppend(
        &out,
        "      esac\n      case $current in\n        -*) mapfile -t COMPREPLY < <(compgen -W ",
        Quoted(absl::StrJoin(OptionNames(command), " ")), " -- \"$current\") ;;\n");
    absl::StrAppend(&out, "        *) ", BashArguments(command, root), " ;;\n      esac ;;\n");
  }
  absl::StrAppend(&out, "  esac\n}\ncomplete -o filenames -F _", root.name, " ", root.name, "\n");
  return out;
}

// Text inside of an argument of zsh's _arguments or _describe.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshAction(const CommandOption& option, const CommandTable& root) {
  switch (KindOf(option)) {
    case Kind::kFile:
      return "_files";
    case Kind::kDirectory:
      return "_files -/";
    case Kind::kCommand:
      return absl::StrCat("(", absl::StrJoin(CommandNames(root), " "), " job)");
    case Kind::kShell:
      return "(bash zsh fish)";
    case Kind::kWords:
      return absl::StrCat("(", absl::StrJoin(WordsOf(option), " "), ")");
    case Kind::kWordsOrFile:
      return absl::StrCat("{compadd -- ", absl::StrJoin(WordsOf(option), " "), "; _files}");
    case Kind::kPreset:
      return absl::StrCat("{compadd -- $(", root.name,
                          "-wan presets 2> /dev/null | cut -d \" \" -f 1); _files}");
    case Kind::kNone:
      break;
  }
  return " ";
}

std::string ZshSpecs(const CommandTable& table, const CommandTable& root,
                     const std::string& indent) {
  std::vector<std::string> specs;
  for (const CommandOption& option : table.options) {
    const std::string value = option.value.empty() ? ""
                                                   : absl::StrCat(":", ZshText(option.value), ":",
                                                                  ZshAction(option, root));
    if (option.positional) {
      specs.push_back(absl::StrCat("'", option.required ? ":" : "::", value.substr(1), "'"));
      continue;
    }
    for (const std::string& name : option.names) {
      specs.push_back(absl::StrCat("'", option.repeated ? "*" : "", name,
                                   option.value.empty()           ? ""
                                   : absl::StartsWith(name, "--") ? "="
                                                                  : "+",
                                   "[", ZshText(option.description), "]", value, "'"));
    }
  }
  return absl::StrJoin(specs, absl::StrCat(" \\\n", indent));
}

std::string Zsh(const CommandTable& root) {
  std::string out = absl::StrCat("#compdef ", root.name, "\n# zsh completion of ", root.name,
                                 ", made by `", root.name, " completion zsh`.\n_", root.name,
                                 "() {\n  local context state state_descr line\n  typeset -A "
                                 "opt_args\n  _arguments -C \\\n    ",
                                 ZshSpecs(root, root, "    "),
                                 " \\\n    '1:command:->command' \\\n    '*::argument:->argument'\n"
                                 "  case $state in\n    command)\n      local -a commands=(\n");
  for (const CommandTable& command : root.commands)
    absl::StrAppend(&out, "        '", command.name, ":", ZshText(command.description), "'\n");
  absl::StrAppend(&out,
                  "      )\n      _describe -t commands command commands ;;\n"
                  "    argument)\n      case $line[1] in\n");
  for (const CommandTable& command : root.commands) {
    const std::string specs = ZshSpecs(command, root, "          ");
    absl::StrAppend(&out, "        ", command.name, ")\n          _arguments \\\n          ", specs,
                    " ;;\n");
  }
  absl::StrAppend(&out, "      esac ;;\n  esac\n}\n_", root.name, " \"$@\"\n");
  return out;
}

std::string FishWords(const CommandOption& option, const CommandTable& root) {
  switch (KindOf(option)) {
    case Kind::kFile:
      return " -F";
    case Kind::kDirectory:
      return " -a '(__fish_complete_directories)'";
    case Kind::kCommand:
      return absl::StrCat(" -a ", Quoted(absl::StrJoin(CommandNames(root), " ") + " job"));
    case Kind::kShell:
      return " -a 'bash zsh fish'";
    case Kind::kWords:
    case Kind::kWordsOrFile:
      return absl::StrCat(KindOf(option) == Kind::kWordsOrFile ? " -F -a " : " -a ",
                          Quoted(absl::StrJoin(WordsOf(option), " ")));
    case Kind::kPreset:
      return absl::StrCat(" -F -a ", Quoted(absl::StrCat("(", root.name,
                                                         "-wan presets 2> /dev/null | "
                                                         "cut -d \" \" -f 1)")));
    case Kind::kNone:
      break;
  }
  return "";
}

void FishOptions(const CommandTable& table, const CommandTable& root, const std::string& condition,
                 std::string* out) {
  for (const CommandOption& option : table.options) {
    absl::StrAppend(out, "complete -c ", root.name, " -n ", Quoted(condition));
    for (const std::string& name : option.names) {
      if (option.positional) break;
      absl::StrAppend(out, absl::StartsWith(name, "--") ? " -l " : " -s ",
                      absl::string_view(name).substr(absl::StartsWith(name, "--") ? 2 : 1));
    }
    if (!option.positional && !option.value.empty()) absl::StrAppend(out, " -r");
    absl::StrAppend(out, FishWords(option, root), " -d ", Quoted(option.description), "\n");
  }
}

std::string Fish(const CommandTable& root) {
  std::string out = absl::StrCat("# fish completion of ", root.name, ", made by `", root.name,
                                 " completion fish`.\ncomplete -c ", root.name, " -f\n");
  for (const CommandTable& command : root.commands)
    absl::StrAppend(&out, "complete -c ", root.name, " -n __fish_use_subcommand -a ", command.name,
                    " -d ", Quoted(command.description), "\n");
  FishOptions(root, root, "true", &out);
  for (const CommandTable& command : root.commands)
    FishOptions(command, root, absl::StrCat("__fish_seen_subcommand_from ", command.name), &out);
  return out;
}

}  // namespace

absl::StatusOr<std::string> Completion(const CommandTable& table, const std::string& shell) {
  if (shell == "bash") return Bash(table);
  if (shell == "zsh") return Zsh(table);
  if (shell == "fish") return Fish(table);
  return absl::InvalidArgumentError(
      absl::StrCat("no completions for '", shell, "': bash, zsh or fish. Load them: source <(",
                   table.name, " completion bash), or save them where the shell looks"));
}

}  // namespace isthmus::cli
