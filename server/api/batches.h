// /v1/batches: a stored file of requests, answered into stored files while the server has time. The requests
// take the way of all others, by `BatchSend`, and go behind them.
//
//   validating -> in_progress -> finalizing -> completed | expired        validating -> failed
//                           \-> cancelling -> cancelled
//
// A server that stops leaves its batches as they are; the next one on the folder goes on with what has no
// answer yet. Answers are on disk before they are counted, so none is asked for twice, but those that were
// under way when a server ended.
//
// Threads: one of its own moves all batches on; every method from any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/api/batch_lines.h"
#include "server/api/file_store.h"
#include "server/api/item_page.h"
#include "server/api/tenant.h"

namespace oar::api {

struct BatchAnswer {
  unsigned status = 0;  // HTTP's
  std::string body;
  double retry_after = 0;  // seconds; 0: not said
};
// A request under way.
class BatchCall {
 public:
  virtual ~BatchCall() = default;
  virtual void cancel() = 0;  // its answer does not come any more
};
// Sends a request of the batch `id` in the name of a tenant (null: no key is asked for). `done` is called
// once, on any thread.
using BatchSend = std::function<std::shared_ptr<BatchCall>(const BatchRequest&, std::shared_ptr<Tenant>,
                                                           std::function<void(BatchAnswer)> done)>;
// Who a file's owner is now; UNAUTHENTICATED when that key is no longer accepted.
using FindTenant = std::function<Result<std::shared_ptr<Tenant>>(const std::string& owner)>;

struct BatchCreate {
  std::string input_file, endpoint, window;
  int64_t window_seconds = 0;
  json::object metadata;
  std::optional<int64_t> keep_seconds;  // of the output files
};
Result<BatchCreate> parse_batch_create(const RequestBody& body);

class Batches {
 public:
  static constexpr int64_t kMaxRequests = 50'000;  // of one batch
  static constexpr size_t kMaxBatches = 1000;      // remembered; beyond, those that ended first are forgotten

  // Goes on with the batches that the folder of `files` holds. `concurrency`: requests under way at once, of
  // all batches. `files` outlives it.
  static Result<std::unique_ptr<Batches>> start(FileStore& files, int concurrency, BatchSend send,
                                                FindTenant tenant, Logger log);
  ~Batches();

  // OpenAI's batch object.
  Result<std::string> create(const std::string& owner, const BatchCreate& asked);
  Result<std::string> find(const std::string& owner, const std::string& id);
  Result<std::string> cancel(const std::string& owner, const std::string& id);
  Result<std::string> list(const std::string& owner, const ItemPage& page);

  // Lets go of the requests under way, which the next server asks again, and ends the thread. Idempotent.
  void stop();

 private:
  struct Batch;
  struct Job;
  struct Finished {
    std::string batch;
    uint64_t ticket = 0;
    BatchAnswer answer;
  };
  using Clock = std::chrono::steady_clock;

  Batches(FileStore& files, int concurrency, BatchSend send, FindTenant tenant, Logger log);
  Status scan();
  std::string path_of(const std::string& id, const char* what) const;
  Result<std::shared_ptr<Batch>> locate(const std::string& owner, const std::string& id);  // with the lock
  void save(const Batch& batch);                                                           // with the lock
  void set_status(Batch& batch, const char* status);                                       // with the lock
  bool make_room();                                                                        // with the lock

  // Of the thread.
  void run();
  void begin_jobs();
  Status begin(Job& job);
  Status prepare(Job& job);
  void settle(Finished finished);
  Status write(Job& job, bool good, const std::string& line);
  bool advance(Job& job);
  bool send_next(Job& job);
  void end(Job& job, const char* status);
  void fail(Job& job, const char* code, const std::string& message);
  void expire(Job& job);
  void let_go(Job& job);
  Clock::time_point next_look() const;

  FileStore& files_;
  const int concurrency_;
  const BatchSend send_;
  const FindTenant tenant_;
  const Logger log_;

  std::map<std::string, std::unique_ptr<Job>> jobs_;  // by batch; the thread's, as is the next
  uint64_t next_ticket_ = 1;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<std::string, std::shared_ptr<Batch>, std::less<>> all_;  // guarded by mutex_, as is all below
  std::deque<Finished> finished_;
  bool woken_ = true, stop_ = false;  // there may be batches to go on with
  std::thread thread_;
};

}  // namespace oar::api
