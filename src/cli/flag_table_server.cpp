// Flags of `hadal serve` alone; those it shares with other commands are in flag_table_engine.cpp.
#include "cli/flag_table.h"

namespace hadal::cli {

void append_server_rows(std::vector<Flag>& /*out*/) {}

}  // namespace hadal::cli
