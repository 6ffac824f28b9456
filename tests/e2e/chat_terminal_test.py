#!/usr/bin/env python3
"""Drives `hadal chat` through a pseudo-terminal: editing, history, pasted text, commands and Ctrl-C."""

import json
import os
import pathlib
import pty
import re
import select
import signal
import stat
import sys
import tempfile
import time

from command_line import BIN, HAS_TOKENIZER, HAS_WEIGHTS, TINY, make_text_model
from counting import check, finish, skip

UP, LEFT, HOME = b"\x1b[A", b"\x1b[D", b"\x01"
PASTE, PASTE_END = b"\x1b[200~", b"\x1b[201~"
PROMPT = b"\x1b[?2004h"  # the editor makes the terminal mark pasted text
PASTE_OFF = b"\x1b[?2004l"  # the editor restores the terminal
CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Chat:
    """Runs `hadal chat` on a terminal of its own."""

    def __init__(self, state, *flags, model=TINY, term="xterm"):
        words = [BIN, "chat", str(model), "--log-level", "warning", "--temperature", "0", *map(str, flags)]
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": term, "XDG_STATE_HOME": str(state), "LC_ALL": "C"})
            os.execv(BIN, words)
        self.seen = b""

    def until(self, *wanted, limit=120):
        """Reads until one of the texts has been seen since the last call; returns what was read."""
        end = time.time() + limit
        while not any(text in self.seen for text in wanted) and time.time() < end:
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.fd, 65536)
                except OSError:
                    break
        text, self.seen = self.seen, b""
        return text

    def say(self, text, until=PROMPT):
        os.write(self.fd, text)
        return self.until(until)

    def close(self):
        """Ends the chat with Ctrl-D; returns its exit code."""
        os.write(self.fd, b"\x04")
        return self.wait()

    def wait(self):
        self.until(b"never", limit=30)
        if not select.select([self.fd], [], [], 0)[0]:  # the other end of the terminal is still open
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1


def plain(text):
    return CONTROL.sub(b"", text).decode("utf-8", "replace")


def saved(chat, work, name="saved.json"):
    path = work / name
    path.unlink(missing_ok=True)
    chat.say(b"/save " + str(path).encode() + b"\r")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def asked(conversation):
    return [message["content"] for message in conversation["messages"] if message["role"] == "user"]


def test_editing(work):
    state = work / "state"
    chat = Chat(state, "--max-new-tokens", "4")
    chat.until(PROMPT)
    chat.say(b"wolrd" + LEFT * 2 + b"\x14" + HOME + b"h\xc3\xa9llo \r")  # Ctrl-T swaps two letters
    check("keys edit the line, UTF-8 included", asked(saved(chat, work)) == ["h\u00e9llo world"], saved(chat, work))
    out = chat.say(b"again\r")
    check("a line says how fast the answer was, and how much was cached",
          re.search(r"\d+ tokens(, [\d.]+ per second)?; prompt: \d+ tokens, [1-9]\d* of them cached", plain(out)), out)
    check("Ctrl-D leaves", chat.close() == 0)

    history = state / "hadal/chat_history"
    check("the history is in the folder for state", history.exists())
    check("nobody else may read it", stat.S_IMODE(history.stat().st_mode) == 0o600, oct(history.stat().st_mode))
    check("nor look into its folder", stat.S_IMODE(history.parent.stat().st_mode) == 0o700)
    check("it has what was typed", json.loads(history.read_text().splitlines()[0]) == "h\u00e9llo world")

    chat = Chat(state, "--max-new-tokens", "2")
    chat.until(PROMPT)
    chat.say(UP * 3 + b"\r")  # after it came /save, twice, which counts once, and "again"
    chat.close()
    check("the arrow keys find what was typed in an earlier run",
          json.loads(history.read_text().splitlines()[-1]) == "h\u00e9llo world", history.read_text())


def test_no_history(work):
    chat = Chat(work / "none", "--max-new-tokens", "2", "--no-history")
    chat.until(PROMPT)
    chat.say(b"secret\r")
    chat.close()
    check("--no-history writes nothing", not (work / "none").exists())


def test_paste(work):
    chat = Chat(work / "paste", "--max-new-tokens", "2")
    chat.until(PROMPT)
    os.write(chat.fd, PASTE + b"one\r  two\nthree\x07" + PASTE_END)
    chat.say(b"!\r")
    check("a pasted text is one message with its line breaks", asked(saved(chat, work)) == ["one\n  two\nthree!"],
          saved(chat, work))
    chat.say(b"a\x1b\rb\r")
    check("Alt-Enter begins a new line", asked(saved(chat, work))[-1] == "a\nb", saved(chat, work))
    chat.close()


