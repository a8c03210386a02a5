// What adapters (LoRA) cost a decode step: rows with adapters of their own, with one for all, and for some.
// Each turn of these stands between two of the same rows without; what it takes more than their mean is the
// added time. Beside that stands its bound: the bytes of the adapters in use over the read probe, plus their
// operations over the f32 peak.
//
//   lora_bench MODEL [--weights bf16] [--rank 16] [--threads N] [--rounds 5] [--rows 8,32] [--modules
//   attention,all]
//              [--tokens 128] [--wait]
//
// Adapters are random, in bf16, of q, k, v, o (attention) and of all seven layers. The probe is measured
// before each turn; medians over rounds. --tokens: of a stream and turn; prompts join a few rows a step, and
// all streams must meet. --wait: a line on standard input begins the rounds, so that a quiet moment is not
// spent on loading.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "engine/base/json.h"
#include "engine/runtime/language_model.h"
#include "engine/tune/measure/arithmetic_peak.h"
#include "engine/tune/measure/bandwidth.h"
#include "tests/runtime/collect_sink.h"

namespace {

using namespace oar;
using namespace oar_test;
namespace fs = std::filesystem;

struct ModelShape {
  int64_t hidden, inner, heads, kv_heads, head_dim, layers;
};

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "lora_bench: %s\n", why.c_str());
  std::exit(2);
}

template <class T>
T must(Result<T> r) {
  if (!r.ok()) fail(r.status().message());
  return std::move(r).value();
}

struct Layer {
  std::string name;
  int64_t in, out;
};

std::vector<Layer> layers_of(const ModelShape& s, bool all) {
  std::vector<Layer> out = {{"self_attn.q_proj", s.hidden, s.heads * s.head_dim},
                            {"self_attn.k_proj", s.hidden, s.kv_heads * s.head_dim},
                            {"self_attn.v_proj", s.hidden, s.kv_heads * s.head_dim},
                            {"self_attn.o_proj", s.heads * s.head_dim, s.hidden}};
  if (all) {
    out.push_back({"mlp.gate_proj", s.hidden, s.inner});
    out.push_back({"mlp.up_proj", s.hidden, s.inner});
    out.push_back({"mlp.down_proj", s.inner, s.hidden});
  }
  return out;
}

