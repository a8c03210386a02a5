// From what a request asks for to a Constraint, for one model's vocabulary. Compiling takes a millisecond for
// a tool definition and is bounded for anything; results are kept, least recently used first out. Any thread;
// it is meant to run on the thread that parses the request, never on the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/constraint.h"
#include "engine/base/status.h"
#include "engine/text/grammar/matcher.h"

namespace oar::grammar {

// One constraint, as the caller wrote it.
struct ConstraintSpec {
  enum class Kind : uint8_t {
    kNone,
    kJsonObject,     // any JSON object
    kJsonSchema,     // text: the schema
    kRegex,          // text: a pattern of the whole answer
    kGrammar,        // text: GBNF, EBNF
    kChoice,         // choices: one of these texts
    kStructuralTag,  // text: the JSON of structural_tag.h
  };
  Kind kind = Kind::kNone;
  std::string text;
  std::vector<std::string> choices;
  std::string field;  // how the protocol calls it, for messages
  bool operator==(const ConstraintSpec&) const = default;
  // What its grammar depends on: equal for equal grammars, whatever the field is called.
  std::string key() const;
};

// Its rules, and the root of them; not for Kind::kNone. INVALID_ARGUMENT with `field` in message and param.
Result<Rule> add_constraint(const ConstraintSpec& spec, Grammar& grammar);
// The grammar alone, with the same errors.
Result<std::shared_ptr<const Automaton>> compile(const ConstraintSpec& spec);

class ConstraintCompiler {
 public:
  struct Limits {
    size_t max_entries = 256;
    size_t max_bytes = size_t{256} << 20;  // with what masks have learned
  };
  // The vocabulary's trie is made when the first constraint is: 0.1 s for 128,000 tokens. `ends`: tokens that
  // end a text, beside the tokenizer's own EOS.
  explicit ConstraintCompiler(TokenizerPtr tokenizer, std::vector<int32_t> ends = {})
      : tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {}
  ConstraintCompiler(std::shared_ptr<const TokenVocabulary> vocabulary, Limits limits)
      : vocabulary_(std::move(vocabulary)), limits_(limits) {}

  // Null for Kind::kNone.
  Result<std::shared_ptr<const Constraint>> compile(const ConstraintSpec& spec);
  // A grammar that the caller writes. `key` names everything that it depends on.
  using Write = std::function<Result<Rule>(Grammar&)>;
  Result<std::shared_ptr<const Constraint>> compile(std::string key, const Write& write);

  size_t entries() const;

 private:
  struct Kept {
    std::string key;
    std::shared_ptr<const Matcher> matcher;
  };
  const std::shared_ptr<const TokenVocabulary>& vocabulary();
  using Make = std::function<Result<std::shared_ptr<const Automaton>>()>;
  Result<std::shared_ptr<const Constraint>> keep(std::string key, const Make& make);

  TokenizerPtr tokenizer_;
  std::vector<int32_t> ends_;
  std::once_flag made_;
  std::shared_ptr<const TokenVocabulary> vocabulary_;
  Limits limits_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // latest first
  std::map<std::string_view, std::list<Kept>::iterator> by_key_;
};

}  // namespace oar::grammar
