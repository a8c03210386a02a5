// The thread of Batches: from a stored file to requests under way, lines on disk, files of answers.
#include <algorithm>
#include <filesystem>

#include "engine/base/format.h"
#include "server/api/batch_state.h"

namespace oar::api {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFaults = 100;  // listed of a file
constexpr size_t kMostJobs = 8;      // batches with open files; others wait in `validating`
constexpr int kRetries = 5;          // of a request whose model is away

int64_t now() { return now_us() / 1'000'000; }

}  // namespace

void Batches::run() {
  for (;;) {
    std::deque<Finished> finished;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, next_look(), [this] { return stop_ || woken_ || !finished_.empty(); });
      if (stop_) return;
      woken_ = false;
      finished.swap(finished_);
    }
    for (Finished& f : finished) settle(std::move(f));
    begin_jobs();
    for (auto& [id, job] : jobs_) advance(*job);
    // One request of each batch in turn, so that a long one leaves room for others.
    for (bool sent = true; sent;) {
      sent = false;
      for (auto& [id, job] : jobs_) sent = (!job->ended && send_next(*job)) || sent;
    }
    const size_t before = jobs_.size();
    std::erase_if(jobs_, [](const auto& entry) { return entry.second->ended; });
    if (jobs_.size() < before) {  // there may be others that wait for their place
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
  }
}

Batches::Clock::time_point Batches::next_look() const {
  auto next = Clock::now() + std::chrono::seconds(30);
  for (const auto& [id, job] : jobs_) {
    const auto left = std::chrono::seconds(std::max<int64_t>(0, job->batch->expires - now()));
    next = std::min<Clock::time_point>(next, Clock::now() + left);
    if (job->rests_until > Clock::now()) next = std::min(next, job->rests_until);
    for (const Job::Later& l : job->later)
      if (l.when > Clock::now()) next = std::min(next, l.when);
  }
  return next;
}

void Batches::begin_jobs() {
  std::vector<std::shared_ptr<Batch>> waiting;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, batch] : all_)
      if (!batch->has_ended() && !jobs_.contains(id)) waiting.push_back(batch);
  }
  std::stable_sort(waiting.begin(), waiting.end(),
                   [](const auto& a, const auto& b) { return a->created_us < b->created_us; });
  for (auto& batch : waiting) {
    if (jobs_.size() >= kMostJobs) break;
    auto job = std::make_unique<Job>();
    job->batch = batch;
    Job& added = *jobs_.emplace(batch->id, std::move(job)).first->second;
    if (const Status s = begin(added); !s.ok() && !added.ended) fail(added, "batch_failed", s.message());
  }
}

// From what is on disk to open files; also of a batch that an earlier server had begun.
Status Batches::begin(Job& job) {
  std::string status, ends_as;
  {
    const std::lock_guard lock(mutex_);
    status = job.batch->status(), ends_as = job.batch->ends_as;
  }
  if (status == "finalizing") {  // all has been written
    end(job, ends_as == "expired" ? "expired" : ends_as == "failed" ? "failed" : "completed");
    return ok_status();
  }
  if (status == "cancelling") {
    end(job, "cancelled");
    return ok_status();
  }
  return prepare(job);
}

