#include "formats/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

// Expressions and blocks inside one another.
constexpr int kMostNested = 100;
constexpr int kMostChained = 200;
constexpr size_t kMostTokens = size_t{1} << 20;

ExpressionPtr make(Operation operation, int line, std::string text = {}) {
  auto out = std::make_unique<Expression>();
  out->operation = operation;
  out->line = line;
  out->text = std::move(text);
  return out;
}

template <class... Children>
ExpressionPtr make_of(Operation operation, int line, std::string text, Children... children) {
  ExpressionPtr out = make(operation, line, std::move(text));
  (out->children.push_back(std::move(children)), ...);
  return out;
}

ExpressionPtr constant(int line, Value value) {
  ExpressionPtr out = make(Operation::constant, line);
  out->value = std::move(value);
  return out;
}

}  // namespace

ExpressionParser::Depth::Depth(int& depth) : depth_(depth) {
  if (++depth_ > kMostNested) {
    --depth_;
    throw Fault(cat("it is nested more than ", kMostNested, " deep"));
  }
}

ExpressionParser::ExpressionParser(std::vector<Token> tokens, int& line, Program& program)
    : line_(line), program_(program), tokens_(std::move(tokens)) {
  if (tokens_.size() > kMostTokens) throw Fault(cat("it has more than ", kMostTokens, " words and signs"));
}

const Token& ExpressionParser::then() const {
  return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
}

Token ExpressionParser::take() {
  line_ = now().line;
  return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_];
}

bool ExpressionParser::skip_sign(std::string_view sign) {
  const bool good = is_sign(sign);
  if (good) take();
  return good;
}

bool ExpressionParser::skip_name(std::string_view name) {
  const bool good = is_name(name);
  if (good) take();
  return good;
}

std::string ExpressionParser::shown() const {
  switch (now().kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::block_end:
      return "the end of the tag, %}";
    case TokenKind::variable_end:
      return "the end of the tag, }}";
    case TokenKind::text:
      return "a text";
    default:
      return "'" + printable_start(now().text, 40) + "'";
  }
}

void ExpressionParser::expected(std::string_view what) {
  line_ = now().line;
  throw Fault(cat("expected ", what, ", found ", shown()));
}

void ExpressionParser::expect_sign(std::string_view sign) {
  if (!skip_sign(sign)) expected(cat("'", sign, "'"));
}

std::string ExpressionParser::expect_name() {
  if (now().kind != TokenKind::name) expected("a name");
  return take().text;
}

void ExpressionParser::end_block() {
  if (now().kind != TokenKind::block_end) expected("the end of the tag, %}");
  take();
}

ExpressionPtr ExpressionParser::target(bool with_members) {
  const int line = now().line;
  std::vector<ExpressionPtr> targets;
  bool several = false;
  while (true) {
    if (!targets.empty() && (now().kind == TokenKind::block_end || is_name("in") || is_sign("=") || is_sign(")")))
      break;
    if (is_sign("(")) {
      const Depth depth(depth_);
      take();
      targets.push_back(target(with_members));
      expect_sign(")");
    } else {
      targets.push_back(target_name(with_members));
    }
    if (!skip_sign(",")) break;
    several = true;
  }
  if (!several) return std::move(targets[0]);
  ExpressionPtr out = make(Operation::tuple, line);
  out->children = std::move(targets);
  return out;
}

ExpressionPtr ExpressionParser::target_name(bool with_members) {
  const int line = now().line;
  const std::string name = expect_name();
  static const std::set<std::string_view> kConstants = {"true", "false", "none", "True", "False", "None", "loop"};
  if (kConstants.contains(name)) throw Fault(cat("nothing can be assigned to '", name, "'"));
  ExpressionPtr out = make(Operation::name, line, name);
  if (with_members && skip_sign(".")) return make_of(Operation::member, line, expect_name(), std::move(out));
  return out;
}

ExpressionPtr ExpressionParser::tuple(bool with_choice, bool in_brackets, std::string_view stop) {
  const int line = now().line;
  std::vector<ExpressionPtr> items;
  bool several = false;
  while (true) {
    const bool ended = now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end || is_sign(")") ||
                       (!stop.empty() && is_name(stop));
    if (ended) break;
    items.push_back(with_choice ? expression() : logical_or());
    if (!skip_sign(",")) break;
    several = true;
  }
  if (!several && !items.empty()) return std::move(items[0]);
  if (items.empty() && !in_brackets) expected("an expression");
  ExpressionPtr out = make(Operation::tuple, line);
  out->children = std::move(items);
  return out;
}

ExpressionPtr ExpressionParser::expression() {
  const Depth depth(depth_);
  const int line = now().line, saved = chained_;
  ExpressionPtr left = logical_or();
  while (skip_name("if")) {
    count_chain();
    ExpressionPtr condition = logical_or();
    ExpressionPtr otherwise = skip_name("else") ? expression() : nullptr;
    left = make_of(Operation::choice, line, {}, std::move(left), std::move(condition), std::move(otherwise));
  }
  chained_ = saved;
  return left;
}

