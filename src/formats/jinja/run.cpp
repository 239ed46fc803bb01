#include "formats/jinja/run.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/jinja/text.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

// Statements, expressions and macros inside one another, each of which is a few calls of ours.
constexpr int kMostCalls = 600;
constexpr int64_t kMostRange = 100'000;  // of jinja2's sandbox

const std::set<std::string_view>& functions() {
  static const std::set<std::string_view> kFunctions = {"raise_exception", "strftime_now", "namespace", "range",
                                                        "dict"};
  return kFunctions;
}

// Of jinja2, and not known here.
bool is_foreign_function(std::string_view name) {
  return name == "cycler" || name == "joiner" || name == "lipsum";
}

bool is_hidden(std::string_view name) {
  return name.starts_with("__");
}

Value undefined_member(const Value& of, const std::string& name) {
  return undefined_value(cat("'", printable_start(name, 40), "' of a ", type_name(of)));
}

}  // namespace

struct Run::Space : Object {
  Values items;
};

struct Run::Loop : Object {
  Values items;
  int64_t at = 0, size = 0, depth = 0;
  Value before, behind;
  std::vector<Value> changed;
};

struct Run::Macro : Object {
  const Statement* definition = nullptr;
  Scope* scope = nullptr;
};

// A scope of its own until the end of a block.
class Run::Inner {
 public:
  Inner(Run& run, Scope& parent) : run_(run) {
    if (run.free_scopes_.empty()) {
      run.scopes_.emplace_back();
      scope_ = &run.scopes_.back();
    } else {
      scope_ = run.free_scopes_.back();
      run.free_scopes_.pop_back();
    }
    scope_->parent = &parent;
  }
  ~Inner() {
    if (scope_->is_kept) return;
    scope_->names.clear();
    run_.free_scopes_.push_back(scope_);
  }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;
  Scope& scope() { return *scope_; }

 private:
  Run& run_;
  Scope* scope_;
};

