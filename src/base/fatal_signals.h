// Writes to stderr which signal ends the process, because an operator learns nothing from a log that merely
// stops.
#pragma once

namespace hadal {

// After this call, SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write one line to stderr: the signal, the
// address that failed or the process that sent the signal, the thread's id and the version. Then the process
// ends by the same signal, as it would without this handler. A signal that has a handler already keeps it,
// because sanitizers have handlers of their own. A thread that has used up its stack ends the process without
// the line, because the handler runs on the same stack. Only main calls it, once, before
// end_on_mapping_faults().
void tell_fatal_signals();

}  // namespace hadal
