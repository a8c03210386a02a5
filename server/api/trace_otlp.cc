// OpenTelemetry's spans in OTLP's JSON encoding, one request of an exporter on each line:
// https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding and
// https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/. Times are strings of nanoseconds since
// the epoch, ids are hexadecimal, 64-bit integers are strings.
//
// A request is a span of its caller's trace, with what it waited for below it. Steps and runs serve many
// requests at once: each is a trace of its own, since a trace as long as the server's life is nothing to look
// at.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/api/trace_format.h"
#include "server/api/trace_parent.h"
#include "server/api/version.h"

namespace oar::api {
namespace {

constexpr int kInternalSpan = 1, kServerSpan = 2;  // Span.SpanKind
constexpr int kErrorStatus = 2;                    // Status.StatusCode

// A span while it is written. Its attributes come before its end.
class SpanWriter {
 public:
  SpanWriter(JsonWriter& w, const TraceParent& own, const std::string& parent, std::string_view name,
             int kind, int64_t from_ns, int64_t to_ns)
      : w_(w) {
    w_.begin_object().key("traceId").string(own.trace).key("spanId").string(own.span);
    if (!parent.empty()) w_.key("parentSpanId").string(parent);
    w_.key("name").string(name).key("kind").number(kind);
    w_.key("startTimeUnixNano").string(cat(from_ns));
    w_.key("endTimeUnixNano").string(cat(std::max(from_ns, to_ns)));
    w_.key("attributes").begin_array();
  }
  SpanWriter& text(std::string_view name, std::string_view value) {
    if (value.empty()) return *this;
    open(name).key("stringValue").string(value);
    return close();
  }
  SpanWriter& number(std::string_view name, int64_t value) {
    open(name).key("intValue").string(cat(value));
    return close();
  }
  SpanWriter& texts(std::string_view name, std::string_view value) {  // a list of one
    open(name).key("arrayValue").begin_object().key("values").begin_array();
    w_.begin_object().key("stringValue").string(value).end_object().end_array().end_object();
    return close();
  }
  void end(std::string_view error = {}) {
    w_.end_array();
    if (!error.empty())
      w_.key("status")
          .begin_object()
          .key("code")
          .number(kErrorStatus)
          .key("message")
          .string(error)
          .end_object();
    w_.end_object();
  }

 private:
  JsonWriter& open(std::string_view name) {
    return w_.begin_object().key("key").string(name).key("value").begin_object();
  }
  SpanWriter& close() {
    w_.end_object().end_object();
    return *this;
  }
  JsonWriter& w_;
};

class OtlpFormat final : public TraceFormat {
 public:
  explicit OtlpFormat(TraceOrigin origin) : origin_(origin) {}
  void begin(std::string&) override {}
  void add(std::string& out, const TraceRecord& record) override {
    std::visit([&](const auto& r) { render(out, r); }, record);
  }
  void mark(std::string& out, std::string_view name, std::span<const TraceArgument> args) override {
    line(out, [&](JsonWriter& w) {
      const int64_t now = unix_ns(Clock::now());
      SpanWriter span(w, begin_trace({}).own, {}, name, kInternalSpan, now, now);
      for (const TraceArgument& a : args) {
        if (const auto* n = std::get_if<int64_t>(&a.value)) span.number(cat("oar.", a.name), *n);
        else span.text(cat("oar.", a.name), std::get<std::string_view>(a.value));
      }
      span.end();
    });
  }
  std::string_view end() const override { return ""; }

 private:
  struct Place {
    TraceParent own;     // of the request's span
    std::string parent;  // empty: it is the trace's first
    bool kept = true;    // false: the caller does not keep the trace
  };
  // `span`: its own traceparent where it has one already; empty: a new one.
  static Place begin_trace(const std::string& traceparent, const std::string& span = {}) {
    Place out;
    const auto parent = parse_traceparent(traceparent);
    if (const auto own = parse_traceparent(span)) out.own = *own;
    else out.own = {parent ? parent->trace : random_hex(16), random_hex(8)};
    if (parent) out.parent = parent->span, out.kept = parent->sampled;
    return out;
  }
  int64_t unix_ns(Clock::time_point t) const { return origin_.unix_ns + origin_.since(t); }

  // A line with the spans that `write` writes.
  template <class Write>
  void line(std::string& out, const Write& write) {
    JsonWriter w(out);
    const auto text = [&](std::string_view name, std::string_view value) {
      w.begin_object().key("key").string(name).key("value").begin_object().key("stringValue").string(value);
      w.end_object().end_object();
    };
    w.begin_object().key("resourceSpans").begin_array().begin_object();
    w.key("resource").begin_object().key("attributes").begin_array();
    text("service.name", "oar");
    text("service.version", kVersion);
    w.end_array().end_object();
    w.key("scopeSpans").begin_array().begin_object();
    w.key("scope").begin_object().key("name").string("oar").key("version").string(kVersion).end_object();
    w.key("spans").begin_array();
    write(w);
    w.end_array().end_object().end_array().end_object().end_array().end_object();
    out += '\n';
  }
  // A part of a request, under its span.
  void part(JsonWriter& w, const Place& of, const char* name, Clock::time_point from, Clock::time_point to) {
    TraceParent own = of.own;
    own.span = random_hex(8);
    SpanWriter(w, own, of.own.span, name, kInternalSpan, unix_ns(from), unix_ns(to)).end();
  }
  void name_model(SpanWriter& span, int32_t model) {
    const NameRecord& name = names_[model];
    span.text("gen_ai.request.model", name.name).text("oar.model.version", name.version);
  }

