// The parsed template: statements and expressions, immutable once parsed and shared by concurrent renders.
// Names are interned: a Symbol indexes Template::symbols.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/value.h"

namespace oar::jinja {

struct Builtin;  // builtins.h
using Symbol = uint32_t;

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,
  kUnary,
  kBinary,
  kLogical,
  kNot,
  kCompare,
  kConcat,
  kConditional,
  kAttribute,
  kSubscript,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kNamespaceTarget,
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kNegate,
  kPlus,
  kAnd,
  kOr,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expr {
  Expr(ExprKind k, int l) : kind(k), line(l) {}
  virtual ~Expr() = default;
  const ExprKind kind;
  const int line;
  int height =
      1;  // levels below and including this node: the parser bounds it, so walking the tree cannot overflow
};
using ExprPtr = std::unique_ptr<Expr>;

struct Constant : Expr {
  Constant(int l, Value v, std::string t = {})
      : Expr(ExprKind::kConstant, l), scalar(std::move(v)), text(std::move(t)) {}
  // A string constant's Value borrows `text`; renders on other threads copy it without touching a shared
  // count.
  Value value() const { return scalar.is_string() ? Value::borrowed(text) : scalar; }
  const Value scalar;
  const std::string text;
};

struct Name : Expr {
  Name(int l, Symbol s) : Expr(ExprKind::kName, l), symbol(s) {}
  Symbol symbol;
};

// kList and kTuple (also as an assignment target), kConcat.
struct ItemsExpr : Expr {
  using Expr::Expr;
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int l) : Expr(ExprKind::kDict, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> entries;
};

// kUnary, kNot.
struct Unary : Expr {
  Unary(ExprKind k, int l, Operator o, ExprPtr x) : Expr(k, l), op(o), operand(std::move(x)) {}
  Operator op;
  ExprPtr operand;
};

// kBinary, kLogical.
struct Binary : Expr {
  Binary(ExprKind k, int l, Operator o, ExprPtr a, ExprPtr b)
      : Expr(k, l), op(o), left(std::move(a)), right(std::move(b)) {}
  Operator op;
  ExprPtr left, right;
};

// a < b <= c
struct Compare : Expr {
  Compare(int l, ExprPtr f) : Expr(ExprKind::kCompare, l), first(std::move(f)) {}
  ExprPtr first;
  std::vector<std::pair<Operator, ExprPtr>> rest;
};

struct Conditional : Expr {
  explicit Conditional(int l) : Expr(ExprKind::kConditional, l) {}
  ExprPtr test, yes, no;  // no: null means undefined
};

struct Attribute : Expr {
  Attribute(int l, ExprPtr o, std::string n)
      : Expr(ExprKind::kAttribute, l), object(std::move(o)), name(std::move(n)) {}
  ExprPtr object;
  std::string name;
};

struct Subscript : Expr {
  Subscript(int l, ExprPtr o, ExprPtr i)
      : Expr(ExprKind::kSubscript, l), object(std::move(o)), index(std::move(i)) {}
  ExprPtr object, index;
};

struct Slice : Expr {
  explicit Slice(int l) : Expr(ExprKind::kSlice, l) {}
  ExprPtr object, start, stop, step;  // null: not given
};

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> keyword;
  ExprPtr star, double_star;  // *args, **kwargs
};

struct Call : Expr {
  Call(int l, ExprPtr c) : Expr(ExprKind::kCall, l), callee(std::move(c)) {}
  ExprPtr callee;
  Arguments arguments;
};

// kFilter, kTest. `builtin` is null for a name nobody defined, which is an error once reached.
struct Applied : Expr {
  Applied(ExprKind k, int l, ExprPtr x, std::string n)
      : Expr(k, l), operand(std::move(x)), name(std::move(n)) {}
  ExprPtr operand;  // null: the text of the enclosing {% filter %} or {% set %} block
  std::string name;
  const Builtin* builtin = nullptr;
  Arguments arguments;
};

// ns.name, only as the target of {% set %}.
struct NamespaceTarget : Expr {
  NamespaceTarget(int l, Symbol s, std::string n)
      : Expr(ExprKind::kNamespaceTarget, l), symbol(s), name(std::move(n)) {}
  Symbol symbol;
  std::string name;
};

enum class StmtKind : uint8_t {
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kMacro,
  kCallBlock,
  kFilterBlock,
  kWith,
  kScope,  // {% generation %} and {% autoescape false %}: a scope of its own, nothing else
  kBreak,
  kContinue,
  kDo,
};

struct Stmt {
  Stmt(StmtKind k, int l) : kind(k), line(l) {}
  virtual ~Stmt() = default;
  const StmtKind kind;
  const int line;
};
using StmtPtr = std::unique_ptr<Stmt>;
using Block = std::vector<StmtPtr>;

struct TextStmt : Stmt {
  TextStmt(int l, std::string t) : Stmt(StmtKind::kText, l), text(std::move(t)) {}
  std::string text;
};

// kPrint, kDo.
struct ExprStmt : Stmt {
  ExprStmt(StmtKind k, int l, ExprPtr x) : Stmt(k, l), expr(std::move(x)) {}
  ExprPtr expr;
};

struct IfStmt : Stmt {
  explicit IfStmt(int l) : Stmt(StmtKind::kIf, l) {}
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block otherwise;
};

struct ForStmt : Stmt {
  explicit ForStmt(int l) : Stmt(StmtKind::kFor, l) {}
  ExprPtr target, iterable, filter;  // filter: null without "if"
  bool recursive = false;
  Block body, otherwise;
};

struct SetStmt : Stmt {
  explicit SetStmt(int l) : Stmt(StmtKind::kSet, l) {}
  ExprPtr target, value;
};

struct SetBlockStmt : Stmt {
  explicit SetBlockStmt(int l) : Stmt(StmtKind::kSetBlock, l) {}
  ExprPtr target, filter;  // filter: null or a chain of Applied
  Block body;
};

// Parameters and body of a macro or of a {% call %} block.
struct MacroDefinition {
  std::string name;  // "caller" for call blocks
  std::vector<Symbol> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last defaults.size() parameters
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
  bool explicit_caller = false;  // a parameter is named caller
  Block body;
};

struct MacroStmt : Stmt {
  explicit MacroStmt(int l) : Stmt(StmtKind::kMacro, l) {}
  Symbol symbol = 0;
  MacroDefinition macro;
};

struct CallBlockStmt : Stmt {
  explicit CallBlockStmt(int l) : Stmt(StmtKind::kCallBlock, l) {}
  std::unique_ptr<Call> call;
  MacroDefinition caller;
};

struct FilterBlockStmt : Stmt {
  explicit FilterBlockStmt(int l) : Stmt(StmtKind::kFilterBlock, l) {}
  ExprPtr filter;
  Block body;
};

struct WithStmt : Stmt {
  explicit WithStmt(int l) : Stmt(StmtKind::kWith, l) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> bindings;
  Block body;
};

struct ScopeStmt : Stmt {
  explicit ScopeStmt(int l) : Stmt(StmtKind::kScope, l) {}
  Block body;
};

struct JumpStmt : Stmt {
  using Stmt::Stmt;
};

// Symbols that the interpreter itself binds.
enum : Symbol { kLoopSymbol, kCallerSymbol, kVarargsSymbol, kKwargsSymbol, kFixedSymbols };

struct Template {
  Block body;
  std::vector<std::string> symbols;
};

}  // namespace oar::jinja
