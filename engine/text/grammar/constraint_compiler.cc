#include "engine/text/grammar/constraint_compiler.h"

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/text/grammar/gbnf.h"
#include "engine/text/grammar/json_schema.h"
#include "engine/text/grammar/regex.h"
#include "engine/text/grammar/structural_tag.h"
#include "engine/text/utf8.h"

namespace oar::grammar {
namespace {

constexpr size_t kMaxTextBytes = size_t{4} << 20;

Result<Rule> add(const ConstraintSpec& spec, Grammar& g) {
  using Kind = ConstraintSpec::Kind;
  switch (spec.kind) {
    case Kind::kNone: break;
    case Kind::kJsonObject: return add_json_object(g);
    case Kind::kJsonSchema: {
      OAR_ASSIGN(const json::value schema, parse_json(spec.text, "the schema"));
      return add_json_schema(schema, g);
    }
    case Kind::kGrammar: return add_gbnf(spec.text, g);
    case Kind::kStructuralTag: {
      OAR_ASSIGN(const json::value tag, parse_json(spec.text, "the structural tag"));
      return add_structural_tag(tag, g);
    }
    case Kind::kRegex: {
      OAR_ASSIGN(const Regex regex, Regex::parse(spec.text, Regex::Match::kWhole));
      const Rule root = g.add_rule("the pattern");
      g.define(root, regex.to_grammar(g, Coding::kUtf8));
      return root;
    }
    case Kind::kChoice: {
      if (spec.choices.empty()) return invalid_argument("is empty; name at least one text");
      for (const std::string& c : spec.choices)
        if (c.empty() || !is_valid_utf8(c)) return invalid_argument("has a text that is empty or not UTF-8");
      const Rule root = g.add_rule("the choice");
      g.define(root, g.one_of(spec.choices));
      return root;
    }
  }
  return internal_error("a constraint of no kind");
}

Status fault(const ConstraintSpec& spec, const std::string& why) {
  return invalid_argument(cat(spec.field, ": ", why), spec.field);
}

}  // namespace

std::string ConstraintSpec::key() const {
  std::string key(1, static_cast<char>(kind));
  key += text;
  for (const std::string& c : choices) key += cat(c.size(), ":", c);
  return key;
}

Result<Rule> add_constraint(const ConstraintSpec& spec, Grammar& g) {
  size_t bytes = spec.text.size();
  for (const std::string& c : spec.choices) bytes += c.size();
  if (bytes > kMaxTextBytes)
    return fault(spec, cat("it has ", bytes, " bytes; at most ", kMaxTextBytes, " are accepted"));
  const auto root = add(spec, g);
  if (!root.ok()) return fault(spec, root.status().message());
  if (g.full())
    return fault(spec, cat("it is too large: its grammar has more than ", Grammar::kMaxExprs, " parts"));
  return root;
}

Result<std::shared_ptr<const Automaton>> compile(const ConstraintSpec& spec) {
  Grammar g;
  OAR_ASSIGN(const Rule root, add_constraint(spec, g));
  g.set_root(root);
  auto automaton = Automaton::compile(g);
  if (!automaton.ok()) return fault(spec, automaton.status().message());
  return automaton;
}

const std::shared_ptr<const TokenVocabulary>& ConstraintCompiler::vocabulary() {
  std::call_once(made_, [this] {
    if (vocabulary_ != nullptr) return;
    vocabulary_ = TokenVocabulary::make(tokenizer_, ends_);
    vocabulary_->loop(*CharUnit::any(Coding::kJsonAnyEscape));  // every schema with a string asks for these
    vocabulary_->loop(*CharUnit::any(Coding::kJson));
  });
  return vocabulary_;
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::compile(const ConstraintSpec& spec) {
  if (spec.kind == ConstraintSpec::Kind::kNone) return std::shared_ptr<const Constraint>();
  return keep(spec.key(), [&] { return grammar::compile(spec); });
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::compile(std::string key, const Write& write) {
  return keep("\xFF" + key, [&]() -> Result<std::shared_ptr<const Automaton>> {
    Grammar g;
    OAR_ASSIGN(const Rule root, write(g));
    g.set_root(root);
    return Automaton::compile(g);
  });
}

Result<std::shared_ptr<const Constraint>> ConstraintCompiler::keep(std::string key, const Make& make) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = by_key_.find(key); it != by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, it->second);
      return std::shared_ptr<const Constraint>(kept_.front().matcher);
    }
  }
  OAR_ASSIGN(auto automaton, make());  // two threads may both make it; the first is kept
  const auto matcher = std::make_shared<Matcher>(std::move(automaton), vocabulary());
  const std::lock_guard lock(mutex_);
  if (const auto it = by_key_.find(key); it != by_key_.end())
    return std::shared_ptr<const Constraint>(it->second->matcher);
  kept_.push_front({std::move(key), matcher});
  by_key_[kept_.front().key] = kept_.begin();
  size_t total = 0;  // what is learned grows after it was kept, so all are counted again
  for (const Kept& k : kept_) total += k.matcher->bytes() + k.key.size();
  while (kept_.size() > 1 && (kept_.size() > limits_.max_entries || total > limits_.max_bytes)) {
    total -= kept_.back().matcher->bytes() + kept_.back().key.size();
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
  return std::shared_ptr<const Constraint>(matcher);
}

size_t ConstraintCompiler::entries() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace oar::grammar
