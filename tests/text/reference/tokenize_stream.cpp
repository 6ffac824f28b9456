// tokenize_stream DIR gives tests/text/reference_tokenizer_test.py access to the tokenizer through a pipe.
// Each record on stdin is a uint32 length and that many bytes of text. Each answer is a uint32 count and that
// many int32 ids, then a uint32 length and the text that the incremental detokenizer returns for them.
// Special tokens are neither added nor skipped.
#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace {

bool read_exactly(void* data, size_t size) {
  return std::fread(data, 1, size, stdin) == size;
}

void write_size(size_t size) {
  const auto narrow = static_cast<uint32_t>(size);
  std::fwrite(&narrow, sizeof(narrow), 1, stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: tokenize_stream DIR\n");
    return 2;
  }
  const auto tokenizer = hadal::Tokenizer::load(argv[1]);
  if (!tokenizer.ok()) {
    fmt::print(stderr, "{}\n", tokenizer.status().message);
    return 1;
  }
  uint32_t size = 0;
  while (read_exactly(&size, sizeof(size))) {
    std::string text(size, '\0');
    if (!read_exactly(text.data(), size)) return 1;
    const auto ids = (*tokenizer)->encode(text, false);
    write_size(ids.size());
    std::fwrite(ids.data(), sizeof(int32_t), ids.size(), stdout);
    hadal::Detokenizer detokenizer(**tokenizer, false);
    std::string back;
    for (const int32_t id : ids) back += detokenizer.append(id);
    back += detokenizer.finish();
    write_size(back.size());
    std::fwrite(back.data(), 1, back.size(), stdout);
    std::fflush(stdout);
  }
  return 0;
}
