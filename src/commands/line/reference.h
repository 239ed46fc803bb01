#pragma once
// Command-line reference from the option tables: the page docs/cli.md, the man page, and completion scripts of shells.
// Everything walks the CLI::App that parses the command line, so that no option is listed twice in the sources.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace hrm {

// One option or positional argument, as --help shows it.
struct OptionEntry {
  std::vector<std::string> names;    // "--config"; short names first. Empty for a positional argument
  std::string positional;            // name of a positional argument; empty for an option
  std::string value;                 // "FILE", "N"; empty for a flag
  std::vector<std::string> choices;  // the values that the option accepts; empty where it accepts others
  std::string range;                 // "[0 - 1]"; empty where there is none
  std::string default_value;
  std::string help;
  bool required = false;
  bool repeated = false;  // may be given several times, or takes several values
};

// One subcommand, at any depth; the program itself comes first.
struct CommandEntry {
  std::vector<std::string> words;  // {"data", "sudoku"}; empty for the program
  std::string help;
  std::vector<std::string> examples;  // command lines
  std::vector<OptionEntry> options;   // positional arguments first
  std::vector<std::string> subcommands;
};

std::vector<CommandEntry> list_commands(const CLI::App& app);

// `hrm_train completion bash`: completes subcommands, options, their choices, file names and configuration keys.
std::string bash_completion(const std::vector<CommandEntry>& commands);
std::string zsh_completion(const std::vector<CommandEntry>& commands);
std::string fish_completion(const std::vector<CommandEntry>& commands);
// A page in man(7) macros, section 1.
std::string man_page(const std::vector<CommandEntry>& commands);
// The pages docs/cli.md and docs/config.md.
std::string cli_markdown(const std::vector<CommandEntry>& commands);
std::string config_markdown();

// Adds the subcommands `completion` and `reference`. They list `app` as it is when they run.
void add_reference(CLI::App& app, std::function<int()>& action);

}  // namespace hrm
