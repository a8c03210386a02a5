// Turns at something that serves one party at a time, fair by time: as long as several parties want it, each
// gets the same share, whatever the length of a single turn. A party is a model, a turn one kernel.
//
// Who had the last turn keeps a lease: it takes the next one with a single compare-and-swap. That costs a
// model that is alone in the process nothing. When others wait, the lease ends after kSlice, or when its
// holder has not come back for kGrace; the waiting party that has had least time is next. Who waits sleeps.
//
// What it is not: a lock for the threads of one party among themselves. They bring their own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

namespace oar {

class FairTurns {
 public:
  // Waking a thread takes up to 100 us on virtual machines: a twentieth of a slice.
  static constexpr std::chrono::microseconds kSlice{2000}, kGrace{50};

  // Somebody waits for a turn.
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }

  class Party {
   public:
    explicit Party(FairTurns& turns) : turns_(turns) {}
    ~Party() { turns_.forget(*this); }
    Party(const Party&) = delete;
    Party& operator=(const Party&) = delete;

   private:
    friend class FairTurns;
    FairTurns& turns_;
    std::chrono::nanoseconds used_{0};  // while others waited; under the mutex
  };

  // One party's turn. The party is one thread at a time.
  class Turn {
   public:
    explicit Turn(Party& party) : party_(party), slept_(party.turns_.take(party)) {}
    ~Turn() { party_.turns_.give(party_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool slept() const { return slept_; }  // before it began

   private:
    Party& party_;
    const bool slept_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  static uintptr_t idle(const Party& p) { return reinterpret_cast<uintptr_t>(&p); }
  static uintptr_t busy(const Party& p) { return idle(p) | 1; }

  // Whether the thread slept.
  bool take(Party& p) {
    uintptr_t mine = idle(p);
    return !lease_.compare_exchange_strong(mine, busy(p), std::memory_order_acquire) && wait(p);
  }
  void give(Party& p) {
    lease_.store(idle(p), std::memory_order_release);
    // Who begins to wait just now looks again after kGrace.
    if (wanted()) pass_on(p);
  }
  bool wait(Party& p);
  void pass_on(Party& p);
  void forget(Party& p);
  Party* next() const;  // of those who wait, under the mutex

  // The party with the lease, its lowest bit set during a turn; 0: nobody.
  std::atomic<uintptr_t> lease_{0};
  std::atomic<bool> wanted_{false};  // somebody waits
  std::mutex mutex_;                 // of what follows
  std::condition_variable passed_;
  std::vector<Party*> waiting_;
  Clock::time_point begun_{};       // the lease, or the waiting of the first who waits for its end
  Clock::time_point idle_since_{};  // the lease's holder
  bool first_come_ = false;         // nobody has had a turn since others wait: the lease ends at once
};

}  // namespace oar
