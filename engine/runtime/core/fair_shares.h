// FairShares: who goes first among callers who compete for a model. Start-time fair queueing over tokens
// (Goyal, Vin and Cheng, 1996, https://dl.acm.org/doi/10.1145/248156.248171): a request starts where its
// caller's last one ended, but never before what has been started. So callers with requests waiting get
// tokens by their weights, and one who was away gets nothing back. Engine thread only; pure arithmetic, no
// clock.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace oar {

// A caller with requests that have not ended, or whose last one ended ahead of the others.
struct FairShare {
  double weight = 1;
  double finish = 0;       // where its next request starts, in tokens over weight
  int64_t unfinished = 0;  // requests
  int64_t running = 0;     // sequences, kept by the scheduler
  double load() const { return static_cast<double>(running) / weight; }
};

class FairShares {
 public:
  // A request's place, and what it was taken to cost.
  struct Ticket {
    FairShare* share = nullptr;  // valid until ended()
    double start = 0;
    int64_t tag = 0;  // `start` with the request's priority
    double tokens = 0;
  };

  // A request of `prompt` tokens, and of `choices` answers of `max_tokens` each at most. What answers usually
  // take is learned from those that ended. `weight` is above 0. `priority`: lower goes first; one unit is
  // worth kPriorityTokens of a caller of weight 1, so that whoever waits long enough is overtaken by nobody.
  Ticket arrive(const std::string& name, double weight, int32_t priority, int64_t prompt, int64_t choices,
                int64_t max_tokens);
  // It has its first row.
  void started(const Ticket& ticket);
  // It took `computed` tokens of its prompt and `generated` of answers, all choices together.
  void ended(const Ticket& ticket, int64_t computed, int64_t generated, int64_t choices);

  size_t size() const { return shares_.size(); }

  static constexpr double kPriorityTokens = 4096;

 private:
  void forget();

  std::map<std::string, FairShare> shares_;
  double now_ = 0;       // what has been started
  double answer_ = 256;  // tokens of an answer, a running mean
  size_t sweep_at_ = 256;
};

}  // namespace oar