def test_commands(work):
    chat = Chat(work / "commands", "--max-new-tokens", "3")
    chat.until(PROMPT)
    out = plain(chat.say(b"/hlep\r"))
    check("an unknown command names the nearest one", "unknown command /hlep; did you mean /help?" in out, out)
    out = plain(chat.say(b"/help\r"))
    check("/help lists the commands", all(f"/{name}" in out for name in
          ["system", "reset", "retry", "edit", "save", "load", "think", "set", "help", "exit"]), out)
    out = plain(chat.say(b"/system Be brief.\r"))
    check("/system confirms", "the system prompt is set" in out, out)
    out = plain(chat.say(b"/think\r"))
    check("/think confirms", "thinking is on" in out, out)
    chat.say(b"first\r")
    out = plain(chat.say(b"/save " + str(work / "confirmed.json").encode() + b"\r"))
    check("/save confirms", "3 messages saved in " in out, out)
    conversation = saved(chat, work)
    check("/system and /think hold from then on", conversation["messages"][0] == {"role": "system", "content": "Be brief."}
          and conversation["thinking"] is True, conversation)
    chat.say(b"/think off\r")
    chat.say(b"/edit\r")
    chat.say(b" and last\r")
    conversation = saved(chat, work)
    check("/edit changes the last message", asked(conversation) == ["first and last"], conversation)
    check("and answers it again", [m["role"] for m in conversation["messages"]] == ["system", "user", "assistant"])
    chat.say(b"/retry\r")
    check("/retry answers again, the same without chance", saved(chat, work) == conversation, saved(chat, work))
    out = plain(chat.say(b"/set temperature 9e99\r"))
    check("/set says what is allowed", "--temperature 9e99: must be in [0, 1e+30]" in out, out)
    out = plain(chat.say(b"/set port 3\r"))
    check("/set refuses what it cannot change", "--port does not apply" in out, out)
    out = plain(chat.say(b"/set max-new-tokens 0\r"))
    check("/set refuses answers without a token", "--max-new-tokens 0: must be at least 1" in out, out)
    out = plain(chat.say(b"/set max-new-tokens 1\r"))
    check("/set confirms what holds now", "\nmax-new-tokens 1" in out.replace("\r", ""), out)
    out = plain(chat.say(b"/retry\r"))
    check("/set holds for the next answer", "1 tokens; prompt" in out, out)
    chat.say(b"/reset\r")
    check("/reset keeps the system prompt alone", [m["role"] for m in saved(chat, work)["messages"]] == ["system"])
    file = work / "given.json"
    file.write_text(json.dumps(conversation))
    chat.say(b"/load " + str(file).encode() + b"\r")
    check("/load goes on with a conversation", saved(chat, work) == conversation)
    file.write_text('{"messages": [{"role": "assistant", "content": ""}]}')
    out = plain(chat.say(b"/load " + str(file).encode() + b"\r"))
    check("/load names a wrong field", 'messages[0].role: is "assistant"; must be "user" here' in out.replace("\n", ""), out)
    other = work / "other.txt"
    other.write_text("mine")
    chat.say(b"/save " + str(other).encode() + b"\r")
    check("/save spares a file that is no conversation", other.read_text() == "mine")
    os.write(chat.fd, b"/exit\r")
    check("/exit leaves", chat.wait() == 0)


def test_typing_ahead(work):
    """Ctrl-D also works when it is typed while an answer is printed, when the terminal still collects lines."""
    chat = Chat(work / "ahead", "--max-new-tokens", "300", "--ignore-eos")
    chat.until(PROMPT)
    os.write(chat.fd, b"hello\r")
    chat.until(PASTE_OFF)
    time.sleep(0.05)
    os.write(chat.fd, b"\x04")
    check("Ctrl-D typed ahead leaves", chat.wait() == 0)


def test_interrupts(work):
    """Thinking is dimmed. Ctrl-C stops an answer, then drops a line, and in an empty line it ends the
    chat."""
    chat = Chat(work / "interrupts", "--load-format", "dummy", "--thinking", "--max-new-tokens", "300", "--ignore-eos",
                "--kernels", "reference", model=make_text_model(work))
    chat.until(PROMPT)
    os.write(chat.fd, b"hello\r")
    out = chat.until(b"\x1b[2m")
    check("reasoning is dimmed", b"\x1b[2m" in out, out)
    time.sleep(0.2)
    out = chat.say(b"\x03")
    check("Ctrl-C in an answer stops the answer alone", PROMPT in out, out)
    os.write(chat.fd, b"half a line")
    time.sleep(0.5)
    out = chat.say(b"\x03")
    check("Ctrl-C drops a line", PROMPT in out, out)
    check("which was never said", asked(saved(chat, work)) == ["hello"], saved(chat, work))
    os.write(chat.fd, b"\x03")
    check("Ctrl-C in an empty line leaves", chat.wait() == 130)


def test_dumb_terminal(work):
    chat = Chat(work / "dumb", "--max-new-tokens", "2", term="dumb")
    chat.until(b"> ")
    out = chat.say(b"hello\n", until=b"\n> ")
    check("a dumb terminal gets no escapes of the editor", PROMPT not in out and b"> " in out, out)
    check("and Ctrl-D leaves it", chat.close() == 0)


def main():
    if not (HAS_TOKENIZER and HAS_WEIGHTS):
        skip("the bundled model is not there")
        return finish()
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        test_editing(work)
        test_no_history(work)
        test_paste(work)
        test_commands(work)
        test_typing_ahead(work)
        test_interrupts(work)
        test_dumb_terminal(work)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
