#include "clients/loadtest/workload.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

constexpr std::pair<const char*, Endpoint> kEndpoints[] = {{"chat", Endpoint::kChat},
                                                           {"completions", Endpoint::kCompletions},
                                                           {"generate_stream", Endpoint::kGenerateStream},
                                                           {"infer", Endpoint::kInfer},
                                                           {"grpc_infer", Endpoint::kGrpcInfer},
                                                           {"grpc_stream", Endpoint::kGrpcStream}};
constexpr int64_t kBlockWords = 512;  // of a Mooncake hash id

// Short common words: one token each in most vocabularies.
constexpr const char* kWords[] = {
    "time",     "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",    "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question", "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",     "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",     "game",   "line",       "end",    "law",     "car"};

void add_words(std::string& out, uint64_t seed, int64_t count) {
  uint64_t state = seed;
  uint64_t bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 8 == 0) bits = next_random(state);
    if (!out.empty()) out += ' ';
    out += kWords[bits % std::size(kWords)];
    bits >>= 8;
  }
}

double uniform(uint64_t& state) { return static_cast<double>(next_random(state) >> 11) * 0x1p-53; }

int64_t spread(int64_t mean, double by, uint64_t& state) {
  const double factor = 1 + by * (2 * uniform(state) - 1);
  return std::max<int64_t>(1, std::llround(static_cast<double>(mean) * factor));
}

Status in_range(const char* option, double v, double low, double high) {
  if (v >= low && v <= high) return ok_status();
  return invalid_argument(cat(option, ": must be between ", low, " and ", high, ", got ", v), option);
}

}  // namespace

Result<Endpoint> parse_endpoint(const std::string& name) {
  std::string known;
  for (const auto& [n, e] : kEndpoints) {
    if (name == n) return e;
    known += cat(known.empty() ? "" : ", ", n);
  }
  return invalid_argument(cat("endpoint: there is no '", name, "'; one of ", known), "endpoint");
}

const char* endpoint_name(Endpoint endpoint) {
  for (const auto& [n, e] : kEndpoints)
    if (e == endpoint) return n;
  return "unknown";
}

Result<Workload> Workload::create(WorkloadSpec s) {
  constexpr double kMost = 1 << 24;
  OAR_RETURN_IF_ERROR(in_range("prompt-words", static_cast<double>(s.prompt_words), 0, kMost));
  OAR_RETURN_IF_ERROR(in_range("prefix-words", static_cast<double>(s.prefix_words), 0, kMost));
  OAR_RETURN_IF_ERROR(in_range("prefix-groups", static_cast<double>(s.prefix_groups), 1, kMost));
  OAR_RETURN_IF_ERROR(in_range("output-tokens", static_cast<double>(s.output_tokens), 1, kMost));
  OAR_RETURN_IF_ERROR(in_range("length-spread", s.length_spread, 0, 0.99));
  OAR_RETURN_IF_ERROR(in_range("turns", static_cast<double>(s.turns), 1, 1000));
  OAR_RETURN_IF_ERROR(in_range("cancel-share", s.cancel_share, 0, 1));
  OAR_RETURN_IF_ERROR(in_range("slow-share", s.slow_share, 0, 1));
  OAR_RETURN_IF_ERROR(in_range("temperature", s.temperature, 0, 100));
  if (s.turns > 1 && s.endpoint != Endpoint::kChat)
    return invalid_argument("turns: conversations need --endpoint chat", "turns");
  if (!s.body.empty() && !s.tensors.empty())
    return invalid_argument("body: give either --body or --tensor", "body");
  if (s.endpoint == Endpoint::kInfer && s.body.empty() && s.tensors.empty())
    return invalid_argument(
        "body: --endpoint infer needs what to send: --tensor name:FP32:1,8 or --body FILE", "body");
  const bool tensors = s.endpoint == Endpoint::kInfer || is_grpc(s.endpoint);
  if (!s.tensors.empty() && !tensors)
    return invalid_argument("tensor: is for the endpoints infer, grpc_infer and grpc_stream", "tensor");
  if (s.model.empty() && (s.endpoint == Endpoint::kGenerateStream || tensors))
    return invalid_argument("model: is part of the address of this endpoint; give --model", "model");
  Workload w(std::move(s));
  for (const std::string& t : w.spec_.tensors) {
    OAR_ASSIGN(InputTensor made, parse_tensor_option(t, w.spec_.seed + w.tensors_.size()));
    w.tensors_.push_back(std::move(made));
  }
  if (is_grpc(w.spec_.endpoint) && !w.spec_.body.empty()) {
    OAR_ASSIGN(w.tensors_, parse_tensor_body(w.spec_.body));
  }
  if (w.spec_.endpoint == Endpoint::kInfer && !w.tensors_.empty()) w.binary_ = binary_body(w.tensors_);
  return w;
}

