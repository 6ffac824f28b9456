#include "cli/chat/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <utility>

#include "base/check.h"
#include "cli/terminal.h"

namespace hadal::cli {
namespace {

constexpr std::string_view kPasteOn = "\x1b[?2004h";  // makes the terminal mark pasted text
constexpr std::string_view kPasteOff = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";
constexpr char kCtrlD = '\x04';
constexpr const char* kPrefillKey = "\x1b[299~";  // no key of a terminal sends it

void write_terminal(std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

std::string narrow(std::wstring_view wide) {
  std::string text;
  std::mbstate_t state{};
  char bytes[8];
  for (const wchar_t c : wide) {
    const size_t count = std::wcrtomb(bytes, c, &state);
    if (count != static_cast<size_t>(-1)) text.append(bytes, count);
  }
  return text;
}

}  // namespace

// libedit's callbacks receive libedit's own handle, from which client_data() returns this object.
struct LineEditor::State {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  std::string prefill;
  bool marks_pastes = false;
  bool interrupted = false;
  std::string interrupted_text;
  winsize size{};
  locale_t utf8{};
  locale_t before{};

  static State& of(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<State*>(data);
  }

  static char* prompt_of(EditLine* editor) { return of(editor).prompt.data(); }

  // Follows the size of the terminal, which may change while a line is edited.
  void follow_size() {
    winsize now{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &now) != 0) return;
    if (size.ws_col != 0 && (now.ws_col != size.ws_col || now.ws_row != size.ws_row)) {
      el_resize(editor);
      el_set(editor, EL_REFRESH);
    }
    size = now;
  }

  // Reads one byte. It returns 1, 0 at the end of the input, or -1 after Ctrl-C.
  int read_byte(char& byte) {
    while (true) {
      constexpr int kWaitMs = 100;  // because Ctrl-C may come just before a wait, or reach another thread
      pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int ready = ::poll(&input, 1, kWaitMs);
      if (InterruptGuard::seen()) return -1;
      follow_size();
      if (ready <= 0) continue;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && errno == EINTR) continue;
      // A Ctrl-D that was typed before the editor changed the terminal's mode (for example, while an answer
      // was printed) arrives as NUL.
      if (count == 1 && byte == '\0') byte = kCtrlD;
      return count == 1 ? 1 : 0;
    }
  }

