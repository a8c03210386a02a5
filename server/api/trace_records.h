// What a trace is made of: steps and runs of models, and their requests (trace_file.h).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/runtime/engine.h"
#include "engine/runtime/job_runner.h"

namespace oar::api {

inline constexpr int32_t kTraceOfServer = 1;  // in place of a model's number

// One step of a model's engine.
struct StepRecord {
  int32_t model = 0;  // of TraceFile::add_model(), as in all records
  StepInfo step;
};

// One prompt of a request, with all of its choices, that has ended.
struct PromptRecord {
  int32_t model = 0;
  std::string id;       // the request's
  std::string adapter;  // empty: none
  int64_t prompt = 0, choices = 1;
  SequenceStats stats;  // of all choices
  FinishReason finish = FinishReason::kNone;
  std::string trace = {};  // the caller's traceparent; empty: none
};

// A request that the engine did not take.
struct RefusalRecord {
  int32_t model = 0;
  std::string id;
  StatusCode why = StatusCode::kOk;
  Clock::time_point at;
  std::string trace = {};
};

// A run of an ordinary model or an encoder, and a job of one that has been answered.
struct RunRecord {
  int32_t model = 0;
  InferRun run;
};
struct AnswerRecord {
  int32_t model = 0;
  std::string id;
  InferAnswer answer;  // but for its texts
  std::string trace = {}, span = {};
};

// What a model is called, and its tracks of slices in order.
struct NameRecord {
  int32_t model = 0;
  std::string name, version;  // version: empty for the server itself
  std::vector<std::string> tracks;
};

using TraceRecord =
    std::variant<NameRecord, StepRecord, PromptRecord, RefusalRecord, RunRecord, AnswerRecord>;

}  // namespace oar::api
