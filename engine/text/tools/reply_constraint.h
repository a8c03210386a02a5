// What may be written while a reply's reasoning lasts, and after it: reasoning is free, but no longer than
// its budget, after which its closing marker is all that may follow. A constraint of the answer begins behind
// it.
//
// Everything is one Constraint, so the engine's step knows nothing of reasoning.
#pragma once

#include <memory>
#include <optional>

#include "engine/base/constraint.h"
#include "engine/text/tools/reply_format.h"

namespace oar {

// `budget`: tokens of reasoning, its closing marker not counted; absent: no bound. `answer`: of what follows;
// null: anything. Gives `answer` itself, perhaps null, where there is no reasoning to look after.
std::shared_ptr<const Constraint> make_reply_constraint(const ReplyFormat* format, TokenizerPtr tokenizer,
                                                        std::optional<int64_t> budget,
                                                        std::shared_ptr<const Constraint> answer);

}  // namespace oar