class Run::Deeper {
 public:
  explicit Deeper(Run& run) : run_(run) {
    if (++run_.depth_ > kMostCalls) {
      --run_.depth_;
      throw Fault(cat("calls and blocks are nested more than ", kMostCalls, " deep"));
    }
  }
  ~Deeper() { --run_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Run& run_;
};

Value* Scope::find(const std::string& name) {
  for (auto& [known, value] : names) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  if (Value* known = find(name)) {
    *known = std::move(value);
  } else {
    names.emplace_back(name, std::move(value));
  }
}

Run::Run(const Program& program, const JinjaOptions& options)
    : Caller(budget_), program_(program), options_(options), budget_(options.steps, options.output) {}

JinjaOutput Run::run(const nlohmann::ordered_json& variables) {
  scopes_.emplace_back();
  Scope& root = scopes_.back();
  for (const auto& [name, value] : variables.items()) root.set(name, value_of(value));
  execute(program_.statements, root, out_);
  JinjaOutput result;
  for (const Generated& one : generated_) {
    size_t end = one.begin;
    for (int64_t i = 0; i < one.characters && end < out_.size(); ++i) next_character(out_, end);
    result.generated.emplace_back(one.begin, end);
  }
  result.text = std::move(out_);
  return result;
}

void Run::write(std::string& out, const std::string& text) {
  budget_.spend_text(text.size());
  budget_.check_text(out.size() + text.size());
  out += text;
}

// ---- Statements ----

Run::Flow Run::execute(const Statements& statements, Scope& scope, std::string& out) {
  for (const Statement& statement : statements) {
    line_ = statement.line;
    budget_.spend();
    const Flow flow = execute_one(statement, scope, out);
    if (flow != Flow::on) return flow;
  }
  return Flow::on;
}

Run::Flow Run::execute_one(const Statement& statement, Scope& scope, std::string& out) {
  const Deeper deeper(*this);
  switch (statement.action) {
    case Action::data:
      write(out, statement.text);
      return Flow::on;
    case Action::print: {
      const Value value = evaluate(*statement.value, scope);
      line_ = statement.line;
      write(out, to_text(value, budget_));
      return Flow::on;
    }
    case Action::condition:
      return execute(is_true(evaluate(*statement.value, scope)) ? statement.body : statement.otherwise, scope, out);
    case Action::loop:
      return execute_loop(statement, scope, out);
    case Action::set:
      assign(*statement.target, evaluate(*statement.value, scope), scope);
      return Flow::on;
    case Action::set_block:
    case Action::filter: {
      Inner inner(*this, scope);
      inner.scope().set(kBlockText, text_value(text_of(statement.body, scope)));
      const Value value = evaluate(*statement.filter, inner.scope());
      if (statement.action == Action::filter) {
        write(out, to_text(value, budget_));
      } else {
        assign(*statement.target, value, scope);
      }
      return Flow::on;
    }
    case Action::macro:
      scope.set(statement.text, make_macro(statement, scope));
      return Flow::on;
    case Action::call: {
      const Value block = make_macro(statement, scope);
      const Value value = evaluate_call(*statement.value, scope, &block);
      write(out, to_text(value, budget_));
      return Flow::on;
    }
    case Action::scope: {
      Inner inner(*this, scope);
      // Each value is that of the block around.
      std::vector<Value> values;
      for (const auto& [target, value] : statement.assignments) values.push_back(evaluate(*value, scope));
      for (size_t i = 0; i < values.size(); ++i) assign(*statement.assignments[i].first, values[i], inner.scope());
      return execute(statement.body, inner.scope(), out);
    }
    case Action::generation:
      execute_generation(statement, scope, out);
      return Flow::on;
    case Action::leave:
      return Flow::leave;
    case Action::next:
      return Flow::next;
  }
  return Flow::on;
}

// A block of which the text alone is taken. What it sets is its own.
std::string Run::text_of(const Statements& body, Scope& scope) {
  Inner inner(*this, scope);
  std::string text;
  execute(body, inner.scope(), text);
  return text;
}

// transformers counts from what the template has written, without the text of a macro that is being made.
void Run::execute_generation(const Statement& statement, Scope& scope, std::string& out) {
  const size_t begin = out_.size();
  const std::string text = text_of(statement.body, scope);
  generated_.push_back({begin, count_characters(text)});
  write(out, text);
}

Run::Flow Run::execute_loop(const Statement& statement, Scope& scope, std::string& out) {
  const Value over = evaluate(*statement.value, scope);
  line_ = statement.line;
  Values items = elements(over, budget_);
  if (statement.filter) {
    Values chosen;
    for (const Value& item : items) {
      Inner inner(*this, scope);
      assign(*statement.target, item, inner.scope());
      if (is_true(evaluate(*statement.filter, inner.scope()))) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  if (items.empty()) return execute(statement.otherwise, scope, out);
  budget_.spend(4);
  objects_.push_back(std::make_unique<Loop>());
  auto& loop = static_cast<Loop&>(*objects_.back());
  loop.size = static_cast<int64_t>(items.size());
  const Value missing = undefined_value("an item before the first or behind the last of a loop");
  bool has_left = false;
  for (size_t i = 0; i < items.size() && !has_left; ++i) {
    budget_.spend();
    Inner inner(*this, scope);
    loop.at = static_cast<int64_t>(i);
    loop.before = i > 0 ? items[i - 1] : missing;
    loop.behind = i + 1 < items.size() ? items[i + 1] : missing;
    inner.scope().set("loop", object_value(Kind::loop, &loop));
    line_ = statement.line;
    assign(*statement.target, items[i], inner.scope());
    has_left = execute(statement.body, inner.scope(), out) == Flow::leave;
  }
  return Flow::on;
}

void Run::assign(const Expression& target, const Value& value, Scope& scope) {
  if (target.operation == Operation::name) {
    scope.set(target.text, value);
    return;
  }
  if (target.operation == Operation::member) {
    const Value space = evaluate(*target.children[0], scope);
    line_ = target.line;
    if (!space.is(Kind::space)) throw Fault("a member can be set of a namespace alone");
    if (target.text.starts_with("_")) throw Fault("a member of a namespace cannot begin with '_'");
    put(static_cast<Space*>(space.object)->items, text_value(target.text), value, budget_);
    return;
  }
  const Values items = elements(value, budget_);
  if (items.size() != target.children.size()) {
    throw Fault(cat(items.size(), " values cannot be assigned to ", target.children.size(), " names"));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], items[i], scope);
}

Value Run::make_macro(const Statement& statement, Scope& scope) {
  budget_.spend(4);
  for (Scope* at = &scope; at != nullptr && !at->is_kept; at = at->parent) at->is_kept = true;
  auto macro = std::make_unique<Macro>();
  macro->definition = &statement;
  macro->scope = &scope;
  objects_.push_back(std::move(macro));
  return object_value(Kind::macro, objects_.back().get());
}

// ---- Expressions ----

Value Run::evaluate(const Expression& expression, Scope& scope) {
  const Deeper deeper(*this);
  budget_.spend();
  line_ = expression.line;
  switch (expression.operation) {
    case Operation::constant:
      return expression.value;
    case Operation::name:
      return evaluate_name(expression, scope);
    case Operation::member: {
      const Value of = evaluate(*expression.children[0], scope);
      line_ = expression.line;
      return member(of, expression.text);
    }
    case Operation::item: {
      const Value of = evaluate(*expression.children[0], scope);
      const Value key = evaluate(*expression.children[1], scope);
      line_ = expression.line;
      return item(of, key);
    }
    case Operation::slice:
      return evaluate_slice(expression, scope);
    case Operation::call:
      return evaluate_call(expression, scope, nullptr);
    case Operation::filter:
      return evaluate_filter(expression, scope);
    case Operation::test:
      return bool_value(evaluate_test(expression, scope));
    case Operation::list:
      return evaluate_items(Kind::list, expression, scope);
    case Operation::tuple:
      return evaluate_items(Kind::tuple, expression, scope);
    case Operation::dict:
      return evaluate_dict(expression, scope);
    case Operation::negate:
    case Operation::plus:
      return evaluate_sign(expression, scope);
    case Operation::logical_not:
      return bool_value(!is_true(evaluate(*expression.children[0], scope)));
    case Operation::logical_and:
    case Operation::logical_or:
      return evaluate_logic(expression, scope);
    case Operation::choice:
      return evaluate_choice(expression, scope);
    case Operation::compare:
      return evaluate_compare(expression, scope);
    case Operation::concat:
      return evaluate_concat(expression, scope);
    case Operation::arithmetic: {
      const Value a = evaluate(*expression.children[0], scope);
      const Value b = evaluate(*expression.children[1], scope);
      line_ = expression.line;
      return arithmetic(expression.text, a, b, *this);
    }
  }
  return none_value();
}

Value Run::evaluate_name(const Expression& expression, Scope& scope) {
  for (Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const Value* value = at->find(expression.text)) return *value;
  }
  if (functions().contains(expression.text)) return named_value(Kind::function, expression.text);
  if (is_foreign_function(expression.text)) throw Fault(cat("the function '", expression.text, "' is not supported"));
  return undefined_value("'" + printable_start(expression.text) + "'");
}

Value Run::evaluate_items(Kind kind, const Expression& expression, Scope& scope) {
  Values items;
  for (const ExpressionPtr& child : expression.children) items.push_back(evaluate(*child, scope));
  return items_value(kind, std::move(items));
}

Value Run::evaluate_dict(const Expression& expression, Scope& scope) {
  Values items;
  for (size_t i = 0; i < expression.children.size(); i += 2) {
    Value key = evaluate(*expression.children[i], scope);
    put(items, std::move(key), evaluate(*expression.children[i + 1], scope), budget_);
  }
  return items_value(Kind::dict, std::move(items));
}

Value Run::evaluate_slice(const Expression& expression, Scope& scope) {
  const Value of = evaluate(*expression.children[0], scope);
  Values bounds(3);
  std::vector<const Value*> given(3, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    if (!expression.children[i + 1]) continue;
    bounds[i] = evaluate(*expression.children[i + 1], scope);
    given[i] = &bounds[i];
  }
  line_ = expression.line;
  return slice(of, given[0], given[1], given[2], *this);
}

Value Run::evaluate_sign(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.children[0], scope);
  line_ = expression.line;
  if (!value.is_number()) {
    // The message of the operation of two numbers is that of one.
    return arithmetic("-", whole_value(0), value, *this);
  }
  if (expression.operation == Operation::plus) return value.is_whole() ? whole_value(value.as_whole()) : value;
  if (value.is(Kind::real)) return real_value(-value.real);
  return arithmetic("-", whole_value(0), value, *this);
}

