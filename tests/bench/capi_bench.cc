// What the C interface costs over the C++ classes beneath it: a run of a predictor, and a streamed token.
//
//   capi_bench [MODEL [rounds]]        MODEL: of the stream; default configs/demo
//
// Both ways alternate within each round; the table has medians over rounds of the time per call or token, and
// of their difference. The graph is one addition of 2 x 2 numbers on the caller's thread, so that nothing but
// the call is left. A token's time holds the model's own; what counts is the difference between reading a
// TextStream in C++ and getting a callback through oar.h.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/capi/oar.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/predictor.h"
#include "engine/runtime/text_stream.h"

namespace {

constexpr int kRuns = 20'000, kTokens = 400, kAnswers = 10;

double microseconds() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "capi_bench: %s\n", why.c_str());
  std::exit(1);
}

void check(oar_status s) {
  if (s != OAR_OK) give_up(oar_last_error());
}

std::string field(int number, const std::string& bytes) {  // of a protobuf message, shorter than 128
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string varint(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}

// z = x + y over f32[2, 2], in ONNX.
std::string write_model() {
  const auto value = [](const char* name) {
    const std::string shape = field(1, varint(1, 2)) + field(1, varint(1, 2));
    return field(1, name) + field(2, field(1, varint(1, 1) + field(2, shape)));
  };
  const std::string node = field(1, "x") + field(1, "y") + field(2, "z") + field(4, "Add");
  const std::string graph =
      field(1, node) + field(2, "g") + field(11, value("x")) + field(11, value("y")) + field(12, value("z"));
  const std::string path = std::filesystem::temp_directory_path() / "oar_capi_bench.onnx";
  std::ofstream(path, std::ios::binary) << varint(1, 8) + field(7, graph) + field(8, varint(2, 17));
  return path;
}

struct Measured {
  std::vector<double> cpp, c, difference;
  void add(double through_cpp, double through_c) {
    cpp.push_back(through_cpp);
    c.push_back(through_c);
    difference.push_back(through_c - through_cpp);
  }
  void print(const char* what, double bound) const {
    std::printf("%-24s C++ %8.3f us   C %8.3f us   difference %+7.3f us (bound %.0f)\n", what, median(cpp),
                median(c), median(difference), bound);
  }
};

Measured measure_runs(int rounds) {
  const std::string path = write_model();
  oar::PredictorOptions options;
  options.threads = 1;
  auto cpp = oar::Predictor::open(path, options);
  if (!cpp.ok()) give_up(cpp.status().message());
  oar_predictor c = 0;
  check(oar_predictor_load(path.c_str(), 1, &c));
  std::filesystem::remove(path);
  const float x[4] = {1, 2, 3, 4};
  oar_tensor tensors[2] = {};
  for (oar_tensor& t : tensors) {
    t.dtype = OAR_F32;
    t.rank = 2;
    t.shape[0] = t.shape[1] = 2;
    t.data = x;
    t.bytes = sizeof x;
  }
  Measured out;
  for (int r = 0; r < rounds; ++r) {
    double begin = microseconds();
    for (int i = 0; i < kRuns; ++i) {
      std::vector<oar::Datum> inputs;
      for (int k = 0; k < 2; ++k) {
        auto t = oar::Tensor::make(oar::Shape({2, 2}), oar::Format::of(oar::DType::kF32),
                                   oar::Buffer::wrap_const(x, sizeof x, nullptr));
        inputs.emplace_back(std::move(*t));
      }
      if (!(*cpp)->run(std::move(inputs)).ok()) give_up("the C++ run failed");
    }
    const double through_cpp = (microseconds() - begin) / kRuns;
    begin = microseconds();
    for (int i = 0; i < kRuns; ++i) {
      oar_outputs outputs;
      check(oar_predictor_run(c, tensors, 2, &outputs));
      check(oar_outputs_close(outputs));
    }
    out.add(through_cpp, (microseconds() - begin) / kRuns);
  }
  check(oar_predictor_close(c));
  return out;
}

int count(const oar_event* event, void* user) {
  *static_cast<size_t*>(user) += event->token_count;
  return 0;
}

Measured measure_tokens(const std::string& path, int rounds) {
  oar::LanguageModelOptions options;
  options.threads = 1;
  options.memory_bytes = uint64_t{256} << 20;
  auto cpp = oar::LanguageModel::load(path, options);
  if (!cpp.ok()) give_up(cpp.status().message());
  oar_model_options c_options;
  check(oar_model_options_init(&c_options, sizeof c_options));
  c_options.threads = 1;
  c_options.memory_bytes = options.memory_bytes;
  oar_model c = 0;
  check(oar_model_load(path.c_str(), &c_options, &c));
  oar_sampling sampling;
  check(oar_sampling_init(&sampling, sizeof sampling));
  sampling.temperature = 0;
  sampling.max_tokens = kTokens;
  sampling.ignore_eos = 1;
  const auto ids = (*cpp)->tokenizer()->encode("ROMEO:");
  if (!ids.ok()) give_up(ids.status().message());
  Measured out;
  for (int r = 0; r <= rounds; ++r) {
    double begin = microseconds();
    for (int a = 0; a < kAnswers; ++a) {
      auto stream = oar::TextStream::create((*cpp)->tokenizer(), {}, 1);
      oar::Request request;
      request.prompt = *ids;
      request.sampling.temperature = 0;
      request.stop.max_tokens = kTokens;
      request.stop.ignore_eos = true;
      if (const oar::Status s = stream->start((*cpp)->engine(), std::move(request)); !s.ok())
        give_up(s.message());
      size_t tokens = 0;
      while (!stream->done())
        if (auto event = stream->next(std::chrono::seconds(1))) tokens += event->tokens.size();
      if (tokens != kTokens) give_up("the C++ stream has lost tokens");
    }
    const double through_cpp = (microseconds() - begin) / (kAnswers * kTokens);
    begin = microseconds();
    for (int a = 0; a < kAnswers; ++a) {
      size_t tokens = 0;
      oar_generation g;
      check(oar_generate_text(c, "ROMEO:", &sampling, count, &tokens, &g));
      check(oar_generation_wait(g, -1));
      check(oar_generation_close(g));
      if (tokens != kTokens) give_up("the callback has lost tokens");
    }
    if (r > 0) out.add(through_cpp, (microseconds() - begin) / (kAnswers * kTokens));  // round 0 warms up
  }
  check(oar_model_close(c));
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "configs/demo";
  const int rounds = argc > 2 ? static_cast<int>(std::strtol(argv[2], nullptr, 10)) : 15;
  if (rounds < 1) give_up("usage: capi_bench [MODEL [rounds]]");
  measure_runs(rounds).print("predictor run", 2);
  measure_tokens(model, rounds).print("streamed token", 5);
  return 0;
}
