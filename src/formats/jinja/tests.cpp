// Tests of a template: {{ value is NAME }}.
#include <algorithm>
#include <map>

#include "formats/jinja/calls.h"
#include "formats/jinja/program.h"
#include "formats/jinja/text.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

using Bound = std::vector<std::optional<Value>>;

// A test's comparison with its one argument, by any of its names; empty: it is none.
std::string_view comparison_of(std::string_view test) {
  static const std::map<std::string_view, std::string_view> kSigns = {
      {"==", "=="}, {"eq", "=="},      {"equalto", "=="}, {"!=", "!="}, {"ne", "!="},
      {">", ">"},   {"gt", ">"},       {">=", ">="},      {"ge", ">="}, {"greaterthan", ">"},
      {"<", "<"},   {"lessthan", "<"}, {"lt", "<"},       {"<=", "<="}, {"le", "<="}};
  const auto found = kSigns.find(test);
  return found == kSigns.end() ? std::string_view() : found->second;
}

bool is_same(const Value& a, const Value& b) {
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::none:
      return true;
    case Kind::boolean:
      return a.truth == b.truth;
    case Kind::integer:
    case Kind::real:
    case Kind::text:
      throw Fault("the test 'sameas' is not supported for numbers and texts");
    default:
      return a.payload ? a.payload == b.payload : a.object == b.object;
  }
}

bool type_test(const std::string& name, const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
      // An undefined value has the methods of an empty list, and can be called (which fails).
      return name == "undefined" || name == "iterable" || name == "sequence" || name == "callable";
    case Kind::none:
      return name == "none";
    case Kind::boolean:
      return name == "boolean" || name == "number" || name == (value.truth ? "true" : "false");
    case Kind::integer:
      return name == "integer" || name == "number";
    case Kind::real:
      return name == "float" || name == "number";
    case Kind::text:
      return name == "string" || name == "iterable" || name == "sequence" || (name == "escaped" && value.safe);
    case Kind::list:
    case Kind::tuple:
      return name == "iterable" || name == "sequence";
    case Kind::dict:
      return name == "mapping" || name == "iterable" || name == "sequence";
    case Kind::view:
      return name == "iterable" || (name == "sequence" && value.text() == "range");
    case Kind::generator:
      return name == "iterable";
    case Kind::loop:
      return name == "iterable" || name == "callable";
    case Kind::macro:
    case Kind::method:
    case Kind::function:
      return name == "callable";
    case Kind::space:
      return false;
  }
  return false;
}

const std::vector<std::string_view>& type_tests() {
  static const std::vector<std::string_view> kTests = {"boolean",  "callable", "escaped", "false",    "float",
                                                       "integer",  "iterable", "mapping", "none",     "number",
                                                       "sequence", "string",   "true",    "undefined"};
  return kTests;
}

}  // namespace

bool is_known_test(std::string_view name) {
  static const std::vector<std::string_view> kOthers = {"defined", "divisibleby", "even",   "filter", "in",
                                                        "lower",   "odd",         "sameas", "test",   "upper"};
  const auto has = [&](const std::vector<std::string_view>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  return has(type_tests()) || has(kOthers) || !comparison_of(name).empty();
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Caller& caller) {
  Budget& budget = caller.budget();
  budget.spend();
  const std::string what = cat("the test 'is ", name, "'");
  const auto only = [&] {
    const Bound bound = bind(what, arguments, {"other"});
    if (!bound[0]) throw Fault(cat(what, " needs a value to compare with"));
    return *bound[0];
  };
  if (const std::string_view sign = comparison_of(name); !sign.empty()) {
    const Value other = only();
    if (sign == "==" || sign == "!=") return are_equal(value, other, budget) == (sign == "==");
    const int order = compare(value, other, std::string(sign).c_str(), budget);
    return sign == "<" ? order < 0 : sign == "<=" ? order <= 0 : sign == ">" ? order > 0 : order >= 0;
  }
  if (name == "in") return contains(only(), value, budget);
  if (name == "sameas") return is_same(value, only());
  if (name == "divisibleby") {
    const Value rest = arithmetic("%", value, only(), caller);
    return rest.is_whole() ? rest.as_whole() == 0 : rest.as_real() == 0;
  }
  bind(what, arguments, {});
  if (name == "defined") return !value.is(Kind::undefined);
  if (name == "odd" || name == "even") {
    const Value rest = arithmetic("%", value, whole_value(2), caller);
    return are_equal(rest, whole_value(name == "odd" ? 1 : 0), budget);
  }
  if (name == "lower" || name == "upper") return is_all(to_text(value, budget), name);
  if (name == "filter") return value.is(Kind::text) && is_known_filter(value.text());
  if (name == "test") return value.is(Kind::text) && is_known_test(value.text());
  return type_test(name, value);
}

}  // namespace hrm::jinja