  // Reads one character of UTF-8; bytes that are not UTF-8 become U+FFFD.
  int read_char(wchar_t& c) {
    std::mbstate_t state{};
    while (true) {
      char byte = 0;
      const int got = read_byte(byte);
      if (got != 1) return got;
      const size_t used = std::mbrtowc(&c, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;
      if (used == static_cast<size_t>(-1)) c = L'\xFFFD';
      return 1;
    }
  }

  static int on_read(EditLine* editor, wchar_t* c) {
    State& state = of(editor);
    // At the first read of a message, libedit has certainly set the terminal's mode. A program that drives
    // the terminal can treat this sequence as the sign that keys are now read.
    if (!std::exchange(state.marks_pastes, true)) write_terminal(kPasteOn);
    const int got = state.read_char(*c);
    if (got >= 0) return got;
    state.interrupted = true;
    const LineInfoW* line = el_wline(editor);
    state.interrupted_text =
        narrow(std::wstring_view(line->buffer, static_cast<size_t>(line->lastchar - line->buffer)));
    errno = EINTR;
    return -1;
  }

  static unsigned char insert(EditLine* editor, const std::wstring& text) {
    if (text.empty()) return CC_NORM;
    return el_winsertstr(editor, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // Inserts the text that the terminal pastes, up to the mark for the end of the paste.
  static unsigned char on_paste(EditLine* editor, int) {
    State& state = of(editor);
    std::wstring text;
    while (!text.ends_with(kPasteEnd)) {
      wchar_t next = 0;
      if (state.read_char(next) != 1) return CC_ERROR;
      text += next;
    }
    text.resize(text.size() - kPasteEnd.size());
    std::wstring clean;
    for (const wchar_t c : text) {
      if (c == L'\r') {  // most terminals send it for a line break
        clean += L'\n';
      } else if (c == L'\n' || c == L'\t' || c >= L' ') {
        clean += c;
      }
    }
    return insert(editor, clean);
  }

  static unsigned char on_line_break(EditLine* editor, int) { return insert(editor, L"\n"); }

  static unsigned char on_prefill(EditLine* editor, int) {
    State& state = of(editor);
    if (el_insertstr(editor, state.prefill.c_str()) != 0) return CC_NORM;
    return CC_REFRESH;
  }
};

bool LineEditor::usable(std::string_view term) {
  return stdin_is_terminal() && stderr_is_terminal() && !term.empty() && term != "dumb";
}

LineEditor::LineEditor(std::string prompt, const std::vector<std::string>& history)
    : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.prompt = std::move(prompt);
  // libedit converts by the locale of its thread. Terminals send UTF-8 whatever $LANG says.
  state.utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  if (state.utf8 != nullptr) state.before = ::uselocale(state.utf8);
  state.editor = el_init("hadal", stdin, stderr, stderr);
  HADAL_CHECK(state.editor != nullptr, "libedit cannot use this terminal");
  state.history = history_init();
  HADAL_CHECK(state.history != nullptr, "libedit has no memory for a history");
  HistEvent event;
  ::history(state.history, &event, H_SETSIZE, 1 << 20);
  ::history(state.history, &event, H_SETUNIQUE, 1);
  for (const std::string& entry : history) remember(entry);

  EditLine* editor = state.editor;
  el_set(editor, EL_CLIENTDATA, state_.get());
  el_set(editor, EL_PROMPT, &State::prompt_of);
  el_set(editor, EL_GETCFN, &State::on_read);
  el_set(editor, EL_SIGNAL, 1);  // Ctrl-Z and fatal signals then restore the terminal
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, ::history, state.history);
  el_set(editor, EL_ADDFN, "hadal-paste", "Insert what the terminal pastes", &State::on_paste);
  el_set(editor, EL_ADDFN, "hadal-line-break", "Insert a line break", &State::on_line_break);
  el_set(editor, EL_ADDFN, "hadal-prefill", "Insert the text to edit", &State::on_prefill);
  el_source(editor, nullptr);  // the user's ~/.editrc
  el_set(editor, EL_BIND, "\\e[200~", "hadal-paste", nullptr);
  el_set(editor, EL_BIND, "\\e\\r", "hadal-line-break", nullptr);
  el_set(editor, EL_BIND, "\\e\\n", "hadal-line-break", nullptr);
  el_set(editor, EL_BIND, "\\e[299~", "hadal-prefill", nullptr);
  el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
}

LineEditor::~LineEditor() {
  el_end(state_->editor);
  history_end(state_->history);
  if (state_->utf8 != nullptr) {
    ::uselocale(state_->before);
    ::freelocale(state_->utf8);
  }
}

LineEditor::Message LineEditor::read(std::string_view prefill) {
  State& state = *state_;
  state.interrupted = false;
  state.prefill = prefill;
  if (!prefill.empty()) el_push(state.editor, kPrefillKey);
  int count = 0;
  const char* line = el_gets(state.editor, &count);
  if (std::exchange(state.marks_pastes, false)) write_terminal(kPasteOff);
  if (state.interrupted) {
    write_terminal("\n");
    el_reset(state.editor);
    return {.end = End::kInterrupted, .text = std::move(state.interrupted_text)};
  }
  if (line == nullptr || count <= 0) {
    write_terminal("\n");
    return {.end = End::kEndOfInput, .text = {}};
  }
  std::string text(line, static_cast<size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  return {.end = End::kEntered, .text = std::move(text)};
}

void LineEditor::remember(const std::string& text) {
  HistEvent event;
  ::history(state_->history, &event, H_ENTER, text.c_str());
}

}  // namespace hadal::cli
