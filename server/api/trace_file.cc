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
constexpr size_t kTail = 1024;                     // more than the last event and the end take
constexpr size_t kFlush = 1 << 20;

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

Result<std::shared_ptr<TraceFile>> TraceFile::open(const std::string& path, uint64_t bytes, Logger log,
                                                   TraceKind kind) {
  OAR_ASSIGN(const int file, open_file(path, bytes, O_TRUNC));
  return std::shared_ptr<TraceFile>(new TraceFile(file, path, bytes, std::move(log), kind));
}

TraceFile::TraceFile(int file, std::string path, uint64_t bytes, Logger log, TraceKind kind)
    : file_(file), path_(std::move(path)), bytes_(bytes), log_(std::move(log)) {
  format_ = kind == TraceKind::kOtlp ? make_otlp_format(TraceOrigin::now())
                                     : make_chrome_format(TraceOrigin::now());
  queue_.reserve(kQueue);
  queue_.emplace_back(NameRecord{kTraceOfServer, "oar serve", {}, {}});
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

int32_t TraceFile::add_model(const std::string& name, std::vector<std::string> tracks,
                             const std::string& version) {
  const std::lock_guard lock(mutex_);
  // Never dropped: they are few, and without them nobody knows what the others are about.
  queue_.emplace_back(NameRecord{++models_, name, version, std::move(tracks)});
  if (queue_.size() == 1) wake_.notify_one();
  return models_;
}

void TraceFile::push(TraceRecord record) {
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
  format_->begin(text_);
  std::vector<TraceRecord> taken;
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
    for (const TraceRecord& r : taken) {
      const size_t before = text_.size();
      format_->add(text_, r);
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
  text_ += format_->end();
  flush();
  recording_ = false;
}

void TraceFile::keep(size_t before, uint64_t dropped) {
  if (written_ + text_.size() + kTail <= bytes_) return;
  text_.resize(before);
  mark("trace limit reached",
       {{"bytes", static_cast<int64_t>(bytes_)}, {"dropped", static_cast<int64_t>(dropped)}});
  text_ += format_->end();
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
                     ::lseek(file_, 0, SEEK_END) >= 0 && write_all(file_, format_->end());
  log_(LogLevel::kWarning, cat("trace: cannot write ", path_, ": ", std::strerror(error), "; it ends after ",
                               written_, " bytes", whole ? "" : ", without its closing bracket"));
}

void TraceFile::mark(std::string_view name, std::initializer_list<TraceArgument> args) {
  format_->mark(text_, name, {args.begin(), args.size()});
}

}  // namespace oar::api
