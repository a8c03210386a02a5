// The trace of a server, for chrome://tracing and https://ui.perfetto.dev: what each step of a language
// model, each run of an ordinary one and each of their requests took. docs/traces.md says what the events
// mean.
//
// The file is the format's array of events. It is closed when the server stops or the limit is reached; a
// process that is killed leaves it without its last bracket, which both viewers accept.
//
// Threads: any may add records, the engine's among them. Adding takes a lock for a moment and wakes nobody
// but an idle writer. A thread of this object makes the text and writes it. What it cannot keep up with is
// dropped, counted, and the count written.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "engine/runtime/batched_predictor.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/trace_event.h"

namespace oar::api {

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
};

// A request that the engine did not take.
struct RefusalRecord {
  int32_t model = 0;
  std::string id;
  StatusCode why = StatusCode::kOk;
  Clock::time_point at;
};

// A run of an ordinary model or an encoder, and a job of one that has been answered.
struct RunRecord {
  int32_t model = 0;
  InferRun run;
};
struct AnswerRecord {
  int32_t model = 0;
  std::string id;
  InferAnswer answer;  // but for its id
};

class TraceFile {
 public:
  static constexpr uint64_t kDefaultBytes = uint64_t{256} << 20, kLeastBytes = 64 << 10;
  static constexpr size_t kQueue = 4096;  // records that may wait for the writer

  // What open() would refuse, leaving a file that is there as it is.
  static Status check(const std::string& path, uint64_t bytes);
  // Begins the file anew; it never has more than `bytes`. INVALID_ARGUMENT for a limit below kLeastBytes or
  // standard output ("-"), UNAVAILABLE for a file that cannot be written.
  static Result<std::shared_ptr<TraceFile>> open(const std::string& path, uint64_t bytes, Logger log);
  ~TraceFile() { close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // A group of tracks, and what those of its slices are called, in order.
  int32_t add_model(const std::string& name, std::vector<std::string> tracks);
  void add(const StepRecord& step) { push(step); }
  void add(PromptRecord prompt) { push(std::move(prompt)); }
  void add(RefusalRecord refusal) { push(std::move(refusal)); }
  void add(const RunRecord& run) { push(run); }
  void add(AnswerRecord answer) { push(std::move(answer)); }
  // Writes what waits and the end, and returns when that is done. Records that come later are not for this
  // file. Idempotent.
  void close();

 private:
  struct NameRecord {
    int32_t model;
    std::string name;
    std::vector<std::string> tracks;
  };
  using Record = std::variant<NameRecord, StepRecord, PromptRecord, RefusalRecord, RunRecord, AnswerRecord>;

  TraceFile(int file, std::string path, uint64_t bytes, Logger log);
  void push(Record record);

  // Below: the writer's thread.
  void main();
  void render(const NameRecord& r);
  void render(const StepRecord& r);
  void render(const PromptRecord& r);
  void render(const RefusalRecord& r);
  void render(const RunRecord& r);
  void render(const AnswerRecord& r);
  void event(const TraceEvent& e, std::initializer_list<TraceArgument> args = {});
  void mark(std::string_view name, std::initializer_list<TraceArgument> args);
  int64_t since_start(Clock::time_point t) const { return (t - start_) / std::chrono::nanoseconds(1); }
  // Keeps what was appended behind `before` when there is room for it. Otherwise the trace ends.
  void keep(size_t before, uint64_t dropped);
  void flush();

  const int file_;
  const std::string path_;
  const uint64_t bytes_;
  const Logger log_;
  const Clock::time_point start_ = Clock::now();

  std::atomic<bool> recording_{true};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Record> queue_;  // guarded by mutex_, as are the next three
  uint64_t dropped_ = 0;       // since the writer looked last
  int32_t models_ = 1;         // 1 is the server itself
  bool closing_ = false;

  std::string text_;      // whole events that are not in the file yet
  uint64_t written_ = 0;  // bytes of the file, all of them whole events
  uint64_t next_id_ = 0;  // of prompts and answers
  std::mutex join_;
  std::thread writer_;  // last: everything above is there when it starts
};

}  // namespace oar::api
