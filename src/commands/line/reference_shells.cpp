// Completion scripts for bash, zsh and fish.

#include <algorithm>

#include "commands/line/reference.h"
#include "hrm/base/text.h"
#include "hrm/config/schema.h"

namespace hrm {
namespace {

// A word between single quotes, for bash and zsh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string quoted_for_fish(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += (c == '\'' || c == '\\') ? std::string("\\") + c : std::string(1, c);
  return out + "'";
}

// The first part of a help text: shells show one line.
std::string brief(const std::string& help) {
  size_t end = std::min({help.find(". "), help.find("; "), help.find(" ("), help.size()});
  return help.substr(0, end);
}

std::string words_of(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : " ") + word;
  return out;
}

bool takes_keys(const CommandEntry& command) {
  return std::any_of(command.options.begin(), command.options.end(),
                     [](const OptionEntry& o) { return !o.positional.empty() && o.value == "KEY=VALUE"; });
}

// Whether the option needs a value in the next word.
bool takes_value(const OptionEntry& option) {
  return !option.value.empty() || !option.choices.empty();
}

bool names_folder(const OptionEntry& option) {
  return option.value == "DIR" || option.value == "FOLDER";
}

// Values of a key: of a flag, or of a list of names. Empty for others.
std::vector<std::string> values_of(const config::Field& field) {
  if (std::holds_alternative<config::Flag>(field.rule)) return {"true", "false"};
  if (const auto* choice = std::get_if<config::OneOf>(&field.rule)) return choice->values;
  return {};
}

// The lines `pattern) statement ;;` of a case over "<command>:<option>", for options that accept a list of words.
std::string choice_cases(const std::vector<CommandEntry>& commands, const std::string& statement) {
  std::string out;
  for (const CommandEntry& command : commands) {
    for (const OptionEntry& option : command.options) {
      if (option.choices.empty() || option.names.empty()) continue;
      std::string pattern;
      for (const std::string& name : option.names) {
        pattern += (pattern.empty() ? "" : "|") + quoted(words_of(command.words) + ":" + name);
      }
      out += cat("    ", pattern, ") ", statement, quoted(words_of(option.choices)), " ;;\n");
    }
  }
  return out;
}

// The pattern "<command>:<option>" of every option that satisfies `wanted`; never empty.
template <class Wanted>
std::string option_pattern(const std::vector<CommandEntry>& commands, const Wanted& wanted) {
  std::string out;
  for (const CommandEntry& command : commands) {
    for (const OptionEntry& option : command.options) {
      if (!takes_value(option) || !option.choices.empty() || !wanted(option)) continue;
      for (const std::string& name : option.names) {
        out += (out.empty() ? "" : "|") + quoted(words_of(command.words) + ":" + name);
      }
    }
  }
  return out.empty() ? "''" : out;
}

std::string key_cases(const std::string& statement) {
  std::string out;
  for (const config::Field& field : config::fields()) {
    const std::vector<std::string> values = values_of(field);
    if (!values.empty()) out += cat("    ", field.key, ") ", statement, quoted(words_of(values)), " ;;\n");
  }
  return out;
}

// The pattern of a case over "<command so far> <word>" that recognises subcommands.
std::string command_pattern(const std::vector<CommandEntry>& commands) {
  std::string out;
  for (const CommandEntry& command : commands) {
    if (command.words.empty()) continue;
    const std::string before = words_of({command.words.begin(), command.words.end() - 1});
    out += (out.empty() ? "" : "|") + quoted(before + " " + command.words.back());
  }
  return out;
}

// What completes the first positional argument of a command that has choices for it.
std::string positional_choices(const CommandEntry& command) {
  for (const OptionEntry& option : command.options) {
    if (!option.positional.empty() && option.names.empty() && !option.choices.empty()) return words_of(option.choices);
  }
  return "";
}