Value Run::evaluate_logic(const Expression& expression, Scope& scope) {
  const bool stops_at = expression.operation == Operation::logical_or;
  Value value;
  for (const ExpressionPtr& child : expression.children) {
    value = evaluate(*child, scope);
    if (is_true(value) == stops_at) break;
  }
  return value;
}

Value Run::evaluate_choice(const Expression& expression, Scope& scope) {
  if (is_true(evaluate(*expression.children[1], scope))) return evaluate(*expression.children[0], scope);
  if (expression.children[2]) return evaluate(*expression.children[2], scope);
  return undefined_value("the value of an 'if' without an 'else'");
}

Value Run::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.children[0], scope);
  for (size_t i = 0; i < expression.signs.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1], scope);
    line_ = expression.line;
    const std::string& sign = expression.signs[i];
    bool good = false;
    if (sign == "==" || sign == "!=") {
      good = are_equal(left, right, budget_) == (sign == "==");
    } else if (sign == "in" || sign == "not in") {
      good = contains(right, left, budget_) == (sign == "in");
    } else {
      const int order = compare(left, right, sign.c_str(), budget_);
      good = sign == "<" ? order < 0 : sign == "<=" ? order <= 0 : sign == ">" ? order > 0 : order >= 0;
    }
    if (!good) return bool_value(false);
    left = std::move(right);
  }
  return bool_value(true);
}

