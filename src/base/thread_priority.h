// Lowers the priority of threads whose work may wait.
#pragma once

namespace hadal {

// Makes the calling thread give way to every other one where the processors are busy (nice value 10; Linux
// has one for each thread). It does nothing where the system refuses.
void lower_thread_priority();

}  // namespace hadal
