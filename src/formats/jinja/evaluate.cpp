// Expressions of a template.
#include <set>

#include "formats/jinja/run_scopes.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

const std::set<std::string_view>& functions() {
  static const std::set<std::string_view> kFunctions = {"raise_exception", "strftime_now", "namespace", "range",
                                                        "dict"};
  return kFunctions;
}

// Of jinja2, and not known here.
bool is_foreign_function(std::string_view name) {
  return name == "cycler" || name == "joiner" || name == "lipsum";
}

}  // namespace

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

}  // namespace hrm::jinja
