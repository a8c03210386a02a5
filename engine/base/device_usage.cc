#include "engine/base/device_usage.h"

#include <limits>
#include <map>
#include <mutex>

namespace oar {
namespace {

struct Answers {
  std::mutex mutex;
  std::multimap<std::string, DeviceQuestion> all;
  static Answers& instance() {
    static auto* answers = new Answers;  // devices may be closed when the process ends
    return *answers;
  }
};

}  // namespace

std::shared_ptr<const void> answer_for_device(std::string device, DeviceQuestion question) {
  Answers& answers = Answers::instance();
  const std::lock_guard lock(answers.mutex);
  const auto at = answers.all.emplace(std::move(device), std::move(question));
  return {&answers, [at](Answers* mine) {
            const std::lock_guard owned(mine->mutex);
            mine->all.erase(at);
          }};
}

std::vector<DeviceUsage> device_usages() {
  Answers& answers = Answers::instance();
  const std::lock_guard lock(answers.mutex);  // a device is not closed while it is asked
  std::vector<DeviceUsage> out;
  for (auto at = answers.all.begin(); at != answers.all.end(); at = answers.all.upper_bound(at->first)) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    DeviceUsage usage{at->first, {},       kUnknown, kUnknown, kUnknown, kUnknown,
                      kUnknown,  kUnknown, kUnknown, kUnknown, kUnknown};
    if (at->second(&usage)) out.push_back(std::move(usage));
  }
  return out;
}

}  // namespace oar
