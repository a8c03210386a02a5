#include "engine/text/jinja/interpreter.h"

#include <algorithm>

#include "engine/text/jinja/text.h"
#include "engine/text/utf8.h"

namespace oar::jinja {
namespace {

std::string quoted(std::string_view name) { return cat("'", name, "'"); }

}  // namespace

Interpreter::Interpreter(const Template& t, const Limits& limits, const ClockTime& now)
    : template_(t), heap_(limits), now_(now), scope_(std::make_shared<Scope>(heap_, nullptr)) {
  for (const std::string& name : t.symbols)
    if (const Builtin* b = find_function(name)) {
      auto f = std::make_unique<Callable>();
      f->builtin = b;
      define(name, Value::of(heap_.adopt(std::move(f))));
    }
}

void Interpreter::too_deep() const {
  throw Failure{StatusCode::kResourceExhausted,
                cat("the template recurses deeper than ", heap_.limits().max_depth, " levels")};
}

void Interpreter::define(std::string_view name, Value v) {
  const auto at = std::find(template_.symbols.begin(), template_.symbols.end(), name);
  if (at != template_.symbols.end())
    assign(static_cast<Symbol>(at - template_.symbols.begin()), std::move(v));
}

bool Interpreter::mentions(std::string_view name) const {
  return std::find(template_.symbols.begin(), template_.symbols.end(), name) != template_.symbols.end();
}

Text Interpreter::render() {
  try {
    push_scope();  // the template's own variables, apart from what it was given
    run(template_.body);
    return std::move(out_);
  } catch (Failure& f) {
    if (f.line == 0) f.line = line_;
    throw;
  }
}

// --- scopes ---

void Interpreter::push_scope() { scope_ = std::make_shared<Scope>(heap_, std::move(scope_)); }

Value Interpreter::lookup(Symbol s) {
  for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    heap_.step(scope->symbols.size() / 16);
    if (const Value* v = scope->find(s)) return *v;
  }
  return Value::undefined(Missing::kName, Value::borrowed(template_.symbols[s]));
}

void Interpreter::assign(Symbol s, Value v) {
  heap_.step(scope_->symbols.size() / 16);
  if (Value* old = scope_->find(s)) {
    *old = std::move(v);
    return;
  }
  heap_.charge(Scope::kVariableBytes);
  scope_->symbols.push_back(s);
  scope_->values.push_back(std::move(v));
}

void Interpreter::assign_target(const Expr& target, Value v) {
  switch (target.kind) {
    case ExprKind::kName: assign(static_cast<const Name&>(target).symbol, std::move(v)); return;
    case ExprKind::kNamespaceTarget: {
      const auto& t = static_cast<const NamespaceTarget&>(target);
      const Value ns = lookup(t.symbol);
      if (!ns.is(Type::kNamespace)) fail("cannot assign attribute on non-namespace object");
      if (t.name[0] == '_')
        fail("cannot store the underscore-prefixed attribute '", t.name, "' on a namespace");
      ns.name_space()->attributes.dict()->set(heap_, Value::borrowed(t.name), std::move(v));
      return;
    }
    default: {
      const auto& items = static_cast<const ItemsExpr&>(target).items;
      if (!is_iterable(v)) fail("cannot unpack non-iterable ", type_name(v), " object");
      std::vector<Value> values = iterate(heap_, v);
      if (values.size() > items.size()) fail("too many values to unpack (expected ", items.size(), ")");
      if (values.size() < items.size())
        fail("not enough values to unpack (expected ", items.size(), ", got ", values.size(), ")");
      for (size_t i = 0; i < items.size(); ++i) assign_target(*items[i], std::move(values[i]));
    }
  }
}

// --- output ---

void Interpreter::write(const Value& string) {
  const std::string_view text = string.str();
  heap_.work(text.size());
  if (text.size() > heap_.limits().max_output - std::min(out_.size(), heap_.limits().max_output))
    throw Failure{StatusCode::kResourceExhausted,
                  cat("the template writes more than ", format_bytes(heap_.limits().max_output))};
  const size_t before = out_.weight();
  out_.add(string);
  const size_t growth = out_.weight() - before;
  heap_.charge(capturing_ ? growth : growth - text.size());
}

// --- statements ---