std::vector<Plan> Workload::plan(int64_t count, const std::vector<double>& arrivals) const {
  std::vector<Plan> plans(static_cast<size_t>(count));
  uint64_t state = spec_.seed ^ 0x6f61726cu;
  for (size_t i = 0; i < plans.size(); ++i) {
    Plan& p = plans[i];
    if (i < arrivals.size()) p.at = arrivals[i];
    p.prompt_words = spread(spec_.prompt_words, spec_.prompt_words > 0 ? spec_.length_spread : 0, state);
    p.output_tokens = spread(spec_.output_tokens, spec_.length_spread, state);
    if (spec_.prefix_words > 0)
      p.prefix_group = static_cast<int64_t>(next_random(state) % static_cast<uint64_t>(spec_.prefix_groups));
    p.seed = next_random(state);
    if (uniform(state) < spec_.cancel_share) p.cancel_after = static_cast<int64_t>(next_random(state) % 8);
    p.slow = uniform(state) < spec_.slow_share;
  }
  return plans;
}

std::vector<Plan> Workload::plan(const std::vector<TraceEntry>& trace, double speed, int64_t words_limit,
                                 int64_t output_limit) const {
  std::vector<Plan> plans = plan(static_cast<int64_t>(trace.size()), {});
  for (size_t i = 0; i < plans.size(); ++i) {
    const TraceEntry& t = trace[i];
    Plan& p = plans[i];
    p.at = t.at / speed;
    p.prompt_words =
        std::max<int64_t>(1, words_limit > 0 ? std::min(t.input_tokens, words_limit) : t.input_tokens);
    p.output_tokens =
        std::max<int64_t>(1, output_limit > 0 ? std::min(t.output_tokens, output_limit) : t.output_tokens);
    p.prefix_blocks = t.prefix_blocks;
    p.prefix_group = -1;
  }
  return plans;
}

std::string Workload::target() const {
  switch (spec_.endpoint) {
    case Endpoint::kChat: return "/v1/chat/completions";
    case Endpoint::kCompletions: return "/v1/completions";
    case Endpoint::kGenerateStream:
      return cat("/v2/models/", spec_.model, spec_.stream ? "/generate_stream" : "/generate");
    case Endpoint::kInfer: return cat("/v2/models/", spec_.model, "/infer");
    case Endpoint::kGrpcInfer: return "/inference.GRPCInferenceService/ModelInfer";
    case Endpoint::kGrpcStream: return "/inference.GRPCInferenceService/ModelStreamInfer";
  }
  return "/";
}

std::string Workload::content_headers() const {
  if (!binary_.body.empty())
    return cat("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: ",
               binary_.header_length, "\r\n");
  return "Content-Type: application/json\r\nAccept: text/event-stream, application/json\r\n";
}

std::string Workload::sampling(const Plan& p) const {
  json::object o{
      {"max_tokens", p.output_tokens}, {"temperature", spec_.temperature}, {"seed", p.seed & 0x7fffffff}};
  if (spec_.ignore_eos) o["ignore_eos"] = true;
  for (const auto& e : spec_.extra) o[e.key()] = e.value();
  return json::serialize(o);
}

std::string Workload::prompt(const Plan& p) const {
  std::string out;
  const uint64_t salt = spec_.salt * 0xd1b54a32d192ed03u;
  if (p.prefix_group >= 0)
    add_words(out, salt ^ (spec_.seed * 31 + 0x707265ULL + static_cast<uint64_t>(p.prefix_group)),
              spec_.prefix_words);
  int64_t left = p.prompt_words;
  for (const int64_t block : p.prefix_blocks) {  // equal ids, equal words: what a prefix cache can find
    const int64_t words = std::min(left, kBlockWords);
    add_words(out, salt ^ (static_cast<uint64_t>(block) * 0x9e3779b97f4a7c15u + 7), words);
    left -= words;
  }
  add_words(out, salt ^ p.seed, left);
  return out;
}

std::string Workload::body(const Plan& p, const std::vector<Message>& history) const {
  if (spec_.endpoint == Endpoint::kInfer) return binary_.body.empty() ? spec_.body : binary_.body;
  json::object o;
  if (!spec_.model.empty()) o["model"] = spec_.model;
  if (spec_.endpoint == Endpoint::kChat) {
    json::array messages;
    for (const Message& m : history) messages.push_back({{"role", m.role}, {"content", m.content}});
    o["messages"] = std::move(messages);
  } else {
    const char* key = spec_.endpoint == Endpoint::kCompletions ? "prompt" : "text_input";
    o[key] = history.empty() ? std::string() : history.back().content;
  }
  if (spec_.endpoint != Endpoint::kGenerateStream) {
    o["stream"] = spec_.stream;
    if (spec_.stream) o["stream_options"] = {{"include_usage", true}};
  }
  o["max_tokens"] = p.output_tokens;
  o["temperature"] = spec_.temperature;
  o["seed"] = p.seed & 0x7fffffff;
  if (spec_.ignore_eos) o["ignore_eos"] = true;
  if (spec_.endpoint == Endpoint::kGenerateStream) {
    json::object parameters;
    for (const char* key : {"max_tokens", "temperature", "seed", "ignore_eos"}) {
      if (json::value* v = o.if_contains(key)) parameters[key] = *v;
      o.erase(key);
    }
    o["parameters"] = std::move(parameters);
    o.erase("model");
  }
  for (const auto& e : spec_.extra) o[e.key()] = e.value();
  return json::serialize(o);
}

}  // namespace oar::loadtest
