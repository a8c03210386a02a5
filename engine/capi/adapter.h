// The adapters of a model, for the calls that name one.
#pragma once

#include "engine/runtime/language_model.h"

namespace oar::capi {

// FAILED_PRECONDITION where the model was loaded without slots.
Result<std::shared_ptr<Adapters>> adapters_of(const LanguageModel& model);

}  // namespace oar::capi
