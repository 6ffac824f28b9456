// Reads one of V3.2's tool calls as its text arrives: an <｜DSML｜invoke> with its parameters. It is internal
// to the tool call parser.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/stream_parser.hpp>

#include "text/tool_call_parser_scan.h"

namespace hadal::tool_call {

// DsmlScan reads the text after dsml::kInvoke. White space may stand between the tags, but none is dropped
// inside of values. A string ends at the first dsml::kParameterEnd; another value ends where its JSON does,
// so that JSON strings may contain that tag.
//
// The text that is read again after a malformed call begins at the tag that is wrong, or where the JSON
// begins that is wrong, so no text is read more often than a few times: JSON goes on past the beginning of
// another call only inside a string, and that string ends at the quotes of the other call's name.
class DsmlScan final : public CallScan {
 public:
  Verdict advance(std::string_view window) override;
  std::string_view name(std::string_view window) const override {
    return window.substr(name_begin_, name_size_);
  }
  // Returns the parameters as the object that the model's own decoder makes of them: strings are quoted, JSON
  // stays as it was generated.
  std::string arguments(std::string_view window) const override;
  size_t size() const override { return at_; }
  size_t resume(std::string_view window) const override {
    return stage_ == Stage::kText ? window.size() : resume_;
  }

 private:
  enum class Stage { kHead, kName, kTag, kKeyHead, kKey, kText, kJson, kJsonEnd };

  struct Parameter {
    size_t key_begin = 0;
    size_t key_size = 0;
    size_t begin = 0;
    size_t size = 0;
    bool is_string = false;
  };

  // Each returns kCall when its stage has ended and stage_ is the next one.
  Verdict head(std::string_view window);
  Verdict name_end(std::string_view window);
  Verdict key(std::string_view window);
  Verdict text(std::string_view window);
  Verdict json(std::string_view window);
  Verdict json_end(std::string_view window);
  // Reads the tag after a parameter or the name. kCall means that it is a parameter, or that is_complete_ is
  // set.
  Verdict tag(std::string_view window);
  void end_parameter(size_t value_end);
  bool is_text(std::string_view window) const;

  Stage stage_ = Stage::kHead;
  bool is_complete_ = false;
  size_t at_ = 0;      // how much has been read
  size_t resume_ = 0;  // where reading goes on if the call is malformed
  size_t name_begin_ = 0;
  size_t name_size_ = 0;
  Parameter parameter_;  // that is being read
  std::vector<Parameter> parameters_;
  std::set<std::string, std::less<>> keys_;
  std::optional<boost::json::stream_parser> json_;
};

}  // namespace hadal::tool_call