Interpreter::Flow Interpreter::run(const Block& block) {
  for (const StmtPtr& s : block)
    if (const Flow f = run(*s); f != Flow::kNext) return f;
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt) {
  const Deeper deeper(*this);
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText: write(Value::borrowed(static_cast<const TextStmt&>(stmt).text)); break;
    case StmtKind::kPrint: write(to_str(heap_, eval(*static_cast<const ExprStmt&>(stmt).expr))); break;
    case StmtKind::kDo: eval(*static_cast<const ExprStmt&>(stmt).expr); break;
    case StmtKind::kIf: return run_if(static_cast<const IfStmt&>(stmt));
    case StmtKind::kFor: return run_for(static_cast<const ForStmt&>(stmt));
    case StmtKind::kSet: {
      const auto& s = static_cast<const SetStmt&>(stmt);
      assign_target(*s.target, eval(*s.value));
      break;
    }
    case StmtKind::kSetBlock: run_set_block(static_cast<const SetBlockStmt&>(stmt)); break;
    case StmtKind::kMacro: {
      const auto& s = static_cast<const MacroStmt&>(stmt);
      assign(s.symbol, bind_macro(s.macro));
      break;
    }
    case StmtKind::kCallBlock: run_call_block(static_cast<const CallBlockStmt&>(stmt)); break;
    case StmtKind::kFilterBlock: {
      const auto& s = static_cast<const FilterBlockStmt&>(stmt);
      const Value text = capture([&] { run_scoped(s.body); });
      write(to_str(heap_, apply_chain(*s.filter, text)));
      break;
    }
    case StmtKind::kWith: return run_with(static_cast<const WithStmt&>(stmt));
    case StmtKind::kScope: return run_scoped(static_cast<const ScopeStmt&>(stmt).body);
    case StmtKind::kBreak: return Flow::kBreak;
    case StmtKind::kContinue: return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const IfStmt& s) {
  for (const auto& [test, body] : s.branches)
    if (truthy(eval(*test))) return run(body);
  return run(s.otherwise);
}

Interpreter::Flow Interpreter::run_for(const ForStmt& s) {
  const Value iterable = eval(*s.iterable);
  line_ = s.line;
  return loop_over(s, iterate(heap_, iterable), 0);
}

