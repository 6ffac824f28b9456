// Finds the end of a JSON value that arrives in pieces. The value is checked and not built, so what this
// holds grows with the depth of the value alone. It belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace hadal {

class JsonScan {
 public:
  // A value that is nested deeper than `max_depth` is broken.
  explicit JsonScan(size_t max_depth);
  ~JsonScan();

  // Reads the next text and returns how many of its bytes continue the value: all of them, those up to the
  // value's last byte, or those before the first byte that no JSON text can have there. This does not depend
  // on how the text was cut. It must not be called once the value is whole or broken.
  size_t read(std::string_view text);

  // A number is whole once the byte after it was there to be read; any other value is with its last byte.
  bool is_whole() const;
  bool is_broken() const { return is_broken_; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  bool is_broken_ = false;
};

}  // namespace hadal