void ExpressionParser::count_chain() {
  if (++chained_ > kMostChained) throw Fault(cat("an expression has more than ", kMostChained, " parts"));
}

ExpressionPtr ExpressionParser::logical_or() {
  const int line = now().line;
  ExpressionPtr left = logical_and();
  if (!is_name("or")) return left;
  ExpressionPtr out = make_of(Operation::logical_or, line, {}, std::move(left));
  while (skip_name("or")) out->children.push_back(logical_and());
  return out;
}

ExpressionPtr ExpressionParser::logical_and() {
  const int line = now().line;
  ExpressionPtr left = logical_not();
  if (!is_name("and")) return left;
  ExpressionPtr out = make_of(Operation::logical_and, line, {}, std::move(left));
  while (skip_name("and")) out->children.push_back(logical_not());
  return out;
}

ExpressionPtr ExpressionParser::logical_not() {
  const int line = now().line;
  if (!skip_name("not")) return comparison();
  const Depth depth(depth_);
  return make_of(Operation::logical_not, line, {}, logical_not());
}

ExpressionPtr ExpressionParser::comparison() {
  const int line = now().line;
  ExpressionPtr left = sum();
  ExpressionPtr out;
  while (true) {
    std::string sign;
    static const std::set<std::string_view> kSigns = {"==", "!=", "<", "<=", ">", ">="};
    if (now().kind == TokenKind::sign && kSigns.contains(now().text)) {
      sign = take().text;
    } else if (skip_name("in")) {
      sign = "in";
    } else if (is_name("not") && then().kind == TokenKind::name && then().text == "in") {
      take();
      take();
      sign = "not in";
    } else {
      break;
    }
    if (!out) out = make_of(Operation::compare, line, {}, std::move(left));
    out->signs.push_back(std::move(sign));
    out->children.push_back(sum());
  }
  return out ? std::move(out) : std::move(left);
}

template <class Next>
ExpressionPtr ExpressionParser::chain(std::initializer_list<std::string_view> signs, const Next& next) {
  const int saved = chained_;
  ExpressionPtr left = next();
  while (now().kind == TokenKind::sign && std::find(signs.begin(), signs.end(), now().text) != signs.end()) {
    count_chain();
    const Token sign = take();
    ExpressionPtr right = next();
    left = make_of(Operation::arithmetic, sign.line, sign.text, std::move(left), std::move(right));
  }
  chained_ = saved;
  return left;
}

ExpressionPtr ExpressionParser::sum() {
  return chain({"+", "-"}, [&] { return concatenation(); });
}

ExpressionPtr ExpressionParser::concatenation() {
  const int line = now().line;
  ExpressionPtr left = product();
  if (!is_sign("~")) return left;
  ExpressionPtr out = make_of(Operation::concat, line, {}, std::move(left));
  while (skip_sign("~")) out->children.push_back(product());
  return out;
}

ExpressionPtr ExpressionParser::product() {
  return chain({"*", "/", "//", "%"}, [&] { return power(); });
}

ExpressionPtr ExpressionParser::power() {
  return chain({"**"}, [&] { return unary(true); });
}

ExpressionPtr ExpressionParser::unary(bool with_filters) {
  const Depth depth(depth_);
  const int line = now().line;
  ExpressionPtr out;
  if (is_sign("-") || is_sign("+")) {
    const Operation operation = take().text == "-" ? Operation::negate : Operation::plus;
    out = make_of(operation, line, {}, unary(false));
  } else {
    out = primary();
  }
  const int saved = chained_;
  out = postfix(std::move(out));
  if (with_filters) out = filters_and_tests(std::move(out));
  chained_ = saved;
  return out;
}

ExpressionPtr ExpressionParser::primary() {
  const int line = now().line;
  switch (now().kind) {
    case TokenKind::name: {
      const std::string name = take().text;
      if (name == "true" || name == "True") return constant(line, bool_value(true));
      if (name == "false" || name == "False") return constant(line, bool_value(false));
      if (name == "none" || name == "None") return constant(line, none_value());
      program_.names.insert(name);
      return make(Operation::name, line, name);
    }
    case TokenKind::text: {
      std::string text = take().text;
      while (now().kind == TokenKind::text) text += take().text;
      return constant(line, text_value(std::move(text)));
    }
    case TokenKind::whole:
      return constant(line, whole_value(whole(take().text)));
    case TokenKind::real:
      return constant(line, real_value(std::stod(take().text)));
    default:
      break;
  }
  if (skip_sign("(")) {
    ExpressionPtr out = tuple(true, true);
    expect_sign(")");
    return out;
  }
  if (skip_sign("[")) {
    ExpressionPtr out = make(Operation::list, line);
    while (!is_sign("]")) {
      if (!out->children.empty()) expect_sign(",");
      if (is_sign("]")) break;
      out->children.push_back(expression());
    }
    expect_sign("]");
    return out;
  }
  if (skip_sign("{")) {
    ExpressionPtr out = make(Operation::dict, line);
    while (!is_sign("}")) {
      if (!out->children.empty()) expect_sign(",");
      if (is_sign("}")) break;
      out->children.push_back(expression());
      expect_sign(":");
      out->children.push_back(expression());
    }
    expect_sign("}");
    return out;
  }
  expected("an expression");
}

