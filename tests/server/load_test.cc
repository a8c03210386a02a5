// A real engine with a small model behind both protocols, and many clients that leave at every state: before
// their request is whole, while it waits, while it prefills, between two tokens, without ever reading.
// Neighbours that stay must get the text they get alone, and in the end every block is free and the server
// still answers. The pool is a few sequences wide, so admission, preemption and the prefix cache are all at
// work. Run under ThreadSanitizer too (preset tsan).
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace {

using namespace oar_test;  // NOLINT
using namespace std::chrono_literals;
using oar::LanguageModel;
using oar::LanguageModelOptions;
using Random = std::mt19937;

constexpr int kClients = 8;
constexpr int kRounds = 40;  // of each client
constexpr int kPoolBlocks = 48;
constexpr int kPageTokens = 16;

// The random model tiny-llama3 (context 256) with the 256 bytes as its vocabulary.
std::string model_folder() {
  const std::string folder = write_tiny_model(load_tiny_golden("llama3"), TinyDtype::f32);
  std::ofstream(std::filesystem::path(folder) / "tokenizer.json") << byte_tokenizer_json(false);
  return folder;
}

std::unique_ptr<LanguageModel> load_model() {
  LanguageModelOptions o;
  o.name = "tiny";
  o.threads = 2;
  o.max_sequences = 6;
  o.max_batch_tokens = 48;  // a prompt takes several steps
  o.page_tokens = kPageTokens;
  o.max_waiting = 64;
  o.deterministic = true;
  o.seed = 1;
  const std::string folder = model_folder();
  auto roomy = LanguageModel::load(folder, o);
  REQUIRE_OK(roomy);
  const oar::ModelInfo info = (*roomy)->info();
  roomy->reset();
  o.memory_bytes =
      info.weight_bytes + info.scratch_bytes + kPoolBlocks * kPageTokens * info.kv_bytes_per_token;
  auto model = LanguageModel::load(folder, o);
  REQUIRE_OK(model);
  REQUIRE((*model)->info().num_blocks == kPoolBlocks);
  return std::move(model).value();
}

std::string text_of_length(Random& random, int length) {
  std::string text;
  for (int i = 0; i < length; ++i) text += static_cast<char>('a' + static_cast<int>(random() % 26));
  return text;
}

// Prompts share beginnings, so that the prefix cache is hit and its blocks are shared.
std::string random_prompt(Random& random) {
  const std::string shared(40 + 8 * (random() % 4), 'p');
  return shared + text_of_length(random, 1 + static_cast<int>(random() % 120));
}

// A completion that runs for up to `tokens` tokens.
std::string completion(Random& random, int tokens, bool stream) {
  return oar::cat(R"({"prompt":")", random_prompt(random), R"(","max_tokens":)", tokens,
                  R"(,"ignore_eos":true,"n":)", 1 + random() % 3, R"(,"temperature":)", random() % 2,
                  R"(,"stream":)", stream ? "true" : "false", "}");
}

// What every neighbour asks, and the text it must get however busy the server is.
constexpr const char* kFixed = R"({"prompt":"the same question to everybody, longer than a page",)"
                               R"("max_tokens":40,"ignore_eos":true,"temperature":0,"stream":true})";
std::string fixed_answer(int port) {
  const HttpReply reply = http(port, "POST", "/v1/completions", kFixed);
  if (reply.status != 200 || !reply.complete) return oar::cat("status ", reply.status, " ", reply.body);
  std::string text;
  for (const std::string& data : sse_data(reply.body)) {
    if (data == "[DONE]") return text;
    text += parse(data).at("choices").at(0).at("text").as_string();
  }
  return "no [DONE]";
}

// ---- what a client may do; each leaves nothing behind
// -----------------------------------------------------------

// Leaves in the middle of the request's head or body.
void http_half_request(int port, Random& random) {
  const std::string whole = make_request("POST", "/v1/completions", completion(random, 200, true));
  RawClient c(port);
  c.send(whole.substr(0, random() % whole.size()));
  if (random() % 2 == 0) c.reset();
}

// Leaves after 0 to a few events: waiting, prefilling or decoding by then.
void http_leaves_stream(int port, Random& random) {
  RawClient c(port);
  c.send(make_request("POST", "/v1/completions", completion(random, 150, true)));
  const int reads = static_cast<int>(random() % 5);
  for (int i = 0; i < reads; ++i) c.receive(20ms);
  if (random() % 2 == 0) c.reset();
}

// Asks for one long answer and leaves before it comes.
void http_leaves_whole(int port, Random& random) {
  RawClient c(port);
  c.send(make_request("POST", "/v1/completions", completion(random, 100, false)));
  c.receive(std::chrono::milliseconds(random() % 60));
  c.reset();
}

// Never reads, with a receive buffer that fills at once.
void http_never_reads(int port, Random& random) {
  RawClient c(port, 2048);
  c.send(make_request("POST", "/v1/completions", completion(random, 180, true)));
  std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 80));
  c.reset();
}

// Closes its sending side and reads on: a half-closed connection gets its answer or is dropped, but hangs
// nothing.
void http_half_closes(int port, Random& random) {
  RawClient c(port);
  c.send(make_request("POST", "/v1/completions", completion(random, 8, true)));
  c.shutdown_send();
  c.receive_all(10s);
}

