// text_bench TOKENIZER_DIR TEXT_FILE measures how fast a tokenizer loads, encodes and decodes on one thread;
// each figure is the best of several runs. bench/text/compare.py makes a text, runs this and the reference
// library on it, and prints both.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace {

// Returns the seconds of the fastest of `runs` calls.
double best_of(int runs, const std::function<void()>& work) {
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return best;
}

// Cuts a text after line breaks into pieces of about `bytes` bytes, which are similar to a server's requests.
std::vector<std::string_view> cut(std::string_view text, size_t bytes) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t line_end = text.find('\n', std::min(bytes, text.size() - 1));
    const size_t size = line_end == text.npos ? text.size() : line_end + 1;
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: text_bench TOKENIZER_DIR TEXT_FILE\n");
    return 2;
  }
  const auto tokenizer = hadal::Tokenizer::load(argv[1]);
  const auto text = hadal::read_text_file(argv[2]);
  for (const auto& status :
       {tokenizer.ok() ? "" : tokenizer.status().message, text.ok() ? "" : text.status().message})
    if (!status.empty()) {
      fmt::print(stderr, "{}\n", status);
      return 1;
    }
  const double megabytes = static_cast<double>(text->size()) / 1e6;
  const auto row = [](const char* what, double value, const char* unit) {
    fmt::print("{}\t{:.2f}\t{}\n", what, value, unit);
  };

  row("load", 1e3 * best_of(5, [&] { (void)hadal::Tokenizer::load(argv[1]); }), "ms");
  std::vector<int32_t> ids = (*tokenizer)->encode(*text, false);
  row("bytes per token",
      static_cast<double>(text->size()) / static_cast<double>(std::max<size_t>(1, ids.size())), "");
  row("encode, one text", megabytes / best_of(5, [&] { ids = (*tokenizer)->encode(*text, false); }), "MB/s");
  const auto pieces = cut(*text, 2000);
  row("encode, 2 kB texts",
      megabytes / best_of(5,
                          [&] {
                            for (const auto piece : pieces) (void)(*tokenizer)->encode(piece, false);
                          }),
      "MB/s");
  row("decode", megabytes / best_of(5, [&] { (void)(*tokenizer)->decode(ids, false); }), "MB/s");
  row("detokenize token by token",
      megabytes / best_of(5,
                          [&] {
                            hadal::Detokenizer detokenizer(**tokenizer, false);
                            for (const int32_t id : ids) (void)detokenizer.append(id);
                          }),
      "MB/s");
  // Words without a space are the worst case of merging.
  const std::string repeated(1 << 20, 'a');
  std::string varied;
  for (uint32_t state = 1; varied.size() < (1 << 20);) {
    state = state * 1664525U + 1013904223U;
    varied += static_cast<char>('a' + (state >> 24) % 26);
  }
  row("encode a 1 MB word, one letter",
      1e3 * best_of(3, [&] { (void)(*tokenizer)->encode(repeated, false); }), "ms");
  row("encode a 1 MB word, random letters",
      1e3 * best_of(3, [&] { (void)(*tokenizer)->encode(varied, false); }), "ms");
  return 0;
}
