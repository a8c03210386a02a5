#include "engine/text/jinja/expression_parser.h"

#include "engine/text/jinja/builtins.h"

namespace oar::jinja {

ExprPtr ExpressionParser::expression(bool with_condition) {
  Nested nested(*this);
  return with_condition ? conditional() : logical_or();
}

ExprPtr ExpressionParser::tuple(bool with_condition, Names ends, bool parenthesized) {
  return tuple_of([&] { return expression(with_condition); }, ends, parenthesized);
}

ExprPtr ExpressionParser::conditional() {
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

ExprPtr ExpressionParser::binary(ExprKind kind, int l, Operator op, ExprPtr a, ExprPtr b) {
  auto x = std::make_unique<Binary>(kind, l, op, std::move(a), std::move(b));
  raise(*x, x->left);
  raise(*x, x->right);
  return x;
}

ExprPtr ExpressionParser::unary(ExprKind kind, int l, Operator op, ExprPtr a) {
  auto x = std::make_unique<Unary>(kind, l, op, std::move(a));
  raise(*x, x->operand);
  return x;
}

ExprPtr ExpressionParser::logical_or() {
  ExprPtr x = logical_and();
  for (int l = line(); skip_name("or"); l = line())
    x = binary(ExprKind::kLogical, l, Operator::kOr, std::move(x), logical_and());
  return x;
}

ExprPtr ExpressionParser::logical_and() {
  ExprPtr x = logical_not();
  for (int l = line(); skip_name("and"); l = line())
    x = binary(ExprKind::kLogical, l, Operator::kAnd, std::move(x), logical_not());
  return x;
}

ExprPtr ExpressionParser::logical_not() {
  const int l = line();
  if (!skip_name("not")) return comparison();
  Nested nested(*this);
  return unary(ExprKind::kNot, l, Operator::kAnd, logical_not());
}

bool ExpressionParser::comparison_operator(Operator* op) {
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

ExprPtr ExpressionParser::comparison() {
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

ExprPtr ExpressionParser::sum() {
  ExprPtr x = concatenation();
  for (;;) {
    const int l = line();
    if (skip_operator("+")) x = binary(ExprKind::kBinary, l, Operator::kAdd, std::move(x), concatenation());
    else if (skip_operator("-"))
      x = binary(ExprKind::kBinary, l, Operator::kSubtract, std::move(x), concatenation());
    else return x;
  }
}

ExprPtr ExpressionParser::concatenation() {
  const int l = line();
  ExprPtr x = product();
  if (!now().is_operator("~")) return x;
  auto c = std::make_unique<ItemsExpr>(ExprKind::kConcat, l);
  c->items.push_back(std::move(x));
  while (skip_operator("~")) c->items.push_back(product());
  for (const ExprPtr& item : c->items) raise(*c, item);
  return c;
}

ExprPtr ExpressionParser::product() {
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

ExprPtr ExpressionParser::power() {
  ExprPtr x = prefixed();
  for (int l = line(); skip_operator("**"); l = line())
    x = binary(ExprKind::kBinary, l, Operator::kPower, std::move(x), prefixed());
  return x;
}

ExprPtr ExpressionParser::prefixed(bool with_filter) {
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

ExprPtr ExpressionParser::primary(bool with_namespace) {
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

ExprPtr ExpressionParser::name_or_literal(const std::string& name, int l, bool with_namespace) {
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

ExprPtr ExpressionParser::list(int l) {
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

ExprPtr ExpressionParser::dict(int l) {
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

ExprPtr ExpressionParser::postfix(ExprPtr x) {
  for (;;) {
    if (now().is_operator(".") || now().is_operator("[")) x = subscript(std::move(x));
    else if (now().is_operator("(")) x = call(std::move(x));
    else return x;
  }
}

ExprPtr ExpressionParser::filter_expression(ExprPtr x) {
  for (;;) {
    if (now().is_operator("|")) x = filters(std::move(x));
    else if (now().is_name("is")) x = test(std::move(x));
    else if (now().is_operator("(")) x = call(std::move(x));
    else return x;
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
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

ExprPtr ExpressionParser::element(int l, ExprPtr object, ExprPtr index) {
  auto x = std::make_unique<Subscript>(l, std::move(object), std::move(index));
  raise(*x, x->object);
  raise(*x, x->index);
  return x;
}

Arguments ExpressionParser::arguments() {
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

ExprPtr ExpressionParser::call(ExprPtr callee) {
  Nested nested(*this);
  auto c = std::make_unique<Call>(line(), std::move(callee));
  c->arguments = arguments();
  raise(*c, c->callee);
  raise(*c, c->arguments);
  return c;
}

std::string ExpressionParser::dotted_name(std::string_view what) {
  std::string name = expect_name(what);
  while (skip_operator(".")) name += cat(".", expect_name(what));
  return name;
}

// `x` | name(...) | ...; `inline_first`: the first filter has no '|' ({% filter name %}).
ExprPtr ExpressionParser::filters(ExprPtr x, bool inline_first) {
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

ExprPtr ExpressionParser::test(ExprPtr x) {
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

}  // namespace oar::jinja
