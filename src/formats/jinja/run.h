#pragma once
// Runs a template (hrm/formats/jinja.h).

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/jinja/calls.h"
#include "formats/jinja/program.h"
#include "hrm/formats/jinja.h"

namespace hrm::jinja {

// Names of a block. Blocks see those around them.
struct Scope {
  Scope* parent = nullptr;
  bool is_kept = false;  // a macro may come back to it
  std::vector<std::pair<std::string, Value>> names;

  Value* find(const std::string& name);
  void set(const std::string& name, Value value);
};

class Run : public Caller {
 public:
  Run(const Program& program, const JinjaOptions& options);

  // Throws Fault; line() is where.
  JinjaOutput run(const nlohmann::ordered_json& variables);
  int line() const { return line_; }

  Value member(const Value& of, const std::string& name) override;
  Value item(const Value& of, const Value& key) override;

 private:
  enum class Flow : uint8_t { on, leave, next };
  class Inner;
  class Deeper;
  struct Space;
  struct Loop;
  struct Macro;
  struct Generated {
    size_t begin;        // byte of the output
    int64_t characters;  // that follow
  };

  Flow execute(const Statements& statements, Scope& scope, std::string& out);
  Flow execute_one(const Statement& statement, Scope& scope, std::string& out);
  Flow execute_loop(const Statement& statement, Scope& scope, std::string& out);
  void assign(const Expression& target, const Value& value, Scope& scope);
  Value make_macro(const Statement& statement, Scope& scope);
  std::string text_of(const Statements& body, Scope& scope);
  void execute_generation(const Statement& statement, Scope& scope, std::string& out);
  void write(std::string& out, const std::string& text);

  Value evaluate(const Expression& expression, Scope& scope);
  Value evaluate_items(Kind kind, const Expression& expression, Scope& scope);
  Value evaluate_dict(const Expression& expression, Scope& scope);
  Value evaluate_slice(const Expression& expression, Scope& scope);
  Value evaluate_compare(const Expression& expression, Scope& scope);
  Value evaluate_concat(const Expression& expression, Scope& scope);
  Value evaluate_choice(const Expression& expression, Scope& scope);
  Value evaluate_logic(const Expression& expression, Scope& scope);
  Value evaluate_sign(const Expression& expression, Scope& scope);
  Value evaluate_call(const Expression& expression, Scope& scope, const Value* block);
  Value evaluate_filter(const Expression& expression, Scope& scope);
  bool evaluate_test(const Expression& expression, Scope& scope);
  Value evaluate_name(const Expression& expression, Scope& scope);
  Arguments evaluate_arguments(const Expression& expression, Scope& scope);

  Value call(const Value& callee, const Arguments& arguments);
  Value call_macro(const Macro& macro, const Arguments& arguments);
  Value call_function(const std::string& name, const Arguments& arguments);
  Value call_loop(const Value& method, const Arguments& arguments);
  Value now_as(const Arguments& arguments);
  Value loop_member(const Loop& loop, const std::string& name);

  const Program& program_;
  const JinjaOptions& options_;
  Budget budget_;
  int line_ = 1, depth_ = 0;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::string out_;
  std::vector<Generated> generated_;
};

}  // namespace hrm::jinja
