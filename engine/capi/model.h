// What a model handle stands for: a LanguageModel, its generations, and the thread that calls their
// callbacks. The engine thread only posts; detokenizing and the caller's code run on the delivery thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/capi/generation.h"
#include "engine/capi/oar.h"
#include "engine/runtime/language_model.h"

namespace oar::capi {

// Calls callbacks, one after the other.
class Delivery {
 public:
  ~Delivery() { stop(); }
  // Starts the thread unless it is there. RESOURCE_EXHAUSTED when the system has none.
  Status start();
  // A generation has events to deliver. Any thread; must not block.
  void post(std::weak_ptr<Generation> generation);
  // Delivers what was posted and ends the thread. Idempotent; not on that thread.
  void stop();
  // Whether the calling thread is some model's delivery thread, and so inside a callback.
  static bool in_callback();

 private:
  void main();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::weak_ptr<Generation>> posted_;  // guarded by mutex_, as is the next
  bool stop_ = false;
  std::mutex thread_mutex_;
  std::thread thread_;  // guarded by thread_mutex_
};

class Model {
 public:
  explicit Model(std::unique_ptr<LanguageModel> language_model)
      : language_model_(std::move(language_model)), delivery_(std::make_shared<Delivery>()) {}

  LanguageModel& language_model() { return *language_model_; }
  const std::shared_ptr<Delivery>& delivery() { return delivery_; }
  void add(const std::shared_ptr<Generation>& generation);
  // Ends what runs, tells everybody, lets go of the generations. Once.
  void close();
  // At exit: nothing more is computed or delivered; no thread is joined.
  void abandon();

 private:
  std::unique_ptr<LanguageModel> language_model_;
  std::shared_ptr<Delivery> delivery_;  // shared with the engine's sinks, which may outlive a close
  std::mutex mutex_;
  std::vector<std::weak_ptr<Generation>> generations_;  // guarded by mutex_
};

}  // namespace oar::capi
