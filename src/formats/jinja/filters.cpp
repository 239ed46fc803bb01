#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <map>

#include "formats/jinja/calls.h"
#include "formats/jinja/program.h"
#include "formats/jinja/text.h"
#include "hrm/base/error.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

using Filter = Value (*)(const Value&, const Arguments&, Caller&);
using Bound = std::vector<std::optional<Value>>;

std::string called(const char* name) {
  return cat("the filter '", name, "'");
}
bool flag(const std::optional<Value>& value, bool none = false) {
  return value ? is_true(*value) : none;
}

int64_t whole_of(const char* name, const std::optional<Value>& value, int64_t none) {
  if (!value || value->is(Kind::none)) return none;
  if (!value->is_whole()) throw Fault(cat(called(name), " needs a whole number, not ", type_name(*value)));
  return value->as_whole();
}

// soft_str: a text stays what it is, also a safe one.
Value soft_text(const Value& value, Caller& caller) {
  return value.is(Kind::text) ? value : text_value(to_text(value, caller.budget()));
}
Value made_text(std::string text, bool safe, Caller& caller) {
  caller.budget().spend_text(text.size());
  return text_value(std::move(text), safe);
}
// What case-insensitive filters compare.
Value without_case(const Value& value, Caller& caller) {
  return value.is(Kind::text) ? made_text(lower(value.text()), false, caller) : value;
}

// jinja2's make_attrgetter: "function.name", or an index.
Value attribute_of(const Value& value, const Value& attribute, Caller& caller) {
  if (!attribute.is(Kind::text)) return caller.item(value, attribute);
  Value out = value;
  for (const std::string& part : split(attribute.text(), std::string_view("."), -1, false)) {
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    out = caller.item(out, digits ? whole_value(std::stoll(part)) : text_value(part));
  }
  return out;
}

// Of a filter that takes the name of another filter or test.
std::string name_of(const char* filter, const Value& value) {
  if (!value.is(Kind::text)) throw Fault(cat(called(filter), " needs a name as a text, not ", type_name(value)));
  return value.text();
}
Arguments rest_of(const Arguments& arguments, size_t first) {
  Arguments rest{{}, arguments.named};
  for (size_t i = first; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}

Value filter_default(const Value& value, const Arguments& arguments, Caller&) {
  const Bound bound = bind(called("default"), arguments, {"default_value", "boolean"});
  const bool missing = value.is(Kind::undefined) || (flag(bound[1]) && !is_true(value));
  return missing ? bound[0].value_or(text_value("")) : value;
}

Value filter_length(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("length"), arguments, {});
  return whole_value(length(value, caller.budget()));
}

Value filter_trim(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("trim"), arguments, {"chars"});
  Arguments passed;
  if (bound[0]) passed.positional.push_back(*bound[0]);
  return call_method(soft_text(value, caller), "strip", passed, caller);
}

template <std::string (*convert)(std::string_view)>
Value filter_case(const Value& value, const Arguments& arguments, Caller& caller) {
  bind("a filter of letter case", arguments, {});
  const Value text = soft_text(value, caller);
  return made_text(convert(text.text()), text.safe, caller);
}

// As jinja2's title, which differs from str.title: a capital behind white space, hyphens and opening brackets.
Value filter_title(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("title"), arguments, {});
  const std::string text = to_text(value, caller.budget());
  std::string out, word;
  const auto flush = [&] {
    if (word.empty()) return;
    size_t first = 0;
    next_character(word, first);
    out += upper(std::string_view(word).substr(0, first)) + lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    const bool parts = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (parts) {
      flush();
      out.append(text, begin, at - begin);
    } else {
      word.append(text, begin, at - begin);
    }
  }
  flush();
  return made_text(std::move(out), false, caller);
}

Value filter_string(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("string"), arguments, {});
  return soft_text(value, caller);
}

Value filter_safe(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("safe"), arguments, {});
  return text_value(to_text(value, caller.budget()), true);
}