Value Run::evaluate_concat(const Expression& expression, Scope& scope) {
  std::string text;
  for (const ExpressionPtr& child : expression.children) write(text, to_text(evaluate(*child, scope), budget_));
  return text_value(std::move(text));
}

Arguments Run::evaluate_arguments(const Expression& expression, Scope& scope) {
  Arguments arguments;
  for (size_t i = 1; i < expression.children.size(); ++i) {
    arguments.positional.push_back(evaluate(*expression.children[i], scope));
  }
  for (const auto& [name, child] : expression.named) {
    Value value = evaluate(*child, scope);
    if (name == "*") {
      for (Value& item : elements(value, budget_)) arguments.positional.push_back(std::move(item));
    } else if (name == "**") {
      if (!value.is(Kind::dict)) throw Fault(cat("'**' needs a dict, not ", type_name(value)));
      for (size_t i = 0; i < value.items().size(); i += 2) {
        if (!value.items()[i].is(Kind::text)) throw Fault("'**' needs a dict whose keys are texts");
        arguments.named.emplace_back(value.items()[i].text(), value.items()[i + 1]);
      }
    } else {
      arguments.named.emplace_back(name, std::move(value));
    }
  }
  return arguments;
}

Value Run::evaluate_filter(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.children[0], scope);
  const Arguments arguments = evaluate_arguments(expression, scope);
  line_ = expression.line;
  return apply_filter(expression.text, value, arguments, *this);
}

bool Run::evaluate_test(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.children[0], scope);
  const Arguments arguments = evaluate_arguments(expression, scope);
  line_ = expression.line;
  return apply_test(expression.text, value, arguments, *this);
}

Value Run::evaluate_call(const Expression& expression, Scope& scope, const Value* block) {
  const Value callee = evaluate(*expression.children[0], scope);
  Arguments arguments = evaluate_arguments(expression, scope);
  if (block != nullptr) arguments.named.emplace_back("caller", *block);
  line_ = expression.line;
  Value result = call(callee, arguments);
  line_ = expression.line;
  return result;
}

// ---- Members and calls ----

