#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <set>

#include "formats/jinja/program.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

// Expressions and blocks inside one another.
constexpr int kMostNested = 100;
constexpr size_t kMostTokens = size_t{1} << 20;

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) {
    if (++depth_ > kMostNested) {
      --depth_;
      throw Fault(cat("it is nested more than ", kMostNested, " deep"));
    }
  }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

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

class TemplateParser {
 public:
  TemplateParser(std::vector<Token> tokens, int& line, Program& program)
      : tokens_(std::move(tokens)), line_(line), program_(program) {
    if (tokens_.size() > kMostTokens) throw Fault(cat("it has more than ", kMostTokens, " words and signs"));
  }

  Statements read() {
    Statements out = statements({});
    return out;
  }

 private:
  const Token& now() const { return tokens_[at_]; }
  const Token& then() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    line_ = now().line;
    return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_];
  }
  bool is_sign(std::string_view sign) const { return now().kind == TokenKind::sign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  bool skip_sign(std::string_view sign) {
    const bool good = is_sign(sign);
    if (good) take();
    return good;
  }
  bool skip_name(std::string_view name) {
    const bool good = is_name(name);
    if (good) take();
    return good;
  }
  std::string shown() const {
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
  [[noreturn]] void expected(std::string_view what) {
    line_ = now().line;
    throw Fault(cat("expected ", what, ", found ", shown()));
  }
  void expect_sign(std::string_view sign) {
    if (!skip_sign(sign)) expected(cat("'", sign, "'"));
  }
  std::string expect_name() {
    if (now().kind != TokenKind::name) expected("a name");
    return take().text;
  }
  void end_block() {
    if (now().kind != TokenKind::block_end) expected("the end of the tag, %}");
    take();
  }

  // Up to a tag of one of these names, which is left to the caller, without its {%.
  Statements statements(std::initializer_list<std::string_view> ends) {
    const Depth depth(depth_);
    Statements out;
    while (true) {
      switch (now().kind) {
        case TokenKind::data: {
          Token token = take();
          out.push_back({Action::data, token.line, std::move(token.text)});
          break;
        }
        case TokenKind::variable_begin: {
          const int line = take().line;
          Statement print{Action::print, line};
          print.value = tuple(true, false);
          if (now().kind != TokenKind::variable_end) expected("the end of the tag, }}");
          take();
          out.push_back(std::move(print));
          break;
        }
        case TokenKind::block_begin: {
          take();
          if (now().kind != TokenKind::name) expected("the name of a statement");
          const bool ended = std::find(ends.begin(), ends.end(), now().text) != ends.end();
          if (ended) return out;
          out.push_back(statement());
          break;
        }
        default:
          if (ends.size() > 0) expected(cat("{% ", *(ends.end() - 1), " %}"));
          return out;
      }
    }
  }

  Statement statement() {
    const Token token = take();
    const std::string& name = token.text;
    if (name == "if") return condition(token.line);
    if (name == "for") return loop(token.line);
    if (name == "set") return set(token.line);
    if (name == "macro") return macro(token.line);
    if (name == "call") return call(token.line);
    if (name == "generation") return generation(token.line);
    if (name == "filter") return filter_block(token.line);
    if (name == "with") return with(token.line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) throw Fault(cat("{% ", name, " %}: stands in no loop"));
      end_block();
      return {name == "break" ? Action::leave : Action::next, token.line};
    }
    static const std::set<std::string_view> kEnds = {"elif",     "else",    "endif",     "endfor",  "endset",
                                                     "endmacro", "endcall", "endfilter", "endwith", "endgeneration"};
    if (kEnds.contains(name)) throw Fault(cat("{% ", name, " %} ends nothing"));
    throw Fault(cat("the statement {% ", printable_start(name, 40), " %} is not supported in a chat template"));
  }

  Statement condition(int line) {
    Statement out{Action::condition, line};
    out.value = tuple(false, false);
    end_block();
    out.body = statements({"elif", "else", "endif"});
    const int next = now().line;
    const std::string name = take().text;
    if (name == "elif") {
      const Depth depth(depth_);
      out.otherwise.push_back(condition(next));
      return out;
    }
    end_block();
    if (name == "else") {
      out.otherwise = statements({"endif"});
      take();
      end_block();
    }
    return out;
  }

  Statement loop(int line) {
    Statement out{Action::loop, line};
    out.target = target(false);
    if (!skip_name("in")) expected("'in'");
    out.value = tuple(false, false, "recursive");
    if (skip_name("if")) out.filter = expression();
    if (is_name("recursive")) throw Fault("the construct {% for ... recursive %} is not supported");
    end_block();
    ++loops_;
    out.body = statements({"endfor", "else"});
    --loops_;
    if (take().text == "else") {
      end_block();
      out.otherwise = statements({"endfor"});
      take();
    }
    end_block();
    return out;
  }

  Statement set(int line) {
    Statement out{Action::set, line};
    out.target = target(true);
    if (skip_sign("=")) {
      out.value = tuple(true, false);
      end_block();
      return out;
    }
    out.action = Action::set_block;
    out.filter = filters(make(Operation::name, line, kBlockText));
    end_block();
    out.body = outside_loops({"endset"});
    return out;
  }

  // Of a block whose text is taken: break and continue cannot leave it.
  Statements outside_loops(std::initializer_list<std::string_view> ends) {
    const int saved = loops_;
    loops_ = 0;
    Statements out = statements(ends);
    loops_ = saved;
    take();
    end_block();
    return out;
  }

  void parameters(Statement& out) {
    expect_sign("(");
    bool has_initial = false;
    while (!is_sign(")")) {
      if (!out.parameters.empty()) expect_sign(",");
      if (is_sign(")")) break;
      Parameter parameter{expect_name(), nullptr};
      if (skip_sign("=")) {
        parameter.initial = expression();
        has_initial = true;
      } else if (has_initial) {
        throw Fault(cat("the parameter '", printable_start(parameter.name), "' has no default, but one before it has"));
      }
      out.parameters.push_back(std::move(parameter));
    }
    expect_sign(")");
  }

  Statement macro(int line) {
    Statement out{Action::macro, line, expect_name()};
    parameters(out);
    end_block();
    out.body = outside_loops({"endmacro"});
    return out;
  }

  Statement call(int line) {
    Statement out{Action::call, line};
    if (is_sign("(")) parameters(out);
    out.value = expression();
    if (out.value->operation != Operation::call) throw Fault("{% call %} needs the call of a macro");
    end_block();
    out.body = outside_loops({"endcall"});
    return out;
  }

  Statement generation(int line) {
    program_.marks_generation = true;
    Statement out{Action::generation, line};
    end_block();
    out.body = outside_loops({"endgeneration"});
    return out;
  }

  Statement filter_block(int line) {
    Statement out{Action::filter, line};
    out.filter = filter(make(Operation::name, line, kBlockText));
    out.filter = filters(std::move(out.filter));
    end_block();
    out.body = outside_loops({"endfilter"});
    return out;
  }

  Statement with(int line) {
    Statement out{Action::scope, line};
    while (now().kind != TokenKind::block_end) {
      if (!out.assignments.empty()) expect_sign(",");
      ExpressionPtr name = target(false);
      expect_sign("=");
      out.assignments.emplace_back(std::move(name), expression());
    }
    end_block();
    out.body = statements({"endwith"});
    take();
    end_block();
    return out;
  }

  // A name, several of them, or a member of a namespace.
  ExpressionPtr target(bool with_members) {
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
  ExpressionPtr target_name(bool with_members) {
    const int line = now().line;
    const std::string name = expect_name();
    static const std::set<std::string_view> kConstants = {"true", "false", "none", "True", "False", "None", "loop"};
    if (kConstants.contains(name)) throw Fault(cat("nothing can be assigned to '", name, "'"));
    ExpressionPtr out = make(Operation::name, line, name);
    if (with_members && skip_sign(".")) return make_of(Operation::member, line, expect_name(), std::move(out));
    return out;
  }

  // One expression, or several with commas between them.
  ExpressionPtr tuple(bool with_choice, bool in_brackets, std::string_view stop = {}) {
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

  ExpressionPtr expression() {
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

  // Chains become trees that lean to the left, as deep as they are long. Those are followed by recursion.
  void count_chain() {
    if (++chained_ > kMostChained) throw Fault(cat("an expression has more than ", kMostChained, " parts"));
  }

  ExpressionPtr logical_or() {
    const int line = now().line;
    ExpressionPtr left = logical_and();
    if (!is_name("or")) return left;
    ExpressionPtr out = make_of(Operation::logical_or, line, {}, std::move(left));
    while (skip_name("or")) out->children.push_back(logical_and());
    return out;
  }
  ExpressionPtr logical_and() {
    const int line = now().line;
    ExpressionPtr left = logical_not();
    if (!is_name("and")) return left;
    ExpressionPtr out = make_of(Operation::logical_and, line, {}, std::move(left));
    while (skip_name("and")) out->children.push_back(logical_not());
    return out;
  }
  ExpressionPtr logical_not() {
    const int line = now().line;
    if (!skip_name("not")) return comparison();
    const Depth depth(depth_);
    return make_of(Operation::logical_not, line, {}, logical_not());
  }
  ExpressionPtr comparison() {
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
  ExpressionPtr chain(std::initializer_list<std::string_view> signs, const Next& next) {
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
  ExpressionPtr sum() {
    return chain({"+", "-"}, [&] { return concatenation(); });
  }
  ExpressionPtr concatenation() {
    const int line = now().line;
    ExpressionPtr left = product();
    if (!is_sign("~")) return left;
    ExpressionPtr out = make_of(Operation::concat, line, {}, std::move(left));
    while (skip_sign("~")) out->children.push_back(product());
    return out;
  }
  ExpressionPtr product() {
    return chain({"*", "/", "//", "%"}, [&] { return power(); });
  }
  ExpressionPtr power() {
    return chain({"**"}, [&] { return unary(true); });
  }

  ExpressionPtr unary(bool with_filters) {
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

  ExpressionPtr primary() {
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

  static int64_t whole(const std::string& digits) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      throw Fault(cat("the number ", printable_start(digits, 30), " is beyond 64 bits"));
    }
    return number;
  }

  ExpressionPtr postfix(ExpressionPtr out) {
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

  ExpressionPtr subscript(int line, ExpressionPtr of) {
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

  void arguments(Expression& call) {
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

  ExpressionPtr filter(ExpressionPtr of) {
    const int line = now().line;
    std::string name = expect_name();
    while (skip_sign(".")) name += "." + expect_name();
    if (!is_known_filter(name)) throw Fault(cat("the filter '", printable_start(name, 40), "' is not supported"));
    program_.names.insert(name);
    ExpressionPtr out = make_of(Operation::filter, line, std::move(name), std::move(of));
    if (is_sign("(")) arguments(*out);
    return out;
  }
  ExpressionPtr filters(ExpressionPtr of) {
    while (skip_sign("|")) {
      count_chain();
      of = filter(std::move(of));
    }
    return of;
  }

  ExpressionPtr test(ExpressionPtr of) {
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

  ExpressionPtr filters_and_tests(ExpressionPtr of) {
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

  static constexpr int kMostChained = 200;
  std::vector<Token> tokens_;
  int& line_;
  Program& program_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0, chained_ = 0;
};

}  // namespace

Program parse_program(std::string_view source, const std::string& origin, ExitCode code) {
  require(is_utf8(source), code, origin, ": is no UTF-8");
  int line = 1;
  try {
    Program program;
    TemplateParser parser(tokens_of(source, line), line, program);
    program.statements = parser.read();
    return program;
  } catch (const Fault& fault) {
    fail(code, origin, ", line ", line, ": ", fault.what());
  }
}

}  // namespace hrm::jinja
