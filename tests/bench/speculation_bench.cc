// What speculation brings beside what it could: a drafter replays the texts that a model wrote without it,
// each token right at a given rate, and the same requests run again. Prints one row for each rate and number
// of streams. The bound is the best of all chain lengths, by the share of right drafts and by the median time
// of steps of so many rows as this run measured. "times" is by the clock, from the first token of a run to
// its last. "steps" counts the steps that held all streams, each with the median time of its rows: what the
// choice of chain lengths is worth, without what a busy machine and the last streams of a run take from it.
//
//   speculation_bench MODEL [WEIGHTS [TOKENS [THREADS [STREAMS...]]]]
//
// Each rate runs twice and the second run counts: the first begins with what the rate before has taught.
// Texts must be the same; it exits with 1 when one is not.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "engine/runtime/language_model.h"
#include "tests/runtime/collect_sink.h"
#include "tests/runtime/replay_drafter.h"

namespace {

using namespace oar;
using namespace oar_test;

constexpr int64_t kMostDrafts = 8;

// Texts without drafts until they are recorded, and then the rate of each run.
class RecordedDrafter final : public Drafter {
 public:
  void record(uint64_t stream, std::vector<int32_t> text) { texts_[stream] = std::move(text); }
  // Between runs. Returns the share of drafts that are right.
  double replay(double rate, int32_t vocab) {
    replay_ = std::make_unique<ReplayDrafter>(rate, vocab);
    for (const auto& [stream, text] : texts_) replay_->record(stream, text);
    return replay_->share_right();
  }
  void draft(const Sequence& s, int64_t most, std::vector<int32_t>& out) override {
    if (replay_ != nullptr) replay_->draft(s, most, out);
  }

 private:
  std::map<uint64_t, std::vector<int32_t>> texts_;
  std::unique_ptr<ReplayDrafter> replay_;
};

// Steps that hold a row of each stream and drafts, and nothing else.
struct Steps {
  std::mutex mutex;
  std::map<int64_t, std::vector<double>> seconds_by_rows;
  std::map<int64_t, int64_t> of_run;  // steps by rows, since the last clear()
  int64_t tokens_of_run = 0;

  void ran(const StepInfo& s) {
    std::lock_guard lock(mutex);
    seconds_by_rows[s.tokens].push_back(s.seconds);
    ++of_run[s.tokens];
    tokens_of_run += s.generated_tokens;
  }
  void clear() {
    std::lock_guard lock(mutex);
    of_run.clear();
    tokens_of_run = 0;
  }
  // The median; between two numbers of rows that were seen, a line. 0: unknown.
  double seconds(int64_t rows) const {
    const auto above = seconds_by_rows.lower_bound(rows);
    if (above == seconds_by_rows.end()) return 0;
    if (above->first == rows || above == seconds_by_rows.begin())
      return above->first == rows ? median(above->second) : 0;
    const auto below = std::prev(above);
    const double at =
        static_cast<double>(rows - below->first) / static_cast<double>(above->first - below->first);
    return (1 - at) * median(below->second) + at * median(above->second);
  }
  double tokens_per_second() const {
    double sum = 0;
    for (const auto& [rows, steps] : of_run) sum += static_cast<double>(steps) * seconds(rows);
    return sum > 0 ? static_cast<double>(tokens_of_run) / sum : 0;
  }

