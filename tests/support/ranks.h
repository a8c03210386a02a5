// Ranks of a Group (engine/tensor/group.h) as threads of one process, which share the memory as processes do.
#pragma once

#include <fcntl.h>

#include <thread>
#include <vector>

#include "engine/tensor/group.h"

namespace oar_test {

// f(group) of each rank, each on a thread of its own; the first rank creates the group. Catch's macros are
// for one thread: ranks return what is to be checked.
template <class F>
auto by_ranks(int size, std::chrono::milliseconds patience, F&& f) {
  using R = decltype(f(std::shared_ptr<oar::Group>()));
  std::vector<R> out(static_cast<size_t>(size));
  auto first = oar::Group::create(size, patience).value();
  std::vector<std::thread> threads;
  for (int r = 1; r < size; ++r) {
    const int fd = fcntl(first->fd(), F_DUPFD_CLOEXEC, 3);
    threads.emplace_back([&, fd, r] { out[static_cast<size_t>(r)] = f(oar::Group::join(fd, r).value()); });
  }
  out[0] = f(std::move(first));
  for (std::thread& t : threads) t.join();
  return out;
}

// Longer than any test waits for a rank that computes.
constexpr std::chrono::milliseconds kPatient{20000};

}  // namespace oar_test
