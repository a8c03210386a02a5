// An example of a gRPC client in C++: one question to oar.v1.Generation, the answer printed as it comes, then
// the speed. It needs gRPC and the generated code of proto/oar/v1/oar.proto, nothing of Oar's own.
//
//   oar_grpc_client [--address 127.0.0.1:8001] [--model NAME] [--max-tokens N] [--temperature X] [--seed S]
//                   [--api-key KEY] PROMPT
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "oar/v1/oar.grpc.pb.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Options {
  std::string address = "127.0.0.1:8001";
  std::string model;  // empty: the first one served
  std::string api_key;
  std::string prompt;
  int64_t max_tokens = 128;
  float temperature = -1;  // negative: the model's own
  uint64_t seed = 1;
};

oar::v1::GenerateRequest make_request(const Options& o) {
  oar::v1::GenerateRequest request;
  request.set_model(o.model);
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->set_content(o.prompt);
  request.mutable_stopping()->set_max_tokens(o.max_tokens);
  request.mutable_sampling()->set_seed(o.seed);
  if (o.temperature >= 0) request.mutable_sampling()->set_temperature(o.temperature);
  return request;
}

int ask(const Options& o) {
  auto channel = grpc::CreateChannel(o.address, grpc::InsecureChannelCredentials());
  auto stub = oar::v1::Generation::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  if (!o.api_key.empty()) context.AddMetadata("authorization", "Bearer " + o.api_key);

  const auto start = Clock::now();
  Clock::time_point first;
  int64_t tokens = 0;
  auto reader = stub->Generate(&context, make_request(o));
  oar::v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    if (!chunk.text().empty() && first == Clock::time_point{}) first = Clock::now();
    std::fwrite(chunk.text().data(), 1, chunk.text().size(), stdout);
    std::fflush(stdout);
    if (chunk.has_usage()) tokens += chunk.usage().completion_tokens();
  }
  const grpc::Status status = reader->Finish();
  const auto end = Clock::now();
  if (!status.ok()) {
    std::fprintf(stderr, "oar_grpc_client: %s: %s (code %d)\n", o.address.c_str(),
                 status.error_message().c_str(), static_cast<int>(status.error_code()));
    return 1;
  }
  if (first == Clock::time_point{}) {
    std::fprintf(stderr, "oar_grpc_client: the answer had no text\n");
    return 1;
  }
  const double decode = std::max(seconds(end - first), 1e-9);
  std::printf("\n[%lld tokens; first after %.1f ms, then %.1f tokens/s]\n", static_cast<long long>(tokens),
              seconds(first - start) * 1e3, static_cast<double>(tokens - 1) / decode);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Asks a running Oar server over gRPC and prints the answer as it comes.", "oar_grpc_client");
  app.add_option("prompt", o.prompt, "the question")->required();
  app.add_option("--address", o.address, "host:port")->capture_default_str();
  app.add_option("--model", o.model, "default: the first model served");
  app.add_option("--max-tokens", o.max_tokens)->capture_default_str();
  app.add_option("--temperature", o.temperature, "default: the model's own");
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--api-key", o.api_key)->envname("OAR_API_KEY");
  CLI11_PARSE(app, argc, argv);
  return ask(o);
}