Value Run::member(const Value& of, const std::string& name) {
  if (of.is(Kind::undefined)) {
    throw Fault(cat(of.text(), " is undefined, so that it has no '", printable_start(name, 40), "'"));
  }
  if (is_hidden(name)) throw Fault(cat("the attribute '", printable_start(name, 40), "' is not accessible"));
  switch (of.kind) {
    case Kind::dict:
    case Kind::list:
    case Kind::tuple:
    case Kind::text:
      if (is_changing_method(of, name)) return undefined_value(cat("'", name, "', a method that changes a value,"));
      if (has_method(of, name)) return named_value(Kind::method, name, {of});
      if (of.is(Kind::dict)) {
        if (const Value* found = find(of, name, budget_)) return *found;
      }
      return undefined_member(of, name);
    case Kind::space: {
      const Values& items = static_cast<const Space*>(of.object)->items;
      for (size_t i = 0; i < items.size(); i += 2) {
        if (items[i].text() == name) return items[i + 1];
      }
      return undefined_member(of, name);
    }
    case Kind::loop: {
      if (name == "cycle" || name == "changed") return named_value(Kind::method, name, {of});
      return loop_member(*static_cast<const Loop*>(of.object), name);
    }
    case Kind::none:
      return undefined_member(of, name);
    default:
      throw Fault(cat("members of a ", type_name(of), " are not supported"));
  }
}

Value Run::loop_member(const Loop& loop, const std::string& name) {
  if (name == "index") return whole_value(loop.at + 1);
  if (name == "index0") return whole_value(loop.at);
  if (name == "revindex") return whole_value(loop.size - loop.at);
  if (name == "revindex0") return whole_value(loop.size - loop.at - 1);
  if (name == "first") return bool_value(loop.at == 0);
  if (name == "last") return bool_value(loop.at + 1 == loop.size);
  if (name == "length") return whole_value(loop.size);
  if (name == "previtem") return loop.before;
  if (name == "nextitem") return loop.behind;
  if (name == "depth") return whole_value(1);
  if (name == "depth0") return whole_value(0);
  return undefined_value(cat("'loop.", printable_start(name, 40), "'"));
}

Value Run::item(const Value& of, const Value& key) {
  if (of.is(Kind::undefined)) throw Fault(cat(of.text(), " is undefined, so that it has no items"));
  if (of.is(Kind::dict)) {
    const bool can_be_key = !key.is(Kind::list) && !key.is(Kind::dict) && !key.is(Kind::view);
    if (can_be_key) {
      if (const Value* found = find(of, key, budget_)) return *found;
    }
  }
  const bool is_row =
      of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::text) || (of.is(Kind::view) && of.text() == "range");
  if (is_row && key.is_whole()) {
    const int64_t size = length(of, budget_);
    int64_t place = key.as_whole();
    if (place < 0) place += size;
    if (place < 0 || place >= size) return undefined_value(cat("item ", key.as_whole(), " of a ", type_name(of)));
    if (!of.is(Kind::text)) return of.items()[place];
    const Value begin = whole_value(place), end = whole_value(place + 1);
    return slice(of, &begin, &end, nullptr, *this);
  }
  if (key.is(Kind::text) && !is_hidden(key.text())) {
    const bool has_members = of.is(Kind::dict) || of.is(Kind::list) || of.is(Kind::tuple) || of.is(Kind::text) ||
                             of.is(Kind::space) || of.is(Kind::loop);
    if (has_members) return member(of, key.text());
  }
  return undefined_value(cat("an item of a ", type_name(of)));
}

Value Run::call(const Value& callee, const Arguments& arguments) {
  switch (callee.kind) {
    case Kind::macro:
      return call_macro(*static_cast<const Macro*>(callee.object), arguments);
    case Kind::function:
      return call_function(callee.text(), arguments);
    case Kind::method:
      if (callee.items()[0].is(Kind::loop)) return call_loop(callee, arguments);
      return call_method(callee.items()[0], callee.text(), arguments, *this);
    case Kind::undefined:
      throw Fault(cat(callee.text(), " is undefined and cannot be called"));
    default:
      throw Fault(cat("a ", type_name(callee), " cannot be called"));
  }
}

