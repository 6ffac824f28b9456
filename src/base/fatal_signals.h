// Says on stderr by which signal the process ends, because a log that merely breaks off tells an operator
// nothing.
#pragma once

namespace hadal {

// From this call on, SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write one line to stderr: the signal, the
// address that failed or who sent the signal, the thread's id and the version. Then the process ends by the
// same signal, as it would have without this. A signal that has a handler already keeps it, because
// sanitizers have handlers of their own. A thread that has used up its stack ends the process without the
// line, because the handler runs on the same stack. Only main calls it, once, before end_on_mapping_faults().
void tell_fatal_signals();

}  // namespace hadal
