#include "engine/text/jinja/parser.h"

#include <algorithm>

#include "engine/text/jinja/expression_parser.h"

namespace oar::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {
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
    for (bool more = true; more;) {
      ExprPtr test = tuple(false);
      skip_operator(":");
      expect_tag_end();
      Block b = block_until({"elif", "else", "endif"}, "if", l);
      s->branches.emplace_back(std::move(test), std::move(b));
      more = skip_name("elif");
    }
    if (skip_name("else")) s->otherwise = body("endif", "if", l);
    else take();
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
};

}  // namespace

Template parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace oar::jinja