Status Batches::prepare(Job& job) {
  Batch& batch = *job.batch;
  OAR_ASSIGN(job.tenant, tenant_(batch.owner));
  job.held = files_.hold(batch.owner, batch.input_file);
  if (job.held == nullptr) return not_found(cat("the input file ", batch.input_file, " is no longer there"));
  const std::string input = files_.path_of(batch.input_file);
  Result<BatchCheck> checked = check_batch(input, {batch.endpoint, kMaxRequests, kMostFaults});
  if (!checked.ok()) return not_found(cat("the input file ", batch.input_file, " cannot be read"));
  if (!checked->faults.empty()) {
    json::array errors;
    for (const BatchFault& f : checked->faults)
      errors.push_back(
          json::object{{"code", "invalid_request"},
                       {"message", f.why.message()},
                       {"param", f.why.param().empty() ? json::value() : json::value(f.why.param())},
                       {"line", f.line == 0 ? json::value() : json::value(f.line)}});
    const std::lock_guard lock(mutex_);
    batch.shown["errors"] = {{"object", "list"}, {"data", std::move(errors)}};
    set_status(batch, "failed");
    job.held.reset();
    job.ended = true;
    return ok_status();
  }
  std::unordered_set<std::string> done;
  for (const char* what : {kBatchOutput, kBatchError}) {
    const bool good = what == kBatchOutput;
    const size_t before = done.size();
    OAR_ASSIGN((good ? job.good : job.bad),
               BatchOutput::open(path_of(batch.id, what), BatchOutput::Keep::kAll, done));
    (good ? job.completed : job.failed) = static_cast<int64_t>(done.size() - before);
  }
  OAR_ASSIGN(job.input, BatchInput::open(input, *checked, std::move(done)));
  const std::lock_guard lock(mutex_);
  if (batch.status() == "validating") set_status(batch, "in_progress");
  batch.count("total", checked->requests);
  batch.count("completed", job.completed);
  batch.count("failed", job.failed);
  save(batch);
  return ok_status();
}

Status Batches::write(Job& job, bool good, const std::string& line) {
  OAR_RETURN_IF_ERROR(files_.take(line.size() + 1));
  OAR_RETURN_IF_ERROR((good ? job.good : job.bad)->append(line));
  const std::lock_guard lock(mutex_);
  job.batch->count(good ? "completed" : "failed", ++(good ? job.completed : job.failed));
  return ok_status();
}

void Batches::settle(Finished finished) {
  const auto it = jobs_.find(finished.batch);
  if (it == jobs_.end()) return;
  Job& job = *it->second;
  auto node = job.flying.extract(finished.ticket);
  if (node.empty()) return;  // it was let go
  BatchRequest& request = node.mapped().request;
  int attempts = node.mapped().attempts;
  const unsigned status = finished.answer.status;
  // 0.25, 0.5, 1 ... 8 s
  const auto pause = std::chrono::milliseconds(250 << std::min(attempts, 5));
  if (status == 429) {  // as long as it takes: the batch has a window, the request has none
    const auto told = std::chrono::milliseconds(static_cast<int64_t>(finished.answer.retry_after * 1000));
    job.rests_until = Clock::now() + std::max<Clock::duration>(told, pause);
    job.later.push_back({std::move(request), Clock::now(), attempts + 1});
    return;
  }
  job.rests_until = {};  // who was let in leaves room
  if (status == 503 && attempts < kRetries) {
    job.later.push_back({std::move(request), Clock::now() + pause, attempts + 1});
    return;
  }
  const bool good = status == 200;
  const Status s = write(job, good, batch_output_line(request.custom_id, status, finished.answer.body));
  if (!s.ok()) fail(job, "storage_full", s.message());
}

bool Batches::send_next(Job& job) {
  size_t flying = 0;
  for (const auto& [id, other] : jobs_) flying += other->flying.size();
  const auto at = Clock::now();
  if (flying >= static_cast<size_t>(concurrency_) || job.input == nullptr || at < job.rests_until)
    return false;
  Job::Flight flight;
  const auto due =
      std::find_if(job.later.begin(), job.later.end(), [&](const Job::Later& l) { return l.when <= at; });
  if (due != job.later.end()) {
    flight.request = std::move(due->request);
    flight.attempts = due->attempts;
    job.later.erase(due);
  } else {
    auto next = job.read ? std::nullopt : job.input->next();
    if (!next) {
      job.read = true;
      advance(job);
      return false;
    }
    flight.request = std::move(*next);
  }
  const uint64_t ticket = next_ticket_++;
  flight.call = send_(flight.request, job.tenant, [this, id = job.batch->id, ticket](BatchAnswer answer) {
    const std::lock_guard lock(mutex_);
    finished_.push_back({id, ticket, std::move(answer)});
    wake_.notify_one();
  });
  job.flying.emplace(ticket, std::move(flight));
  return true;
}

