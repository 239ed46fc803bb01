#include "hrm/optim/groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::optim {
namespace {

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end = 0; end != std::string::npos; begin = end + 1) {
    end = text.find(separator, begin);
    parts.push_back(trimmed(text.substr(begin, end == std::string::npos ? end : end - begin)));
  }
  return parts;
}

// Parses a finite, non-negative number.
std::optional<double> number(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) && value >= 0 ? std::optional<double>(value) : std::nullopt;
}

[[noreturn]] void refuse(const std::string& part) {
  fail(ExitCode::usage, "optim.groups: cannot read '", printable_start(part),
       "'; write pattern=decay, pattern=decay:rate factor, or pattern=decay:rate factor:adamw, e.g. *.bias=0");
}

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

// The parameter that a pattern was probably meant for: the nearest as a whole, or in a part before or after a dot.
std::string nearest_parameter(const std::string& pattern, const nn::ParameterSet& parameters) {
  std::string word;
  for (const char c : pattern) {
    if (c != '*' && c != '?' && c != '[' && c != ']') word += c;
  }
  if (word.starts_with('.')) word.erase(0, 1);
  if (word.ends_with('.')) word.pop_back();
  std::vector<std::string> names, parts;
  std::map<std::string, std::string> of_part;  // the first name that has it
  for (const nn::Parameter& parameter : parameters.all()) {
    const std::string& name = parameter.name;
    names.push_back(name);
    const auto add = [&](const std::string& part) {
      if (of_part.emplace(part, name).second) parts.push_back(part);
    };
    size_t begin = 0;
    for (size_t dot = 0; dot != std::string::npos; begin = dot + 1) {
      dot = name.find('.', begin);
      add(name.substr(begin));
      add(name.substr(begin, dot == std::string::npos ? dot : dot - begin));
      add(name.substr(0, dot));
    }
  }
  if (std::string found = nearest_name(word, names); !found.empty()) return found;
  const std::string part = nearest_name(word, parts);
  return part.empty() ? names.front() : of_part.at(part);
}

// The settings that define a parameter's group.
struct Settings {
  double weight_decay, lr_factor;
  int64_t matrices;
  auto operator<=>(const Settings&) const = default;
};

// Index of the first matching rule, otherwise the number of rules.
size_t rule_of(const std::string& name, const GroupOptions& options) {
  const auto found = std::find_if(options.rules.begin(), options.rules.end(),
                                  [&](const GroupRule& rule) { return matches(rule.pattern, name); });
  return static_cast<size_t>(found - options.rules.begin());
}

double default_decay(const nn::Parameter& parameter, const GroupOptions& options) {
  const bool spared = (parameter.master.dim() < 2 && !options.defaults.decay_vectors) ||
                      matches_any(options.defaults.undecayed, parameter.name);
  return spared ? 0 : options.weight_decay;
}

int64_t matrices_in(const nn::Parameter& parameter, const GroupOptions& options) {
  if (!is_muon_matrix(parameter.name, parameter.master.dim(), options)) return 0;
  const auto stack = options.defaults.stacks.find(parameter.name);
  return stack == options.defaults.stacks.end() ? 1 : stack->second;
}

std::map<std::string, Settings> settings_of(const nn::ParameterSet& parameters, const GroupOptions& options) {
  std::map<std::string, Settings> out;
  std::vector<int64_t> taken(options.rules.size(), 0);
  for (const nn::Parameter& parameter : parameters.all()) {
    Settings settings{default_decay(parameter, options), 1, matrices_in(parameter, options)};
    if (const size_t i = rule_of(parameter.name, options); i < taken.size()) {
      settings.weight_decay = options.rules[i].weight_decay;
      settings.lr_factor = options.rules[i].lr_factor;
      ++taken[i];
    }
    out.emplace(parameter.name, settings);
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    const GroupRule& rule = options.rules[i];
    require(options.muon || !rule.adamw, ExitCode::usage, "optim.groups: '", printable_start(rule.pattern),
            "' selects adamw, which only optim.name = muon supports");
    if (taken[i] > 0) continue;
    const bool any = std::any_of(parameters.all().begin(), parameters.all().end(),
                                 [&](const nn::Parameter& p) { return matches(rule.pattern, p.name); });
    require(!any, ExitCode::usage, "optim.groups: earlier patterns take all parameters of '",
            printable_start(rule.pattern), "'; move it to the front, because the first matching pattern applies");
    fail(ExitCode::usage, "optim.groups: the pattern '", printable_start(rule.pattern),
         "' matches no parameter; the nearest one is '", nearest_parameter(rule.pattern, parameters), "'");
  }
  return out;
}

}  // namespace

std::vector<GroupRule> parse_group_rules(const std::string& text) {
  std::vector<GroupRule> rules;
  if (trimmed(text).empty()) return rules;
  for (const std::string& part : split(text, ',')) {
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos || equals == 0) refuse(part);
    GroupRule rule;
    rule.pattern = trimmed(part.substr(0, equals));
    const std::vector<std::string> values = split(part.substr(equals + 1), ':');
    const auto decay = number(values[0]), factor = values.size() > 1 ? number(values[1]) : 1.0;
    const bool adamw = values.size() == 3 && values[2] == "adamw";
    if (rule.pattern.empty() || !decay || !factor || values.size() > (adamw ? 3 : 2)) refuse(part);
    rules.push_back({rule.pattern, *decay, *factor, adamw});
  }
  return rules;
}

bool is_muon_matrix(const std::string& name, int64_t dimensions, const GroupOptions& options) {
  if (!options.muon || dimensions < 2 || matches_any(options.defaults.not_matrices, name)) return false;
  const size_t rule = rule_of(name, options);
  return rule == options.rules.size() || !options.rules[rule].adamw;
}

std::vector<ParameterGroup> make_groups(const nn::ParameterSet& parameters, const ParameterGroup& all,
                                        const GroupOptions& options) {
  const std::map<std::string, Settings> settings = settings_of(parameters, options);
  std::vector<ParameterGroup> groups;
  std::map<Settings, size_t> group_of_settings;
  for (size_t i = 0; i < all.names.size(); ++i) {
    const Settings& wanted = settings.at(all.names[i]);
    const auto [found, is_new] = group_of_settings.emplace(wanted, groups.size());
    if (is_new) {
      ParameterGroup group;
      group.weight_decay = wanted.weight_decay;
      group.lr_factor = wanted.lr_factor;
      group.matrices = wanted.matrices;
      group.moments.resize(all.moments.size());
      groups.push_back(std::move(group));
    }
    ParameterGroup& group = groups[found->second];
    group.names.push_back(all.names[i]);
    group.params.push_back(all.params[i]);
    group.grads.push_back(all.grads[i]);
    if (!all.averages.empty()) group.averages.push_back(all.averages[i]);
    if (!all.copies.empty()) group.copies.push_back(all.copies[i]);
    for (size_t kind = 0; kind < all.moments.size(); ++kind) group.moments[kind].push_back(all.moments[kind][i]);
  }
  return groups;
}

}  // namespace hrm::optim
