#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

namespace hadal {
namespace {

constexpr size_t kMaxRank = 16;
constexpr size_t kMaxNameBytes = 1024;

// Returns the bits per element for every type that the format names; 0 for unknown names.
int64_t dtype_bits(std::string_view name) {
  struct Entry {
    std::string_view name;
    int64_t bits;
  };
  static constexpr std::array<Entry, 21> kTypes = {{
      {"BF16", 16}, {"F32", 32}, {"F8_E4M3", 8}, {"F16", 16}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F4", 4},
      {"F64", 64},  {"BOOL", 8}, {"U8", 8},      {"I8", 8},   {"I16", 16},    {"U16", 16},    {"I32", 32},
      {"U32", 32},  {"I64", 64}, {"U64", 64},    {"C64", 64}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C128", 128},
  }};
  for (const Entry& entry : kTypes) {
    if (entry.name == name) return entry.bits;
  }
  return 0;
}

// Receives the events of the JSON parser and accepts exactly the structure of the format, so that a header of
// any size is read in one pass and never nests deeper than the format allows. Handlers return false to stop.
class HeaderReader {
 public:
  using number_integer_t = int64_t;
  using number_unsigned_t = uint64_t;
  using number_float_t = double;
  using string_t = std::string;
  using binary_t = std::vector<uint8_t>;

  bool null() { return fail("null, which the format does not allow"); }
  bool boolean(bool) { return fail("a boolean, which the format does not allow"); }
  bool number_integer(number_integer_t) { return fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) { return fail("a number that is not a 64-bit integer"); }
  bool binary(binary_t&) { return fail("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (state_ == State::kShape) {
      if (value > uint64_t{INT64_MAX}) return fail("a size over 2^63");
      if (current_.shape.size() == kMaxRank) return fail("more than 16 dimensions");
      current_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) return fail("data_offsets with more than two numbers");
      offsets_[num_offsets_++] = value;
      return true;
    }
    return fail("a number in the wrong place");
  }

  bool string(string_t& value) {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != Field::kDtype) return fail("a string in the wrong place");
    current_.dtype_name = std::move(value);
    field_ = Field::kNone;
    return true;
  }

  bool start_object(size_t) {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (is_metadata_) {
          state_ = State::kMetadata;
        } else {
          state_ = State::kTensor;
        }
        return true;
      default:
        return fail("an object in the wrong place");
    }
  }

  bool key(string_t& value) {
    if (state_ == State::kMetadata) return true;
    if (state_ == State::kTop) {
      is_metadata_ = value == "__metadata__";
      if (value.empty() || value.size() > kMaxNameBytes) return fail("a name of 0 or more than 1024 bytes");
      current_ = SafetensorsTensor{};
      current_.name = std::move(value);
      has_dtype_ = has_shape_ = has_offsets_ = false;
      return true;
    }
    bool* seen = nullptr;
    if (value == "dtype") {
      field_ = Field::kDtype;
      seen = &has_dtype_;
    } else if (value == "shape") {
      field_ = Field::kShape;
      seen = &has_shape_;
    } else if (value == "data_offsets") {
      field_ = Field::kOffsets;
      seen = &has_offsets_;
    } else {
      return fail(
          fmt::format("unknown field \"{}\"; allowed: dtype, shape, data_offsets", printable_name(value)));
    }
    if (std::exchange(*seen, true)) return fail(fmt::format("{} given twice", value));
    return true;
  }

  bool end_object() {
    switch (state_) {
      case State::kTensor:
        if (!has_dtype_ || !has_shape_ || !has_offsets_ || num_offsets_ != 2) {
          return fail("dtype, shape or data_offsets [begin, end] is missing");
        }
        num_offsets_ = 0;
        current_.begin = offsets_[0];
        current_.end = offsets_[1];
        tensors_.push_back(std::move(current_));
        state_ = State::kTop;
        return true;
      case State::kMetadata:
        if (std::exchange(had_metadata_, true)) return fail("__metadata__ is given twice");
        state_ = State::kTop;
        return true;
      default:
        state_ = State::kEnd;
        return true;
    }
  }

  bool start_array(size_t) {
    if (state_ == State::kTensor && field_ == Field::kShape) {
      state_ = State::kShape;
    } else if (state_ == State::kTensor && field_ == Field::kOffsets) {
      state_ = State::kOffsets;
    } else {
      return fail("a list in the wrong place");
    }
    field_ = Field::kNone;
    return true;
  }

  bool end_array() {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    if (error_.empty()) error_ = fmt::format("not valid JSON at its byte {}", position);
    return false;
  }

  const std::string& error() const { return error_; }
  std::vector<SafetensorsTensor> take() { return std::move(tensors_); }

 private:
  enum class State : uint8_t { kStart, kTop, kTensor, kShape, kOffsets, kMetadata, kEnd };
  enum class Field : uint8_t { kNone, kDtype, kShape, kOffsets };

  bool fail(std::string what) {
    error_ = current_.name.empty() ? std::move(what)
                                   : fmt::format("tensor {}: {}", printable_name(current_.name), what);
    return false;
  }

  State state_ = State::kStart;
  Field field_ = Field::kNone;
  bool is_metadata_ = false;
  bool had_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  size_t num_offsets_ = 0;
  std::array<uint64_t, 2> offsets_{};
  SafetensorsTensor current_;
  std::vector<SafetensorsTensor> tensors_;
  std::string error_;
};

