#include "hrm/config/schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <type_traits>
#include <unordered_map>

#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::config {
namespace {

template <class T, class R>
constexpr bool kRuleFits = (std::is_same_v<T, bool> && std::is_same_v<R, Flag>) ||
                           (std::is_same_v<T, int64_t> && std::is_same_v<R, IntRange>) ||
                           (std::is_same_v<T, double> && std::is_same_v<R, RealRange>) ||
                           (std::is_same_v<T, std::string> &&
                            (std::is_same_v<R, OneOf> || std::is_same_v<R, AnyText> || std::is_same_v<R, PathText>)) ||
                           (std::is_enum_v<T> && std::is_same_v<R, Choice<T>>);

template <class E>
OneOf names_of(Choice<E>) {
  return {{std::begin(EnumNames<E>::kNames), std::end(EnumNames<E>::kNames)}};
}

// The member as a Value, and back; an enum travels by its name, which obeys the field's rule.
template <class T>
Value to_value(const T& member) {
  if constexpr (std::is_enum_v<T>) {
    return std::string(name_of(member));
  } else {
    return member;
  }
}

template <class T>
T from_value(const Value& value) {
  if constexpr (std::is_enum_v<T>) {
    return value_of_name<T>(std::get<std::string>(value));
  } else {
    return std::get<T>(value);
  }
}

void add_fact(Field& field, const Tasks& tasks) {
  std::istringstream names(tasks.names);
  field.tasks.assign(std::istream_iterator<std::string>(names), {});
}
void add_fact(Field& field, Resume resume) {
  field.resume = resume;
}
void add_fact(Field& field, const OtherName& name) {
  field.other_names.push_back(name);
}
void add_fact(Field& field, const ReadWhen& condition) {
  field.read_when.push_back(condition);
}

// Walks the `describe` lists. `reach` goes from the whole configuration to the struct whose list is being walked;
// `common` holds the section's facts.
template <class Struct>
struct FieldCollector {
  std::string section;
  std::function<Struct&(Config&)> reach;
  Field common;
  std::vector<Field>& fields;
  std::vector<Section>& sections;

  template <class T, class R, class... Facts>
  void operator()(const char* name, T Struct::*member, R rule, const char* unit, std::string help,
                  const Facts&... facts) {
    static_assert(kRuleFits<T, R>, "the field's type and its rule do not belong together");
    Field field = common;
    field.key = section.empty() ? name : section + "." + name;
    field.section = section;
    field.unit = unit;
    field.help = std::move(help);
    if constexpr (std::is_enum_v<T>) {
      field.rule = names_of(rule);
    } else {
      field.rule = std::move(rule);
    }
    field.get = [reach = reach, member](const Config& config) -> Value {
      return to_value(reach(const_cast<Config&>(config)).*member);  // read only
    };
    field.set = [reach = reach, member](Config& config, const Value& value) {
      reach(config).*member = from_value<T>(value);
    };
    (add_fact(field, facts), ...);
    fields.push_back(std::move(field));
  }

  template <class S, class... Facts>
  void operator()(const char* name, S Config::*member, const char* help, const Facts&... facts) {
    sections.push_back({name, help});
    Field shared;
    (add_fact(shared, facts), ...);
    S::describe(
        FieldCollector<S>{name, [member](Config& config) -> S& { return config.*member; }, shared, fields, sections});
  }
};

struct Table {
  std::vector<Field> fields;
  std::vector<Section> sections;
  std::vector<std::string> keys;
  std::unordered_map<std::string, size_t> index;

