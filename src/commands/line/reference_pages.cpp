// The reference as Markdown pages and as a man page.

#include <algorithm>
#include <sstream>

#include "commands/line/reference.h"
#include "hrm/base/build_info.h"
#include "hrm/base/error.h"
#include "hrm/config/schema.h"
#include "hrm/config/task_settings.h"

namespace hrm {
namespace {

std::string joined(const std::vector<std::string>& parts, const std::string& between) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : between) + part;
  return out;
}

std::string full_command(const CommandEntry& command) {
  return command.words.empty() ? "hrm_train" : "hrm_train " + joined(command.words, " ");
}

// One line: `hrm_train solve [OPTIONS] --checkpoint PATH [FILE]`.
std::string usage(const CommandEntry& command) {
  std::string out = full_command(command);
  if (std::any_of(command.options.begin(), command.options.end(),
                  [](const OptionEntry& o) { return o.positional.empty() && !o.required; })) {
    out += " [OPTIONS]";
  }
  for (const OptionEntry& option : command.options) {
    // An option that is also positional has its names; one spelling of it is enough here.
    if (option.required && option.positional.empty()) out += cat(" ", option.names.back(), " ", option.value);
  }
  if (!command.subcommands.empty()) out += " SUBCOMMAND";
  for (const OptionEntry& option : command.options) {
    if (option.positional.empty()) continue;
    const std::string value = option.choices.empty() ? option.value : joined(option.choices, "|");
    const std::string word = value + (option.repeated ? "..." : "");
    out += option.required ? " " + word : cat(" [", word, "]");
  }
  return out;
}

// "--config FILE", "-h, --help", "overrides KEY=VALUE".
std::string heading(const OptionEntry& option) {
  std::vector<std::string> names = option.names;
  if (!option.positional.empty()) names.insert(names.begin(), option.positional);
  return joined(names, ", ") + (option.value.empty() || !option.choices.empty() ? "" : " " + option.value);
}

// What the option accepts, and what holds without it.
std::string facts(const OptionEntry& option) {
  std::vector<std::string> out;
  if (option.required) out.push_back("required");
  if (!option.choices.empty()) out.push_back("one of " + joined(option.choices, ", "));
  if (!option.range.empty()) out.push_back(option.range);
  if (option.repeated) out.push_back("may be repeated");
  if (!option.default_value.empty()) out.push_back("default " + option.default_value);
  return joined(out, "; ");
}

bool is_help(const OptionEntry& option) {
  return !option.names.empty() && option.names.back() == "--help";
}

// For a cell of a Markdown table. Angle brackets would be HTML.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '|':
        out += "\\|";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '*':
        out += "\\*";
        break;
      case '_':
        out += "\\_";
        break;
      case '\n':
        out += " ";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string code_cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out.empty() ? "" : "`" + out + "`";
}

std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

struct ExitStatus {
  ExitCode code;
  const char* text;
};

constexpr ExitStatus kExitStatuses[] = {
    {ExitCode::done, "done"},
    {ExitCode::unexpected, "unexpected error: a bug, or a failure that nobody foresaw"},
    {ExitCode::usage, "wrong command line or configuration"},
    {ExitCode::environment, "machine: no usable device, missing library, no permission, or full disk"},
    {ExitCode::data, "a data file is missing, malformed or inconsistent"},
    {ExitCode::checkpoint, "a checkpoint is missing, corrupt, or belongs to another model"},
    {ExitCode::diverged,
     "training diverged: too many gradients in a row were not finite; the state before them was saved (see 'hrm_train "
     "doctor --replay')"},
    {ExitCode::rank_failed,
     "another rank of the training was lost or never came, or a step never ended; start all ranks again"},
    {ExitCode::stopped, "stopped by a signal after saving; run the same command again to resume"},
};

// Lines of at most 120 columns.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t column = 0;
  std::istringstream words(text);
  for (std::string word; words >> word; column += word.size()) {
    const bool fits = column + 1 + word.size() <= 120;
    if (!out.empty()) out += fits ? " " : "\n";
    column = out.empty() || !fits ? 0 : column + 1;
    out += word;
  }
  return out;
}

constexpr const char* kGenerated = "This page is generated from the program's option tables";

}  // namespace

