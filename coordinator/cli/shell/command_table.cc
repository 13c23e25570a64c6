#include "coordinator/cli/shell/command_table.h"

#include <CLI/CLI.hpp>

namespace isthmus::cli {
namespace {

CommandOption OptionOf(const CLI::Option& option) {
  CommandOption out;
  out.positional = option.get_positional();
  if (out.positional) {
    out.names = {option.get_name(true, false)};
  } else {
    for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  }
  out.required = option.get_required();
  out.repeated = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll &&
                 option.get_items_expected_max() != 0;
  if (option.get_items_expected_max() != 0) {
    out.value = out.positional ? out.names.front() : option.get_type_name();
    const size_t range = out.value.find(" in [");  // "STEP:INT in [0 - 10]"
    if (range != std::string::npos) out.value.resize(out.value.rfind(':', range));
    if (out.value.empty()) out.value = "VALUE";
  }
  out.description = option.get_description();
  out.fallback = option.get_default_str();
  out.environment = option.get_envname();
  return out;
}

}  // namespace

CommandTable TableOf(const CLI::App& app) {
  CommandTable table;
  table.name = app.get_name();
  table.description = app.get_description();
  table.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) table.options.push_back(OptionOf(*option));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    table.commands.push_back(TableOf(*command));
  return table;
}

const CommandTable* FindCommand(const CommandTable& table, const std::string& name) {
  for (const CommandTable& command : table.commands) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

}  // namespace isthmus::cli
