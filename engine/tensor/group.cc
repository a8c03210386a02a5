#include "engine/tensor/group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "engine/base/format.h"

namespace oar {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kMagic = 0x4f415247;  // of memory that create() made
constexpr uint64_t kControlBytes = 64 << 10;
constexpr auto kBeat = std::chrono::milliseconds(100);

// A wait that ends when the word changes, somebody wakes it, or after some time: it is asked again.
void wait_on(std::atomic<uint32_t>& word, uint32_t seen) {
  timespec most{0, 50'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &most, nullptr, 0);
}
void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Whether other ranks keep this one's pace, in whose own time all is counted.
class Pace {
 public:
  Pace(size_t ranks, Clock::duration window) : window_(window), others_(ranks) {}

  // Once a beat: what this rank has done, and the time that it worked for it.
  void beat(Clock::duration now, uint64_t marks, Clock::duration work) {
    passed_ = now - now_, now_ = now;
    own_.push_back({now, work, marks});
    uint64_t least = marks;
    for (const auto& seen : others_)
      if (!seen.empty()) least = std::min(least, seen.front().marks);
    while (own_.size() > 1 && own_[1].marks <= least) own_.pop_front();
  }
  // Behind it: for how long rank r, which has so many marks, was behind this one within the window. Zero
  // where that is less than four fifths of it. Zero too where r did a fifth of this one's work meanwhile, or
  // has not yet had four times `longest` for the part that it is at.
  Clock::duration late(size_t r, uint64_t marks, Clock::duration longest) {
    auto& seen = others_[r];
    const auto ahead = std::find_if(own_.begin(), own_.end(), [&](const Own& o) { return o.marks > marks; });
    const bool behind = ahead != own_.end();
    const Clock::duration before = seen.empty() ? Clock::duration{} : seen.back().behind;
    seen.push_back({now_, before + (behind ? passed_ : Clock::duration{}), marks});
    while (seen.size() > 1 && seen[1].time + window_ <= now_) seen.pop_front();
    const Clock::duration out = seen.back().behind - seen.front().behind;
    const bool slow = behind && 5 * out >= 4 * window_ && now_ - ahead->time >= 4 * longest &&
                      out > 5 * (work_at(marks) - work_at(seen.front().marks));
    return slow ? out : Clock::duration{};
  }

 private:
  struct Own {
    Clock::duration time, work;
    uint64_t marks;
  };
  struct Other {
    Clock::duration time, behind;
    uint64_t marks;
  };
  Clock::duration work_at(uint64_t marks) const {
    return std::find_if(own_.begin(), own_.end() - 1, [&](const Own& o) { return o.marks >= marks; })->work;
  }

  const Clock::duration window_;
  Clock::duration now_{}, passed_{};
  std::deque<Own> own_;
  std::vector<std::deque<Other>> others_;
};

Status no_memory(const std::string& what, int error) {
  const auto code =
      error == ENOMEM || error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable;
  return {code, cat("shared memory ", what, ": ", std::strerror(error))};
}

}  // namespace

// At the beginning of the shared memory. All of it is zero at first.
struct Group::Control {
  uint32_t magic = kMagic;
  int32_t size = 0;
  int64_t patience_ms = 0;
  std::atomic<uint32_t> arrived{0}, generation{0};
  // 0: nobody; 1: `message` is being written; 2: it is there.
  std::atomic<uint32_t> failing{0};
  std::atomic<int32_t> failed_rank{-1};
  std::atomic<uint32_t> silent{0};
  char message[2048] = {};
  double first[kMostNumbers] = {};
  struct Rank {
    std::atomic<uint64_t> beats{0}, marks{0};
    std::atomic<Clock::rep> work{0}, longest{0};  // time for all marks, and for one at most
    std::atomic<int32_t> process{0};
    std::atomic<uint32_t> left{0}, vote{0};
    std::atomic<uint64_t> floats{0};
    std::atomic<uint32_t> met{0};  // the generation behind the barrier that it has come to
  } ranks[kMostRanks];
};

// The thread that counts for this rank and watches the others.
struct Group::Monitor {
  std::mutex mutex;
  std::condition_variable changed;
  bool ending = false;
  std::thread thread;
};

Result<std::shared_ptr<Group>> Group::create(int size, std::chrono::milliseconds patience) {
  static_assert(sizeof(Control) <= kControlBytes && std::atomic<uint64_t>::is_always_lock_free);
  if (size < 1 || size > kMostRanks)
    return invalid_argument(cat("a group has 1 to ", kMostRanks, " ranks, not ", size));
  const int fd = memfd_create("oar-group", MFD_CLOEXEC);
  if (fd < 0) return no_memory("cannot be made", errno);
  if (ftruncate(fd, kControlBytes) != 0) {
    const int error = errno;
    close(fd);
    return no_memory("cannot be made", error);
  }
  void* const at = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    close(fd);
    return no_memory("cannot be mapped", error);
  }
  auto* const control = new (at) Control();
  control->size = size;
  control->patience_ms = patience.count();
  munmap(at, kControlBytes);
  return open(fd, 0);
}

