// Calls: macros and {% call %} blocks with their argument rules, recursive loops, methods and functions.
#include <algorithm>

#include "engine/text/jinja/interpreter.h"

namespace oar::jinja {

Value Interpreter::bind_macro(const MacroDefinition& m) {
  auto c = std::make_unique<Callable>();
  c->kind = Callable::Kind::kMacro;
  c->macro = &m;
  c->scope = scope_;
  return Value::of(heap_.adopt(std::move(c)));
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
  if (callee.is(Type::kLoop)) return call_loop(*callee.loop(), arguments);
  if (callee.is_undefined()) fail(callee.undefined_message());
  if (!callee.is(Type::kCallable)) fail("'", type_name(callee), "' object is not callable");
  Callable& c = *callee.callable();
  switch (c.kind) {
    case Callable::Kind::kMacro: return call_macro(c, arguments);
    case Callable::Kind::kMethod:
    case Callable::Kind::kFunction: return call_builtin(*this, *c.builtin, c.self, arguments);
    case Callable::Kind::kCycler:
    case Callable::Kind::kJoiner: return call_helper(c, arguments);
  }
  return Value();
}

Value Interpreter::call_helper(Callable& c, const CallArguments& arguments) {
  if (c.kind == Callable::Kind::kCycler) fail("'Cycler' object is not callable; call its next()");
  if (!arguments.positional.empty() || !arguments.keyword.empty()) fail("a joiner takes no arguments");
  return c.position++ == 0 ? Value::borrowed("") : c.self;
}

Value Interpreter::call_macro(const Callable& c, const CallArguments& arguments) {
  const MacroDefinition& m = *c.macro;
  const size_t count = m.parameters.size();
  heap_.step(arguments.keyword.size() * (count + 1) / 4);
  std::vector<bool> used(arguments.keyword.size(), false);
  const auto keyword = [&](std::string_view name) -> const Value* {
    for (size_t i = 0; i < arguments.keyword.size(); ++i)
      if (!used[i] && arguments.keyword[i].first.str() == name) {
        used[i] = true;
        return &arguments.keyword[i].second;
      }
    return nullptr;
  };

  const Deeper deeper(*this);
  const ScopePtr caller_scope = scope_;
  const int call_line = line_;
  scope_ = c.scope;
  push_scope();
  // Defaults are evaluated in the macro's own scope, left to right, so they see earlier parameters.
  for (size_t i = 0; i < count; ++i) {
    const size_t first_default = count - m.defaults.size();
    if (i < arguments.positional.size()) assign(m.parameters[i], arguments.positional[i]);
    else if (const Value* v = keyword(m.parameter_names[i])) assign(m.parameters[i], *v);
    else if (i >= first_default) assign(m.parameters[i], eval(*m.defaults[i - first_default]));
    else
      assign(m.parameters[i],
             Value::undefined(
                 Missing::kHint,
                 heap_.string(cat("parameter '", m.parameter_names[i], "' was not provided"), false)));
  }
  line_ = call_line;
  if (m.uses_caller) {
    const Value* v = keyword("caller");
    assign(kCallerSymbol,
           v != nullptr ? *v : Value::undefined(Missing::kHint, Value::borrowed("No caller defined")));
  }
  if (m.uses_kwargs) {
    Dict* rest = heap_.dict();
    for (size_t i = 0; i < used.size(); ++i)
      if (!used[i]) rest->set(heap_, arguments.keyword[i].first, arguments.keyword[i].second);
    assign(kKwargsSymbol, Value::of(rest));
  } else if (const auto it = std::find(used.begin(), used.end(), false); it != used.end()) {
    fail("macro '", m.name, "' takes no keyword argument '",
         arguments.keyword[static_cast<size_t>(it - used.begin())].first.str(), "'");
  }
  if (m.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    assign(kVarargsSymbol, heap_.tuple(std::move(rest)));
  } else if (arguments.positional.size() > count) {
    fail("macro '", m.name, "' takes not more than ", count, " argument(s)");
  }
  Value text = capture([&] { run(m.body); });
  scope_ = caller_scope;
  line_ = call_line;
  return text;
}

// loop(children) inside {% for ... recursive %}: the loop's body over other items, as text.
Value Interpreter::call_loop(LoopState& loop, const CallArguments& arguments) {
  if (loop.body == nullptr || loop.scope == nullptr)
    fail("The loop must have the 'recursive' marker to be called recursively.");
  if (arguments.positional.size() != 1 || !arguments.keyword.empty())
    fail("loop() takes exactly one argument");
  const Deeper deeper(*this);
  const ScopePtr caller_scope = scope_;
  const int call_line = line_;
  const ForStmt& body = *loop.body;
  const int depth = loop.depth + 1;
  scope_ = loop.scope;
  std::vector<Value> items = iterate(heap_, arguments.positional[0]);
  Value text = capture([&] { loop_over(body, std::move(items), depth); });
  scope_ = caller_scope;
  line_ = call_line;
  return text;
}

Value call_builtin(Interpreter& in, const Builtin& b, const Value& self, const CallArguments& arguments) {
  in.heap().step(1 + arguments.positional.size() + arguments.keyword.size());
  Bound bound;
  bound.all = &arguments;
  if (b.variadic) return b.function(in, self, bound);
  std::string_view names[kMaxParameters];
  size_t count = 0;
  for (std::string_view rest = b.parameters; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    names[count++] = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (arguments.positional.size() > count)
    fail(b.name, "() takes at most ", count, " argument(s), got ", arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) bound.p[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto* at = std::find(names, names + count, name.str());
    if (at == names + count) fail(b.name, "() got an unexpected keyword argument '", name.str(), "'");
    if (bound.p[at - names] != nullptr)
      fail(b.name, "() got multiple values for argument '", name.str(), "'");
    bound.p[at - names] = &value;
  }
  for (size_t i = 0; i < b.required; ++i)
    if (bound.p[i] == nullptr) fail(b.name, "() is missing its argument '", names[i], "'");
  return b.function(in, self, bound);
}

}  // namespace oar::jinja
