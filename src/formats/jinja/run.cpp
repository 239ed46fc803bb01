#include "formats/jinja/run.h"

#include <nlohmann/json.hpp>

#include "formats/jinja/run_scopes.h"
#include "formats/jinja/text.h"
#include "hrm/base/text.h"

namespace hrm::jinja {

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
