#include "engine/text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <map>

#include "engine/text/jinja_builtins.h"
#include "engine/text/jinja_lexer.h"

namespace oar::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {
    for (const std::string_view name : {"loop", "caller", "varargs", "kwargs"}) symbol(name);
  }

  Template run() {
    Block body = block_until({}, "");
    // A filter or test nobody defined is an error here, unless a condition may keep it from being reached.
    if (!unknown_.empty()) throw unknown_.front();
    template_.body = std::move(body);
    return std::move(template_);
  }

 private:
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
    explicit Nested(Parser& p) : p_(p) {
      if (++p_.nesting_ > kMaxNesting)
        p_.error_at(p_.line(), cat("the template is nested deeper than ", kMaxNesting, " levels"));
    }
    ~Nested() { --p_.nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser& p_;
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

  // --- statements ---
  // Statements up to one of the tags `ends`, which is left as the current token; `opener` names the open tag.
  Block block_until(Names ends, std::string_view opener, int opened_at = 0) {
    Nested nested(*this);
    Block body;
    for (;;) {
      const int l = line();
      switch (now().kind) {
        case TokenKind::kEnd:
          if (ends.size() != 0)
            error_at(l, cat("unexpected end of the template: {% ", opener, " %} of line ", opened_at,
                            " is not closed"));
          return body;
        case TokenKind::kText: body.push_back(std::make_unique<TextStmt>(l, take().text)); break;
        case TokenKind::kPrintBegin: {
          take();
          body.push_back(std::make_unique<ExprStmt>(StmtKind::kPrint, l, tuple()));
          if (now().kind != TokenKind::kPrintEnd) expected("'}}'");
          take();
          break;
        }
        case TokenKind::kTagBegin:
          take();
          if (now().kind != TokenKind::kName) expected("a tag name");
          if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return body;
          statement(body, ends, opener);
          expect_tag_end();
          break;
        default: expected("text or a tag");
      }
    }
  }

  // The body of a statement whose opening tag ends here; consumes the closing tag's name.
  Block body(std::string_view end, std::string_view opener, int opened_at) {
    skip_operator(":");
    expect_tag_end();
    Block b = block_until({end}, opener, opened_at);
    take();
    return b;
  }

  void statement(Block& out, Names ends, std::string_view opener) {
    const int l = line();
    const std::string name = take().text;
    if (name == "if") out.push_back(if_statement(l));
    else if (name == "for") out.push_back(for_statement(l));
    else if (name == "set") out.push_back(set_statement(l));
    else if (name == "macro") out.push_back(macro_statement(l));
    else if (name == "call") out.push_back(call_statement(l));
    else if (name == "filter") out.push_back(filter_statement(l));
    else if (name == "with") out.push_back(with_statement(l));
    else if (name == "generation" || name == "autoescape") out.push_back(scope_statement(l, name));
    else if (name == "break" || name == "continue") {
      if (loops_ == 0) error_at(l, cat("{% ", name, " %} outside of a loop"));
      out.push_back(std::make_unique<JumpStmt>(name == "break" ? StmtKind::kBreak : StmtKind::kContinue, l));
    } else if (name == "do") {
      out.push_back(std::make_unique<ExprStmt>(StmtKind::kDo, l, tuple()));
    } else if (name == "print") {
      while (now().kind != TokenKind::kTagEnd) {
        out.push_back(std::make_unique<ExprStmt>(StmtKind::kPrint, l, expression()));
        if (now().kind != TokenKind::kTagEnd) expect_operator(",");
      }
    } else if (name == "include" || name == "import" || name == "from" || name == "extends" ||
               name == "block") {
      error_at(l, cat("{% ", name,
                      " %} is not supported: a chat template is one file; put the text in its place"));
    } else if (ends.size() != 0) {
      error_at(l, cat("unknown tag '", name, "'; the open {% ", opener, " %} expects {% ", *(ends.end() - 1),
                      " %}"));
    } else {
      error_at(l, cat("unknown tag '", name, "'"));
    }
  }

  StmtPtr if_statement(int l) {
    auto s = std::make_unique<IfStmt>(l);
    const size_t unknown = unknown_.size();
    for (;;) {
      ExprPtr test = tuple(false);
      skip_operator(":");
      expect_tag_end();
      Block b = block_until({"elif", "else", "endif"}, "if", l);
      s->branches.emplace_back(std::move(test), std::move(b));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") s->otherwise = body("endif", "if", l);
      break;
    }
    unknown_.resize(unknown);
    return s;
  }

  StmtPtr for_statement(int l) {
    auto s = std::make_unique<ForStmt>(l);
    s->target = target({"in"});
    if (!skip_name("in")) expected("'in'");
    s->iterable = tuple(false, {"recursive"});
    if (skip_name("if")) s->filter = expression();
    s->recursive = skip_name("recursive");
    skip_operator(":");
    expect_tag_end();
    ++loops_;
    s->body = block_until({"else", "endfor"}, "for", l);
    --loops_;
    if (take().text == "else") s->otherwise = body("endfor", "for", l);
    return s;
  }

  StmtPtr set_statement(int l) {
    ExprPtr to = target({}, true);
    if (skip_operator("=")) {
      auto s = std::make_unique<SetStmt>(l);
      s->target = std::move(to);
      s->value = tuple();
      return s;
    }
    auto s = std::make_unique<SetBlockStmt>(l);
    s->target = std::move(to);
    s->filter = filters(nullptr);
    s->body = body("endset", "set", l);
    return s;
  }

  void signature(MacroDefinition& m) {
    expect_operator("(");
    while (!now().is_operator(")")) {
      if (!m.parameters.empty()) expect_operator(",");
      const int l = line();
      const std::string name = expect_name("a parameter name");
      reject_reserved(name, l);
      m.parameters.push_back(symbol(name));
      m.parameter_names.push_back(name);
      if (name == "caller") m.explicit_caller = true;
      if (skip_operator("=")) m.defaults.push_back(expression());
      else if (!m.defaults.empty()) error_at(l, "non-default argument follows default argument");
    }
    expect_operator(")");
  }

  void macro_body(MacroDefinition& m, std::string_view end, std::string_view opener, int l) {
    macros_.push_back(&m);
    const int loops = std::exchange(loops_, 0);
    m.body = body(end, opener, l);
    loops_ = loops;
    macros_.pop_back();
    const auto is_parameter = [&](std::string_view name) {
      return std::find(m.parameter_names.begin(), m.parameter_names.end(), name) != m.parameter_names.end();
    };
    if (m.uses_caller && m.explicit_caller) {
      const auto at = std::find(m.parameter_names.begin(), m.parameter_names.end(), "caller");
      if (static_cast<size_t>(m.parameter_names.end() - at) > m.defaults.size())
        error_at(l, "the special \"caller\" argument must be omitted or be given a default");
    }
    m.uses_caller = m.uses_caller && !m.explicit_caller;
    m.uses_kwargs = m.uses_kwargs && !is_parameter("kwargs");
    m.uses_varargs = m.uses_varargs && !is_parameter("varargs");
  }

  StmtPtr macro_statement(int l) {
    auto s = std::make_unique<MacroStmt>(l);
    s->macro.name = expect_name("a macro name");
    reject_reserved(s->macro.name, l);
    s->symbol = symbol(s->macro.name);
    signature(s->macro);
    macro_body(s->macro, "endmacro", "macro", l);
    return s;
  }

  StmtPtr call_statement(int l) {
    auto s = std::make_unique<CallBlockStmt>(l);
    s->caller.name = "caller";
    if (now().is_operator("(")) signature(s->caller);
    ExprPtr x = expression();
    if (x->kind != ExprKind::kCall) error_at(l, "{% call %} needs a call such as macro(...)");
    s->call.reset(static_cast<Call*>(x.release()));
    macro_body(s->caller, "endcall", "call", l);
    return s;
  }

  StmtPtr filter_statement(int l) {
    auto s = std::make_unique<FilterBlockStmt>(l);
    s->filter = filters(nullptr, true);
    s->body = body("endfilter", "filter", l);
    return s;
  }

  StmtPtr with_statement(int l) {
    auto s = std::make_unique<WithStmt>(l);
    while (now().kind != TokenKind::kTagEnd && !now().is_operator(":")) {
      if (!s->bindings.empty()) expect_operator(",");
      ExprPtr to = target({});
      expect_operator("=");
      s->bindings.emplace_back(std::move(to), expression());
    }
    s->body = body("endwith", "with", l);
    return s;
  }

  StmtPtr scope_statement(int l, const std::string& name) {
    if (name == "autoescape") {
      const ExprPtr x = expression();
      const bool off = x->kind == ExprKind::kConstant && !truthy(static_cast<Constant&>(*x).value());
      if (!off)
        error_at(l, "{% autoescape %} supports only the constant false: chat templates do not escape");
    }
    auto s = std::make_unique<ScopeStmt>(l);
    s->body = body(name == "autoescape" ? "endautoescape" : "endgeneration", name, l);
    return s;
  }

  // --- assignment targets ---
  void reject_reserved(const std::string& name, int l) const {
    for (const std::string_view word : {"true", "false", "none", "True", "False", "None"})
      if (name == word) error_at(l, cat("cannot assign to '", name, "'"));
  }

  ExprPtr target(Names ends, bool with_namespace = false) {
    ExprPtr x = tuple_of([&] { return primary(with_namespace); }, ends, false);
    check_target(*x);
    return x;
  }

  void check_target(const Expr& x) const {
    if (x.kind == ExprKind::kName || x.kind == ExprKind::kNamespaceTarget) return;
    if (x.kind != ExprKind::kTuple) error_at(x.line, "cannot assign to this expression; expected a name");
    for (const ExprPtr& item : static_cast<const ItemsExpr&>(x).items) check_target(*item);
  }

  // --- expressions, loosest binding first ---
  ExprPtr expression(bool with_condition = true) {
    Nested nested(*this);
    return with_condition ? conditional() : logical_or();
  }

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

  ExprPtr tuple(bool with_condition = true, Names ends = {}, bool parenthesized = false) {
    return tuple_of([&] { return expression(with_condition); }, ends, parenthesized);
  }

  ExprPtr conditional() {
    const size_t unknown = unknown_.size();
    const int l = line();
    ExprPtr x = logical_or();
    while (skip_name("if")) {
      auto c = std::make_unique<Conditional>(l);
      c->yes = std::move(x);
      c->test = logical_or();
      if (skip_name("else")) {
        Nested nested(*this);
        c->no = conditional();
      }
      raise(*c, c->yes);
      raise(*c, c->test);
      raise(*c, c->no);
      unknown_.resize(unknown);
      x = std::move(c);
    }
    return x;
  }

  ExprPtr binary(ExprKind kind, int l, Operator op, ExprPtr a, ExprPtr b) {
    auto x = std::make_unique<Binary>(kind, l, op, std::move(a), std::move(b));
    raise(*x, x->left);
    raise(*x, x->right);
    return x;
  }
  ExprPtr unary(ExprKind kind, int l, Operator op, ExprPtr a) {
    auto x = std::make_unique<Unary>(kind, l, op, std::move(a));
    raise(*x, x->operand);
    return x;
  }

  ExprPtr logical_or() {
    ExprPtr x = logical_and();
    for (int l = line(); skip_name("or"); l = line())
      x = binary(ExprKind::kLogical, l, Operator::kOr, std::move(x), logical_and());
    return x;
  }

  ExprPtr logical_and() {
    ExprPtr x = logical_not();
    for (int l = line(); skip_name("and"); l = line())
      x = binary(ExprKind::kLogical, l, Operator::kAnd, std::move(x), logical_not());
    return x;
  }

  ExprPtr logical_not() {
    const int l = line();
    if (!skip_name("not")) return comparison();
    Nested nested(*this);
    return unary(ExprKind::kNot, l, Operator::kAnd, logical_not());
  }

  bool comparison_operator(Operator* op) {
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {
        {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
        {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
    for (const auto& [text, value] : kOperators)
      if (skip_operator(text)) {
        *op = value;
        return true;
      }
    if (skip_name("in")) {
      *op = Operator::kIn;
      return true;
    }
    if (now().is_name("not") && ahead().is_name("in")) {
      take();
      take();
      *op = Operator::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr comparison() {
    const int l = line();
    ExprPtr x = sum();
    Operator op{};
    if (!comparison_operator(&op)) return x;
    auto c = std::make_unique<Compare>(l, std::move(x));
    raise(*c, c->first);
    do {
      c->rest.emplace_back(op, sum());
      raise(*c, c->rest.back().second);
    } while (comparison_operator(&op));
    return c;
  }

  ExprPtr sum() {
    ExprPtr x = concatenation();
    for (;;) {
      const int l = line();
      if (skip_operator("+")) x = binary(ExprKind::kBinary, l, Operator::kAdd, std::move(x), concatenation());
      else if (skip_operator("-"))
        x = binary(ExprKind::kBinary, l, Operator::kSubtract, std::move(x), concatenation());
      else return x;
    }
  }

  ExprPtr concatenation() {
    const int l = line();
    ExprPtr x = product();
    if (!now().is_operator("~")) return x;
    auto c = std::make_unique<ItemsExpr>(ExprKind::kConcat, l);
    c->items.push_back(std::move(x));
    while (skip_operator("~")) c->items.push_back(product());
    for (const ExprPtr& item : c->items) raise(*c, item);
    return c;
  }

  ExprPtr product() {
    static constexpr std::pair<std::string_view, Operator> kOperators[] = {{"*", Operator::kMultiply},
                                                                           {"/", Operator::kDivide},
                                                                           {"//", Operator::kFloorDivide},
                                                                           {"%", Operator::kModulo}};
    ExprPtr x = power();
    for (bool found = true; found;) {
      found = false;
      const int l = line();
      for (const auto& [text, op] : kOperators)
        if (skip_operator(text)) {
          x = binary(ExprKind::kBinary, l, op, std::move(x), power());
          found = true;
          break;
        }
    }
    return x;
  }

  ExprPtr power() {
    ExprPtr x = prefixed();
    for (int l = line(); skip_operator("**"); l = line())
      x = binary(ExprKind::kBinary, l, Operator::kPower, std::move(x), prefixed());
    return x;
  }

  ExprPtr prefixed(bool with_filter = true) {
    const int l = line();
    ExprPtr x;
    if (now().is_operator("-") || now().is_operator("+")) {
      Nested nested(*this);
      const Operator op = take().text == "-" ? Operator::kNegate : Operator::kPlus;
      x = unary(ExprKind::kUnary, l, op, prefixed(false));
    } else {
      x = primary(false);
    }
    x = postfix(std::move(x));
    return with_filter ? filter_expression(std::move(x)) : std::move(x);
  }

  ExprPtr primary(bool with_namespace) {
    const int l = line();
    switch (now().kind) {
      case TokenKind::kName: return name_or_literal(take().text, l, with_namespace);
      case TokenKind::kString: {
        std::string text = take().text;
        while (now().kind == TokenKind::kString) text += take().text;
        return std::make_unique<Constant>(l, Value::borrowed(""), std::move(text));
      }
      case TokenKind::kInteger: return std::make_unique<Constant>(l, Value::integer(take().integer));
      case TokenKind::kFloat: return std::make_unique<Constant>(l, Value::real(take().real));
      case TokenKind::kOperator: {
        if (skip_operator("(")) {
          Nested nested(*this);
          ExprPtr x = tuple(true, {}, true);
          expect_operator(")");
          return x;
        }
        if (skip_operator("[")) return list(l);
        if (skip_operator("{")) return dict(l);
        break;
      }
      default: break;
    }
    error_at(l, cat("unexpected ", describe(now())));
  }

  ExprPtr name_or_literal(const std::string& name, int l, bool with_namespace) {
    if (name == "true" || name == "True") return std::make_unique<Constant>(l, Value::boolean(true));
    if (name == "false" || name == "False") return std::make_unique<Constant>(l, Value::boolean(false));
    if (name == "none" || name == "None") return std::make_unique<Constant>(l, Value::none());
    const Symbol s = symbol(name);
    if (with_namespace && skip_operator("."))
      return std::make_unique<NamespaceTarget>(l, s, expect_name("an attribute name"));
    for (MacroDefinition* m : macros_) {
      m->uses_caller |= s == kCallerSymbol;
      m->uses_varargs |= s == kVarargsSymbol;
      m->uses_kwargs |= s == kKwargsSymbol;
    }
    return std::make_unique<Name>(l, s);
  }

  ExprPtr list(int l) {
    Nested nested(*this);
    auto x = std::make_unique<ItemsExpr>(ExprKind::kList, l);
    while (!skip_operator("]")) {
      if (!x->items.empty()) {
        expect_operator(",");
        if (skip_operator("]")) break;
      }
      x->items.push_back(expression());
      raise(*x, x->items.back());
    }
    return x;
  }

  ExprPtr dict(int l) {
    Nested nested(*this);
    auto x = std::make_unique<DictExpr>(l);
    while (!skip_operator("}")) {
      if (!x->entries.empty()) {
        expect_operator(",");
        if (skip_operator("}")) break;
      }
      ExprPtr key = expression();
      expect_operator(":");
      raise(*x, key);
      x->entries.emplace_back(std::move(key), expression());
      raise(*x, x->entries.back().second);
    }
    return x;
  }

  ExprPtr postfix(ExprPtr x) {
    for (;;) {
      if (now().is_operator(".") || now().is_operator("[")) x = subscript(std::move(x));
      else if (now().is_operator("(")) x = call(std::move(x));
      else return x;
    }
  }

  ExprPtr filter_expression(ExprPtr x) {
    for (;;) {
      if (now().is_operator("|")) x = filters(std::move(x));
      else if (now().is_name("is")) x = test(std::move(x));
      else if (now().is_operator("(")) x = call(std::move(x));
      else return x;
    }
  }

  ExprPtr subscript(ExprPtr object) {
    const int l = line();
    if (skip_operator(".")) {
      if (now().kind == TokenKind::kName) {
        auto a = std::make_unique<Attribute>(l, std::move(object), take().text);
        raise(*a, a->object);
        return a;
      }
      if (now().kind != TokenKind::kInteger) expected("a name or a number behind '.'");
      auto index = std::make_unique<Constant>(l, Value::integer(take().integer));
      return element(l, std::move(object), std::move(index));
    }
    expect_operator("[");
    Nested nested(*this);
    ExprPtr index;
    if (!now().is_operator(":")) {
      index = expression();
      if (now().is_operator(",")) {
        auto t = std::make_unique<ItemsExpr>(ExprKind::kTuple, l);
        t->items.push_back(std::move(index));
        while (skip_operator(",")) t->items.push_back(expression());
        for (const ExprPtr& item : t->items) raise(*t, item);
        index = std::move(t);
      }
      if (skip_operator("]")) return element(l, std::move(object), std::move(index));
    }
    expect_operator(":");
    auto s = std::make_unique<Slice>(l);
    s->object = std::move(object);
    s->start = std::move(index);
    if (!now().is_operator("]") && !now().is_operator(":")) s->stop = expression();
    if (skip_operator(":") && !now().is_operator("]")) s->step = expression();
    expect_operator("]");
    for (const ExprPtr* part : {&s->object, &s->start, &s->stop, &s->step}) raise(*s, *part);
    return s;
  }

  ExprPtr element(int l, ExprPtr object, ExprPtr index) {
    auto x = std::make_unique<Subscript>(l, std::move(object), std::move(index));
    raise(*x, x->object);
    raise(*x, x->index);
    return x;
  }

  Arguments arguments() {
    Arguments a;
    const int l = line();
    expect_operator("(");
    bool first = true;
    const auto ensure = [&](bool ok) {
      if (!ok) error_at(l, "invalid syntax for function call expression");
    };
    while (!skip_operator(")")) {
      if (!first) {
        expect_operator(",");
        if (skip_operator(")")) break;
      }
      first = false;
      if (skip_operator("*")) {
        ensure(a.star == nullptr && a.double_star == nullptr);
        a.star = expression();
      } else if (skip_operator("**")) {
        ensure(a.double_star == nullptr);
        a.double_star = expression();
      } else if (now().kind == TokenKind::kName && ahead().is_operator("=")) {
        ensure(a.double_star == nullptr);
        std::string name = take().text;
        take();
        for (const auto& [other, value] : a.keyword)
          if (other == name) error_at(l, cat("keyword argument repeated: ", name));
        a.keyword.emplace_back(std::move(name), expression());
      } else {
        ensure(a.star == nullptr && a.double_star == nullptr && a.keyword.empty());
        a.positional.push_back(expression());
      }
    }
    return a;
  }

  ExprPtr call(ExprPtr callee) {
    Nested nested(*this);
    auto c = std::make_unique<Call>(line(), std::move(callee));
    c->arguments = arguments();
    raise(*c, c->callee);
    raise(*c, c->arguments);
    return c;
  }

  std::string dotted_name(std::string_view what) {
    std::string name = expect_name(what);
    while (skip_operator(".")) name += cat(".", expect_name(what));
    return name;
  }

  // `x` | name(...) | ...; `inline_first`: the first filter has no '|' ({% filter name %}).
  ExprPtr filters(ExprPtr x, bool inline_first = false) {
    while (inline_first || skip_operator("|")) {
      inline_first = false;
      const int l = line();
      const std::string name = dotted_name("a filter name");
      auto f = std::make_unique<Applied>(ExprKind::kFilter, l, std::move(x), name);
      f->builtin = find_filter(name);
      if (f->builtin == nullptr)
        unknown_.push_back({StatusCode::kInvalidArgument, cat("no filter named '", name, "'"), l});
      if (now().is_operator("(")) {
        Nested nested(*this);
        f->arguments = arguments();
      }
      raise(*f, f->operand);
      raise(*f, f->arguments);
      x = std::move(f);
    }
    return x;
  }

  ExprPtr test(ExprPtr x) {
    const int l = line();
    take();  // is
    const bool negated = skip_name("not");
    const std::string name = dotted_name("a test name");
    auto t = std::make_unique<Applied>(ExprKind::kTest, l, std::move(x), name);
    t->builtin = find_test(name);
    if (t->builtin == nullptr)
      unknown_.push_back({StatusCode::kInvalidArgument, cat("no test named '", name, "'"), l});
    const TokenKind k = now().kind;
    const bool operand_follows =
        k == TokenKind::kString || k == TokenKind::kInteger || k == TokenKind::kFloat ||
        now().is_operator("[") || now().is_operator("{") ||
        (k == TokenKind::kName && !now().is_name("else") && !now().is_name("or") && !now().is_name("and"));
    if (now().is_operator("(")) {
      Nested nested(*this);
      t->arguments = arguments();
    } else if (operand_follows) {
      if (now().is_name("is")) error_at(line(), "tests cannot be chained with is");
      Nested nested(*this);
      t->arguments.positional.push_back(postfix(primary(false)));
    }
    raise(*t, t->operand);
    raise(*t, t->arguments);
    if (!negated) return t;
    return unary(ExprKind::kNot, l, Operator::kAnd, std::move(t));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // loops open around the current statement, within the current macro
  Template template_;
  std::map<std::string, Symbol> symbol_of_;
  std::vector<MacroDefinition*> macros_;  // open around the current expression
  std::vector<Failure> unknown_;
};

}  // namespace

Template parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace oar::jinja
