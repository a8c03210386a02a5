// Wakes the readers of a step's tokens once per thread that serves them, not once per token.
//
// The engine tells every sequence's sink of its token in one go. Most sinks only wake a thread, and a thread
// that is woken for the first of sixteen takes the processor from the engine sixteen times. So work for
// readers is gathered while the engine tells, and each thread gets all of its work at the end.
#ifndef OAR_ENGINE_RUNTIME_EVENT_ROUND_H_
#define OAR_ENGINE_RUNTIME_EVENT_ROUND_H_

#include <functional>
#include <utility>
#include <vector>

namespace oar {

class EventRound {
 public:
  using Job = std::function<void()>;
  using Give = std::function<void(std::vector<Job>)>;

  // One at a time on a thread; it is that thread's until it ends.
  EventRound() { current_ = this; }
  // Gives what was gathered, targets in the order in which they were first named.
  ~EventRound() {
    current_ = nullptr;
    for (Target& t : targets_) t.give(std::move(t.jobs));
  }
  EventRound(const EventRound&) = delete;
  EventRound& operator=(const EventRound&) = delete;

  // Has `give` take `job`: at the end of this thread's round, with all other jobs for `target` and in their
  // order; at once where no round is under way. Of several `give` for one target the first is called. It may
  // not throw.
  template <class G>
  static void gather(const void* target, Job job, G&& give) {
    if (current_ == nullptr) {
      std::vector<Job> one;
      one.push_back(std::move(job));
      return give(std::move(one));
    }
    for (Target& t : current_->targets_) {
      if (t.name == target) return t.jobs.push_back(std::move(job));
    }
    Target& added = current_->targets_.emplace_back(target, std::forward<G>(give));
    added.jobs.push_back(std::move(job));
  }

 private:
  struct Target {
    Target(const void* n, Give g) : name(n), give(std::move(g)) {}
    const void* name;
    Give give;
    std::vector<Job> jobs;
  };
  inline static thread_local EventRound* current_ = nullptr;
  std::vector<Target> targets_;  // as many as the server has threads for connections
};

}  // namespace oar

#endif  // OAR_ENGINE_RUNTIME_EVENT_ROUND_H_
