// Chrome's trace events, for chrome://tracing and https://ui.perfetto.dev: an array.
#include <algorithm>
#include <utility>

#include "engine/base/format.h"
#include "server/api/trace_format.h"

namespace oar::api {
namespace {

class ChromeFormat final : public TraceFormat {
 public:
  explicit ChromeFormat(TraceOrigin origin) : origin_(origin) {}
  void begin(std::string& out) override;
  void add(std::string& out, const TraceRecord& record) override;
  void mark(std::string& out, std::string_view name, std::span<const TraceArgument> args) override;
  std::string_view end() const override { return "\n]\n"; }

 private:
  void render(const NameRecord& r);
  void render(const StepRecord& r);
  void render(const PromptRecord& r);
  void render(const RefusalRecord& r);
  void render(const RunRecord& r);
  void render(const AnswerRecord& r);
  void event(const TraceEvent& e, std::span<const TraceArgument> args);
  void event(const TraceEvent& e, std::initializer_list<TraceArgument> args = {}) {
    event(e, std::span(args.begin(), args.size()));
  }
  int64_t since_start(Clock::time_point t) const { return origin_.since(t); }

  const TraceOrigin origin_;
  std::string* out_ = nullptr;
  bool any_ = false;      // an event was written
  uint64_t next_id_ = 0;  // of prompts and answers
};

void ChromeFormat::event(const TraceEvent& e, std::span<const TraceArgument> args) {
  *out_ += any_ ? ",\n" : "\n";
  any_ = true;
  append_event(*out_, e, args);
}

void ChromeFormat::begin(std::string& out) {
  out = "[";
  const TraceArgument began{"unix_ms", origin_.unix_ns / 1'000'000};
  mark(out, "trace begins", {&began, 1});
}

void ChromeFormat::add(std::string& out, const TraceRecord& record) {
  out_ = &out;
  std::visit([this](const auto& r) { render(r); }, record);
}

void ChromeFormat::mark(std::string& out, std::string_view name, std::span<const TraceArgument> args) {
  out_ = &out;
  event({.phase = TracePhase::kMark,
         .name = name,
         .process = kTraceOfServer,
         .at_ns = since_start(Clock::now())},
        args);
}

void ChromeFormat::render(const NameRecord& r) {
  event({.phase = TracePhase::kName, .name = "process_name", .process = r.model},
        {{"name", r.version.empty() ? r.name : cat(r.name, " version ", r.version)}});
  int32_t track = 0;
  for (const std::string& name : r.tracks)
    event({.phase = TracePhase::kName, .name = "thread_name", .process = r.model, .track = ++track},
          {{"name", name}});
}

void ChromeFormat::render(const StepRecord& r) {
  const StepInfo& s = r.step;
  const StepTimes& t = s.times;
  const auto number = static_cast<int64_t>(s.number);
  const auto slice = [&](const char* name, Clock::time_point from, Clock::time_point to) {
    return TraceEvent{.name = name,
                      .category = "step",
                      .process = r.model,
                      .at_ns = since_start(from),
                      .duration_ns = since_start(to) - since_start(from)};
  };
  event(slice("step", t.since, t.ended), {{"step", number},
                                          {"sequences", s.sequences},
                                          {"tokens", s.tokens},
                                          {"prefill_tokens", s.prefill_tokens},
                                          {"draft_tokens", s.draft_tokens},
                                          {"generated_tokens", s.generated_tokens}});
  event(slice("plan", t.began, t.planned), {{"step", number}});
  event(slice("forward", t.planned, t.submitted), {{"step", number}});
  event(slice("sample", t.sampling, t.sampled), {{"step", number}});
  event(slice("commit", t.collecting, t.ended), {{"step", number}});
  const auto counter = [&](const char* name) {
    return TraceEvent{
        .phase = TracePhase::kCounter, .name = name, .process = r.model, .at_ns = since_start(t.ended)};
  };
  event(counter("sequences"), {{"running", s.running}, {"waiting", s.waiting}, {"suspended", s.suspended}});
  event(counter("pages"), {{"used", s.blocks_used}});
}

void ChromeFormat::render(const PromptRecord& r) {
  const SequenceStats& s = r.stats;
  // A part that was never reached is left out, and the one before lasts until the end.
  const auto or_end = [&](Clock::time_point t) {
    return t == Clock::time_point{} ? s.finished : std::min(t, s.finished);
  };
  const Clock::time_point scheduled = or_end(s.scheduled), first = or_end(s.first_token);
  TraceEvent e{.category = "request", .process = r.model, .id = ++next_id_};
  const auto begin = [&](const char* name, Clock::time_point at,
                         std::initializer_list<TraceArgument> args = {}) {
    e.phase = TracePhase::kAsyncBegin;
    e.name = name;
    e.at_ns = since_start(at);
    event(e, args);
  };
  const auto end = [&](const char* name, Clock::time_point at) {
    e.phase = TracePhase::kAsyncEnd;
    e.name = name;
    e.at_ns = since_start(at);
    event(e);
  };
  begin("request", s.submitted,
        {{"id", r.id},
         {"adapter", r.adapter},
         {"prompt", r.prompt},
         {"choices", r.choices},
         {"prompt_tokens", s.prompt_tokens},
         {"cached_tokens", s.cached_tokens},
         {"completion_tokens", s.completion_tokens},
         {"preemptions", s.preemptions},
         {"finish", finish_reason_name(r.finish)}});
  begin("queued", s.submitted);
  end("queued", scheduled);
  if (scheduled < s.finished) {
    begin("prefill", scheduled);
    end("prefill", first);
  }
  if (first < s.finished) {
    begin("decode", first);
    end("decode", s.finished);
  }
  end("request", s.finished);
}

void ChromeFormat::render(const RefusalRecord& r) {
  event({.phase = TracePhase::kMark, .name = "refused", .process = r.model, .at_ns = since_start(r.at)},
        {{"id", r.id}, {"status", status_code_name(r.why)}});
}

void ChromeFormat::render(const RunRecord& r) {
  const RunTimes& t = r.run.times;
  TraceEvent e{
      .category = "run", .process = r.model, .track = r.run.instance + 1, .at_ns = since_start(r.run.began)};
  const auto slice = [&](const char* name, uint64_t ns, std::initializer_list<TraceArgument> args = {}) {
    e.name = name;
    e.duration_ns = static_cast<int64_t>(ns);
    event(e, args);
  };
  slice("run", t.input + t.compute + t.output,
        {{"rows", r.run.rows}, {"requests", static_cast<int64_t>(r.run.requests)}});
  const std::pair<const char*, uint64_t> parts[] = {
      {"input", t.input}, {"compute", t.compute}, {"output", t.output}};
  for (const auto& [name, ns] : parts) {
    if (ns > 0) slice(name, ns);
    e.at_ns += static_cast<int64_t>(ns);
  }
}

void ChromeFormat::render(const AnswerRecord& r) {
  const InferAnswer& a = r.answer;
  const bool ran = a.started != Clock::time_point{};
  TraceEvent e{.category = "request", .process = r.model, .id = ++next_id_};
  const auto stretch = [&](const char* name, Clock::time_point from, Clock::time_point to) {
    e.name = name;
    e.phase = TracePhase::kAsyncBegin;
    e.at_ns = since_start(from);
    event(e);
    e.phase = TracePhase::kAsyncEnd;
    e.at_ns = since_start(to);
    event(e);
  };
  e.name = "request";
  e.phase = TracePhase::kAsyncBegin;
  e.at_ns = since_start(a.arrived);
  event(e, {{"id", r.id}, {"rows", a.rows}, {"status", status_code_name(a.status)}});
  stretch("queued", a.arrived, ran ? a.started : a.ended);
  if (ran) stretch("run", a.started, a.ended);
  e.name = "request";
  e.at_ns = since_start(a.ended);
  event(e);
}

}  // namespace

TraceOrigin TraceOrigin::now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return {Clock::now(), std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
}

std::unique_ptr<TraceFormat> make_chrome_format(TraceOrigin origin) {
  return std::make_unique<ChromeFormat>(origin);
}

}  // namespace oar::api
