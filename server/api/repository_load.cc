#include "server/api/repository_load.h"

#include "engine/base/format.h"
#include "server/api/fields.h"
#include "server/api/model_catalog.h"

namespace oar::api {

Status read_parameter(std::string_view name, const std::string* text, const bool* flag, bool loads,
                      RepositoryLoad& out) {
  if (name == "unload_dependents") {
    if (flag == nullptr)
      return invalid_argument("unload_dependents must be true or false", "unload_dependents");
    out.dependents = *flag;  // an adapter goes with its model at any rate; a load has nothing to unload
    return ok_status();
  }
  const bool config = name == "config", path = name == "lora_path", base = name == "base_model_name";
  if (!loads || !(config || path || base))
    return unimplemented(
        cat("the parameter ", describe(json::value(name)), " is not offered; ",
            loads ? "there is config, of a model in the server's own folder, and lora_path and "
                    "base_model_name, of an adapter"
                  : "an unload has unload_dependents"));
  if (text == nullptr)
    return invalid_argument(cat(name, config ? " must be a string that holds JSON" : " must be a string"),
                            std::string(name));
  if (config) out.config = *text;
  else (path ? out.lora_path : out.base_model_name) = *text;
  return ok_status();
}

Status load_as_asked(ModelCatalog& catalog, const std::string& name, const RepositoryLoad& asked) {
  if (!asked.lora_path) {
    if (!asked.base_model_name) return catalog.load(name, asked.config);
    return invalid_argument("base_model_name is given and lora_path is not; give the adapter's folder too",
                            "lora_path");
  }
  if (!asked.config.empty())
    return invalid_argument("config and lora_path are given; an adapter has no config: leave one of them out",
                            "config");
  const auto check = [](const char* field, const std::string& text, size_t most) -> Status {
    if (!text.empty() && text.size() <= most) return ok_status();
    return invalid_argument(cat(field, " has ", text.size(), " bytes; give 1 to ", most), field);
  };
  OAR_RETURN_IF_ERROR(check("lora_path", *asked.lora_path, kMaxAdapterPath));
  OAR_RETURN_IF_ERROR(check("model_name", name, kMaxAdapterName));
  if (asked.base_model_name)
    OAR_RETURN_IF_ERROR(check("base_model_name", *asked.base_model_name, kMaxAdapterName));
  return catalog.load_adapter(name, *asked.lora_path, asked.base_model_name.value_or(""));
}

}  // namespace oar::api
