// A server of language models that take adapters, and an adapter.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/repository/repository.h"
#include "tests/loader/builders.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

// Of a projection of the tiny model: rank 1, every number the same.
inline std::string write_adapter(const std::string& config, float number = 0.5f,
                                 const char* name = "tiny-adapter") {
  const oar::json::value base = oar::json::parse(config);
  const auto inputs = base.at("hidden_size").as_int64(), outputs = base.at("intermediate_size").as_int64();
  const std::string module = "base_model.model.model.layers.0.mlp.up_proj";
  const auto entry = [&](const char* half, const std::string& shape, int64_t begin, int64_t end) {
    return oar::cat("\"", module, half, R"(.weight": {"dtype": "F32", "shape": [)", shape,
                    R"(], "data_offsets": [)", begin * 4, ", ", end * 4, "]}");
  };
  const std::string header =
      oar::cat("{", entry(".lora_A", oar::cat("1, ", inputs), 0, inputs), ", ",
               entry(".lora_B", oar::cat(outputs, ", 1"), inputs, inputs + outputs), "}");
  const std::vector<float> numbers(static_cast<size_t>(inputs + outputs), number);
  const std::filesystem::path folder = std::filesystem::path(temp_dir()) / name;
  std::filesystem::create_directories(folder);
  write_file((folder / "adapter_config.json").string(), R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1})");
  write_file((folder / "adapter_model.safetensors").string(),
             safetensors_bytes(
                 header, {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)}));
  return folder.string();
}

using Parameters = std::vector<std::pair<std::string, std::string>>;

// Language models "bare", without slots, "lm" and, where `two`, "other", each with two slots.
struct AdapterServer {
  explicit AdapterServer(bool two = false, bool control = true, oar::ServerOptions o = {}) {
    const TinyGolden golden = load_tiny_golden("llama3");
    const std::string tiny = write_tiny_model(golden, TinyDtype::f32);
    std::ofstream(std::filesystem::path(tiny) / "tokenizer.json") << byte_tokenizer_json(false);
    config = golden.config;
    adapter = write_adapter(config);
    const std::filesystem::path folder =
        std::filesystem::path(temp_dir()) / (two ? "adapters-two" : "adapters-one");
    std::filesystem::remove_all(folder);
    for (const char* name : {"bare", "lm", "other"}) {
      if (!two && std::string_view(name) == "other") continue;
      std::filesystem::create_directories(folder / name);
      std::filesystem::copy(tiny, folder / name / "1", std::filesystem::copy_options::recursive);
    }
    oar::RepositoryOptions r;
    r.predictor.threads = 1;
    r.open_language = [](const std::string& name, const std::string& path) {
      oar::LanguageModelOptions o;
      o.name = name;
      o.threads = 1;
      o.max_sequences = 4;
      o.max_context = 64;
      o.memory_bytes = 64 << 20;
      o.max_loras = name == "bare" ? 0 : 2;
      return oar::LanguageModel::load(path, o);
    };
    auto catalog = oar::open_repository(folder.string(), "", r);
    REQUIRE_OK(catalog);
    o.http_address = o.grpc_address = "127.0.0.1:0";
    o.model_control = control;
    auto started = oar::Server::start(o, std::shared_ptr<oar::api::ModelCatalog>(std::move(*catalog)));
    REQUIRE_OK(started);
    server = std::move(*started);
    stub = std::make_unique<inference::GRPCInferenceService::Stub>(channel_to(server->grpc_port()));
  }

  HttpReply post(const std::string& path, const std::string& body = "{}") const {
    return http(server->http_port(), "POST", path, body);
  }
  HttpReply load(const std::string& name, const Parameters& parameters) const {
    oar::json::object object, body;
    for (const auto& [key, value] : parameters) object[key] = value;
    body["parameters"] = object;
    return post(oar::cat("/v2/repository/models/", name, "/load"), oar::json::serialize(body));
  }
  HttpReply unload(const std::string& name) const {
    return post(oar::cat("/v2/repository/models/", name, "/unload"));
  }
  // Of a short completion: its text, or its status.
  std::string text(const std::string& model) const {
    const HttpReply r =
        post("/v1/completions",
             oar::cat(R"({"prompt":"x","max_tokens":8,"temperature":0,"model":")", model, "\"}"));
    if (r.status != 200) return oar::cat(r.status);
    return std::string(parse(r.body).at("choices").at(0).at("text").as_string());
  }
  // "NAME STATE" of each, by HTTP and by gRPC, which must say the same.
  std::vector<std::string> index() const {
    std::vector<std::string> out, over_grpc;
    const oar::json::value all = parse(post("/v2/repository/index").body);
    for (const oar::json::value& m : all.as_array())
      out.push_back(
          oar::cat(std::string(m.at("name").as_string()), " ", std::string(m.at("state").as_string())));
    grpc::ClientContext context;
    inference::RepositoryIndexResponse listed;
    REQUIRE(stub->RepositoryIndex(&context, {}, &listed).ok());
    for (const auto& m : listed.models()) over_grpc.push_back(oar::cat(m.name(), " ", m.state()));
    CHECK(out == over_grpc);
    return out;
  }
  grpc::Status grpc_load(const std::string& name, const Parameters& parameters) const {
    grpc::ClientContext context;
    inference::RepositoryModelLoadRequest ask;
    ask.set_model_name(name);
    for (const auto& [key, value] : parameters) (*ask.mutable_parameters())[key].set_string_param(value);
    inference::RepositoryModelLoadResponse answer;
    return stub->RepositoryModelLoad(&context, ask, &answer);
  }
  grpc::Status grpc_unload(const std::string& name) const {
    grpc::ClientContext context;
    inference::RepositoryModelUnloadRequest ask;
    ask.set_model_name(name);
    inference::RepositoryModelUnloadResponse answer;
    return stub->RepositoryModelUnload(&context, ask, &answer);
  }

  std::string config, adapter;
  std::unique_ptr<oar::Server> server;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
};

}  // namespace oar_test