Value filter_escape(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("escape"), arguments, {});
  if (value.is(Kind::text) && value.safe) return value;
  return made_text(escaped(to_text(value, caller.budget())), true, caller);
}

Value filter_join(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("join"), arguments, {"d", "attribute"});
  const std::string between = bound[0] ? to_text(*bound[0], caller.budget()) : "";
  std::string out;
  bool is_first = true;
  for (const Value& item : elements(value, caller.budget())) {
    const bool of_member = bound[1] && !bound[1]->is(Kind::none);
    const std::string part = to_text(of_member ? attribute_of(item, *bound[1], caller) : item, caller.budget());
    caller.budget().check_text(out.size() + between.size() + part.size());
    if (!is_first) {
      caller.budget().spend_text(between.size());
      out += between;
    }
    out += part;
    is_first = false;
  }
  return text_value(std::move(out));
}

Value filter_list(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("list"), arguments, {});
  return items_value(Kind::list, elements(value, caller.budget()));
}

Value filter_first(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("first"), arguments, {});
  if (value.is(Kind::generator) && value.payload->next < value.items().size())
    return value.items()[value.payload->next++];
  const Values items = elements(value, caller.budget());
  return items.empty() ? undefined_value("the first item of an empty sequence") : items.front();
}

Value filter_last(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("last"), arguments, {});
  if (value.is(Kind::generator)) throw Fault("a generator has no last item; use the filter list before it");
  const Values items = elements(value, caller.budget());
  return items.empty() ? undefined_value("the last item of an empty sequence") : items.back();
}

Value filter_reverse(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("reverse"), arguments, {});
  Values items = elements(value, caller.budget());
  std::reverse(items.begin(), items.end());
  if (!value.is(Kind::text))
    return items_value(value.is(Kind::generator) ? Kind::list : Kind::generator, std::move(items));
  std::string out;
  for (const Value& item : items) out += item.text();
  return text_value(std::move(out), value.safe);
}

// Sorts by keys, equal ones in their order, which `reverse` keeps as well.
Values sorted_by(const Values& items, const Values& keys, bool reverse, Caller& caller) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // One order of all: a comparison that throws in the middle of std::sort is safe, since the indices are plain numbers.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int one = compare(keys[a], keys[b], "<", caller.budget());
    return reverse ? one > 0 : one < 0;
  });
  Values out;
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value filter_sort(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("sort"), arguments, {"reverse", "case_sensitive", "attribute"});
  const Values items = elements(value, caller.budget());
  Values keys;
  for (const Value& item : items) {
    const bool of_member = bound[2] && !bound[2]->is(Kind::none);
    const Value key = of_member ? attribute_of(item, *bound[2], caller) : item;
    keys.push_back(flag(bound[1]) ? key : without_case(key, caller));
  }
  return items_value(Kind::list, sorted_by(items, keys, flag(bound[0]), caller));
}

Value filter_dictsort(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("dictsort"), arguments, {"case_sensitive", "by", "reverse"});
  if (!value.is(Kind::dict)) throw Fault(cat(called("dictsort"), " needs a dict, not ", type_name(value)));
  const std::string by = bound[1] ? to_text(*bound[1], caller.budget()) : "key";
  if (by != "key" && by != "value") throw Fault("the filter 'dictsort' sorts by 'key' or 'value'");
  Values items, keys;
  for (size_t i = 0; i < value.items().size(); i += 2) {
    items.push_back(items_value(Kind::tuple, {value.items()[i], value.items()[i + 1]}));
    const Value& key = value.items()[by == "key" ? i : i + 1];
    keys.push_back(flag(bound[0]) ? key : without_case(key, caller));
  }
  return items_value(Kind::list, sorted_by(items, keys, flag(bound[2]), caller));
}

Value filter_items(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("items"), arguments, {});
  if (value.is(Kind::undefined)) return items_value(Kind::generator, {});
  if (!value.is(Kind::dict)) throw Fault(cat(called("items"), " needs a dict, not ", type_name(value)));
  return items_value(Kind::generator, elements(call_method(value, "items", {}, caller), caller.budget()));
}

