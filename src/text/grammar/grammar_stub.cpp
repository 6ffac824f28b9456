// Stands in for grammar_xgrammar.cpp in a build without xgrammar: every call returns a clear error.
#include "text/grammar/grammar_backend.h"

namespace hadal {

bool grammar_available() {
  return false;
}

Result<std::unique_ptr<GrammarBackend>> make_grammar_backend(GrammarVocabulary) {
  return unsupported(
      "this build does not support structured output: run scripts/fetch_xgrammar (it needs a "
      "Python package index) and build again");
}

}  // namespace hadal
