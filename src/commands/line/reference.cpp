#include "commands/line/reference.h"

#include <iostream>
#include <memory>
#include <sstream>

#include "commands/line/command_line_parts.h"

namespace hrm {
namespace {

// Splits what CLI11 makes of a type and its checks: "TEXT:{auto,cpu}", "N:INT in [0 - 16]", "INT:NONNEGATIVE".
void read_type(const std::string& type, OptionEntry& entry) {
  const size_t colon = type.find(':');
  entry.value = type.substr(0, colon);
  if (colon == std::string::npos) return;
  const std::string check = type.substr(colon + 1);
  const size_t brace = check.find('{'), bracket = check.find('[');
  if (brace != std::string::npos) {
    std::istringstream list(check.substr(brace + 1, check.find('}') - brace - 1));
    for (std::string choice; std::getline(list, choice, ',');) entry.choices.push_back(choice);
  } else if (bracket != std::string::npos) {
    entry.range = check.substr(bracket, check.find(']') - bracket + 1);
  } else if (check == "POSITIVE" || check == "NONNEGATIVE") {
    entry.range = check == "POSITIVE" ? "at least 1" : "at least 0";
  }
}

OptionEntry entry_of(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  entry.positional = option.get_positional() ? option.get_name(true) : "";
  // A flag has no value, and CLI11 gives it no type.
  if (option.get_items_expected_max() > 0) read_type(option.get_type_name(), entry);
  entry.default_value = option.get_default_str();
  entry.help = option.get_description();
  entry.required = option.get_required();
  entry.repeated = option.get_expected_max() > 1;
  return entry;
}

// The command lines of a footer "example: A" or "examples: A\n          B".
std::vector<std::string> examples_of(const std::string& footer) {
  std::vector<std::string> out;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find("hrm_train ");
    const size_t torchrun = line.find("torchrun ");
    const size_t first = std::min(begin, torchrun);
    if (first != std::string::npos && (line.rfind("example", 0) == 0 || line.rfind("  ", 0) == 0)) {
      out.push_back(line.substr(first));
    }
  }
  return out;
}

void add_commands(const CLI::App& app, const std::vector<std::string>& words, std::vector<CommandEntry>& out) {
  CommandEntry entry;
  entry.words = words;
  entry.help = app.get_description();
  entry.examples = examples_of(app.get_footer());
  const auto any = [](const CLI::Option*) { return true; };
  for (const CLI::Option* option : app.get_options(any)) {
    if (option->get_positional()) entry.options.push_back(entry_of(*option));
  }
  for (const CLI::Option* option : app.get_options(any)) {
    if (option->get_positional()) continue;
    // Subcommands inherit --help-all, which nobody needs there.
    if (!words.empty() && option == app.get_help_all_ptr()) continue;
    entry.options.push_back(entry_of(*option));
  }
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : subcommands) entry.subcommands.push_back(sub->get_name());
  out.push_back(std::move(entry));
  for (const CLI::App* sub : subcommands) {
    std::vector<std::string> deeper = words;
    deeper.push_back(sub->get_name());
    add_commands(*sub, deeper, out);
  }
}

}  // namespace

std::vector<CommandEntry> list_commands(const CLI::App& app) {
  std::vector<CommandEntry> out;
  add_commands(app, {}, out);
  return out;
}

void add_reference(CLI::App& app, Action& action) {
  CLI::App* completion = app.add_subcommand("completion", "print a completion script for a shell");
  auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "shell that reads the script")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer("example: hrm_train completion bash > ~/.local/share/bash-completion/completions/hrm_train");
  completion->callback([&app, &action, shell] {
    action = [&app, shell] {
      const std::vector<CommandEntry> commands = list_commands(app);
      std::cout << (*shell == "bash"  ? bash_completion(commands)
                    : *shell == "zsh" ? zsh_completion(commands)
                                      : fish_completion(commands));
      return 0;
    };
  });

  CLI::App* reference = app.add_subcommand("reference", "print the reference of all options as a page");
  auto page = std::make_shared<std::string>();
  reference
      ->add_option(
          "page", *page,
          "cli: docs/cli.md, all subcommands; config: docs/config.md, all configuration keys; man: the man page")
      ->required()
      ->check(CLI::IsMember({"cli", "config", "man"}));
  reference->footer("example: hrm_train reference man > hrm_train.1");
  reference->callback([&app, &action, page] {
    action = [&app, page] {
      const std::vector<CommandEntry> commands = list_commands(app);
      std::cout << (*page == "cli"      ? cli_markdown(commands)
                    : *page == "config" ? config_markdown()
                                        : man_page(commands));
      return 0;
    };
  });
}

}  // namespace hrm