Value filter_unique(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("unique"), arguments, {"case_sensitive", "attribute"});
  Values out, seen;
  for (const Value& item : elements(value, caller.budget())) {
    const bool of_member = bound[1] && !bound[1]->is(Kind::none);
    Value key = of_member ? attribute_of(item, *bound[1], caller) : item;
    if (!flag(bound[0])) key = without_case(key, caller);
    const auto is_same = [&](const Value& other) { return are_equal(other, key, caller.budget()); };
    if (std::any_of(seen.begin(), seen.end(), is_same)) continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return items_value(Kind::generator, std::move(out));
}

Value filter_map(const Value& value, const Arguments& arguments, Caller& caller) {
  Values out;
  if (arguments.positional.empty()) {
    const Bound bound = bind(called("map"), arguments, {"attribute", "default"});
    if (!bound[0]) throw Fault("the filter 'map' needs the name of a filter, or attribute=NAME");
    for (const Value& item : elements(value, caller.budget())) {
      Value one = attribute_of(item, *bound[0], caller);
      const bool missing = one.is(Kind::undefined) && bound[1] && !bound[1]->is(Kind::none);
      out.push_back(missing ? *bound[1] : std::move(one));
    }
    return items_value(Kind::generator, std::move(out));
  }
  const std::string name = name_of("map", arguments.positional[0]);
  if (!is_known_filter(name)) throw Fault(cat("the filter '", printable_start(name, 40), "' is not supported"));
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : elements(value, caller.budget())) out.push_back(apply_filter(name, item, rest, caller));
  return items_value(Kind::generator, std::move(out));
}

// select, reject, selectattr, rejectattr.
template <bool wanted, bool of_member>
Value filter_select(const Value& value, const Arguments& arguments, Caller& caller) {
  constexpr const char* kName = of_member ? (wanted ? "selectattr" : "rejectattr") : (wanted ? "select" : "reject");
  const size_t first = of_member ? 1 : 0;
  if (arguments.positional.size() < first) throw Fault(cat(called(kName), " needs the name of a member"));
  std::string test;
  if (arguments.positional.size() > first) {
    test = name_of(kName, arguments.positional[first]);
    if (!is_known_test(test)) throw Fault(cat("the test 'is ", printable_start(test, 40), "' is not supported"));
  }
  const Arguments rest = rest_of(arguments, first + 1);
  Values out;
  for (const Value& item : elements(value, caller.budget())) {
    const Value checked = of_member ? attribute_of(item, arguments.positional[0], caller) : item;
    if ((test.empty() ? is_true(checked) : apply_test(test, checked, rest, caller)) == wanted) out.push_back(item);
  }
  return items_value(Kind::generator, std::move(out));
}

Value filter_tojson(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("tojson"), arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = flag(bound[0]);
  style.sorted = flag(bound[3]);
  if (bound[1] && !bound[1]->is(Kind::none)) {
    const int64_t indent = whole_of("tojson", bound[1], 0);
    if (indent > 64) throw Fault("the filter 'tojson' indents by at most 64 spaces");
    style.indent = static_cast<int>(std::max<int64_t>(indent, 0));
    style.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is(Kind::none)) {
    const Value& separators = *bound[2];
    const bool good = (separators.is(Kind::tuple) || separators.is(Kind::list)) && separators.items().size() == 2 &&
                      separators.items()[0].is(Kind::text) && separators.items()[1].is(Kind::text);
    if (!good) throw Fault("the filter 'tojson' needs two texts as separators");
    style.item_separator = separators.items()[0].text();
    style.key_separator = separators.items()[1].text();
  }
  return text_value(to_json(value, style, caller.budget()));
}

