// Reads messages from a terminal with line editing and a history of earlier input, through libedit. The
// terminal's mode is changed only while a message is edited. Only the main thread uses a LineEditor, and only
// one may exist.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hadal::cli {

class LineEditor {
 public:
  // Tells whether stdin and stderr are a terminal that supports line editing ($TERM is neither empty nor
  // "dumb").
  static bool usable(std::string_view term);

  // `history` has the messages typed before, oldest first. Prompt and text are written to stderr.
  LineEditor(std::string prompt, const std::vector<std::string>& history);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class End {
    kEntered,      // with Enter
    kEndOfInput,   // with Ctrl-D in an empty line, or because the terminal is gone
    kInterrupted,  // with Ctrl-C
  };
  struct Message {
    End end = End::kEntered;
    std::string text;  // UTF-8, without the last line break; after an interrupt: the text typed so far
  };
  // Reads one message, which begins with `prefill`. A text that the terminal pastes (bracketed paste) stays
  // in one message with its line breaks, and so does a line break typed as Alt-Enter. An InterruptGuard must
  // exist.
  Message read(std::string_view prefill = {});

  // Adds a message to the history of this process.
  void remember(const std::string& text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hadal::cli
