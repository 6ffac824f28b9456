#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

namespace hadal {

void lower_thread_priority() {
  constexpr int kNice = 10;
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
}

}  // namespace hadal
