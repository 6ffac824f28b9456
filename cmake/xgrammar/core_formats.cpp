// This translation unit joins sources of xgrammar: other families' tool-call formats, to which the converter
// of schemas refers. Lark grammars are left out, because nothing here reads them.
#include "cpp/converter_ext/cohere.cc"
#include "cpp/converter_ext/deepseek.cc"
#include "cpp/converter_ext/glm.cc"
#include "cpp/converter_ext/kimi_k3.cc"
#include "cpp/converter_ext/minimax.cc"
#include "cpp/converter_ext/minimax_m3.cc"
#include "cpp/converter_ext/qwen.cc"
#include "cpp/lark_converter.h"
#include "cpp/support/logging.h"

namespace xgrammar {

Grammar LarkToGrammar(const std::string&, const std::optional<TokenizerInfo>&,
                      const std::vector<NamedGrammar>&) {
  throw std::runtime_error("Lark grammars are not supported");
}

}  // namespace xgrammar
