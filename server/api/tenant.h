// Who asks, by API key: its name and what it may take, requests and tokens per minute and requests at once.
// A key without limits is a tenant too: its name stands in the request log.
//
// Both rates are token buckets: a minute's worth at once, refilled evenly. A request is let in while there
// are tokens left, pays for its prompt when it is known and for its answer when it has ended: the bucket may
// fall below zero, and later requests wait until it has filled up. Nothing of that is estimated. When a place
// among the requests at once is free is: from how long the key's requests took lately. One that has taken
// longer is expected to take as long again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace oar::api {

// 0: no limit.
struct TenantLimits {
  double requests_per_minute = 0, tokens_per_minute = 0;
  int64_t concurrency = 0;
  double weight = 1;  // its share of a model beside others who ask at once; above 0, no limit
  bool operator==(const TenantLimits&) const = default;
};

class Tenant;

// A request that was let in; it counts as running as long as this lives.
class Admission {
 public:
  Admission(std::shared_ptr<Tenant> tenant, std::chrono::steady_clock::time_point began)  // Tenant::admit()
      : tenant_(std::move(tenant)), began_(began) {}
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  void charge(int64_t tokens) const;
  const std::string& key_name() const;

 private:
  const std::shared_ptr<Tenant> tenant_;
  const std::chrono::steady_clock::time_point began_;
};
using AdmissionPtr = std::shared_ptr<const Admission>;  // null: nobody is counted

// Any thread.
class Tenant : public std::enable_shared_from_this<Tenant> {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Tenant(std::string name) : name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  // What has been taken so far counts against the new limits.
  void set_limits(const TenantLimits& limits);
  double weight() const { return weight_.load(std::memory_order_relaxed); }
  // RESOURCE_EXHAUSTED names the limit and says when to come again (Status::retry_after()).
  Result<AdmissionPtr> admit(Clock::time_point now = Clock::now());
  void charge(int64_t tokens, Clock::time_point now = Clock::now());

 private:
  friend class Admission;
  // What is left of a minute's worth.
  struct Bucket {
    double per_minute = 0, level = 0;
    void set(double limit);
    void refill(std::chrono::duration<double> passed);
    // Until the level is `wanted`.
    double seconds_to(double wanted) const { return (wanted - level) * 60 / per_minute; }
  };
  void refill(Clock::time_point now);
  double seconds_to_end(Clock::time_point now) const;
  void ended(Clock::time_point began);

  const std::string name_;
  std::mutex mutex_;
  Bucket requests_, tokens_;
  int64_t concurrency_ = 0;
  std::vector<Clock::time_point> running_;  // when each began
  double usual_seconds_ = 0;                // that a request took lately; 0: none has ended
  std::atomic<double> weight_ = 1;
  Clock::time_point filled_ = Clock::now();
};

}  // namespace oar::api