 private:
  static double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + static_cast<ptrdiff_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
};

struct Outcome {
  std::vector<std::vector<int32_t>> texts;
  double tokens_per_second = 0;
};

Outcome run(LanguageModel& model, int64_t streams, int64_t tokens) {
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (int64_t i = 0; i < streams; ++i) {
    Request r;
    for (int64_t k = 0; k < 24; ++k)
      r.prompt.push_back(static_cast<int32_t>(mix(static_cast<uint64_t>(100 * i + k)) %
                                              static_cast<uint64_t>(model.info().vocab_size)));
    r.stop = {.max_tokens = tokens, .ignore_eos = true};
    r.sampling.seed = 1'000'000 * static_cast<uint64_t>(i + 1);
    sinks.push_back(std::make_shared<CollectSink>());
    r.sink = sinks.back();
    if (const auto id = model.engine().submit(std::move(r)); !id.ok()) {
      std::fprintf(stderr, "speculation_bench: %s\n", id.status().message().c_str());
      std::exit(2);
    }
  }
  Outcome out;
  Clock::time_point first = Clock::time_point::max(), last{};
  for (auto& s : sinks) {
    s->wait(std::chrono::hours(1));
    const SequenceStats& st = s->choices[0].last.stats;
    first = std::min(first, st.first_token);
    last = std::max(last, st.finished);
    out.texts.push_back(s->choices[0].tokens);
  }
  out.tokens_per_second =
      static_cast<double>(streams * (tokens - 1)) / std::chrono::duration<double>(last - first).count();
  return out;
}

double expected_tokens(double rate, int64_t drafts) {
  double tokens = 1, p = rate;
  for (int64_t k = 0; k < drafts; ++k, p *= rate) tokens += p;
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "speculation_bench MODEL [WEIGHTS [TOKENS [THREADS [STREAMS...]]]]\n");
    return 2;
  }
  const int64_t tokens = argc > 3 ? std::atoll(argv[3]) : 256;
  auto drafter = std::make_shared<RecordedDrafter>();
  LanguageModelOptions o;
  if (argc > 2) o.weights = argv[2];
  o.threads = argc > 4 ? std::atoi(argv[4]) : 0;
  o.max_context = tokens + 64;
  o.max_sequences = 32;
  o.speculative.drafter = drafter;
  o.speculative.max_tokens = kMostDrafts;
  auto model = LanguageModel::load(argv[1], o);
  if (!model.ok()) {
    std::fprintf(stderr, "speculation_bench: %s\n", model.status().message().c_str());
    return 2;
  }
  const auto vocab = static_cast<int32_t>((*model)->info().vocab_size);
  std::printf("%7s %5s %10s %10s %7s %7s %7s %9s\n", "streams", "rate", "tokens/s", "without", "times",
              "steps", "bound", "rejected");
  bool same = true;
  std::vector<int64_t> numbers;
  for (int i = 5; i < argc; ++i) numbers.push_back(std::atoll(argv[i]));
  if (numbers.empty()) numbers = {1, 8, 32};
  for (const int64_t streams : numbers) {
    Steps steps;
    (*model)->engine().on_step([&steps, streams](const StepInfo& s) {
      if (s.prefill_tokens == 0 && s.sequences == streams) steps.ran(s);
    });
    *drafter = RecordedDrafter();
    const Outcome plain = run(**model, streams, tokens);
    for (int64_t i = 0; i < streams; ++i)
      drafter->record(1'000'000 * static_cast<uint64_t>(i + 1), plain.texts[static_cast<size_t>(i)]);
    for (const double rate : {0.0, 0.3, 0.6, 0.8, 1.0}) {
      const double right = drafter->replay(rate, vocab);
      run(**model, streams, tokens);
      steps.clear();
      const EngineStats before = (*model)->engine().stats();
      const Outcome got = run(**model, streams, tokens);
      const EngineStats after = (*model)->engine().stats();
      same &= got.texts == plain.texts;
      double bound = 1;
      const double alone = steps.seconds(streams);
      for (int64_t m = 1; m <= kMostDrafts && alone > 0; ++m)
        if (const double t = steps.seconds(streams * (m + 1)); t > 0)
          bound = std::max(bound, expected_tokens(right, m) * alone / t);
      const double rejected = static_cast<double>(after.rejected_drafts - before.rejected_drafts);
      const double rows = static_cast<double>(streams * tokens) + rejected;
      std::printf(
          "%7lld %5.1f %10.1f %10.1f %6.2fx %6.2fx %6.2fx %8.1f%%\n", static_cast<long long>(streams), rate,
          got.tokens_per_second, plain.tokens_per_second, got.tokens_per_second / plain.tokens_per_second,
          steps.tokens_per_second() * alone / static_cast<double>(streams), bound, 100 * rejected / rows);
      std::fflush(stdout);
    }
    (*model)->engine().on_step({});
  }
  if (!same) std::printf("texts differ\n");
  return same ? 0 : 1;
}
