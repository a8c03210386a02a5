#include "engine/tensor/load_threads.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>

#include "engine/tensor/charge.h"

namespace oar {
namespace {

constexpr uint64_t kWorthThreads = 2 << 20;  // bytes: a thread takes some 50 us to start, 2 MB some 500 us
constexpr uint64_t kPiece = 1 << 20;

}  // namespace

void for_each_largest_first(int threads, std::span<const uint64_t> sizes,
                            const std::function<void(size_t)>& fn) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::vector<std::thread> others;
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr thrown;
  Reservation* const payer = ChargeTo::current();
  const auto work = [&] {
    const ChargeTo charge(payer);
    try {
      for (size_t k; (k = next.fetch_add(1, std::memory_order_relaxed)) < order.size();) fn(order[k]);
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
      next = order.size();
    }
  };
  if (threads > 1 && std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}) >= kWorthThreads) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });
    const size_t wanted = std::min(static_cast<size_t>(threads), order.size()) - 1;
    others.reserve(wanted);
    try {
      while (others.size() < wanted) others.emplace_back(work);
    } catch (const std::system_error&) {
      // The system refuses another thread: those that there are do its share.
    }
  }
  work();
  for (std::thread& t : others) t.join();
  if (thrown) std::rethrow_exception(thrown);
}

void DeferredCopies::add(void* to, const Buffer& from) {
  sources_.push_back(from);
  // In pieces, so that one large tensor is divided, too.
  for (uint64_t at = 0; at < from.size(); at += kPiece) {
    pieces_.push_back({static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from.data()) + at,
                       std::min(kPiece, from.size() - at)});
  }
}

void DeferredCopies::run(int threads) {
  std::vector<uint64_t> sizes;
  sizes.reserve(pieces_.size());
  for (const Piece& p : pieces_) sizes.push_back(p.bytes);
  for_each_largest_first(threads, sizes, [&](size_t i) {
    const Piece& p = pieces_[i];
    std::memcpy(p.to, p.from, p.bytes);
  });
  // Only now: reading a page brings its neighbours, which may have been given back already.
  sizes.clear();
  for (const Buffer& b : sources_) sizes.push_back(b.size());
  for_each_largest_first(threads, sizes, [&](size_t i) { sources_[i].release_pages(); });
  pieces_.clear();
  sources_.clear();
}

}  // namespace oar
