#pragma once
// Filters, tests, methods and functions of a template (hrm/formats/jinja.h).

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/jinja/value.h"

namespace hrm::jinja {

struct Arguments {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

// What filters and methods ask of the run that they are part of.
class Caller {
 public:
  explicit Caller(Budget& budget) : budget_(budget) {}
  virtual ~Caller() = default;
  Budget& budget() { return budget_; }

  // Jinja's obj.name and obj[key]; undefined where there is none.
  virtual Value member(const Value& of, const std::string& name) = 0;
  virtual Value item(const Value& of, const Value& key) = 0;

 private:
  Budget& budget_;
};

// The arguments by the names of the parameters. Throws Fault for others and for too many. `what`: "the filter 'trim'".
std::vector<std::optional<Value>> bind(const std::string& what, const Arguments& arguments,
                                       std::initializer_list<std::string_view> names);

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments, Caller& caller);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments, Caller& caller);

// Of texts, lists, tuples and dicts. Whether Python has a method of that name; it may still be refused when called.
bool has_method(const Value& of, std::string_view name);
// Whether it would change the value, which the sandbox forbids.
bool is_changing_method(const Value& of, std::string_view name);
Value call_method(const Value& of, const std::string& name, const Arguments& arguments, Caller& caller);

// a + b and its like.
Value arithmetic(const std::string& sign, const Value& a, const Value& b, Caller& caller);
// of[begin:end:step]; null where left out.
Value slice(const Value& of, const Value* begin, const Value* end, const Value* step, Caller& caller);

}  // namespace hrm::jinja
