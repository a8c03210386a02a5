// What a model reserves beside what it takes: for each format a model of at least 300 MB of weights is loaded
// and run in a process of its own, and the growth of its resident memory must be what its budget counts,
// within 3 % and 8 MiB. Prints one row each; exits with 1 when a row is outside.
//
//   memory_bench FOLDER [ROW...]    FOLDER has room for 1.2 GB; rows are named in kRows
//
// It measures bytes, not time: a busy machine does not matter.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/format.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/predictor.h"
#include "engine/runtime/text_stream.h"
#include "engine/tune/measure/random_checkpoint.h"
#include "tests/import/onnx_writer.h"

namespace {

using namespace oar;
using namespace oar_test;
namespace fs = std::filesystem;

constexpr double kMiB = 1 << 20;

struct Row {
  const char* name;
  const char* weights;  // --weights, or --precision of an ordinary model
  int layers;           // of 51.4 million weights each; of 4.2 million of an ordinary model
  bool mmap = true, ordinary = false;
};
constexpr Row kRows[] = {
    {"as in the file (bf16)", "auto", 3},
    {"bf16, not mapped", "auto", 3, false},
    {"f32", "f32", 2},
    {"f16", "f16", 3},
    {"int8", "int8", 6},
    {"fp8", "fp8", 6},
    {"q8_0 from memory", "i8_channel", 6},
    {"int4", "q4_0", 11},
    {"ordinary, f32", "f32", 20, true, true},
    {"ordinary, bf16", "bf16", 40, true, true},
    {"ordinary, int8", "int8", 80, true, true},
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "memory_bench: %s\n", why.c_str());
  std::exit(2);
}
template <class T>
T must(Result<T> r) {
  if (!r.ok()) fail(r.status().message());
  return std::move(*r);
}
void must(const Status& s) {
  if (!s.ok()) fail(s.message());
}

double resident() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) return std::strtod(line.c_str() + 6, nullptr) * 1024;
  }
  fail("no /proc/self/status");
}

std::string checkpoint_of(const fs::path& folder, int layers) {
  const fs::path path = folder / cat("layers", layers);
  if (fs::exists(path / "config.json")) return path.string();
  fs::create_directories(path);
  const json::object config{{"model_type", "llama"},
                            {"architectures", {"LlamaForCausalLM"}},
                            {"hidden_size", 2048},
                            {"intermediate_size", 5632},
                            {"num_hidden_layers", layers},
                            {"num_attention_heads", 16},
                            {"num_key_value_heads", 16},
                            {"vocab_size", 512},
                            {"max_position_embeddings", 1024},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 10000.0},
                            {"tie_word_embeddings", false}};
  ThreadPool pool;
  must(write_random_checkpoint(config, path.string(), pool));
  return path.string();
}

// Layers of 2048 x 2048 with an activation between.
std::string onnx_of(const fs::path& folder, int layers) {
  const fs::path path = folder / cat("layers", layers, ".onnx");
  if (fs::exists(path)) return path.string();
  constexpr int64_t kWidth = 2048;
  std::vector<Proto> nodes, weights;
  std::string last = "x";
  for (int i = 0; i < layers; ++i) {
    std::vector<float> values(kWidth * kWidth);
    uint32_t seed = static_cast<uint32_t>(i) + 1;
    for (float& v : values) {
      seed = seed * 1664525 + 1013904223;
      v = static_cast<float>(seed >> 8) * 0x1p-29F - 0.015F;
    }
    weights.push_back(tensor_proto(cat("w", i), {kWidth, kWidth}, values));
    nodes.push_back(node_proto("MatMul", {last, cat("w", i)}, {cat("h", i)}));
    nodes.push_back(node_proto("Relu", {cat("h", i)}, {last = i + 1 == layers ? "y" : cat("a", i)}));
  }
  std::ofstream(path, std::ios::binary) << model_bytes(
      graph_proto(nodes, weights, {value_proto("x", {-1, kWidth})}, {value_proto("y", {-1, kWidth})}));
  return path.string();
}

// Every page that a model of this kind touches has been touched when this returns.
void use(LanguageModel& model) {
  Request request;
  for (int i = 0; i < 64; ++i) request.prompt.push_back(i % 256);
  request.stop.max_tokens = 16;
  request.stop.ignore_eos = true;
  auto stream = TextStream::create(model.tokenizer(), {}, 1);
  must(stream->start(model.engine(), std::move(request)));
  while (!stream->done()) stream->next(std::chrono::seconds(60));
}

std::string file_of(const Row& row, const fs::path& folder) {
  return row.ordinary ? onnx_of(folder, row.layers) : checkpoint_of(folder, row.layers);
}

int measure(const Row& row, const fs::path& folder) {
  const std::string path = file_of(row, folder);
  Resources resources;
  resources.memory = MemoryBudget::make(uint64_t{64} << 30);
  const double before = resident();
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Predictor> predictor;
  std::vector<Datum> results;
  if (row.ordinary) {
    PredictorOptions o;
    o.resources = resources;
    o.import.mmap = row.mmap;
    o.precision = must(parse_precision(row.weights));
    predictor = must(Predictor::open(path, o));
    Tensor x = must(Tensor::zeros({64, 2048}, Format::f32()));
    results = must(predictor->run({Datum(x)}));
  } else {
    LanguageModelOptions o;
    o.resources = resources;
    o.weights = row.weights;
    o.use_mmap = row.mmap;
    o.max_context = 128;
    o.max_sequences = 1;
    o.max_batch_tokens = 64;
    o.cache_bytes = 0;
    model = must(LanguageModel::load(path, o));
    use(*model);
  }
  const auto reserved = static_cast<double>(resources.memory->reserved());
  const double growth = resident() - before;
  const bool within = std::abs(growth - reserved) <= 0.03 * reserved + 8 * kMiB;
  std::printf("%-24s reserved %8.1f MiB, resident %+8.1f MiB, difference %+6.1f MiB %+6.2f %%%s\n", row.name,
              reserved / kMiB, growth / kMiB, (growth - reserved) / kMiB,
              100 * (growth - reserved) / reserved, within ? "" : "  OUTSIDE");
  std::fflush(stdout);
  return within ? 0 : 1;
}

// In a process of its own: what an allocator keeps of other work would be counted, or hide growth.
template <class F>
int apart(F&& f) {
  const pid_t child = fork();
  if (child < 0) fail("cannot fork");
  if (child == 0) _exit(f());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("memory_bench FOLDER [ROW...]");
  bool outside = false;
  for (const Row& row : kRows) {
    bool wanted = argc == 2;
    for (int i = 2; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], row.name) == 0;
    if (!wanted) continue;
    outside = outside || apart([&] { return file_of(row, argv[1]), 0; }) != 0 ||
              apart([&] { return measure(row, argv[1]); }) != 0;
  }
  return outside ? 1 : 0;
}
