#pragma once
// Expressions of a template, by recursive descent; statements are made of them (formats/jinja/parser.cpp).

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/jinja/program.h"

namespace hrm::jinja {

class ExpressionParser {
 protected:
  // One level deeper while it lives. Throws Fault where that is too deep.
  class Depth {
   public:
    explicit Depth(int& depth);
    ~Depth() { --depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    int& depth_;
  };

  // `line`: of the token that was taken last. Names go to `program`.
  ExpressionParser(std::vector<Token> tokens, int& line, Program& program);

  const Token& now() const { return tokens_[at_]; }
  const Token& then() const;
  Token take();
  bool is_sign(std::string_view sign) const { return now().kind == TokenKind::sign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().kind == TokenKind::name && now().text == name; }
  // Takes it if it is the next one.
  bool skip_sign(std::string_view sign);
  bool skip_name(std::string_view name);
  [[noreturn]] void expected(std::string_view what);
  void expect_sign(std::string_view sign);
  std::string expect_name();
  void end_block();

  // A name, several of them, or a member of a namespace.
  ExpressionPtr target(bool with_members);
  // One expression, or several with commas between them.
  ExpressionPtr tuple(bool with_choice, bool in_brackets, std::string_view stop = {});
  ExpressionPtr expression();
  // What the text of a block stands for, in front of its filters.
  static ExpressionPtr block_text(int line);
  ExpressionPtr filter(ExpressionPtr of);
  ExpressionPtr filters(ExpressionPtr of);

  int& line_;
  Program& program_;
  int depth_ = 0;

 private:
  std::string shown() const;
  ExpressionPtr target_name(bool with_members);
  // Chains become trees that lean to the left, as deep as they are long. Those are followed by recursion.
  void count_chain();
  ExpressionPtr logical_or();
  ExpressionPtr logical_and();
  ExpressionPtr logical_not();
  ExpressionPtr comparison();
  template <class Next>
  ExpressionPtr chain(std::initializer_list<std::string_view> signs, const Next& next);
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  static int64_t whole(const std::string& digits);
  ExpressionPtr postfix(ExpressionPtr out);
  ExpressionPtr subscript(int line, ExpressionPtr of);
  void arguments(Expression& call);
  ExpressionPtr test(ExpressionPtr of);
  ExpressionPtr filters_and_tests(ExpressionPtr of);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int chained_ = 0;
};

}  // namespace hrm::jinja