// False when it has ended.
bool Batches::advance(Job& job) {
  if (job.ended) return false;
  bool cancelling;
  {
    const std::lock_guard lock(mutex_);
    cancelling = job.batch->status() == "cancelling";
  }
  if (cancelling) end(job, "cancelled");
  else if (now() >= job.batch->expires) expire(job);
  else if (job.read && job.flying.empty() && job.later.empty()) end(job, "completed");
  return !job.ended;
}

void Batches::let_go(Job& job) {
  for (auto& [ticket, flight] : job.flying) flight.call->cancel();
}

void Batches::expire(Job& job) {
  let_go(job);
  const auto line_of = [](const BatchRequest& r) {
    return batch_error_line(r.custom_id, "batch_expired",
                            "the request was not answered before the completion window had ended");
  };
  Status s;
  for (const auto& [ticket, flight] : job.flying)
    if (s.ok()) s = write(job, false, line_of(flight.request));
  for (const Job::Later& l : job.later)
    if (s.ok()) s = write(job, false, line_of(l.request));
  while (s.ok() && !job.read) {
    const auto next = job.input->next();
    if (!next) job.read = true;
    else s = write(job, false, line_of(*next));
  }
  job.flying.clear();
  if (s.ok()) end(job, "expired");
  else fail(job, "storage_full", s.message());
}

// What has been answered so far stays.
void Batches::fail(Job& job, const char* code, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    json::array errors;
    errors.push_back(
        json::object{{"code", code}, {"message", message}, {"param", nullptr}, {"line", nullptr}});
    job.batch->shown["errors"] = {{"object", "list"}, {"data", std::move(errors)}};
  }
  log_(LogLevel::kWarning, cat("batches: ", job.batch->id, " has failed: ", message));
  end(job, "failed");
}

// The written lines become files, and the batch ends. A server that dies in between does it again.
void Batches::end(Job& job, const char* status) {
  let_go(job);
  job.flying.clear();
  job.good.reset();
  job.bad.reset();
  Batch& batch = *job.batch;
  {
    const std::lock_guard lock(mutex_);
    batch.ends_as = status;
    if (batch.status() == "in_progress") set_status(batch, "finalizing");
  }
  for (const char* const what : {kBatchOutput, kBatchError}) {
    const bool good = what == kBatchOutput;
    const std::string path = path_of(batch.id, what);
    StoredFile file;
    file.id = good ? batch.output_id : batch.error_id;
    bool there = files_.find(batch.owner, file.id).ok();
    std::error_code ec;
    const auto bytes = fs::file_size(path, ec);
    if (!there && !ec && bytes > 0) {
      file.owner = batch.owner;
      file.name = cat(batch.id, good ? "_output.jsonl" : "_error.jsonl");
      file.purpose = "batch_output";
      file.bytes = bytes;
      file.created_us = now_us();
      if (batch.keep_seconds) file.expires = file.created_us / 1'000'000 + *batch.keep_seconds;
      const Status s = files_.adopt(file, path);
      there = s.ok();
      if (!s.ok()) log_(LogLevel::kError, cat("batches: ", batch.id, ": ", s.message()));
    } else if (!ec) {
      fs::remove(path, ec);
    }
    const std::lock_guard lock(mutex_);
    if (there) batch.shown[good ? "output_file_id" : "error_file_id"] = file.id;
  }
  const std::lock_guard lock(mutex_);
  set_status(batch, status);
  job.ended = true;
  job.held.reset();
}

void Batches::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    stop_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  for (auto& [id, job] : jobs_) let_go(*job);
  jobs_.clear();
}

}  // namespace oar::api