// As float() reads a text; none where it is no number.
std::optional<double> real_of_text(std::string_view text) {
  const std::string digits(strip(text, true, true));
  const bool good =
      !digits.empty() && digits.size() < 400 && digits.find_first_not_of("0123456789+-.eE") == std::string::npos;
  if (!good) {
    const std::string word = lower(digits);
    const double sign = word.starts_with('-') ? -1 : 1;
    const std::string name = word.substr(word.starts_with('-') || word.starts_with('+') ? 1 : 0);
    if (name == "inf" || name == "infinity") return sign * HUGE_VAL;
    if (name == "nan") return std::nan("");
    return std::nullopt;
  }
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size()) return std::nullopt;
  return number;
}

std::optional<int64_t> whole_of_real(double number) {
  if (!std::isfinite(number)) return std::nullopt;
  if (std::abs(number) >= 9.2e18) throw Fault("a whole number leaves 64 bits");
  return static_cast<int64_t>(number);
}

Value filter_int(const Value& value, const Arguments& arguments, Caller&) {
  const Bound bound = bind(called("int"), arguments, {"default", "base"});
  if (whole_of("int", bound[1], 10) != 10) throw Fault("the filter 'int' reads decimal numbers alone");
  if (value.is(Kind::undefined)) throw Fault(cat(value.text(), " is undefined"));
  std::optional<int64_t> number;
  if (value.is_whole()) number = value.as_whole();
  if (value.is(Kind::real)) number = whole_of_real(value.real);
  if (value.is(Kind::text)) {
    std::string digits(strip(value.text(), true, true));
    if (digits.starts_with('+')) digits.erase(0, 1);
    int64_t whole = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), whole);
    const bool read = end == digits.data() + digits.size() && !digits.empty() && !digits.starts_with("+");
    if (read && error == std::errc::result_out_of_range) throw Fault("a whole number leaves 64 bits");
    if (read && error == std::errc()) {
      number = whole;
    } else if (const std::optional<double> real = real_of_text(value.text())) {
      number = whole_of_real(*real);
    }
  }
  return number ? whole_value(*number) : bound[0].value_or(whole_value(0));
}

Value filter_float(const Value& value, const Arguments& arguments, Caller&) {
  const Bound bound = bind(called("float"), arguments, {"default"});
  if (value.is(Kind::undefined)) throw Fault(cat(value.text(), " is undefined"));
  if (value.is_number()) return real_value(value.as_real());
  if (value.is(Kind::text)) {
    if (const std::optional<double> number = real_of_text(value.text())) return real_value(*number);
  }
  return bound[0].value_or(real_value(0));
}

Value filter_abs(const Value& value, const Arguments& arguments, Caller& caller) {
  bind(called("abs"), arguments, {});
  if (!value.is_number()) throw Fault(cat(called("abs"), " needs a number, not ", type_name(value)));
  if (value.is(Kind::real)) return real_value(std::abs(value.real));
  return value.as_whole() < 0 ? arithmetic("-", whole_value(0), value, caller) : whole_value(value.as_whole());
}

Value filter_round(const Value& value, const Arguments& arguments, Caller&) {
  const Bound bound = bind(called("round"), arguments, {"precision", "method"});
  const int64_t precision = whole_of("round", bound[0], 0);
  const std::string method = bound[1] && bound[1]->is(Kind::text) ? bound[1]->text() : "common";
  if (!value.is_number()) throw Fault(cat(called("round"), " needs a number, not ", type_name(value)));
  if (precision < 0 || precision > 20) throw Fault("the filter 'round' knows 0 to 20 digits");
  if (method == "common") {
    if (value.is_whole() || !std::isfinite(value.real)) return value.is_whole() ? whole_value(value.as_whole()) : value;
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), value.real);
    return real_value(std::strtod(buffer, nullptr));
  }
  if (method != "ceil" && method != "floor") throw Fault("the filter 'round' knows common, ceil and floor");
  const double scale = std::pow(10.0, static_cast<double>(precision)), scaled = value.as_real() * scale;
  return real_value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value filter_replace(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("replace"), arguments, {"old", "new", "count"});
  if (!bound[0] || !bound[1]) throw Fault("the filter 'replace' needs two texts");
  Budget& budget = caller.budget();
  std::string out = replace(to_text(value, budget), to_text(*bound[0], budget), to_text(*bound[1], budget),
                            whole_of("replace", bound[2], -1), budget.most_text());
  return made_text(std::move(out), false, caller);
}

