// What is asked: the plan of every request before a run begins, and the bodies made from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "clients/loadtest/arrival.h"
#include "clients/loadtest/tensor_request.h"
#include "clients/loadtest/trace.h"
#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::loadtest {

// Protocols of the requests; the names are those of --endpoint.
enum class Endpoint : uint8_t { kChat, kCompletions, kGenerateStream, kInfer, kGrpcInfer, kGrpcStream };
// Over gRPC rather than HTTP.
inline bool is_grpc(Endpoint e) { return e == Endpoint::kGrpcInfer || e == Endpoint::kGrpcStream; }
Result<Endpoint> parse_endpoint(const std::string& name);
const char* endpoint_name(Endpoint endpoint);

struct WorkloadSpec {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  int64_t prompt_words = 128;  // own words of a prompt; a common English word is about one token
  int64_t prefix_words = 0;    // the same words in front of every prompt of a group
  int64_t prefix_groups = 1;   // how many different prefixes
  int64_t output_tokens = 64;  // max_tokens
  double length_spread = 0;    // [0, 1): lengths are uniform in [1 - spread, 1 + spread] times the above
  int64_t turns = 1;           // > 1: a conversation goes on, with the answers in its history
  bool ignore_eos = true;      // so that output lengths are what was asked for
  bool stream = true;
  double temperature = 0;
  uint64_t seed = 0;
  uint64_t salt = 0;        // other words, everything else the same: what no prefix cache has seen
  double cancel_share = 0;  // of the requests: the client leaves after a few chunks
  double slow_share = 0;    // of the requests: the client reads slowly
  json::object extra;       // more fields of every body
  std::string body;         // tensors as the JSON of an Open Inference request; kInfer sends it as it is
  std::vector<std::string> tensors;  // or as --tensor gives them; kInfer then sends binary tensors
};

// One request to come.
struct Plan {
  double at = 0;  // seconds from the start; closed loop: unused
  int64_t prompt_words = 0, output_tokens = 0;
  int64_t prefix_group = -1;
  std::vector<int64_t> prefix_blocks;  // of a trace
  uint64_t seed = 0;
  int64_t cancel_after = -1;  // chunks; negative: stays
  bool slow = false;
};

struct Message {
  std::string role, content;
};

class Workload {
 public:
  // INVALID_ARGUMENT naming the option.
  static Result<Workload> create(WorkloadSpec spec);
  const WorkloadSpec& spec() const { return spec_; }

  // Plans for `count` requests; times from `arrivals` (empty: closed loop).
  std::vector<Plan> plan(int64_t count, const std::vector<double>& arrivals) const;
  // Plans of a trace, its clock divided by `speed`. `words_limit` cuts prompts (0: as recorded).
  std::vector<Plan> plan(const std::vector<TraceEntry>& trace, double speed, int64_t words_limit,
                         int64_t output_limit) const;

  // What a gRPC request holds: none for text.
  const std::vector<InputTensor>& tensors() const { return tensors_; }

  std::string content_headers() const;  // of a body
  std::string target() const;           // "/v1/chat/completions"
  std::string prompt(const Plan& plan) const;
  // `history` holds the messages of a conversation, the new question last; kChat and kCompletions.
  std::string body(const Plan& plan, const std::vector<Message>& history) const;
  // max_tokens and the rest as one JSON object: the `sampling_parameters` of a gRPC request.
  std::string sampling(const Plan& plan) const;

 private:
  explicit Workload(WorkloadSpec spec) : spec_(std::move(spec)) {}
  WorkloadSpec spec_;
  std::vector<InputTensor> tensors_;
  BinaryBody binary_;  // kInfer with --tensor
};

}  // namespace oar::loadtest
