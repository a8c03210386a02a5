// The options of oar_predictor_open() and oar_encoder_open() as the engine's.
#pragma once

#include "engine/capi/oar.h"
#include "engine/runtime/predictor.h"

namespace oar::capi {

// INVALID_ARGUMENT names the field; FAILED_PRECONDITION after oar_shutdown().
Result<PredictorOptions> options_of(const oar_predictor_options& o);

}  // namespace oar::capi