  void render(std::string&, const NameRecord& r) { names_[r.model] = r; }
  void render(std::string& out, const StepRecord& r);
  void render(std::string& out, const RunRecord& r);
  void render(std::string& out, const PromptRecord& r);
  void render(std::string& out, const RefusalRecord& r);
  void render(std::string& out, const AnswerRecord& r);

  const TraceOrigin origin_;
  std::map<int32_t, NameRecord> names_;
};

void OtlpFormat::render(std::string& out, const StepRecord& r) {
  const Place place = begin_trace({});
  const StepInfo& s = r.step;
  const StepTimes& t = s.times;
  line(out, [&](JsonWriter& w) {
    // A device that works ahead is given a step before the one before has ended.
    SpanWriter span(w, place.own, {}, "step", kInternalSpan, unix_ns(std::min(t.since, t.began)),
                    unix_ns(t.ended));
    name_model(span, r.model);
    span.number("oar.step", static_cast<int64_t>(s.number)).number("oar.sequences", s.sequences);
    span.number("oar.tokens", s.tokens).number("oar.prefill_tokens", s.prefill_tokens);
    span.number("oar.draft_tokens", s.draft_tokens).number("oar.generated_tokens", s.generated_tokens);
    span.number("oar.running", s.running).number("oar.waiting", s.waiting);
    span.number("oar.suspended", s.suspended).number("oar.pages_used", s.blocks_used);
    span.end();
    part(w, place, "plan", t.began, t.planned);
    part(w, place, "forward", t.planned, t.submitted);
    part(w, place, "sample", t.sampling, t.sampled);
    part(w, place, "commit", t.collecting, t.ended);
  });
}

void OtlpFormat::render(std::string& out, const RunRecord& r) {
  const Place place = begin_trace({});
  const RunTimes& t = r.run.times;
  Clock::time_point at = r.run.began;
  const auto later = [&](uint64_t ns) { return at + std::chrono::nanoseconds(ns); };
  line(out, [&](JsonWriter& w) {
    SpanWriter span(w, place.own, {}, "batch", kInternalSpan, unix_ns(at),
                    unix_ns(later(t.input + t.compute + t.output)));
    name_model(span, r.model);
    span.number("oar.instance", r.run.instance + 1).number("oar.rows", r.run.rows);
    span.number("oar.requests", static_cast<int64_t>(r.run.requests));
    span.end();
    const std::pair<const char*, uint64_t> parts[] = {
        {"input", t.input}, {"compute", t.compute}, {"output", t.output}};
    for (const auto& [name, ns] : parts) {
      if (ns > 0) part(w, place, name, at, later(ns));
      at = later(ns);
    }
  });
}

void OtlpFormat::render(std::string& out, const PromptRecord& r) {
  const Place place = begin_trace(r.trace);
  if (!place.kept) return;
  const SequenceStats& s = r.stats;
  // A part that was never reached is left out, and the one before lasts until the end.
  const auto or_end = [&](Clock::time_point t) {
    return t == Clock::time_point{} ? s.finished : std::min(t, s.finished);
  };
  const Clock::time_point scheduled = or_end(s.scheduled), first = or_end(s.first_token);
  line(out, [&](JsonWriter& w) {
    SpanWriter span(w, place.own, place.parent, "generate", kServerSpan, unix_ns(s.submitted),
                    unix_ns(s.finished));
    name_model(span, r.model);
    span.text("gen_ai.operation.name", "generate_content").text("gen_ai.response.id", r.id);
    span.number("gen_ai.usage.input_tokens", s.prompt_tokens);
    span.number("gen_ai.usage.output_tokens", s.completion_tokens);
    span.texts("gen_ai.response.finish_reasons", finish_reason_name(r.finish));
    span.number("oar.cached_tokens", s.cached_tokens).number("oar.preemptions", s.preemptions);
    span.number("oar.prompt", r.prompt).number("oar.choices", r.choices).text("oar.adapter", r.adapter);
    const bool failed = r.finish == FinishReason::kError || r.finish == FinishReason::kCancelled;
    span.end(failed ? finish_reason_name(r.finish) : std::string_view());
    part(w, place, "queued", s.submitted, scheduled);
    if (scheduled < s.finished) part(w, place, "prefill", scheduled, first);
    if (first < s.finished) part(w, place, "decode", first, s.finished);
  });
}

void OtlpFormat::render(std::string& out, const RefusalRecord& r) {
  const Place place = begin_trace(r.trace);
  if (!place.kept) return;
  line(out, [&](JsonWriter& w) {
    SpanWriter span(w, place.own, place.parent, "generate", kServerSpan, unix_ns(r.at), unix_ns(r.at));
    name_model(span, r.model);
    span.text("gen_ai.response.id", r.id);
    span.end(status_code_name(r.why));
  });
}

void OtlpFormat::render(std::string& out, const AnswerRecord& r) {
  const Place place = begin_trace(r.trace, r.span);
  if (!place.kept) return;
  const InferAnswer& a = r.answer;
  const bool ran = a.started != Clock::time_point{};
  line(out, [&](JsonWriter& w) {
    SpanWriter span(w, place.own, place.parent, "infer", kServerSpan, unix_ns(a.arrived), unix_ns(a.ended));
    name_model(span, r.model);
    span.text("oar.request.id", r.id).number("oar.rows", a.rows);
    span.end(a.status == StatusCode::kOk ? std::string_view() : status_code_name(a.status));
    part(w, place, "queued", a.arrived, ran ? a.started : a.ended);
    if (ran) part(w, place, "run", a.started, a.ended);
  });
}

}  // namespace

std::unique_ptr<TraceFormat> make_otlp_format(TraceOrigin origin) {
  return std::make_unique<OtlpFormat>(origin);
}

}  // namespace oar::api