Value Run::call_loop(const Value& method, const Arguments& arguments) {
  auto& loop = *static_cast<Loop*>(method.items()[0].object);
  if (!arguments.named.empty()) throw Fault(cat("loop.", method.text(), " takes no arguments with names"));
  const Values& values = arguments.positional;
  if (method.text() == "cycle") {
    if (values.empty()) throw Fault("loop.cycle needs values");
    return values[static_cast<size_t>(loop.at) % values.size()];
  }
  bool is_same = loop.changed.size() == values.size() && loop.at > 0;
  for (size_t i = 0; is_same && i < values.size(); ++i) is_same = are_equal(values[i], loop.changed[i], budget_);
  loop.changed = values;
  return bool_value(!is_same);
}

Value Run::call_macro(const Macro& macro, const Arguments& arguments) {
  const Deeper deeper(*this);
  const Statement& definition = *macro.definition;
  const std::string name = definition.text.empty() ? "caller" : definition.text;
  Inner inner(*this, *macro.scope);
  Scope& scope = inner.scope();
  Values more(arguments.positional.begin() +
                  static_cast<int64_t>(std::min(arguments.positional.size(), definition.parameters.size())),
              arguments.positional.end());
  if (!more.empty() && !program_.names.contains("varargs")) {
    throw Fault(
        cat("the macro '", printable_start(name, 40), "' takes at most ", definition.parameters.size(), " arguments"));
  }
  Values named;
  for (const auto& one : arguments.named) {
    const std::string& key = one.first;
    const Value& value = one.second;
    const auto is_it = [&](const Parameter& parameter) { return parameter.name == key; };
    const auto found = std::find_if(definition.parameters.begin(), definition.parameters.end(), is_it);
    if (found == definition.parameters.end()) {
      if (key == "caller") {
        scope.set(key, value);
        continue;
      }
      if (!program_.names.contains("kwargs")) {
        throw Fault(
            cat("the macro '", printable_start(name, 40), "' has no parameter '", printable_start(key, 40), "'"));
      }
      put(named, text_value(key), value, budget_);
      continue;
    }
    const auto place = static_cast<size_t>(found - definition.parameters.begin());
    if (place < arguments.positional.size()) {
      throw Fault(
          cat("the macro '", printable_start(name, 40), "' has two values for '", printable_start(key, 40), "'"));
    }
  }
  if (program_.names.contains("varargs")) scope.set("varargs", items_value(Kind::tuple, std::move(more)));
  if (program_.names.contains("kwargs")) scope.set("kwargs", items_value(Kind::dict, std::move(named)));
  for (size_t i = 0; i < definition.parameters.size(); ++i) {
    const Parameter& parameter = definition.parameters[i];
    if (i < arguments.positional.size()) {
      scope.set(parameter.name, arguments.positional[i]);
      continue;
    }
    const auto given = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& one) { return one.first == parameter.name; });
    if (given != arguments.named.end()) {
      scope.set(parameter.name, given->second);
    } else {
      scope.set(parameter.name, parameter.initial ? evaluate(*parameter.initial, scope)
                                                  : undefined_value("'" + printable_start(parameter.name) + "'"));
    }
  }
  std::string text;
  execute(definition.body, scope, text);
  return text_value(std::move(text));
}