std::string option_names(const CommandEntry& command) {
  std::string out;
  for (const OptionEntry& option : command.options) {
    for (const std::string& name : option.names) out += (out.empty() ? "" : " ") + name;
  }
  return out;
}

}  // namespace

std::string bash_completion(const std::vector<CommandEntry>& commands) {
  std::string out = R"(# Completion of hrm_train for bash, written by `hrm_train completion bash`.
_hrm_train_keys=)" + quoted(words_of(config::keys())) +
                    R"(

_hrm_train() {
  local line=${COMP_LINE:0:COMP_POINT} current command="" options="" choices="" keys="" values="" word
  local -a words
  # Readline splits words at '=' and ':', so they are read from the line.
  current=${line##*[[:space:]]}
  read -ra words <<<"${line%"$current"}"
  for word in "${words[@]:1}"; do
    case "$command $word" in
      )" + command_pattern(commands) +
                    R"() command="${command:+$command }$word" ;;
    esac
  done
  COMPREPLY=()
  case "$command:${words[-1]}" in
)" + choice_cases(commands, "values=") +
                    "    " + option_pattern(commands, names_folder) + R"()
      mapfile -t COMPREPLY < <(compgen -d -- "$current")
      compopt -o filenames
      return ;;
    )" + option_pattern(commands, [](const OptionEntry& o) { return !names_folder(o); }) +
                    R"()
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      compopt -o filenames
      return ;;
  esac
  if [[ -n $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
    return
  fi
  case $command in
)";
  for (const CommandEntry& command : commands) {
    const std::string choices =
        command.subcommands.empty() ? positional_choices(command) : words_of(command.subcommands);
    out += cat("    ", quoted(words_of(command.words)), ") options=", quoted(option_names(command)),
               choices.empty() ? "" : " choices=" + quoted(choices),
               takes_keys(command) ? " keys=$_hrm_train_keys" : "", " ;;\n");
  }
  out += R"(  esac
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $keys && $current == *=* ]]; then
    case ${current%%=*} in
)" + key_cases("values=") +
         R"(    esac
    if [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$values" -- "${current#*=}")
    else
      mapfile -t COMPREPLY < <(compgen -f -- "${current#*=}")
      compopt -o filenames
    fi
    # Without '=' among the separators, readline replaces the key, too.
    [[ $COMP_WORDBREAKS == *=* ]] || COMPREPLY=("${COMPREPLY[@]/#/${current%%=*}=}")
  elif [[ -n $choices ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
  elif [[ -n $keys && -n $current ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$keys" -S = -- "$current"; compgen -f -- "$current")
    compopt -o nospace
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames
  fi
}
complete -F _hrm_train hrm_train
)";
  return out;
}

std::string zsh_completion(const std::vector<CommandEntry>& commands) {
  // A colon ends the word in a row of _describe.
  const auto row = [](const std::string& word, const std::string& help) {
    std::string escaped;
    for (const char c : word) escaped += c == ':' ? std::string("\\:") : std::string(1, c);
    return quoted(escaped + ":" + brief(help));
  };
  std::string out = R"(#compdef hrm_train
# Completion of hrm_train for zsh, written by `hrm_train completion zsh`.
_hrm_train() {
  local command="" word values=""
  local -a options subcommands keys
  for word in ${words[2,CURRENT-1]}; do
    case "$command $word" in
      )" + command_pattern(commands) +
                    R"() command="${command:+$command }$word" ;;
    esac
  done
  case "$command:${words[CURRENT-1]}" in
)" + choice_cases(commands, "values=") +
                    "    " + option_pattern(commands, names_folder) + R"() _files -/; return ;;
    )" + option_pattern(commands, [](const OptionEntry& o) { return !names_folder(o); }) +
                    R"() _files; return ;;
  esac
  if [[ -n $values ]]; then
    compadd -- ${=values}
    return
  fi
  case $command in
)";
  for (const CommandEntry& command : commands) {
    out += cat("    ", quoted(words_of(command.words)), ")\n      options=(\n");
    for (const OptionEntry& option : command.options) {
      for (const std::string& name : option.names) out += "        " + row(name, option.help) + "\n";
    }
    out += "      )\n";
    if (!command.subcommands.empty()) {
      out += "      subcommands=(\n";
      for (const std::string& name : command.subcommands) {
        for (const CommandEntry& sub : commands) {
          if (sub.words.size() == command.words.size() + 1 && sub.words.back() == name &&
              std::equal(command.words.begin(), command.words.end(), sub.words.begin())) {
            out += "        " + row(name, sub.help) + "\n";
          }
        }
      }
      out += "      )\n";
    } else if (const std::string choices = positional_choices(command); !choices.empty()) {
      out += cat("      subcommands=(", choices, ")\n");
    }
    if (takes_keys(command)) out += "      keys=($_hrm_train_keys)\n";
    out += "      ;;\n";
  }
  out += R"(  esac
  if [[ $PREFIX == -* ]]; then
    _describe option options
  elif (( $#keys )) && [[ $PREFIX == *=* ]]; then
    case ${PREFIX%%=*} in
)" + key_cases("values=") +
         R"(    esac
    compset -P '*='
    if [[ -n $values ]]; then compadd -- ${=values}; else _files; fi
  elif (( $#subcommands )); then
    _describe subcommand subcommands
  else
    (( $#keys )) && compadd -S = -- $keys
    _files
  fi
}
typeset -ga _hrm_train_keys=()" +
         words_of(config::keys()) + R"()
# Called by name when compinit loaded this file, and once when it was sourced.
if [[ $funcstack[1] == _hrm_train ]]; then _hrm_train "$@"; else compdef _hrm_train hrm_train; fi
)";
  return out;
}

std::string fish_completion(const std::vector<CommandEntry>& commands) {
  std::string out = "# Completion of hrm_train for fish, written by `hrm_train completion fish`.\n";
  for (const CommandEntry& command : commands) {
    std::string condition;
    for (const std::string& word : command.words) {
      condition += cat(condition.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", word);
    }
    if (command.words.empty()) {
      condition = "__fish_use_subcommand";
    } else if (!command.subcommands.empty()) {
      condition += "; and not __fish_seen_subcommand_from " + words_of(command.subcommands);
    }
    const std::string start = cat("complete -c hrm_train -n ", quoted_for_fish(condition));
    for (const CommandEntry& sub : commands) {
      if (sub.words.size() == command.words.size() + 1 &&
          std::equal(command.words.begin(), command.words.end(), sub.words.begin())) {
        out += cat(start, " -f -a ", sub.words.back(), " -d ", quoted_for_fish(brief(sub.help)), "\n");
      }
    }
    if (const std::string choices = positional_choices(command); !choices.empty()) {
      out += cat(start, " -f -a ", quoted_for_fish(choices), "\n");
    }
    for (const OptionEntry& option : command.options) {
      if (option.names.empty()) continue;
      out += start;
      for (const std::string& name : option.names) {
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.choices.empty()) {
        out += " -x -a " + quoted_for_fish(words_of(option.choices));
      } else if (takes_value(option)) {
        out += " -r";
      }
      out += cat(" -d ", quoted_for_fish(brief(option.help)), "\n");
    }
  }
  std::string with_keys;
  for (const CommandEntry& command : commands) {
    if (takes_keys(command) && !with_keys.ends_with(command.words.front())) with_keys += " " + command.words.front();
  }
  const std::string start =
      cat("complete -c hrm_train -n ", quoted_for_fish("__fish_seen_subcommand_from" + with_keys), " -a ");
  for (const config::Field& field : config::fields()) {
    std::string words;
    for (const std::string& value : values_of(field)) words += cat(words.empty() ? "" : " ", field.key, "=", value);
    if (words.empty()) words = field.key + "=";
    out += cat(start, quoted_for_fish(words), " -d ", quoted_for_fish(brief(field.help)), "\n");
  }
  return out;
}

}  // namespace hrm
