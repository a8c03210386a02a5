#include "server/api/tenant.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar::api {
namespace {

Status refused(const std::string& name, const std::string& limit, double seconds) {
  const double wait = std::max(1.0, std::ceil(seconds));
  return resource_exhausted(cat("the key '", name, "' has ", limit, "; send the request again in ",
                                static_cast<int64_t>(wait), " s"))
      .with_retry_after(wait);
}

}  // namespace

Admission::~Admission() { tenant_->ended(began_); }
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

double Tenant::seconds_to_end(Clock::time_point now) const {
  const auto since = [&](Clock::time_point t) { return std::chrono::duration<double>(now - t).count(); };
  double usual = usual_seconds_, least = HUGE_VAL;
  if (usual == 0) usual = 2 * since(*std::min_element(running_.begin(), running_.end()));
  for (const Clock::time_point began : running_)
    least = std::min(least, since(began) < usual ? usual - since(began) : since(began));
  return least;
}

void Tenant::ended(Clock::time_point began) {
  constexpr double kNew = 0.125;  // weight of the newest in the mean
  const std::lock_guard lock(mutex_);
  running_.erase(std::find(running_.begin(), running_.end(), began));
  const double took = std::chrono::duration<double>(Clock::now() - began).count();
  usual_seconds_ += (usual_seconds_ == 0 ? 1 : kNew) * (took - usual_seconds_);
}

Result<AdmissionPtr> Tenant::admit(Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    refill(now);
    if (concurrency_ > 0 && std::ssize(running_) >= concurrency_)
      return refused(name_, cat(running_.size(), " requests running, and may have ", concurrency_),
                     seconds_to_end(now));
    if (requests_.per_minute > 0 && requests_.level < 1)
      return refused(name_, cat("used its ", requests_.per_minute, " requests per minute"),
                     requests_.seconds_to(1));
    if (tokens_.per_minute > 0 && tokens_.level < 1)
      return refused(name_, cat("used its ", tokens_.per_minute, " tokens per minute"),
                     tokens_.seconds_to(1));
    if (requests_.per_minute > 0) requests_.level -= 1;
    running_.push_back(now);
  }
  return AdmissionPtr(std::make_shared<const Admission>(shared_from_this(), now));
}

void Tenant::charge(int64_t tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  refill(now);
  if (tokens_.per_minute > 0) tokens_.level -= static_cast<double>(tokens);
}

}  // namespace oar::api
