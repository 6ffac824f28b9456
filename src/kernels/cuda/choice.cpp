#include "kernels/cuda/choice.h"

#include <algorithm>
#include <charconv>

namespace hadal::cuda {
namespace {

constexpr int kMostOfAField = 1 << 20;

// Parses a whole decimal number in [1, kMostOfAField].
std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > kMostOfAField) {
    return std::nullopt;
  }
  return value;
}

std::string_view take_word(std::string_view& text) {
  const size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

const char* to_string(ProductKernel kernel) {
  switch (kernel) {
    case ProductKernel::kReference:
      return "reference";
    case ProductKernel::kThin:
      return "thin";
    case ProductKernel::kSkinny:
      return "skinny";
    case ProductKernel::kTiled:
      return "tiled";
    case ProductKernel::kColumns:
      return "columns";
    case ProductKernel::kLibrary:
      return "library";
    case ProductKernel::kRouter:
      return "router";
  }
  return "unknown";
}

std::optional<ProductKernel> parse_product_kernel(std::string_view name) {
  for (const ProductKernel kernel : kProductKernels) {
    if (name == to_string(kernel)) return kernel;
  }
  return std::nullopt;
}

std::string to_string(const Choice& choice) {
  std::string text = to_string(choice.kernel);
  if (choice.block_m != 0 || choice.block_n != 0)
    text += fmt::format(" {}x{}", choice.block_m, choice.block_n);
  if (choice.splits != 1) text += fmt::format(" splits {}", choice.splits);
  if (choice.stages != 0) text += fmt::format(" stages {}", choice.stages);
  if (choice.cluster != 1) text += fmt::format(" cluster {}", choice.cluster);
  return text;
}

Result<Choice> parse_choice(std::string_view text) {
  std::string_view rest = text;
  Choice choice;
  const std::string_view name = take_word(rest);
  const std::optional<ProductKernel> kernel = parse_product_kernel(name);
  if (!kernel) {
    std::string names;
    for (const ProductKernel known : kProductKernels) names += std::string(" ") + to_string(known);
    return invalid_argument("choice '{}': the kernel is '{}'; allowed:{}", text, name, names);
  }
  choice.kernel = *kernel;
  while (!rest.empty()) {
    const std::string_view word = take_word(rest);
    if (const size_t cross = word.find('x'); cross != std::string_view::npos) {
      const auto block_m = number(word.substr(0, cross));
      const auto block_n = number(word.substr(cross + 1));
      if (!block_m || !block_n)
        return invalid_argument("choice '{}': the tile is '{}'; must be like 8x64", text, word);
      choice.block_m = *block_m;
      choice.block_n = *block_n;
      continue;
    }
    int* const field = word == "splits"    ? &choice.splits
                       : word == "stages"  ? &choice.stages
                       : word == "cluster" ? &choice.cluster
                                           : nullptr;
    if (field == nullptr) {
      return invalid_argument(
          "choice '{}': '{}' is not part of a choice; allowed: a tile like 8x64, splits N, stages N, cluster "
          "N",
          text, word);
    }
    const std::string_view digits = take_word(rest);
    const auto value = number(digits);
    if (!value) {
      return invalid_argument("choice '{}': {} is '{}'; must be a number in [1, {}]", text, word, digits,
                              kMostOfAField);
    }
    *field = *value;
  }
  return choice;
}

int num_warps(const Choice& choice) {
  switch (choice.kernel) {
    case ProductKernel::kThin:
      return 8;  // only shown in files; some blocks for short k in 8 bits have 4 (thin::block_of)
    case ProductKernel::kSkinny:
      return choice.block_n / 16 + 1;  // four per warpgroup of 64 rows, and one producer warp
    case ProductKernel::kTiled:
    case ProductKernel::kColumns:
      return 12;
    case ProductKernel::kReference:
    case ProductKernel::kRouter:
      return 4;
    case ProductKernel::kLibrary:
      break;
  }
  return 0;
}

int group_m(const Choice& choice) {
  return choice.kernel == ProductKernel::kTiled ? 8 : 1;
}

int block_k(const Choice& choice, int64_t element_bytes) {
  return choice.kernel == ProductKernel::kLibrary ? 0 : static_cast<int>(128 / element_bytes);
}

}  // namespace hadal::cuda
