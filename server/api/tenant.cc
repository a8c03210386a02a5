#include "server/api/tenant.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar::api {
namespace {

// Until a request of the key ends nobody knows how long it takes.
constexpr double kUnknownWait = 1;

Status refused(const std::string& name, const std::string& limit, double seconds) {
  const double wait = std::max(1.0, std::ceil(seconds));
  return resource_exhausted(cat("the key '", name, "' has ", limit, "; send the request again in ",
                                static_cast<int64_t>(wait), " s"))
      .with_retry_after(wait);
}

}  // namespace

Admission::~Admission() {
  const std::lock_guard lock(tenant_->mutex_);
  --tenant_->running_;
}
void Admission::charge(int64_t tokens) const { tenant_->charge(tokens); }
const std::string& Admission::key_name() const { return tenant_->name(); }

void Tenant::Bucket::set(double limit) {
  // Of a new limit as much has been taken as of the old one.
  level = per_minute > 0 ? level + limit - per_minute : limit;
  per_minute = limit;
}
void Tenant::Bucket::refill(std::chrono::duration<double> passed) {
  level = std::min(per_minute, level + per_minute / 60 * passed.count());
}

void Tenant::refill(Clock::time_point now) {
  if (now <= filled_) return;
  const std::chrono::duration<double> passed = now - filled_;
  filled_ = now;
  requests_.refill(passed);
  tokens_.refill(passed);
}

void Tenant::set_limits(const TenantLimits& limits) {
  const std::lock_guard lock(mutex_);
  requests_.set(limits.requests_per_minute);
  tokens_.set(limits.tokens_per_minute);
  concurrency_ = limits.concurrency;
  weight_ = limits.weight;
}

Result<AdmissionPtr> Tenant::admit(Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    refill(now);
    if (concurrency_ > 0 && running_ >= concurrency_)
      return refused(name_, cat(running_, " requests running, and may have ", concurrency_), kUnknownWait);
    if (requests_.per_minute > 0 && requests_.level < 1)
      return refused(name_, cat("used its ", requests_.per_minute, " requests per minute"),
                     requests_.seconds_to(1));
    if (tokens_.per_minute > 0 && tokens_.level < 1)
      return refused(name_, cat("used its ", tokens_.per_minute, " tokens per minute"),
                     tokens_.seconds_to(1));
    if (requests_.per_minute > 0) requests_.level -= 1;
    ++running_;
  }
  return AdmissionPtr(std::make_shared<const Admission>(shared_from_this()));
}

void Tenant::charge(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  refill(now);
  if (tokens_.per_minute > 0) tokens_.level -= static_cast<double>(tokens);
}

}  // namespace oar::api
