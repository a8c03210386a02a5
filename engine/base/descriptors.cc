#include "engine/base/descriptors.h"

#include <sys/resource.h>

namespace oar {

size_t raise_descriptor_limit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit highest = {limit.rlim_max, limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &highest) == 0) limit = highest;
  return limit.rlim_cur;
}

}  // namespace oar
