#pragma once
// A template (hrm/formats/jinja.h) as its parser leaves it.

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/jinja/value.h"
#include "hrm/base/error.h"

namespace hrm::jinja {

enum class TokenKind : uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  text,
  whole,
  real,
  sign,
  end
};

struct Token {
  TokenKind kind;
  std::string text;  // data, a name, a text without its quotes, digits, a sign such as "=="
  int line;
};

// Throws Fault, with `line` set to where.
std::vector<Token> tokens_of(std::string_view source, int& line);

enum class Operation : uint8_t {
  constant,
  name,
  member,  // children[0].text
  item,    // children[0][children[1]]
  slice,   // children[0][children[1]:children[2]:children[3]], null where left out
  call,    // children[0](children[1...], named)
  filter,  // children[0] | text(children[1...], named)
  test,    // children[0] is text(children[1...], named)
  list,    // also tuple and dict (key, value, ...)
  tuple,
  dict,
  negate,
  plus,
  logical_not,
  logical_and,
  logical_or,
  choice,   // children[0] if children[1] else children[2], null where left out
  compare,  // children[0] signs[0] children[1] signs[1] ...
  concat,
  arithmetic,  // text: + - * / // % **
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  Operation operation;
  int line;
  std::string text = {};
  Value value = {};
  std::vector<ExpressionPtr> children = {};
  std::vector<std::string> signs = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};  // "*" and "**": a list or dict taken apart
};

enum class Action : uint8_t {
  data,
  print,
  condition,
  loop,
  set,        // target = value
  set_block,  // target = body, through the filters of value
  macro,
  call,        // value is the call, body the caller
  filter,      // body through the filters of value
  scope,       // {% with %}: targets and values, then body
  generation,  // the assistant's own words
  leave,       // break
  next,        // continue
};

struct Parameter {
  std::string name;
  ExpressionPtr initial;  // null: there is none
};

struct Statement;
using Statements = std::vector<Statement>;

struct Statement {
  Action action;
  int line;
  std::string text = {};  // data; the name of a macro
  ExpressionPtr target = {}, value = {}, filter = {};
  Statements body = {}, otherwise = {};
  std::vector<Parameter> parameters = {};
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> assignments = {};
};

struct Program {
  Statements statements;
  bool marks_generation = false;
  std::set<std::string, std::less<>> names;  // of variables, functions, filters, tests and members
};

// In a filter's place inside a value without one: what the text of a block stands for.
inline constexpr const char* kBlockText = " block";

// Throws Error(code) as "origin, line N: reason".
Program parse_program(std::string_view source, const std::string& origin, ExitCode code);

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);

}  // namespace hrm::jinja
