#include "server/api/short_turns.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace oar::api {

void prefer_short_turns() {
#ifdef SYS_sched_setattr
  if (sched_getscheduler(0) != SCHED_OTHER) return;  // whoever started the server has said otherwise
  // struct sched_attr (linux/sched/types.h), which C libraries began to have lately.
  struct {
    uint32_t size = 48, policy = SCHED_OTHER;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t turn = 100'000, deadline = 0, period = 0;  // nanoseconds
  } wish;
  static_assert(sizeof wish == 48);
  errno = 0;
  wish.nice = getpriority(PRIO_PROCESS, 0);
  if (errno == 0) syscall(SYS_sched_setattr, 0, &wish, 0);  // a wish: some containers refuse it
#endif
}

}  // namespace oar::api