oar::v1::GenerateRequest generate_request(Random& random) {
  oar::v1::GenerateRequest r;
  r.set_prompt(random_prompt(random));
  r.set_n(1 + static_cast<int32_t>(random() % 3));
  r.mutable_stopping()->set_ignore_eos(true);
  r.mutable_stopping()->set_max_tokens(150);
  if (random() % 3 == 0) r.mutable_stopping()->add_stop("zz");
  return r;
}

void grpc_cancels(int port, Random& random) {
  const auto stub = oar::v1::Generation::NewStub(channel_to(port));
  grpc::ClientContext context;
  auto reader = stub->Generate(&context, generate_request(random));
  oar::v1::GenerateChunk chunk;
  const int reads = static_cast<int>(random() % 4);
  for (int i = 0; i < reads && reader->Read(&chunk); ++i) continue;
  context.TryCancel();
  while (reader->Read(&chunk)) continue;
  reader->Finish();
}

void grpc_deadline(int port, Random& random) {
  const auto stub = oar::v1::Generation::NewStub(channel_to(port));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1 + random() % 60));
  auto reader = stub->Generate(&context, generate_request(random));
  oar::v1::GenerateChunk chunk;
  while (reader->Read(&chunk)) continue;
  reader->Finish();
}

// Several requests on one ModelStreamInfer, abandoned in the middle.
void grpc_infer_stream(int port, Random& random) {
  const auto stub = inference::GRPCInferenceService::NewStub(channel_to(port));
  grpc::ClientContext context;
  auto stream = stub->ModelStreamInfer(&context);
  const int requests = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < requests; ++i) {
    inference::ModelInferRequest r =
        text_request(random_prompt(random), R"({"max_tokens":60,"ignore_eos":true})");
    r.set_model_name("tiny");
    add_input(r, "stream", "BOOL")->mutable_contents()->add_bool_contents(true);
    if (!stream->Write(r)) break;
  }
  inference::ModelStreamInferResponse response;
  const int reads = static_cast<int>(random() % 6);
  for (int i = 0; i < reads && stream->Read(&response); ++i) continue;
  if (random() % 2 == 0) stream->WritesDone();
  context.TryCancel();
  while (stream->Read(&response)) continue;
  stream->Finish();
}

using Behaviour = void (*)(int port, Random& random);
constexpr Behaviour kHttp[] = {http_half_request, http_leaves_stream, http_leaves_whole, http_never_reads,
                               http_half_closes};
constexpr Behaviour kGrpc[] = {grpc_cancels, grpc_deadline, grpc_infer_stream};

bool wait_idle(oar::Engine& engine) {
  for (int i = 0; i < 3000; ++i) {
    const oar::EngineStats s = engine.stats();
    if (s.running + s.waiting == 0 && s.blocks_used == 0) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

}  // namespace

TEST_CASE("a real engine under load with disconnects at every state") {
  const std::shared_ptr<LanguageModel> model = load_model();
  oar::ServerOptions options;
  options.http_address = options.grpc_address = "127.0.0.1:0";
  auto server = oar::Server::start(options, serving({oar::make_handle(model)}));
  REQUIRE_OK(server);
  const int http_port = (*server)->http_port(), grpc_port = (*server)->grpc_port();
  oar::Engine& engine = model->engine();
  for (int i = 0; i < 3000 && engine.health() == oar::EngineHealth::kStarting; ++i)
    std::this_thread::sleep_for(10ms);
  REQUIRE(engine.health() == oar::EngineHealth::kReady);

  const std::string alone = fixed_answer(http_port);
  REQUIRE(alone.size() >= 20);

  std::atomic<int> stayed{0}, other_text{0};
  std::atomic<int> most_waiting{0};
  std::vector<std::thread> clients;
  for (int k = 0; k < kClients; ++k) {
    clients.emplace_back([&, k] {
      Random random(static_cast<uint32_t>(1000 + k));
      for (int i = 0; i < kRounds; ++i) {
        most_waiting = std::max<int>(most_waiting, static_cast<int>(engine.stats().waiting));
        if (i % 4 == 3) {
          ++(fixed_answer(http_port) == alone ? stayed : other_text);
        } else if (random() % 2 == 0) {
          kHttp[random() % std::size(kHttp)](http_port, random);
        } else {
          kGrpc[random() % std::size(kGrpc)](grpc_port, random);
        }
      }
    });
  }
  for (std::thread& c : clients) c.join();

  CHECK(stayed == kClients * kRounds / 4);
  CHECK(other_text == 0);
  CHECK(wait_idle(engine));
  const oar::EngineStats s = engine.stats();
  CHECK(s.blocks_used == 0);
  CHECK(s.blocks_total == kPoolBlocks);
  CHECK(s.finished[static_cast<size_t>(oar::FinishReason::kCancelled)] > 0);
  CHECK(s.prefix_hits > 0);
  CHECK(s.health == oar::EngineHealth::kReady);
  CAPTURE(s.preemptions, most_waiting.load(), s.steps);

  // Still there for everybody, and what the cache has kept has not been damaged.
  CHECK(fixed_answer(http_port) == alone);
  {
    const auto stub = oar::v1::Generation::NewStub(channel_to(grpc_port));
    grpc::ClientContext context;
    oar::v1::GenerateRequest request;
    request.set_prompt("a");
    request.mutable_stopping()->set_max_tokens(3);
    auto reader = stub->Generate(&context, request);
    oar::v1::GenerateChunk chunk;
    while (reader->Read(&chunk)) continue;
    CHECK(reader->Finish().ok());
  }
  CHECK((*server)->drain_and_stop(10s));
  CHECK(engine.stats().blocks_used == 0);
}
