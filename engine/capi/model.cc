#include "engine/capi/model.h"

#include <system_error>

#include "engine/base/format.h"

namespace oar::capi {

namespace {
thread_local bool delivering = false;
}

bool Delivery::in_callback() { return delivering; }

Status Delivery::start() {
  std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) return ok_status();
  try {
    thread_ = std::thread([this] { main(); });
  } catch (const std::system_error& e) {
    return resource_exhausted(cat("no thread for callbacks: ", e.what(), "; raise the limit of threads"));
  }
  return ok_status();
}

void Delivery::post(std::weak_ptr<Generation> generation) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;  // Model::close() takes care of what came late
    posted_.push_back(std::move(generation));
  }
  wake_.notify_one();
}

void Delivery::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) thread_.join();
}

void Delivery::main() {
  delivering = true;
  while (true) {
    std::weak_ptr<Generation> posted;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || !posted_.empty(); });
      if (posted_.empty()) return;
      posted = std::move(posted_.front());
      posted_.pop_front();
    }
    if (const auto generation = posted.lock()) generation->deliver();
  }
}

void Model::add(const std::shared_ptr<Generation>& generation) {
  std::lock_guard lock(mutex_);
  if (generations_.size() == generations_.capacity())  // before growing: forget those that are gone
    std::erase_if(generations_, [](const auto& g) { return g.expired(); });
  generations_.push_back(generation);
}

void Model::close() {
  language_model_->engine().drain(std::chrono::milliseconds(0));
  delivery_->stop();
  std::vector<std::weak_ptr<Generation>> generations;
  {
    std::lock_guard lock(mutex_);
    generations.swap(generations_);
  }
  for (const auto& weak : generations)
    if (const auto generation = weak.lock()) generation->detach();
}

void Model::abandon() {
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : generations_)
      if (const auto generation = weak.lock()) generation->silence();
  }
  language_model_->engine().drain(std::chrono::milliseconds(0));
}

}  // namespace oar::capi
