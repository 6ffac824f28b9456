// This translation unit joins sources of xgrammar: reading and transforming grammars. CMakeLists.txt changes
// the first of them.
#include "utf8_ranges.h"

// clang-format off: the library's files come after what the first of them needs
#include "fsm_builder_with_valid_utf8.cc"
// clang-format on
#include "cpp/grammar_builder.cc"
#include "cpp/grammar_functor.cc"
#include "cpp/grammar_parser.cc"
#include "cpp/grammar_printer.cc"
#include "cpp/regex_converter.cc"
#include "cpp/suffix_automata.cc"