Value filter_indent(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("indent"), arguments, {"width", "first", "blank"});
  std::string space;
  if (bound[0] && bound[0]->is(Kind::text)) {
    space = bound[0]->text();
  } else {
    const int64_t width = whole_of("indent", bound[0], 4);
    if (width > 4096) throw Fault("the filter 'indent' indents by at most 4096 spaces");
    space.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool safe = value.is(Kind::text) && value.safe;
  // The line break that jinja2 adds keeps an empty last line.
  const std::vector<std::string> lines = split_lines(to_text(value, caller.budget()) + "\n", false);
  std::string out = flag(bound[1]) ? space : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    caller.budget().check_text(out.size() + space.size() + lines[i].size() + 1);
    if (i > 0) out += "\n";
    if (i > 0 && (flag(bound[2]) || !lines[i].empty())) out += space;
    out += lines[i];
  }
  return made_text(std::move(out), safe, caller);
}

template <bool smallest>
Value filter_extreme(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called(smallest ? "min" : "max"), arguments, {"case_sensitive", "attribute"});
  const Values items = elements(value, caller.budget());
  if (items.empty()) return undefined_value("an item of an empty sequence");
  const auto key_of = [&](const Value& item) {
    const bool of_member = bound[1] && !bound[1]->is(Kind::none);
    const Value key = of_member ? attribute_of(item, *bound[1], caller) : item;
    return flag(bound[0]) ? key : without_case(key, caller);
  };
  size_t best = 0;
  Value best_key = key_of(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    Value key = key_of(items[i]);
    const int order = compare(key, best_key, smallest ? "<" : ">", caller.budget());
    if (smallest ? order >= 0 : order <= 0) continue;
    best = i;
    best_key = std::move(key);
  }
  return items[best];
}

Value filter_sum(const Value& value, const Arguments& arguments, Caller& caller) {
  const Bound bound = bind(called("sum"), arguments, {"attribute", "start"});
  Value sum = bound[1].value_or(whole_value(0));
  for (const Value& item : elements(value, caller.budget())) {
    const bool of_member = bound[0] && !bound[0]->is(Kind::none);
    caller.budget().spend();
    sum = arithmetic("+", sum, of_member ? attribute_of(item, *bound[0], caller) : item, caller);
  }
  return sum;
}

const std::map<std::string, Filter, std::less<>>& filters() {
  static const std::map<std::string, Filter, std::less<>> kFilters = {
      {"abs", filter_abs},
      {"capitalize", filter_case<capitalize>},
      {"count", filter_length},
      {"d", filter_default},
      {"default", filter_default},
      {"dictsort", filter_dictsort},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"first", filter_first},
      {"float", filter_float},
      {"indent", filter_indent},
      {"int", filter_int},
      {"items", filter_items},
      {"join", filter_join},
      {"last", filter_last},
      {"length", filter_length},
      {"list", filter_list},
      {"lower", filter_case<lower>},
      {"map", filter_map},
      {"max", filter_extreme<false>},
      {"min", filter_extreme<true>},
      {"reject", filter_select<false, false>},
      {"rejectattr", filter_select<false, true>},
      {"replace", filter_replace},
      {"reverse", filter_reverse},
      {"round", filter_round},
      {"safe", filter_safe},
      {"select", filter_select<true, false>},
      {"selectattr", filter_select<true, true>},
      {"sort", filter_sort},
      {"string", filter_string},
      {"sum", filter_sum},
      {"title", filter_title},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"unique", filter_unique},
      {"upper", filter_case<upper>},
  };
  return kFilters;
}

}  // namespace

bool is_known_filter(std::string_view name) {
  return filters().contains(name);
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Caller& caller) {
  caller.budget().spend();
  return filters().at(name)(value, arguments, caller);
}

}  // namespace hrm::jinja
