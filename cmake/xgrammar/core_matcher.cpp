// This translation unit joins sources of xgrammar: automata, compilation and matching.
#include "cpp/compiled_grammar.cc"
#include "cpp/config.cc"
#include "cpp/earley_parser.cc"
#include "cpp/fsm.cc"
#include "cpp/grammar.cc"
#include "cpp/grammar_compiler.cc"
#include "cpp/grammar_matcher.cc"
#include "cpp/support/recursion_guard.cc"
#include "cpp/testing.cc"  // needed by the matcher's debug output
#include "cpp/tokenizer_info.cc"
