#include "server/api/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/base/format.h"

namespace oar::api {
namespace {

constexpr std::chrono::milliseconds kGather{100};  // what a killed process may lose
constexpr size_t kTail = 512;                      // more than the last event and the bracket take
constexpr size_t kFlush = 1 << 20;
constexpr std::string_view kEnd = "\n]\n";
constexpr int32_t kServer = 1;

Result<int> open_file(const std::string& path, uint64_t bytes, int flags) {
  if (path == "-")
    return invalid_argument("trace: - is standard output, which has the server's own lines; name a file",
                            "trace");
  if (bytes < TraceFile::kLeastBytes)
    return invalid_argument(cat("trace-limit: ", bytes, " bytes hold no trace; allow at least ",
                                format_bytes(TraceFile::kLeastBytes), ", or leave --trace out"),
                            "trace-limit");
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
  if (file < 0)
    return Status(StatusCode::kUnavailable, cat("trace: cannot write ", path, ": ", std::strerror(errno)),
                  "trace");
  return file;
}

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(file, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

Status TraceFile::check(const std::string& path, uint64_t bytes) {
  OAR_ASSIGN(const int file, open_file(path, bytes, O_APPEND));
  ::close(file);
  return ok_status();
}

Result<std::shared_ptr<TraceFile>> TraceFile::open(const std::string& path, uint64_t bytes, Logger log) {
  OAR_ASSIGN(const int file, open_file(path, bytes, O_TRUNC));
  return std::shared_ptr<TraceFile>(new TraceFile(file, path, bytes, std::move(log)));
}

TraceFile::TraceFile(int file, std::string path, uint64_t bytes, Logger log)
    : file_(file), path_(std::move(path)), bytes_(bytes), log_(std::move(log)) {
  queue_.reserve(kQueue);
  queue_.emplace_back(NameRecord{kServer, "oar serve", {}});
  writer_ = std::thread([this] {
    try {
      main();
    } catch (const std::exception& e) {  // no memory: the server goes on without
      recording_ = false;
      log_(LogLevel::kWarning, cat("trace: ", path_, " ends early: ", e.what()));
    }
  });
}

void TraceFile::close() {
  const std::lock_guard one(join_);
  if (!writer_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  writer_.join();
  ::close(file_);
}

int32_t TraceFile::add_model(const std::string& name, std::vector<std::string> tracks) {
  const std::lock_guard lock(mutex_);
  // Never dropped: they are few, and without them nobody knows what the others are about.
  queue_.emplace_back(NameRecord{++models_, name, std::move(tracks)});
  if (queue_.size() == 1) wake_.notify_one();
  return models_;
}

void TraceFile::push(Record record) {
  if (!recording_.load(std::memory_order_relaxed)) return;
  size_t waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kQueue) {
      ++dropped_;
      return;
    }
    queue_.push_back(std::move(record));
    waiting = queue_.size();
  }
  // In between the writer sleeps: a step costs no system call.
  if (waiting == 1 || waiting == kQueue / 2) wake_.notify_one();
}

void TraceFile::main() {
  text_ = "[";
  const auto unix_ms = std::chrono::system_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
  mark("trace begins", {{"unix_ms", int64_t{unix_ms}}});
  std::vector<Record> taken;
  taken.reserve(kQueue);
  bool last = false;
  while (!last && recording_) {
    uint64_t dropped = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      wake_.wait_for(lock, kGather, [this] { return closing_ || queue_.size() >= kQueue / 2; });
      last = closing_;
      taken.swap(queue_);
      dropped = std::exchange(dropped_, 0);
    }
    for (const Record& r : taken) {
      const size_t before = text_.size();
      std::visit([this](const auto& record) { render(record); }, r);
      keep(before, dropped);
      if (text_.size() >= kFlush) flush();
      if (!recording_) break;
    }
    taken.clear();
    if (dropped > 0 && recording_) {
      const size_t before = text_.size();
      mark("records dropped: the writer was behind", {{"count", static_cast<int64_t>(dropped)}});
      keep(before, dropped);
    }
    flush();
  }
  if (!recording_) return;
  text_ += kEnd;
  flush();
  recording_ = false;
}

void TraceFile::keep(size_t before, uint64_t dropped) {
  if (written_ + text_.size() + kTail <= bytes_) return;
  text_.resize(before);
  mark("trace limit reached",
       {{"bytes", static_cast<int64_t>(bytes_)}, {"dropped", static_cast<int64_t>(dropped)}});
  text_ += kEnd;
  flush();
  recording_ = false;
  log_(LogLevel::kWarning, cat("trace: ", path_, " has reached its limit of ", format_bytes(bytes_),
                               " and is complete; --trace-limit sets another"));
}

void TraceFile::flush() {
  if (!recording_) return;
  if (write_all(file_, text_)) {
    written_ += text_.size();
    text_.clear();
    return;
  }
  const int error = errno;
  recording_ = false;
  // Back to whole events. What is no regular file keeps what it has.
  const bool whole = ::ftruncate(file_, static_cast<off_t>(written_)) == 0 &&
                     ::lseek(file_, 0, SEEK_END) >= 0 && write_all(file_, kEnd);
  log_(LogLevel::kWarning, cat("trace: cannot write ", path_, ": ", std::strerror(error), "; it ends after ",
                               written_, " bytes", whole ? "" : ", without its closing bracket"));
}

void TraceFile::event(const TraceEvent& e, std::initializer_list<TraceArgument> args) {
  text_ += written_ + text_.size() > 1 ? ",\n" : "\n";
  append_event(text_, e, args);
}

void TraceFile::mark(std::string_view name, std::initializer_list<TraceArgument> args) {
  event({.phase = TracePhase::kMark, .name = name, .process = kServer, .at_ns = since_start(Clock::now())},
        args);
}

void TraceFile::render(const NameRecord& r) {
  event({.phase = TracePhase::kName, .name = "process_name", .process = r.model}, {{"name", r.name}});
  int32_t track = 0;
  for (const std::string& name : r.tracks)
    event({.phase = TracePhase::kName, .name = "thread_name", .process = r.model, .track = ++track},
          {{"name", name}});
}

void TraceFile::render(const StepRecord& r) {
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

void TraceFile::render(const PromptRecord& r) {
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

void TraceFile::render(const RefusalRecord& r) {
  event({.phase = TracePhase::kMark, .name = "refused", .process = r.model, .at_ns = since_start(r.at)},
        {{"id", r.id}, {"status", status_code_name(r.why)}});
}

void TraceFile::render(const RunRecord& r) {
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

void TraceFile::render(const AnswerRecord& r) {
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

}  // namespace oar::api
