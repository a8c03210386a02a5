// What Ollama's clients hear of the models here: /api/tags, /api/ps, /api/show. There is no digest to tell,
// as nothing is pulled, and no time at which a model would leave.
#pragma once

#include <string>
#include <vector>

#include "server/api/model_catalog.h"
#include "server/api/ollama_request.h"

namespace oar::api {

// {"models": [...]}: what is loaded, adapters too. `running`: as /api/ps has it.
std::string ollama_list(const std::vector<ServedModel>& models, bool running);
std::string ollama_show(const ServedModel& model, const OllamaShowRequest& request);

}  // namespace oar::api
