// The expression half of the parser: the token cursor, the two depth bounds and Jinja's expression grammar,
// loosest binding first. parser.cc builds the statements on top of it. Private to those two files.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parser.h"

namespace oar::jinja {

class ExpressionParser {
 protected:
  using Names = std::initializer_list<std::string_view>;

  explicit ExpressionParser(std::string_view source) : tokens_(tokenize(source)) {}

  // --- tokens ---
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return now().line; }
  Token take() {
    Token t = tokens_[at_];
    if (at_ + 1 < tokens_.size()) ++at_;
    return t;
  }
  bool skip_operator(std::string_view op) {
    if (!now().is_operator(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!now().is_name(name)) return false;
    take();
    return true;
  }
  [[noreturn]] void error_at(int line, std::string message) const {
    throw Failure{StatusCode::kInvalidArgument, std::move(message), line};
  }
  [[noreturn]] void expected(std::string_view what) const {
    error_at(line(), cat("expected ", what, ", got ", describe(now())));
  }
  void expect_operator(std::string_view op) {
    if (!skip_operator(op)) expected(cat("'", op, "'"));
  }
  std::string expect_name(std::string_view what) {
    if (now().kind != TokenKind::kName) expected(what);
    return take().text;
  }
  void expect_tag_end() {
    if (now().kind != TokenKind::kTagEnd) expected("'%}'");
    take();
  }

  Symbol symbol(std::string_view name) {
    const auto [it, fresh] =
        symbol_of_.try_emplace(std::string(name), static_cast<Symbol>(template_.symbols.size()));
    if (fresh) template_.symbols.emplace_back(name);
    return it->second;
  }

  // Bounds the recursion of this parser.
  class Nested {
   public:
    explicit Nested(ExpressionParser& p) : p_(p) {
      if (++p_.nesting_ > kMaxNesting)
        p_.error_at(p_.line(), cat("the template is nested deeper than ", kMaxNesting, " levels"));
    }
    ~Nested() { --p_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    ExpressionParser& p_;
  };

  // Bounds the recursion of everybody who walks the tree later.
  template <class Node>
  void raise(Node& node, const ExprPtr& child) {
    if (child == nullptr) return;
    node.height = std::max(node.height, child->height + 1);
    if (node.height > kMaxExprHeight)
      error_at(node.line, cat("an expression is built of more than ", kMaxExprHeight,
                              " levels; split it with {% set %}"));
  }
  template <class Node>
  void raise(Node& node, const Arguments& a) {
    for (const ExprPtr& x : a.positional) raise(node, x);
    for (const auto& [name, x] : a.keyword) raise(node, x);
    raise(node, a.star);
    raise(node, a.double_star);
  }

  // --- expressions ---
  ExprPtr expression(bool with_condition = true);
  ExprPtr tuple(bool with_condition = true, Names ends = {}, bool parenthesized = false);
  ExprPtr conditional();
  ExprPtr binary(ExprKind kind, int l, Operator op, ExprPtr a, ExprPtr b);
  ExprPtr unary(ExprKind kind, int l, Operator op, ExprPtr a);
  ExprPtr logical_or();
  ExprPtr logical_and();
  ExprPtr logical_not();
  bool comparison_operator(Operator* op);
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr prefixed(bool with_filter = true);
  ExprPtr primary(bool with_namespace);
  ExprPtr name_or_literal(const std::string& name, int l, bool with_namespace);
  ExprPtr list(int l);
  ExprPtr dict(int l);
  ExprPtr postfix(ExprPtr x);
  ExprPtr filter_expression(ExprPtr x);
  ExprPtr subscript(ExprPtr object);
  ExprPtr element(int l, ExprPtr object, ExprPtr index);
  Arguments arguments();
  ExprPtr call(ExprPtr callee);
  std::string dotted_name(std::string_view what);
  // `x` | name(...) | ...; `inline_first`: the first filter has no '|' ({% filter name %}).
  ExprPtr filters(ExprPtr x, bool inline_first = false);
  ExprPtr test(ExprPtr x);

  // Items up to a closing ')', the end of the tag or one of the names `ends`: a tuple if there is a comma.
  template <class ParseItem>
  ExprPtr tuple_of(ParseItem parse_item, Names ends, bool parenthesized) {
    const int l = line();
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    for (;;) {
      if (!items.empty()) expect_operator(",");
      const bool ended =
          now().kind == TokenKind::kPrintEnd || now().kind == TokenKind::kTagEnd || now().is_operator(")") ||
          std::any_of(ends.begin(), ends.end(), [&](std::string_view e) { return now().is_name(e); });
      if (ended) break;
      items.push_back(parse_item());
      if (!now().is_operator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) {
      if (!items.empty()) return std::move(items[0]);
      if (!parenthesized) expected("an expression");
    }
    auto t = std::make_unique<ItemsExpr>(ExprKind::kTuple, l);
    t->items = std::move(items);
    for (const ExprPtr& x : t->items) raise(*t, x);
    return t;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // loops open around the current statement, within the current macro
  Template template_;
  std::map<std::string, Symbol> symbol_of_;
  std::vector<MacroDefinition*> macros_;  // open around the current expression
  std::vector<Failure> unknown_;  // filters and tests without a builtin, outside of any condition so far
};

}  // namespace oar::jinja
