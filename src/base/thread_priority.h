// Lowers the priority of threads whose work may wait.
#pragma once

namespace hadal {

// Makes the calling thread yield to all other threads while the processors are busy. It sets the nice value
// to 10, which Linux keeps per thread, and does nothing if the system refuses.
void lower_thread_priority();

}  // namespace hadal