Result<std::shared_ptr<Group>> Group::join(int fd, int rank) { return open(fd, rank); }

Result<std::shared_ptr<Group>> Group::open(int fd, int rank) {
  std::shared_ptr<Group> out(new Group());
  out->fd_ = fd, out->rank_ = rank;
  struct stat about {};
  if (fstat(fd, &about) != 0 || about.st_size < static_cast<off_t>(kControlBytes))
    return invalid_argument(cat("descriptor ", fd, " is no group's memory"));
  void* const at = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return no_memory("cannot be mapped", errno);
  out->control_ = static_cast<Control*>(at);
  if (out->control_->magic != kMagic || rank < 0 || rank >= out->control_->size)
    return invalid_argument(cat("descriptor ", fd, " is no memory of a group with a rank ", rank));
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  out->control_->ranks[rank].process.store(static_cast<int32_t>(getpid()));
  out->monitor_ = std::make_unique<Monitor>();
  Group* const g = out.get();
  out->monitor_->thread = std::thread([g] {
    Monitor& m = *g->monitor_;
    Control& c = *g->control_;
    struct Seen {
      uint64_t beats = 0;
      Clock::duration silent{};
    };
    std::vector<Seen> seen(static_cast<size_t>(c.size));
    const std::chrono::milliseconds patience(c.patience_ms);
    Pace pace(seen.size(), 3 * Clock::duration(patience) / 2);
    Clock::duration time{};  // in which this thread ran
    auto last = Clock::now();
    std::unique_lock<std::mutex> lock(m.mutex);
    while (!m.changed.wait_for(lock, kBeat, [&] { return m.ending; })) {
      c.ranks[g->rank_].beats.fetch_add(1);
      // A time in which this thread itself did not run says nothing of the others.
      const auto now = Clock::now();
      const Clock::duration passed = std::min<Clock::duration>(now - last, 4 * kBeat);
      last = now, time += passed;
      const Control::Rank& own = c.ranks[g->rank_];
      pace.beat(time, own.marks.load(), Clock::duration(own.work.load()));
      for (int r = 0; r < c.size; ++r) {
        Seen& s = seen[static_cast<size_t>(r)];
        const uint64_t beats = c.ranks[r].beats.load();
        if (r == g->rank_ || c.ranks[r].left.load() != 0) continue;
        s.silent = beats != s.beats ? Clock::duration{} : s.silent + passed;
        s.beats = beats;
        const int process = c.ranks[r].process.load();
        const auto late =
            pace.late(static_cast<size_t>(r), c.ranks[r].marks.load(), Clock::duration(own.longest.load()));
        if (late.count() > 0)
          g->declare(r,
                     cat("(process ", process, ") is slow: for ",
                         std::chrono::duration_cast<std::chrono::seconds>(late).count(),
                         " s it has done less than a fifth of what rank ", g->rank_, " does"),
                     true);
        if (s.silent < patience) continue;
        g->declare(r,
                   process == 0 ? cat("has not begun within ", patience.count() / 1000, " s")
                                : cat("(process ", process, ") gave no sign of life for ",
                                      patience.count() / 1000, " s; it was killed, or stopped"),
                   true);
      }
    }
  });
  return out;
}

Group::~Group() {
  if (monitor_ && monitor_->thread.joinable()) {
    {
      const std::lock_guard<std::mutex> lock(monitor_->mutex);
      monitor_->ending = true;
    }
    monitor_->changed.notify_all();
    monitor_->thread.join();
  }
  if (control_ != nullptr && monitor_) {
    control_->ranks[rank_].left.store(1);
    wake_all(control_->generation);
  }
  if (buckets_ != nullptr) munmap(buckets_, mapped_);
  if (control_ != nullptr) munmap(control_, kControlBytes);
  if (fd_ >= 0) close(fd_);
}

int Group::rank() const { return rank_; }
int Group::size() const { return control_->size; }
int Group::fd() const { return fd_; }

void Group::declare(int rank, const std::string& why, bool silent) {
  uint32_t nobody = 0;
  if (!control_->failing.compare_exchange_strong(nobody, 1)) return;
  const std::string text = cat("rank ", rank, " ", why);
  const size_t n = std::min(text.size(), sizeof(control_->message) - 1);
  std::memcpy(control_->message, text.data(), n);
  control_->message[n] = 0;
  control_->failed_rank.store(rank);
  control_->silent.store(silent ? 1 : 0);
  control_->failing.store(2);
  wake_all(control_->generation);
}

void Group::fail(const std::string& why) { declare(rank_, cat("ended: ", why), false); }

int Group::failed_rank() const { return control_->failing.load() == 2 ? control_->failed_rank.load() : -1; }

bool Group::failed_silently() const { return failed_rank() >= 0 && control_->silent.load() != 0; }