Value Run::call_function(const std::string& name, const Arguments& arguments) {
  if (name == "raise_exception") {
    const auto bound = bind("the function 'raise_exception'", arguments, {"message"});
    const std::string message = bound[0] ? to_text(*bound[0], budget_) : "";
    throw Fault(cat("the template refuses the conversation: ", printable_start(message, 400)));
  }
  if (name == "strftime_now") return now_as(arguments);
  if (name == "range") {
    const auto bound = bind("the function 'range'", arguments, {"start", "stop", "step"});
    const auto number = [&](const std::optional<Value>& value, int64_t none) {
      if (!value) return none;
      if (!value->is_whole()) throw Fault(cat("the function 'range' needs whole numbers, not ", type_name(*value)));
      return value->as_whole();
    };
    if (!bound[0]) throw Fault("the function 'range' needs a number");
    const int64_t begin = bound[1] ? number(bound[0], 0) : 0,
                  end = bound[1] ? number(bound[1], 0) : number(bound[0], 0);
    const int64_t step = number(bound[2], 1);
    if (step == 0) throw Fault("the function 'range' has the step 0");
    Values items;
    for (int64_t at = begin; step > 0 ? at < end : at > end;) {
      if (static_cast<int64_t>(items.size()) >= kMostRange)
        throw Fault(cat("a range has more than ", kMostRange, " numbers"));
      items.push_back(whole_value(at));
      if (__builtin_add_overflow(at, step, &at)) break;
    }
    budget_.spend_items(items.size());
    return items_value(Kind::view, std::move(items), "range");
  }
  // namespace and dict: members of a dict or of pairs, then those with names.
  Values items;
  if (arguments.positional.size() > 1) throw Fault(cat("the function '", name, "' takes one dict"));
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is(Kind::dict)) {
      items = from.items();
      budget_.spend_items(items.size());
    } else {
      for (const Value& pair : elements(from, budget_)) {
        const Values both = elements(pair, budget_);
        if (both.size() != 2) throw Fault(cat("the function '", name, "' needs pairs of a key and a value"));
        put(items, both[0], both[1], budget_);
      }
    }
  }
  for (const auto& [key, value] : arguments.named) put(items, text_value(key), value, budget_);
  if (name == "dict") return items_value(Kind::dict, std::move(items));
  for (size_t i = 0; i < items.size(); i += 2) {
    if (!items[i].is(Kind::text)) throw Fault("a member of a namespace needs a name");
    if (items[i].text().starts_with("_")) throw Fault("a member of a namespace cannot begin with '_'");
  }
  budget_.spend(4);
  auto space = std::make_unique<Space>();
  space->items = std::move(items);
  objects_.push_back(std::move(space));
  return object_value(Kind::space, objects_.back().get());
}

Value Run::now_as(const Arguments& arguments) {
  const auto bound = bind("the function 'strftime_now'", arguments, {"format"});
  if (!bound[0] || !bound[0]->is(Kind::text)) throw Fault("the function 'strftime_now' needs a format");
  const std::string& format = bound[0]->text();
  if (format.size() > 256 || format.find('\0') != std::string::npos) {
    throw Fault("the format of 'strftime_now' is longer than 256 bytes, or holds a null character");
  }
  // Others differ between systems.
  constexpr std::string_view kKnown = "aAbBcdHIjmMpSUwWxXyYZzF%DeTR";
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    ++i;
    if (i < format.size() && format[i] == '-') ++i;  // without a leading zero
    if (i >= format.size() || kKnown.find(format[i]) == std::string_view::npos) {
      const std::string shown = i < format.size() ? printable(format.substr(i, 1)) : "";
      throw Fault(cat("the format of 'strftime_now' has %", shown, ", which is not supported"));
    }
  }
  std::tm when{};
  if (options_.year == 0) {
    const std::time_t now = std::time(nullptr);
    localtime_r(&now, &when);
  } else {
    when.tm_year = options_.year - 1900;
    when.tm_mon = options_.month - 1;
    when.tm_mday = options_.day;
    when.tm_isdst = -1;
    std::mktime(&when);  // the day of the week and of the year
  }
  // Names of days and months would follow the locale; the program never leaves "C".
  std::string out(4096, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &when));
  return text_value(std::move(out));
}

}  // namespace hrm::jinja

namespace hrm {

JinjaTemplate::JinjaTemplate(std::string_view text, const std::string& origin, ExitCode code)
    : program_(std::make_shared<jinja::Program>(jinja::parse_program(text, origin, code))),
      origin_(origin),
      code_(code) {}

JinjaOutput JinjaTemplate::render(const nlohmann::ordered_json& variables, const JinjaOptions& options) const {
  jinja::Run run(*program_, options);
  try {
    return run.run(variables);
  } catch (const jinja::Fault& fault) {
    fail(code_, origin_, ", line ", run.line(), ": ", fault.what());
  }
}

bool JinjaTemplate::marks_generation() const {
  return program_->marks_generation;
}

bool JinjaTemplate::mentions(std::string_view name) const {
  return program_->names.contains(name);
}

}  // namespace hrm
