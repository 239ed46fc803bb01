#pragma once
// Values of a template (hrm/formats/jinja.h), with the meaning that Python gives them.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hrm::jinja {

// What stops a template; who runs it adds the line.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a template may still spend. Everything whose size a template decides asks it before it works.
class Budget {
 public:
  Budget(int64_t steps, size_t most_text) : steps_(steps), left_(steps), most_text_(most_text) {}
  void spend(int64_t steps = 1);
  // Of a text that is about to be made, or read through.
  void spend_text(size_t bytes);
  // Counts this many elements that are copied or looked at.
  void spend_items(size_t count) { spend(static_cast<int64_t>(count / 4)); }
  // Throws Fault at once if a text of this many bytes would be too long.
  void check_text(size_t bytes) const;
  size_t most_text() const { return most_text_; }

 private:
  int64_t steps_, left_;
  size_t most_text_;
};

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  tuple,
  dict,
  view,       // of a dict: keys, values, items; or a range
  generator,  // what map and its like give: it can be read once
  space,      // a namespace
  loop,
  macro,
  method,    // of a value
  function,  // built in
};

struct Value;
using Values = std::vector<Value>;

// Lists inside one another. It bounds the recursion of all that follows values.
constexpr int kMostDepth = 100;

// Immutable, but for the place of a generator.
struct Payload {
  std::string text;  // text; what is undefined, the name of a method or function; what a view is of
  Values items;      // elements; of a dict key, value, key, value, ...; of a method what it is of
  int depth = 0;
  mutable size_t next = 0;  // of a generator
};

// Owned by the run, so that values that hold one another leave nothing behind.
struct Object {
  virtual ~Object() = default;
};

struct Value {
  Kind kind = Kind::undefined;
  bool safe = false;  // a text: markupsafe.Markup, which escapes what is added to it
  union {
    bool truth;
    int64_t whole = 0;
    double real;
    Object* object;
  };
  std::shared_ptr<const Payload> payload;

  const std::string& text() const { return payload->text; }
  const Values& items() const { return payload->items; }
  bool is(Kind other) const { return kind == other; }
  // bool is a number, as in Python.
  bool is_whole() const { return kind == Kind::integer || kind == Kind::boolean; }
  bool is_number() const { return is_whole() || kind == Kind::real; }
  int64_t as_whole() const { return kind == Kind::boolean ? truth : whole; }
  double as_real() const { return kind == Kind::real ? real : static_cast<double>(as_whole()); }
};

Value none_value();
Value bool_value(bool truth);
Value whole_value(int64_t whole);
Value real_value(double real);
Value text_value(std::string text, bool safe = false);
// `what`: the subject of a sentence, "'tools'" or "'content' of a dict".
Value undefined_value(std::string what);
Value named_value(Kind kind, std::string name, Values items = {});
Value object_value(Kind kind, Object* object);
// A list, tuple, dict, view or generator. Throws Fault beyond kMostDepth.
Value items_value(Kind kind, Values items, std::string name = {});

// Throws Fault for texts that are not UTF-8, and beyond kMostDepth.
Value value_of(const nlohmann::ordered_json& json);

// "str", "list", ...: type(value).__name__.
const char* type_name(const Value& value);
bool is_true(const Value& value);
// str(value), repr(value).
std::string to_text(const Value& value, Budget& budget);
std::string to_repr(const Value& value, Budget& budget);
std::string real_text(double real);
bool are_equal(const Value& a, const Value& b, Budget& budget);
// -1, 0 or 1. Throws Fault for values that have no order.
int compare(const Value& a, const Value& b, const char* sign, Budget& budget);
bool contains(const Value& container, const Value& value, Budget& budget);
// The value of a key; null: there is none.
const Value* find(const Value& dict, const Value& key, Budget& budget);
const Value* find(const Value& dict, std::string_view key, Budget& budget);
// Puts it instead of the same key, or at the end.
void put(Values& dict_items, Value key, Value value, Budget& budget);
// len(value). Throws Fault where it has none.
int64_t length(const Value& value, Budget& budget);
// What a loop runs over. A generator is empty afterwards.
Values elements(const Value& value, Budget& budget);

struct JsonStyle {
  bool ascii = false, sorted = false;
  int indent = -1;  // -1: in one line
  std::string item_separator = ", ", key_separator = ": ";
};
// json.dumps.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace hrm::jinja