Interpreter::Flow Interpreter::loop_over(const ForStmt& s, std::vector<Value> items, int depth) {
  const ScopePtr outer = scope_;
  if (s.filter != nullptr) {
    std::vector<Value> kept;
    for (Value& item : items) {
      push_scope();
      assign_target(*s.target, item);
      const bool keep = truthy(eval(*s.filter));
      scope_ = outer;
      if (keep) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return run_scoped(s.otherwise);
  LoopState* loop = heap_.adopt(std::make_unique<LoopState>());
  const Value held = Value::of(loop);
  heap_.charge(*loop, items.size() * sizeof(Value));
  loop->items = std::move(items);
  loop->depth = depth;
  if (s.recursive) {
    loop->body = &s;
    loop->scope = outer;
  }
  for (; loop->index < loop->items.size(); ++loop->index) {
    scope_ = outer;
    push_scope();
    assign(kLoopSymbol, held);
    assign_target(*s.target, loop->items[loop->index]);
    if (run(s.body) == Flow::kBreak) break;
  }
  scope_ = outer;
  return Flow::kNext;
}

void Interpreter::run_set_block(const SetBlockStmt& s) {
  Value text = capture([&] { run_scoped(s.body); });
  line_ = s.line;
  if (s.filter != nullptr) text = apply_chain(*s.filter, text);
  assign_target(*s.target, std::move(text));
}

void Interpreter::run_call_block(const CallBlockStmt& s) {
  CallArguments arguments;
  const Value callee = eval(*s.call->callee);
  eval_arguments(s.call->arguments, arguments);
  arguments.keyword.emplace_back(Value::borrowed("caller"), bind_macro(s.caller));
  line_ = s.line;
  write(to_str(heap_, call(callee, arguments)));
}

Interpreter::Flow Interpreter::run_scoped(const Block& body) {
  const ScopePtr outer = scope_;
  push_scope();
  const Flow f = run(body);
  scope_ = outer;
  return f;
}

Interpreter::Flow Interpreter::run_with(const WithStmt& s) {
  std::vector<Value> values;
  for (const auto& [target, value] : s.bindings) values.push_back(eval(*value));
  const ScopePtr outer = scope_;
  push_scope();
  for (size_t i = 0; i < values.size(); ++i) assign_target(*s.bindings[i].first, std::move(values[i]));
  const Flow f = run(s.body);
  scope_ = outer;
  return f;
}

// --- expressions ---

Value Interpreter::eval(const Expr& e) {
  const Deeper deeper(*this);
  line_ = e.line;
  switch (e.kind) {
    case ExprKind::kConstant: return static_cast<const Constant&>(e).value();
    case ExprKind::kName: return lookup(static_cast<const Name&>(e).symbol);
    case ExprKind::kList:
    case ExprKind::kTuple: return eval_items(static_cast<const ItemsExpr&>(e));
    case ExprKind::kDict: return eval_dict(static_cast<const DictExpr&>(e));
    case ExprKind::kUnary: {
      const auto& u = static_cast<const Unary&>(e);
      return negate(eval(*u.operand), u.op == Operator::kNegate);
    }
    case ExprKind::kNot: return Value::boolean(!truthy(eval(*static_cast<const Unary&>(e).operand)));
    case ExprKind::kBinary: return eval_binary(static_cast<const Binary&>(e));
    case ExprKind::kLogical: return eval_logical(static_cast<const Binary&>(e));
    case ExprKind::kCompare: return eval_compare(static_cast<const Compare&>(e));
    case ExprKind::kConcat: return eval_concat(static_cast<const ItemsExpr&>(e));
    case ExprKind::kConditional: {
      const auto& c = static_cast<const Conditional&>(e);
      if (truthy(eval(*c.test))) return eval(*c.yes);
      if (c.no != nullptr) return eval(*c.no);
      return Value::undefined(Missing::kHint,
                              Value::borrowed("the inline if-expression evaluated to false and no else "
                                              "section was defined."));
    }
    case ExprKind::kAttribute: {
      const auto& a = static_cast<const Attribute&>(e);
      const Value object = eval(*a.object);
      line_ = e.line;
      return attribute(object, Value::borrowed(a.name));
    }
    case ExprKind::kSubscript: {
      const auto& s = static_cast<const Subscript&>(e);
      const Value object = eval(*s.object);
      const Value index = eval(*s.index);
      line_ = e.line;
      return element(object, index);
    }
    case ExprKind::kSlice: return eval_slice(static_cast<const Slice&>(e));
    case ExprKind::kCall: return eval_call(static_cast<const Call&>(e));
    case ExprKind::kFilter:
    case ExprKind::kTest: return eval_applied(static_cast<const Applied&>(e), nullptr);
    case ExprKind::kNamespaceTarget: break;
  }
  OAR_CHECK(false, "an assignment target is not an expression");
}

Value Interpreter::eval_binary(const Binary& e) {
  const Value a = eval(*e.left);
  const Value b = eval(*e.right);
  line_ = e.line;
  return binary_operation(*this, e.op, a, b);
}

Value Interpreter::eval_logical(const Binary& e) {
  Value a = eval(*e.left);
  return truthy(a) == (e.op == Operator::kOr) ? a : eval(*e.right);
}

Value Interpreter::eval_compare(const Compare& e) {
  Value left = eval(*e.first);
  for (const auto& [op, operand] : e.rest) {
    Value right = eval(*operand);
    line_ = e.line;
    if (!compare_operation(*this, op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const ItemsExpr& e) {
  std::vector<Value> pieces;
  size_t size = 0;
  for (const ExprPtr& item : e.items) {
    pieces.push_back(to_str(heap_, eval(*item)));
    size += pieces.back().str().size();
  }
  heap_.expect(size);
  heap_.work(size);
  Text out;
  out.bytes.reserve(size);
  for (const Value& p : pieces) out.add(p);  // "~" joins plain text: it neither escapes nor keeps markup
  return heap_.string(std::move(out));
}

Value Interpreter::eval_items(const ItemsExpr& e) {
  std::vector<Value> items;
  items.reserve(e.items.size());
  for (const ExprPtr& item : e.items) items.push_back(eval(*item));
  return heap_.make(e.kind == ExprKind::kList ? SequenceKind::kList : SequenceKind::kTuple, std::move(items));
}

Value Interpreter::eval_dict(const DictExpr& e) {
  Dict* d = heap_.dict();
  for (const auto& [key, value] : e.entries) {
    const Value k = eval(*key);
    require_hashable(k);
    d->set(heap_, k, eval(*value));
  }
  return Value::of(d);
}

Value Interpreter::eval_slice(const Slice& e) {
  const Value object = eval(*e.object);
  const auto part = [&](const ExprPtr& x) { return x == nullptr ? Value::none() : eval(*x); };
  const Value start = part(e.start), stop = part(e.stop), step = part(e.step);
  line_ = e.line;
  return slice_value(*this, object, start, stop, step);
}

void Interpreter::eval_arguments(const Arguments& a, CallArguments& out) {
  out.positional.reserve(a.positional.size());
  for (const ExprPtr& x : a.positional) out.positional.push_back(eval(*x));
  for (const auto& [name, x] : a.keyword) out.keyword.emplace_back(Value::borrowed(name), eval(*x));
  if (a.star != nullptr)
    for (Value& v : iterate(heap_, eval(*a.star))) out.positional.push_back(std::move(v));
  if (a.double_star != nullptr) {
    const Value v = eval(*a.double_star);
    if (!v.is(Type::kDict)) fail("argument after ** must be a mapping, not ", type_name(v));
    heap_.step(v.dict()->entries.size());
    for (const auto& [key, value] : v.dict()->entries) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [name, x] : a.keyword)
        if (name == key.str()) fail("got multiple values for keyword argument '", name, "'");
      out.keyword.emplace_back(key, value);
    }
  }
}

Value Interpreter::eval_call(const Call& e) {
  const Value callee = eval(*e.callee);
  CallArguments arguments;
  eval_arguments(e.arguments, arguments);
  line_ = e.line;
  return call(callee, arguments);
}

Value Interpreter::eval_applied(const Applied& e, const Value* block_text) {
  Value operand;
  if (e.operand == nullptr) operand = *block_text;
  else if (block_text != nullptr) operand = apply_chain(*e.operand, *block_text);
  else operand = eval(*e.operand);
  CallArguments arguments;
  eval_arguments(e.arguments, arguments);
  line_ = e.line;
  if (e.builtin == nullptr)
    fail("no ", e.kind == ExprKind::kFilter ? "filter" : "test", " named '", e.name, "'");
  return call_builtin(*this, *e.builtin, operand, arguments);
}

// A chain of filters that ends in the text of a block.
Value Interpreter::apply_chain(const Expr& e, const Value& text) {
  const Deeper deeper(*this);
  return eval_applied(static_cast<const Applied&>(e), &text);
}

// --- attributes and elements ---

Value Interpreter::attribute(const Value& object, const Value& name) {
  if (object.is_undefined()) fail(object.undefined_message());
  if (Value m = method(object, name.str()); !m.is_undefined()) return m;
  switch (object.type()) {
    case Type::kDict:
      if (const Value* v = object.dict()->find(name)) return *v;
      break;
    case Type::kNamespace:
      if (const Value* v = object.name_space()->attributes.dict()->find(name)) return *v;
      break;
    default: break;
  }
  return Value::undefined(Missing::kAttribute, name, object.type(),
                          object.is(Type::kSequence) ? static_cast<uint8_t>(object.sequence()->kind) : 0);
}

Value Interpreter::element(const Value& object, const Value& key) {
  switch (object.type()) {
    case Type::kUndefined: fail(object.undefined_message());
    case Type::kDict: {
      const bool hashable = !key.is(Type::kDict) && !(key.is(Type::kSequence) && key.sequence()->is_list());
      if (hashable)
        if (const Value* v = object.dict()->find(key)) return *v;
      break;
    }
    case Type::kNamespace:
      if (const Value* v = object.name_space()->attributes.dict()->find(key)) return *v;
      break;
    case Type::kString:
    case Type::kSequence: {
      if (!key.is_integral() || (object.is(Type::kSequence) && !object.sequence()->indexable())) break;
      Int i = key.as_int();
      if (object.is_string()) {
        const std::string_view s = object.str();
        if (i < 0) {  // from the end, without counting the whole string
          size_t end = s.size();
          for (; i < -1 && end > 0; ++i) end = previous_utf8(s, end);
          heap_.work(s.size() - end);
          if (end == 0) break;
          const size_t start = previous_utf8(s, end);
          return object.slice(start, end - start);
        }
        if (i >= static_cast<Int>(s.size())) break;
        const size_t start = byte_offset(s, static_cast<size_t>(i));
        heap_.work(start);
        if (start >= s.size()) break;
        size_t end = start;
        decode_at(s, end);
        return object.slice(start, end - start);
      }
      const auto& items = object.sequence()->items;
      if (i < 0) i += static_cast<Int>(items.size());
      if (i >= 0 && i < static_cast<Int>(items.size())) return items[static_cast<size_t>(i)];
      break;
    }
    default: break;
  }
  if (key.is_string()) {
    if (Value m = method(object, key.str()); !m.is_undefined()) return m;
    return Value::undefined(Missing::kAttribute, key, object.type(),
                            object.is(Type::kSequence) ? static_cast<uint8_t>(object.sequence()->kind) : 0);
  }
  const std::string shown =
      key.is_number() || key.is_none() ? repr(heap_, key) : cat("of type ", type_name(key));
  return Value::undefined(Missing::kElement, heap_.string(shown, true), object.type(),
                          object.is(Type::kSequence) ? static_cast<uint8_t>(object.sequence()->kind) : 0);
}

Value Interpreter::method(const Value& object, std::string_view name) {
  if (name.empty() || name[0] == '_') return Value();
  if (object.is(Type::kLoop)) {
    if (Value v = loop_attribute(*object.loop(), name); !v.is_undefined()) return v;
  } else if (object.is(Type::kCallable)) {
    return callable_attribute(*object.callable(), name);
  } else if (object.is(Type::kSequence) && object.sequence()->kind == SequenceKind::kGroup) {
    if (name == "grouper") return object.sequence()->items[0];
    if (name == "list") return object.sequence()->items[1];
  }
  const Builtin* b = find_method(object, name);
  if (b == nullptr) return Value();
  auto c = std::make_unique<Callable>();
  c->kind = Callable::Kind::kMethod;
  c->builtin = b;
  c->self = object;
  return Value::of(heap_.adopt(std::move(c)));
}

Value Interpreter::loop_attribute(LoopState& l, std::string_view name) {
  const size_t n = l.items.size();
  const auto number = [](size_t i) { return Value::integer(static_cast<Int>(i)); };
  if (name == "index") return number(l.index + 1);
  if (name == "index0") return number(l.index);
  if (name == "revindex") return Value::integer(static_cast<Int>(n) - static_cast<Int>(l.index));
  if (name == "revindex0") return Value::integer(static_cast<Int>(n) - static_cast<Int>(l.index) - 1);
  if (name == "first") return Value::boolean(l.index == 0);
  if (name == "last") return Value::boolean(l.index + 1 >= n);
  if (name == "length") return number(n);
  if (name == "depth") return Value::integer(l.depth + 1);
  if (name == "depth0") return Value::integer(l.depth);
  if (name == "previtem") {
    if (l.index > 0 && l.index <= n) return l.items[l.index - 1];
    return Value::undefined(Missing::kHint, Value::borrowed("there is no previous item"));
  }
  if (name == "nextitem") {
    if (l.index + 1 < n) return l.items[l.index + 1];
    return Value::undefined(Missing::kHint, Value::borrowed("there is no next item"));
  }
  return Value();
}

Value Interpreter::callable_attribute(Callable& c, std::string_view name) {
  if (c.kind == Callable::Kind::kCycler) {
    if (name == "current") return c.items[c.position];
    if (const Builtin* b = name == "next" || name == "reset" ? find_method(Value::of(&c), name) : nullptr) {
      auto m = std::make_unique<Callable>();
      m->kind = Callable::Kind::kMethod;
      m->builtin = b;
      m->self = Value::of(&c);
      return Value::of(heap_.adopt(std::move(m)));
    }
  }
  if (c.kind != Callable::Kind::kMacro) return Value();
  if (name == "name") return Value::borrowed(c.macro->name);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const std::string& p : c.macro->parameter_names) names.push_back(Value::borrowed(p));
    return heap_.tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value::boolean(c.macro->uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(c.macro->uses_varargs);
  if (name == "caller") return Value::boolean(c.macro->uses_caller);
  return Value();
}

Value Interpreter::path(const Value& object, const Value& dotted, const Value* fallback) {
  if (dotted.is_none()) return object;
  const auto step = [&](const Value& from, const Value& key) {
    Value v = element(from, key);
    return v.is_undefined() && fallback != nullptr && !fallback->is_none() ? *fallback : v;
  };
  if (!dotted.is_string()) return step(object, dotted);
  Value v = object;
  for (const std::string_view part : split_at(dotted.str(), ".", -1, false)) {
    const bool number = !part.empty() && part.size() <= 18 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    Int i = 0;
    const auto offset = static_cast<size_t>(part.data() - dotted.str().data());
    v = step(v, number && parse_int(part, 10, &i) ? Value::integer(i) : dotted.slice(offset, part.size()));
  }
  return v;
}

Value Interpreter::filter(std::string_view name, const Value& v, const CallArguments& arguments) {
  const Builtin* b = find_filter(name);
  if (b == nullptr) fail("no filter named ", quoted(name));
  return call_builtin(*this, *b, v, arguments);
}

bool Interpreter::test(std::string_view name, const Value& v, const CallArguments& arguments) {
  const Builtin* b = find_test(name);
  if (b == nullptr) fail("no test named ", quoted(name));
  return truthy(call_builtin(*this, *b, v, arguments));
}

}  // namespace oar::jinja
