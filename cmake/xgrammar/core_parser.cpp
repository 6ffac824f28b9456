// This translation unit joins sources of xgrammar: reading and transforming grammars.
#include "cpp/fsm_builder.cc"
#include "cpp/grammar_builder.cc"
#include "cpp/grammar_functor.cc"
#include "cpp/grammar_parser.cc"
#include "cpp/grammar_printer.cc"
#include "cpp/regex_converter.cc"
#include "cpp/suffix_automata.cc"