  Table() {
    Config::describe(
        FieldCollector<Config>{"", [](Config& config) -> Config& { return config; }, {}, fields, sections});
    for (size_t i = 0; i < fields.size(); ++i) {
      keys.push_back(fields[i].key);
      index.emplace(fields[i].key, i);
    }
  }
};

const Table& table() {
  static const Table instance;
  return instance;
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string join(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

std::string range_text(const IntRange& r) {
  const IntRange any;
  if (r.min == any.min && r.max == any.max) return "";
  if (r.max == any.max) return cat("at least ", r.min);
  if (r.min == any.min) return cat("at most ", r.max);
  return cat(r.min, "..", r.max);
}

// The shortest text that means exactly this number.
std::string number_text(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string range_text(const RealRange& r) {
  const RealRange any;
  const bool below = r.min != any.min, above = r.max != any.max;
  std::string out;
  if (below) out = cat(r.min_open ? "above " : "at least ", number_text(r.min));
  if (above) out += cat(below ? ", " : "", r.max_open ? "below " : "at most ", number_text(r.max));
  return out;
}

}  // namespace

const std::vector<Field>& fields() {
  return table().fields;
}
const std::vector<Section>& sections() {
  return table().sections;
}
const std::vector<std::string>& keys() {
  return table().keys;
}

bool is_read_by(const Field& field, const std::string& task) {
  return field.tasks.empty() || std::find(field.tasks.begin(), field.tasks.end(), task) != field.tasks.end();
}

bool holds(const ReadWhen& condition, const Config& config) {
  const Value value = find_field(condition.key)->get(config);
  const auto is = [&](const std::string& listed) {
    if (const auto* text = std::get_if<std::string>(&value)) return *text == listed;
    if (const auto* number = std::get_if<double>(&value)) return *number == std::strtod(listed.c_str(), nullptr);
    return to_text(value) == listed;
  };
  return std::any_of(condition.values.begin(), condition.values.end(), is) != condition.unless;
}

const Field* find_field(const std::string& key) {
  const auto found = table().index.find(key);
  return found == table().index.end() ? nullptr : &table().fields[found->second];
}

std::string nearest_key(const std::string& key) {
  const auto last_part = [](const std::string& dotted) { return dotted.substr(dotted.rfind('.') + 1); };
  const std::string name = last_part(key);
  std::vector<std::string> names;
  for (const std::string& known : keys()) names.push_back(last_part(known));
  const auto key_of = [&](const std::string& last) -> std::string {
    const auto found = std::find(names.begin(), names.end(), last);
    return found == names.end() ? "" : keys()[found - names.begin()];
  };
  if (std::string found = key_of(name); !found.empty()) return found;
  // Official names with an addition, such as `lr_warmup_steps` and `ema_rate`: the longest known name within. It comes
  // before similar spellings if it is whole words, and after them if it may be a coincidence.
  std::string words, within;
  for (const std::string& known : names) {
    if (known.size() < 3) continue;
    if (known.size() > within.size() && name.find(known) != std::string::npos) within = known;
    const bool whole = name.starts_with(known + "_") || name.ends_with("_" + known);
    if (known.size() > words.size() && whole) words = known;
  }
  if (!words.empty()) return key_of(words);
  if (std::string found = nearest_name(key, keys()); !found.empty()) return found;
  if (std::string found = key_of(nearest_name(name, names)); !found.empty()) return found;
  return key_of(within);
}

std::string did_you_mean(const std::string& guess) {
  return guess.empty() ? "" : "; did you mean '" + guess + "'?";
}

std::string to_text(const Value& value) {
  return std::visit(
      [](const auto& v) {
        // Text that is not UTF-8 is shown with replacement characters instead of throwing.
        return nlohmann::json(v).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      },
      value);
}

std::string safe_json(const std::string& json) {
  // JSON has doubled its backslashes already.
  std::string out = printable(json);
  for (size_t at = 0; (at = out.find("\\\\", at)) != std::string::npos; ++at) out.erase(at, 1);
  return out;
}

std::string describe_rule(const Rule& rule) {
  return std::visit(Overloaded{[](const Flag&) -> std::string { return "true or false"; },
                               [](const IntRange& r) {
                                 const std::string range = range_text(r);
                                 return "a whole number" + (range.empty() ? "" : ", " + range);
                               },
                               [](const RealRange& r) {
                                 const std::string range = range_text(r);
                                 return "a number" + (range.empty() ? "" : ", " + range);
                               },
                               [](const OneOf& r) { return "one of " + join(r.values); },
                               [](const AnyText&) -> std::string { return "text"; },
                               [](const PathText&) -> std::string { return "a path"; }},
                    rule);
}

std::string broken_rule(const Rule& rule, const Value& value) {
  if (const auto* r = std::get_if<IntRange>(&rule)) {
    const int64_t v = std::get<int64_t>(value);
    if (v < r->min || v > r->max) return "is out of range: it must be " + range_text(*r);
  } else if (const auto* r = std::get_if<RealRange>(&rule)) {
    const double v = std::get<double>(value);
    // Written so that NaN breaks the rule.
    const bool low_ok = r->min_open ? v > r->min : v >= r->min;
    const bool high_ok = r->max_open ? v < r->max : v <= r->max;
    if (!low_ok || !high_ok) return "is out of range: it must be " + range_text(*r);
  } else if (const auto* r = std::get_if<OneOf>(&rule)) {
    const std::string& v = std::get<std::string>(value);
    if (std::find(r->values.begin(), r->values.end(), v) == r->values.end()) {
      return (r->values.size() == 1 ? "is not possible: it must be " : "is not one of ") + join(r->values) +
             did_you_mean(nearest_name(v, r->values));
    }
  }
  return "";
}

std::vector<std::string> differing_keys(const Config& a, const Config& b) {
  std::vector<std::string> out;
  for (const Field& field : fields()) {
    if (field.get(a) != field.get(b)) out.push_back(field.key);
  }
  return out;
}

}  // namespace hrm::config