std::string cli_markdown(const std::vector<CommandEntry>& commands) {
  std::string out = cat("# Command line\n\n<!-- hrm_train reference cli -->\n", kGenerated,
                        ".\n`hrm_train SUBCOMMAND --help` prints the same text. Results go to stdout, messages to "
                        "stderr.\n\n| subcommand | what it does |\n|---|---|\n");
  for (const CommandEntry& command : commands) {
    if (command.words.size() != 1) continue;
    out += cat("| [`", command.words[0], "`](#hrm_train-", command.words[0], ") | ", cell(command.help), " |\n");
  }
  out += "\n## Exit codes\n\n| code | meaning |\n|---:|---|\n";
  for (const ExitStatus& status : kExitStatuses) {
    out += cat("| ", static_cast<int>(status.code), " | ", cell(status.text), " |\n");
  }
  for (const CommandEntry& command : commands) {
    out += cat(command.words.size() > 1 ? "\n### `" : "\n## `", full_command(command), "`\n\n", wrapped(command.help),
               "\n\n```\n", usage(command), "\n```\n");
    if (!command.examples.empty()) {
      out += cat("\nFor example:\n\n```\n", joined(command.examples, "\n"), "\n```\n");
    }
    if (!command.subcommands.empty() && !command.words.empty()) continue;  // they have no options of their own
    out += "\n| option | accepts | meaning |\n|---|---|---|\n";
    for (const OptionEntry& option : command.options) {
      if (!command.words.empty() && is_help(option)) continue;
      out += cat("| ", code_cell(heading(option)), " | ", cell(facts(option)), " | ", cell(option.help), " |\n");
    }
  }
  return out;
}

std::string config_markdown() {
  using namespace config;
  const Config standard;
  std::string out = cat("# Configuration keys\n\n<!-- hrm_train reference config -->\n", kGenerated,
                        ".\n`hrm_train config --describe` prints the same list in a terminal. Set a key in a file "
                        "(`--config FILE`) or at\nthe end of the command line (`optim.lr=1e-4`).\n");
  std::string section = "?";
  for (const Field& field : fields()) {
    if (field.section != section) {
      section = field.section;
      out += section.empty() ? "\n## Top level\n\n" : cat("\n## ", section, "\n\n");
      for (const Section& s : sections()) {
        if (s.name == section && !section.empty()) out += wrapped(s.help) + "\n\n";
      }
      out += "| key | accepts | default | meaning |\n|---|---|---|---|\n";
    }
    const std::string rule = describe_rule(field.rule) + (field.unit.empty() ? "" : cat(" (", field.unit, ")"));
    std::string meaning = field.help + defaults_of_tasks(field.key);
    if (!field.tasks.empty()) meaning += cat(" (task: ", joined(field.tasks, ", "), ")");
    out += cat("| ", code_cell(field.key), " | ", cell(rule), " | ", code_cell(to_text(field.get(standard))), " | ",
               cell(meaning), " |\n");
  }
  return out;
}

std::string man_page(const std::vector<CommandEntry>& commands) {
  std::string out = cat(".TH HRM_TRAIN 1 \"\" \"hrm_train ", build_info("version"), "\" \"User Commands\"\n");
  out += cat(".SH NAME\nhrm_train \\- ", roff("train, evaluate and run reasoning models and language models"),
             "\n.SH SYNOPSIS\n.B hrm_train\n.RI [ OPTIONS ]\n.I SUBCOMMAND\n.SH DESCRIPTION\n",
             roff(commands.front().help), "\n.PP\n",
             roff("Results go to standard output, messages to standard error. Any configuration key may be set at the "
                  "end of the line as KEY=VALUE; 'hrm_train config --describe' lists the keys."),
             "\n.SH COMMANDS\n");
  for (const CommandEntry& command : commands) {
    if (command.words.empty()) continue;
    out += cat(".SS ", roff(joined(command.words, " ")), "\n", roff(command.help), "\n.PP\n.nf\n", roff(usage(command)),
               "\n.fi\n");
    for (const OptionEntry& option : command.options) {
      if (is_help(option)) continue;
      const std::string more = facts(option);
      out += cat(".TP\n.B ", roff(heading(option)), "\n", roff(option.help),
                 more.empty() ? "" : roff(cat(" (", more, ")")), "\n");
    }
    for (const std::string& example : command.examples) out += cat(".PP\n.EX\n", roff(example), "\n.EE\n");
  }
  out += ".SH EXIT STATUS\n";
  for (const ExitStatus& status : kExitStatuses) {
    out += cat(".TP\n.B ", static_cast<int>(status.code), "\n", roff(status.text), "\n");
  }
  out += cat(".SH SEE ALSO\n",
             roff("'hrm_train config --describe' lists all configuration keys. The documentation is in "
                  "share/doc/hrm_train of the installed folder."),
             "\n");
  return out;
}

}  // namespace hrm
