// Reads one of V3.2's tool calls as its text arrives: an <｜DSML｜invoke> with its parameters. It is internal
// to the tool call parser.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "text/chat/tool_call_parser_scan.h"
#include "text/json_scan.h"

namespace hadal::tool_call {

// DsmlScan reads the text after dsml::kInvoke and turns the parameters into the object that the model's own
// decoder makes: strings are quoted, JSON stays as it was generated. White space may stand between the tags,
// but none is dropped inside values. A string ends at the first dsml::kParameterEnd, and is returned as it
// arrives. Another value ends where its JSON ends, so JSON strings may contain that tag, and is returned once
// its end tag is complete.
//
// The text that is read again after a broken call begins at the wrong tag, or at the beginning of the wrong
// JSON. No text is read more than a few times: JSON continues past the beginning of another call only inside
// a string, and that string ends at the quotes of the other call's name.
class DsmlScan final : public CallScan {
 public:
  Verdict advance(std::string_view window) override;

 private:
  enum class Stage { kHead, kName, kTag, kKeyHead, kKey, kText, kJson, kJsonEnd };

  // Each function returns kCall when its stage has ended and stage_ is the next stage.
  Verdict head(std::string_view window);
  Verdict name_end(std::string_view window);
  Verdict key(std::string_view window);
  Verdict text(std::string_view window);
  Verdict json(std::string_view window);
  Verdict json_end(std::string_view window);
  // Reads the tag after a parameter or the name. kCall means that it is a parameter, or that is_whole_ is
  // set.
  Verdict tag(std::string_view window);
  void make_key();
  void end_parameter(size_t value_end);

  Stage stage_ = Stage::kHead;
  std::string key_;         // of the parameter that is being read
  size_t value_begin_ = 0;  // of its JSON
  std::set<std::string, std::less<>> keys_;
  std::optional<JsonScan> json_;
};

}  // namespace hadal::tool_call
