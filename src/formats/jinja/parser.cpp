// Statements of a template.
#include <algorithm>
#include <initializer_list>
#include <set>

#include "formats/jinja/expression_parser.h"
#include "hrm/base/text.h"

namespace hrm::jinja {
namespace {

class TemplateParser : public ExpressionParser {
 public:
  TemplateParser(std::vector<Token> tokens, int& line, Program& program)
      : ExpressionParser(std::move(tokens), line, program) {}

  Statements read() {
    Statements out = statements({});
    return out;
  }

 private:
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
    out.filter = filters(block_text(line));
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
    out.filter = filter(block_text(line));
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

  int loops_ = 0;
};

}  // namespace

Program parse_program(std::string_view source, const std::string& origin, ExitCode code) {
  require(is_utf8(source), code, origin, ": is not UTF-8");
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