// A folder in PEFT's layout; numbers of one draw, small enough to change no text's length.
std::string write_adapter(const fs::path& folder, const ModelShape& s, const std::vector<Layer>& layers,
                          int64_t rank) {
  fs::create_directories(folder);
  json::array targets;
  for (const Layer& l : layers) targets.push_back(json::string(l.name.substr(l.name.find('.') + 1)));
  const json::object config{{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"r", rank},
                            {"lora_alpha", rank},  {"bias", "none"},           {"target_modules", targets}};
  std::ofstream(folder / "adapter_config.json") << json::serialize(config);
  json::object header;
  std::string data;
  uint64_t dice = 88172645463325252ULL;
  const auto tensor = [&](const std::string& name, int64_t rows, int64_t cols) {
    const size_t begin = data.size();
    for (int64_t i = 0; i < rows * cols; ++i) {
      dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
      const uint16_t bf16 = static_cast<uint16_t>(0x3800 | (dice & 0x807f));  // +- 3e-5 .. 6e-5
      data.append(reinterpret_cast<const char*>(&bf16), sizeof bf16);
    }
    header[name] = json::object{{"dtype", "BF16"},
                                {"shape", json::array{rows, cols}},
                                {"data_offsets", json::array{begin, data.size()}}};
  };
  for (int64_t n = 0; n < s.layers; ++n)
    for (const Layer& l : layers) {
      const std::string name = "base_model.model.model.layers." + std::to_string(n) + "." + l.name + ".lora_";
      tensor(name + "A.weight", rank, l.in);
      tensor(name + "B.weight", l.out, rank);
    }
  std::string text = json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::ofstream out(folder / "adapter_model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text << data;
  return folder.string();
}

// Seconds of the median step that holds `rows` decodes and nothing else; stream i has adapter names[i], ""
// none.
double step_seconds(LanguageModel& model, const std::vector<std::string>& names, int64_t tokens) {
  std::mutex mutex;
  std::vector<double> seconds;
  const auto rows = static_cast<int64_t>(names.size());
  model.engine().on_step([&](const StepInfo& s) {
    if (s.prefill_tokens > 0 || s.sequences != rows) return;
    std::lock_guard lock(mutex);
    seconds.push_back(s.seconds);
  });
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (size_t i = 0; i < names.size(); ++i) {
    Request r;
    for (int32_t k = 0; k < 4; ++k) r.prompt.push_back(100 + 7 * static_cast<int32_t>(i) + k);
    r.stop = {.max_tokens = tokens, .ignore_eos = true};
    if (!names[i].empty()) r.adapter = model.adapters()->find(names[i]);
    sinks.push_back(std::make_shared<CollectSink>());
    r.sink = sinks.back();
    must(model.engine().submit(std::move(r)));
  }
  for (auto& s : sinks) s->wait(std::chrono::hours(1));
  model.engine().on_step({});
  std::sort(seconds.begin(), seconds.end());
  if (seconds.empty()) fail("no step held all " + std::to_string(rows) + " streams: fewer run at once");
  return seconds[seconds.size() / 2];
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, weights = "bf16";
  int64_t rank = 16, tokens = 128;
  int threads = 0, rounds = 5;
  std::vector<size_t> row_counts = {8, 32};
  std::vector<std::string> modules = {"attention", "all"};
  bool wait = false;
  CLI::App app("What adapters cost a decode step");
  app.add_option("MODEL", folder)->required();
  app.add_option("--weights", weights);
  app.add_option("--rank", rank);
  app.add_option("--threads", threads, "0: all usable CPUs");
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  app.add_option("--rows", row_counts)->delimiter(',')->check(CLI::Range(1, 32));
  app.add_option("--modules", modules)->delimiter(',')->check(CLI::IsMember({"attention", "all"}));
  app.add_option("--tokens", tokens);
  app.add_flag("--wait", wait);
  CLI11_PARSE(app, argc, argv);
  std::ifstream in(fs::path(folder) / "config.json");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const json::value root = must(parse_json(text, "config.json"));
  const json::object& config = root.as_object();
  const auto number = [&](const char* key) { return config.at(key).to_number<int64_t>(); };
  const ModelShape shape{
      number("hidden_size"),         number("intermediate_size"), number("num_attention_heads"),
      number("num_key_value_heads"), number("head_dim"),          number("num_hidden_layers")};
  const fs::path work = fs::temp_directory_path() / ("lora_bench-" + std::to_string(::getpid()));
  for (const std::string& which : modules) {
    const bool all = which == "all";
    const std::vector<Layer> layers = layers_of(shape, all);
    const std::string adapter = write_adapter(work, shape, layers, rank);
    LanguageModelOptions o;
    o.weights = weights;
    o.threads = threads;
    o.max_context = tokens + 16;
    o.max_sequences = 32;
    o.max_loras = 32;
    o.max_lora_rank = rank;
    const auto model = must(LanguageModel::load(folder, o));
    std::vector<std::string> own;
    for (int i = 0; i < 32; ++i) {
      own.push_back("a" + std::to_string(i));
      must(model->adapters()->load(own.back(), adapter));
    }
    double numbers = 0;  // of one adapter
    for (const Layer& l : layers) numbers += static_cast<double>(shape.layers * rank * (l.in + l.out));
    ThreadPool pool({.threads = threads});
    ReadProbe probe = must(ReadProbe::create(pool, uint64_t{512} << 20));
    if (wait) {
      std::printf("ready\n");
      std::fflush(stdout);
      while (const int c = std::getchar()) {
        if (c == '\n' || c == EOF) break;
      }
    }
    const double peak = arithmetic_peak(pool, Arithmetic::kF32, best_isa());
    std::printf("%s, rank %lld, %s: %.1f MB an adapter, f32 peak %.0f GFLOP/s\n", weights.c_str(),
                static_cast<long long>(rank), all ? "seven layers" : "q, k, v, o", 2e-6 * numbers,
                1e-9 * peak);
    std::printf("%5s %-24s %9s %9s %9s %9s %9s\n", "rows", "adapters", "without", "with", "added", "of bound",
                "GB/s");
    for (const size_t rows : row_counts) {
      const std::vector<std::string> none(rows),
          each(own.begin(), own.begin() + static_cast<ptrdiff_t>(rows)), one(rows, own[0]);
      std::vector<std::string> half = each;
      for (size_t i = 0; i < rows; i += 2) half[i].clear();
      std::vector<std::string> single = none;
      single[0] = own[0];
      struct Turn {
        const char* name;
        const std::vector<std::string>* names;
        double adapters, rows;
        std::vector<double> seconds, added, of_bound;
      };
      Turn turns[] = {
          {"one for each row", &each, static_cast<double>(rows), static_cast<double>(rows), {}, {}, {}},
          {"one for all rows", &one, 1, static_cast<double>(rows), {}, {}, {}},
          {"half of the rows",
           &half,
           static_cast<double>(rows) / 2,
           static_cast<double>(rows) / 2,
           {},
           {},
           {}},
          {"one row alone", &single, 1, 1, {}, {}, {}}};
      std::vector<double> bandwidths, without;
      for (int round = 0; round < rounds; ++round) {
        without.push_back(step_seconds(*model, none, tokens));
        for (Turn& t : turns) {
          bandwidths.push_back(probe.measure());
          t.seconds.push_back(step_seconds(*model, *t.names, tokens));
          const double before = without.back();
          without.push_back(step_seconds(*model, none, tokens));
          t.added.push_back(t.seconds.back() - (before + without.back()) / 2);
          t.of_bound.push_back(t.added.back() /
                               (t.adapters * 2 * numbers / bandwidths.back() + t.rows * 2 * numbers / peak));
        }
      }
      const double plain = median(without);
      for (const Turn& t : turns) {
        std::printf("%5zu %-24s %6.2f ms %6.2f ms %8.1f%% %8.2fx %9.1f\n", rows, t.name, 1e3 * plain,
                    1e3 * median(t.seconds), 100 * median(t.added) / plain, median(t.of_bound),
                    1e-9 * median(bandwidths));
        std::fflush(stdout);
      }
    }
  }
  fs::remove_all(work);
  return 0;
}
