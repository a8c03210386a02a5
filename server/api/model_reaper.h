// The thread on which models end. A model's last holder may be its engine's thread, which cannot join itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/base/reservation.h"

namespace oar::api {

class ModelReaper {
 public:
  ModelReaper() : thread_([this] { work(); }) {}

  // The handle to give out: when its last copy goes, `model` ends here.
  template <class T>
  static std::shared_ptr<const T> hand_out(const std::shared_ptr<ModelReaper>& self,
                                           std::shared_ptr<const T> model) {
    self->expect();
    const T* raw = model.get();
    return {raw, [self, model = std::move(model)](const T*) mutable { self->retire(std::move(model)); }};
  }
  // Returns when what has been let go of has ended.
  void settle() {
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, std::chrono::seconds(30), [this] { return retired_.empty() && !busy_; });
  }
  // Returns when all that was given out has ended, or after a while: then somebody has kept a model.
  bool finish() {
    std::unique_lock lock(mutex_);
    const bool all = wake_.wait_for(lock, std::chrono::seconds(30), [this] { return open_ == 0; });
    stopping_ = true;
    lock.unlock();
    wake_.notify_all();
    thread_.join();
    return all;
  }

 private:
  void expect() {
    std::lock_guard lock(mutex_);
    ++open_;
  }
  void retire(std::shared_ptr<const void> model) {
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;  // and the caller's thread ends it
      retired_.push_back(std::move(model));
    }
    wake_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !retired_.empty(); });
      if (retired_.empty()) return;
      std::shared_ptr<const void> model = std::move(retired_.front());
      retired_.pop_front();
      busy_ = true;
      lock.unlock();
      {
        const TrimMemoryAfter trim;
        model.reset();
      }
      lock.lock();
      busy_ = false;
      --open_;
      wake_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<const void>> retired_;  // guarded by mutex_, as are:
  size_t open_ = 0;                                  // given out and not ended
  bool stopping_ = false, busy_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace oar::api