// Returns the bytes of dtype × shape; nullopt if they overflow or are not a whole number of bytes.
std::optional<uint64_t> checked_bytes(const SafetensorsTensor& tensor, int64_t bits) {
  uint64_t total = static_cast<uint64_t>(bits);
  bool empty = false;
  for (const int64_t size : tensor.shape) {
    if (size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(total, static_cast<uint64_t>(size), &total)) {
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

// Turns offsets relative to the data into offsets into the file. `tensors` must be sorted by offset.
Result<void> check_layout(std::vector<SafetensorsTensor>& tensors, size_t data_begin, size_t file_size,
                          std::string_view source) {
  const uint64_t data_size = file_size - data_begin;
  uint64_t expected_begin = 0;
  for (SafetensorsTensor& tensor : tensors) {
    const auto bad = [&](const std::string& what) {
      return data_loss("{}: tensor {}: {}", source, printable_name(tensor.name), what);
    };
    if (tensor.begin > tensor.end || tensor.end > data_size) {
      return bad(
          fmt::format("data_offsets [{}, {}] do not lie within the {} bytes of data (is the file cut off?)",
                      tensor.begin, tensor.end, data_size));
    }
    if (tensor.begin != expected_begin) {
      return bad(fmt::format("its data begin at {}, {} the end of the previous tensor at {}", tensor.begin,
                             tensor.begin < expected_begin ? "overlapping" : "leaving a hole after",
                             expected_begin));
    }
    const int64_t bits = dtype_bits(tensor.dtype_name);
    if (bits == 0) return bad(fmt::format("unknown dtype \"{}\"", printable_name(tensor.dtype_name)));
    const std::optional<uint64_t> bytes = checked_bytes(tensor, bits);
    if (!bytes || *bytes != tensor.end - tensor.begin) {
      return bad(fmt::format("{} bytes of data do not fit {} of shape [{}]", tensor.end - tensor.begin,
                             tensor.dtype_name, fmt::join(tensor.shape, ", ")));
    }
    tensor.dtype = dtype_from_safetensors(tensor.dtype_name);
    expected_begin = tensor.end;
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  if (expected_begin != data_size) {
    return data_loss("{}: {} bytes of data follow the last tensor's end at {}", source,
                     data_size - expected_begin, expected_begin);
  }
  return {};
}

}  // namespace

Result<std::vector<SafetensorsTensor>> parse_safetensors_header(std::span<const std::byte> file,
                                                                std::string_view source) {
  constexpr size_t kLengthBytes = 8;
  if (file.size() < kLengthBytes) {
    return data_loss("{}: {} bytes are too few for a safetensors file", source, file.size());
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(file[i]) << (8 * i);
  if (length > kMaxSafetensorsHeaderBytes || length > file.size() - kLengthBytes) {
    return data_loss("{}: header length {} is more than {} allows", source, length,
                     length > kMaxSafetensorsHeaderBytes ? "the format" : "the file's size");
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + kLengthBytes;
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + length, &reader) || !reader.error().empty()) {
    return data_loss("{}: header: {}", source, reader.error());
  }
  std::vector<SafetensorsTensor> tensors = reader.take();
  {
    std::unordered_set<std::string_view> names;
    names.reserve(tensors.size());
    for (const SafetensorsTensor& tensor : tensors) {
      if (!names.insert(tensor.name).second) {
        return data_loss("{}: tensor {} is given twice", source, printable_name(tensor.name));
      }
    }
  }
  // An empty tensor begins where the next tensor begins, so ties are ordered by their ends.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  HADAL_RETURN_IF_ERROR(check_layout(tensors, kLengthBytes + length, file.size(), source));
  return tensors;
}

std::string printable_name(std::string_view name, size_t max_bytes) {
  std::string text(name.substr(0, max_bytes));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace hadal