int64_t ExpressionParser::whole(const std::string& digits) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    throw Fault(cat("the number ", printable_start(digits, 30), " is beyond 64 bits"));
  }
  return number;
}

ExpressionPtr ExpressionParser::postfix(ExpressionPtr out) {
  while (true) {
    const int line = now().line;
    if (skip_sign(".")) {
      count_chain();
      if (now().kind == TokenKind::whole) {
        out = make_of(Operation::item, line, {}, std::move(out), constant(line, whole_value(whole(take().text))));
        continue;
      }
      std::string name = expect_name();
      program_.names.insert(name);
      out = make_of(Operation::member, line, std::move(name), std::move(out));
    } else if (skip_sign("[")) {
      count_chain();
      out = subscript(line, std::move(out));
    } else if (is_sign("(")) {
      count_chain();
      out = make_of(Operation::call, line, {}, std::move(out));
      arguments(*out);
    } else {
      return out;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(int line, ExpressionPtr of) {
  ExpressionPtr first;
  if (!is_sign(":")) {
    first = expression();
    if (skip_sign("]")) return make_of(Operation::item, line, {}, std::move(of), std::move(first));
  }
  if (is_sign(",")) throw Fault("a subscript of several values is not supported");
  expect_sign(":");
  ExpressionPtr out = make_of(Operation::slice, line, {}, std::move(of), std::move(first));
  out->children.push_back(is_sign(":") || is_sign("]") ? nullptr : expression());
  out->children.push_back(skip_sign(":") && !is_sign("]") ? expression() : nullptr);
  expect_sign("]");
  return out;
}

void ExpressionParser::arguments(Expression& call) {
  expect_sign("(");
  bool is_first = true;
  while (!is_sign(")")) {
    if (!is_first) expect_sign(",");
    if (is_sign(")")) break;
    is_first = false;
    if (is_sign("*") || is_sign("**")) {
      // Of a list or a dict that is taken apart: under a name that no argument has.
      std::string sign = take().text;
      call.named.emplace_back(std::move(sign), expression());
      continue;
    }
    if (now().kind == TokenKind::name && then().kind == TokenKind::sign && then().text == "=") {
      std::string name = take().text;
      take();
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty()) throw Fault("an argument without a name follows one with a name");
      call.children.push_back(expression());
    }
  }
  expect_sign(")");
}

ExpressionPtr ExpressionParser::block_text(int line) {
  return make(Operation::name, line, kBlockText);
}

ExpressionPtr ExpressionParser::filter(ExpressionPtr of) {
  const int line = now().line;
  std::string name = expect_name();
  while (skip_sign(".")) name += "." + expect_name();
  if (!is_known_filter(name)) throw Fault(cat("the filter '", printable_start(name, 40), "' is not supported"));
  program_.names.insert(name);
  ExpressionPtr out = make_of(Operation::filter, line, std::move(name), std::move(of));
  if (is_sign("(")) arguments(*out);
  return out;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr of) {
  while (skip_sign("|")) {
    count_chain();
    of = filter(std::move(of));
  }
  return of;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr of) {
  const int line = now().line;
  const bool negated = skip_name("not");
  std::string name = expect_name();
  while (skip_sign(".")) name += "." + expect_name();
  if (!is_known_test(name)) throw Fault(cat("the test 'is ", printable_start(name, 40), "' is not supported"));
  program_.names.insert(name);
  ExpressionPtr out = make_of(Operation::test, line, std::move(name), std::move(of));
  const TokenKind kind = now().kind;
  const bool is_value = kind == TokenKind::name || kind == TokenKind::text || kind == TokenKind::whole ||
                        kind == TokenKind::real || is_sign("[") || is_sign("{");
  if (is_sign("(")) {
    arguments(*out);
  } else if (is_value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) throw Fault("a test 'is' cannot follow another one");
    // Not a name for a test's argument: {{ a if b is defined }} and its like.
    const bool is_word = is_name("if") || is_name("in") || is_name("not");
    if (!is_word) out->children.push_back(postfix(primary()));
  }
  return negated ? make_of(Operation::logical_not, line, {}, std::move(out)) : std::move(out);
}

ExpressionPtr ExpressionParser::filters_and_tests(ExpressionPtr of) {
  while (true) {
    if (skip_sign("|")) {
      count_chain();
      of = filter(std::move(of));
    } else if (skip_name("is")) {
      count_chain();
      of = test(std::move(of));
    } else if (is_sign("(")) {
      count_chain();
      const int line = now().line;
      of = make_of(Operation::call, line, {}, std::move(of));
      arguments(*of);
    } else {
      return of;
    }
  }
}

}  // namespace hrm::jinja
