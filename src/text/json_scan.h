// Finds the end of a JSON value that arrives in pieces. The value is checked and not built, so the memory
// grows only with the depth of the value. One thread at a time uses an object.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace hadal {

class JsonScan {
 public:
  // A value that is nested deeper than `max_depth` counts as broken.
  explicit JsonScan(size_t max_depth);
  ~JsonScan();

  // Reads the next text and returns how many of its bytes continue the value: all of them, those up to the
  // value's last byte, or those before the first byte that no JSON text can have there. The result does not
  // depend on how the text was cut. The function must not be called once the value is whole or broken.
  size_t read(std::string_view text);

  // A number is whole once the byte after it has been read; any other value is whole with its last byte.
  bool is_whole() const;
  bool is_broken() const { return is_broken_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  bool is_broken_ = false;
};

}  // namespace hadal
