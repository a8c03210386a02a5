// The trace of a server: what each step of a language model, each run of an ordinary one and each of their
// requests took, in one of two formats (trace_format.h). docs/traces.md says what the events mean.
//
// The file ends when the server stops or the limit is reached. A process that is killed leaves whole events,
// and Chrome's array without its last bracket, which its viewers accept.
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
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "server/api/trace_format.h"

namespace oar::api {

class TraceFile {
 public:
  static constexpr uint64_t kDefaultBytes = uint64_t{256} << 20, kLeastBytes = 64 << 10;
  static constexpr size_t kQueue = 4096;  // records that may wait for the writer

  // What open() would refuse, leaving a file that is there as it is.
  static Status check(const std::string& path, uint64_t bytes);
  // Begins the file anew; it never has more than `bytes`. INVALID_ARGUMENT for a limit below kLeastBytes or
  // standard output ("-"), UNAVAILABLE for a file that cannot be written.
  static Result<std::shared_ptr<TraceFile>> open(const std::string& path, uint64_t bytes, Logger log,
                                                 TraceKind kind = TraceKind::kChrome);
  ~TraceFile() { close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // A group of tracks, and what those of its slices are called, in order.
  int32_t add_model(const std::string& name, std::vector<std::string> tracks,
                    const std::string& version = {});
  void add(const StepRecord& step) { push(step); }
  void add(PromptRecord prompt) { push(std::move(prompt)); }
  void add(RefusalRecord refusal) { push(std::move(refusal)); }
  void add(const RunRecord& run) { push(run); }
  void add(AnswerRecord answer) { push(std::move(answer)); }
  // Writes what waits and the end, and returns when that is done. Records that come later are not for this
  // file. Idempotent.
  void close();

 private:
  TraceFile(int file, std::string path, uint64_t bytes, Logger log, TraceKind kind);
  void push(TraceRecord record);

  // Below: the writer's thread.
  void main();
  void mark(std::string_view name, std::initializer_list<TraceArgument> args);
  // Keeps what was appended behind `before` when there is room for it. Otherwise the trace ends.
  void keep(size_t before, uint64_t dropped);
  void flush();

  const int file_;
  const std::string path_;
  const uint64_t bytes_;
  const Logger log_;

  std::atomic<bool> recording_{true};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<TraceRecord> queue_;  // guarded by mutex_, as are the next three
  uint64_t dropped_ = 0;            // since the writer looked last
  int32_t models_ = 1;              // 1 is the server itself
  bool closing_ = false;

  std::unique_ptr<TraceFormat> format_;
  std::string text_;      // whole events that are not in the file yet
  uint64_t written_ = 0;  // bytes of the file, all of them whole events
  std::mutex join_;
  std::thread writer_;  // last: everything above is there when it starts
};

}  // namespace oar::api
