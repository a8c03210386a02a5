#include "server/api/model_card.h"

#include <filesystem>

#include "server/api/generation_request.h"

namespace oar::api {
namespace {

// The last part of a path. Where a server keeps its models is nothing for clients.
std::string file_of(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

ModelCard card_of(const ModelHandle& model) {
  ModelCard c;
  c.name = model.name;
  c.file = file_of(model.info.path);
  if (model.chat_template) c.chat_template = model.chat_template->source();
  c.bos_token = model.bos_token;
  c.eos_token = model.eos_token;
  c.max_context = model.engine->request_limits().max_context;
  c.max_sequences = model.info.max_sequences;
  GenerationRequest usual = request_for(model);
  c.sampling = std::move(usual.sampling);
  c.max_tokens = usual.default_max_tokens;
  if (model.adapters)
    for (const AdapterInfo& info : model.adapters->list()) c.adapters.push_back(info.name);
  return c;
}

ModelCard card_of(const TensorModel& encoder) {
  ModelCard c;
  c.name = encoder.config.name;
  c.max_context = encoder.encoder->info().max_tokens;
  c.encodes = true;
  return c;
}

}  // namespace oar::api
