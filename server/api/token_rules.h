// Rules about single tokens of an answer, on top of whatever else it has to be: allowed_token_ids and
// bad_words, as vLLM means them. https://docs.vllm.ai/en/latest/api/vllm/sampling_params.html
//
//   allowed   only these tokens are drawn; those that end a text must be among them to end it
//   banned    sequences of tokens, none of which an answer holds: its last token is not drawn behind the
//             others. The same text made of other tokens is not one of them.
#pragma once

#include <memory>
#include <vector>

#include "engine/base/constraint.h"

namespace oar::api {

struct TokenRules {
  int64_t vocab_size = 0;
  std::vector<int32_t> allowed;              // empty: all
  std::vector<std::vector<int32_t>> banned;  // none empty
  bool may_end = true;                       // whether a token that ends a text is allowed
  bool any() const { return !allowed.empty() || !banned.empty(); }
};

// `inner` (may be null) and the rules.
std::shared_ptr<const Constraint> with_rules(std::shared_ptr<const Constraint> inner, TokenRules rules);

}  // namespace oar::api
