// Adapters: oar_model_load_lora(), oar_model_unload_lora(), oar_model_list_loras().
#include "engine/base/json.h"
#include "engine/capi/adapter.h"
#include "engine/capi/call.h"
#include "engine/capi/handles.h"
#include "engine/capi/model.h"

namespace oar::capi {

Result<std::shared_ptr<Adapters>> adapters_of(const LanguageModel& model) {
  if (model.adapters() != nullptr) return model.adapters();
  return Status(StatusCode::kFailedPrecondition,
                "the model was loaded without slots for adapters; load it with max_loras 1 or more",
                "max_loras");
}

}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

oar_status oar_model_load_lora(oar_model model, const char* lora_name, const char* lora_path) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    if (lora_name == nullptr) return null_argument("lora_name");
    if (lora_path == nullptr) return null_argument("lora_path");
    OAR_ASSIGN(const auto adapters, adapters_of(object->language_model()));
    return adapters->load(lora_name, lora_path).status();
  });
}

oar_status oar_model_unload_lora(oar_model model, const char* lora_name) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    if (lora_name == nullptr) return null_argument("lora_name");
    OAR_ASSIGN(const auto adapters, adapters_of(object->language_model()));
    return adapters->unload(lora_name);
  });
}

oar_status oar_model_list_loras(oar_model model, char* text, size_t capacity, size_t* length) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    json::array out;
    if (const auto& adapters = object->language_model().adapters()) {
      for (const AdapterInfo& i : adapters->list())
        out.push_back({{"name", i.name}, {"path", i.path}, {"rank", i.rank}, {"base", i.base}});
    }
    return write_text(json::serialize(out), text, capacity, length);
  });
}

}  // extern "C"
