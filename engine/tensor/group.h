// Group: processes of one host that compute one thing together, each a rank from 0 to size() - 1. They share
// memory: a bucket of floats for each rank, which it alone writes and all read between two barriers.
//
// A rank that dies, stops or hangs as a whole is found out: each has a thread that counts up, and watches the
// counts of the others. A rank whose count stands still for `patience` ends the group: every call of every
// rank from then on is UNAVAILABLE and names it. So does fail(), and a rank that leaves while others wait. A
// rank that is only slower than the others is waited for, as long as barrier() is told, or until it falls
// behind the pace of those that mark().
//
// Every rank makes the same calls in the same order, on one thread; failed() and failed_rank() from any.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "engine/base/status.h"
#include "kernels/thread_pool.h"

namespace oar {

class Group {
 public:
  static constexpr int kMostRanks = 64;

  // Rank 0 of `size`: makes the shared memory, whose descriptor the other processes are to inherit. Their
  // silence counts from now on. INVALID_ARGUMENT, UNAVAILABLE.
  static Result<std::shared_ptr<Group>> create(int size,
                                               std::chrono::milliseconds patience = std::chrono::seconds(6));
  // Rank `rank` of the group whose descriptor is `fd`, which it owns from now on.
  static Result<std::shared_ptr<Group>> join(int fd, int rank);
  ~Group();  // this rank leaves
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  int fd() const;  // closed when the process becomes another (exec), unless that is told to keep it

  // Gives each rank a bucket of so many floats, all zero; once. INVALID_ARGUMENT where ranks ask for
  // different numbers, RESOURCE_EXHAUSTED where there is not the memory.
  Status reserve(uint64_t floats);
  float* mine() const { return buckets_ + static_cast<uint64_t>(rank_) * stride_; }

  // Returns when all ranks have called it. A rank that all others wait for longer than `most` ends the group.
  using Duration = std::chrono::steady_clock::duration;
  Status barrier(Duration most = Duration::max());
  // Counts a part of what all ranks do alike, and how long it took. A rank is slow that was behind another
  // for most of the last 3/2 `patience`, with less than a fifth of its work done. It ends the group. For one
  // part it may take four times as long as another took for any.
  void mark(Duration took) const;
  // to[k] = (((to[k] + bucket 0's [first + k]) + bucket 1's) + ...): ranks in order, whatever the number of
  // threads. No barrier: buckets must be whole, and stay so until all ranks are done.
  void add_buckets(uint64_t first, std::span<float> to, ThreadPool& pool) const;
  const float* bucket(int rank) const { return buckets_ + static_cast<uint64_t>(rank) * stride_; }
  // Whether any rank says so; a barrier.
  Result<bool> any(bool mine);
  // Rank 0's numbers, at most kMostNumbers, to all; a barrier.
  static constexpr size_t kMostNumbers = 8;
  Status from_first(std::span<double> values);

  // Ends the group on behalf of this rank; the others are told why. The first one counts.
  void fail(const std::string& why);
  Status failed() const;         // ok while it goes on
  int failed_rank() const;       // who ended it; below 0: nobody
  bool failed_silently() const;  // by no fail() of its own

 private:
  struct Control;
  struct Monitor;
  Group() = default;
  static Result<std::shared_ptr<Group>> open(int fd, int rank);
  void declare(int rank, const std::string& why, bool silent);

  int fd_ = -1, rank_ = 0;
  Control* control_ = nullptr;
  float* buckets_ = nullptr;
  uint64_t stride_ = 0, mapped_ = 0;  // floats, bytes
  std::unique_ptr<Monitor> monitor_;
};

}  // namespace oar