Status Group::failed() const {
  uint32_t state = control_->failing.load();
  if (state == 0) return ok_status();
  // Who declares it is still writing why, unless it was killed meanwhile.
  for (int k = 0; state != 2 && k < 1000; ++k) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state = control_->failing.load();
  }
  return unavailable(state == 2 ? std::string(control_->message) : std::string("a rank ended"));
}

Status Group::reserve(uint64_t floats) {
  OAR_CHECK(buckets_ == nullptr, "buckets are reserved once");
  control_->ranks[rank_].floats.store(floats);
  OAR_RETURN_IF_ERROR(barrier());
  for (int r = 0; r < size(); ++r)
    if (control_->ranks[r].floats.load() != floats)
      return invalid_argument(cat("rank ", r, " wants ", control_->ranks[r].floats.load(), " floats, rank ",
                                  rank_, " ", floats, "; all must do the same"));
  constexpr uint64_t kLine = 64 / sizeof(float);
  stride_ = (std::max<uint64_t>(floats, 1) + kLine - 1) / kLine * kLine;
  mapped_ = stride_ * sizeof(float) * static_cast<uint64_t>(size());
  if (rank_ == 0) {
    // Pages that the system does not have are an error here, and not a signal later.
    const int error = posix_fallocate(fd_, static_cast<off_t>(kControlBytes), static_cast<off_t>(mapped_));
    if (error != 0) {
      const Status s = no_memory(cat("of ", format_bytes(mapped_)), error);
      fail(s.message());
      return s;
    }
  }
  OAR_RETURN_IF_ERROR(barrier());
  void* const at =
      mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(kControlBytes));
  if (at == MAP_FAILED) return no_memory("cannot be mapped", errno);
  buckets_ = static_cast<float*>(at);
  return barrier();
}

Status Group::barrier(Duration most) {
  Control& c = *control_;
  OAR_RETURN_IF_ERROR(failed());
  const uint32_t generation = c.generation.load();
  c.ranks[rank_].met.store(generation + 1);
  if (c.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(c.size)) {
    c.arrived.store(0);
    c.generation.fetch_add(1);
    wake_all(c.generation);
    return ok_status();
  }
  // Ranks that compute the same arrive at about the same time.
  auto last = Clock::now();
  const auto spin = last + std::chrono::microseconds(50);
  Duration for_one{};  // for how long a single rank has been missing
  while (c.generation.load() == generation) {
    if (Clock::now() < spin) continue;
    wait_on(c.generation, generation);
    if (c.generation.load() != generation) break;
    OAR_RETURN_IF_ERROR(failed());
    // A time in which this rank itself did not run says nothing of the other.
    const auto now = Clock::now();
    if (c.arrived.load() + 1 == static_cast<uint32_t>(c.size))
      for_one += std::min<Duration>(now - last, 4 * kBeat);
    last = now;
    for (int r = 0; r < c.size && for_one > most; ++r)
      if (c.ranks[r].met.load() != generation + 1)
        declare(r,
                cat("(process ", c.ranks[r].process.load(), ") is slow: all others have waited for it for ",
                    std::chrono::duration_cast<std::chrono::seconds>(for_one).count(), " s"),
                true);
    // Who has left behind this barrier has seen the generation change first.
    for (int r = 0; r < c.size; ++r)
      if (c.ranks[r].left.load() != 0 && c.generation.load() == generation) declare(r, "has left", true);
  }
  return ok_status();
}

void Group::mark(Duration took) const {
  Control::Rank& own = control_->ranks[rank_];
  if (took.count() > own.longest.load()) own.longest.store(took.count());
  own.work.fetch_add(took.count());
  own.marks.fetch_add(1);
}

void Group::add_buckets(uint64_t first, std::span<float> to, ThreadPool& pool) const {
  const int ranks = size();
  pool.parallel_for(static_cast<int64_t>(to.size()), 1 << 12, [&](int64_t begin, int64_t end) {
    for (int r = 0; r < ranks; ++r) {
      const float* const from = bucket(r) + first;
      for (int64_t k = begin; k < end; ++k) to[static_cast<size_t>(k)] += from[k];
    }
  });
}

Result<bool> Group::any(bool mine) {
  control_->ranks[rank_].vote.store(mine ? 1 : 0);
  OAR_RETURN_IF_ERROR(barrier());
  bool out = false;
  for (int r = 0; r < size(); ++r) out = out || control_->ranks[r].vote.load() != 0;
  OAR_RETURN_IF_ERROR(barrier());  // votes stay until all have seen them
  return out;
}

Status Group::from_first(std::span<double> values) {
  OAR_CHECK(values.size() <= kMostNumbers, "a few numbers");
  if (rank_ == 0) std::copy(values.begin(), values.end(), control_->first);
  OAR_RETURN_IF_ERROR(barrier());
  if (rank_ != 0) std::copy_n(control_->first, values.size(), values.begin());
  return barrier();
}

}  // namespace oar
