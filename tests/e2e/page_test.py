#!/usr/bin/env python3
"""Tests the chat page in a headless Chromium, with a real server or with answers that are written in this file."""
import json
import socket
import sys
import time

import page_access
import page_chat
import page_text
from browser import Browser, find_chromium
from counting import check, finish, skip
from serving import Server

STORY = "Tell me a short story about a brave fox."
SUM = "Please add 217254 and 8366."
DONE = ("document.querySelector('#stop').hidden && document.querySelectorAll('.assistant').length > 0 && "
        "!document.querySelector('.assistant[aria-busy=true]')")

# This wraps the page's fetch: it keeps the bodies of chat requests in `bodies`, and adds the fields of `extra` to them.
# If `script` is set, it answers from it: {status, headers, body} or {events, cut}, where an event is a delta or a whole
# event. `cut` leaves out the end of the stream.
FETCH = """
window.bodies = [];
window.extra = {};
window.script = null;
const realFetch = window.fetch;
window.fetch = async (path, options) => {
  if (!String(path).includes('chat/completions')) return realFetch(path, options);
  const body = {...JSON.parse(options.body), ...window.extra};
  window.bodies.push(body);
  if (!window.script) return realFetch(path, {...options, body: JSON.stringify(body)});
  const {status = 200, headers = {}, body: text, events = [], cut = false} = window.script;
  if (text !== undefined) return new Response(text, {status, headers});
  const lines = events.map((event) => {
    const whole = event.choices || event.error ? event : {choices: [{delta: event}]};
    return 'data: ' + JSON.stringify(whole) + '\\n\\n';
  });
  if (!cut) lines.push('data: [DONE]\\n\\n');
  return new Response(new Blob([lines.join('')]).stream(), {status: 200});
};
"""


def open_page(browser, server, **size):
    page = browser.page(**size)
    page.run_first(FETCH)
    page.open(server.url)
    page.wait("document.querySelector('#model').textContent || document.querySelector('.error')")
    return page


def ask(page, text, wait=True):
    count = page.evaluate("document.querySelectorAll('.assistant').length")
    page.click("#input")
    page.type(text)
    page.key("Enter")
    page.wait(f"document.querySelectorAll('.assistant').length > {count}")
    if wait:
        page.wait(DONE)


def scripted(page, text, events, **more):
    """Asks a question, which these events answer."""
    page.evaluate(f"window.script = {json.dumps({'events': events, **more})}")
    ask(page, text)
    page.evaluate("window.script = null")


def served(server):
    status, headers, body = server.request("GET", "/")
    check("the page is served", status == 200 and headers["Content-Type"] == "text/html; charset=utf-8", headers)
    policy = headers.get("Content-Security-Policy", "")
    check("nothing but the server's own may run", "default-src 'none'" in policy and "unsafe" not in policy
          and "http" not in policy, policy)
    tag = headers["ETag"]
    check("strong tag", tag.startswith('"') and headers["Cache-Control"] == "no-cache", headers)
    for sent, expected in ((tag, 304), (f'"other", W/{tag}', 304), ("*", 304), ('"other"', 200)):
        status, _, answer = server.request("GET", "/", headers={"If-None-Match": sent})
        check(f"If-None-Match: {sent}", status == expected and (answer == body) == (status == 200), status)
    status, headers, answer = server.request("HEAD", "/")
    check("HEAD", status == 200 and answer == b"" and int(headers["Content-Length"]) == len(body), headers)
    status, headers, _ = server.request("GET", "/page/app.js")
    check("a script of the page", status == 200 and headers["Content-Type"].startswith("text/javascript"), headers)
    check("no other file", server.request("GET", "/page/nothing.js")[0] == 404)
    check("only GET", server.request("POST", "/", body="x")[0] == 405)
    library = "/page/lib/highlight.js"
    status, _, whole = server.request("GET", library)
    check("a library that is larger than what is buffered", status == 200 and len(whole) > 300_000, len(whole))
    check("a reader that pauses gets all of it", slow_get(server, library) == whole)


def slow_get(server, path):
    """Reads an answer, which ends with its connection, through a small window, so that the server has to wait."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        answer = b""
        while piece := client.recv(1 << 16):
            answer += piece
    return answer.split(b"\r\n\r\n", 1)[1]


def first_look(page, server):
    check("the model is named", page.text("#model") == "hadal-tiny", page.text("#model"))
    check("the message field has the focus", page.evaluate("document.activeElement.id") == "input")
    named = page.evaluate("""[...document.querySelectorAll('button, input, textarea, select')].every((node) =>
      node.getAttribute('aria-label') || node.labels?.length || node.textContent.trim())""")
    check("every control has a name", named)
    check("nothing to send", page.evaluate("document.querySelector('#send').disabled"))
    check("title", page.evaluate("document.title") == "Hadal")


def stream(page, server):
    """A greedy answer grows on the screen and equals the answer that the server gives other clients."""
    page.click("#open-settings")
    for name, value in (("temperature", "0"), ("max_tokens", "300"), ("seed", "7")):
        page.click(f"#settings [name={name}]")
        page.type(value)
    page.click("#settings .primary")
    page.evaluate("""window.lengths = new Set();
      new MutationObserver(() => lengths.add(document.querySelector('.answer')?.innerText.length ?? 0))
        .observe(document.querySelector('#messages'), {childList: true, subtree: true, characterData: true})""")
    ask(page, STORY)
    body = page.evaluate("bodies.at(-1)")
    check("settings are sent", (body["temperature"], body["max_tokens"], body["seed"], body["stream"]) ==
          (0, 300, 7, True) and "top_p" not in body and body["model"] == "hadal-tiny", body)
    lengths = sorted(page.evaluate("[...lengths]"))
    check("the answer grew on the screen", len(lengths) > 4, lengths)
    for field in ("stream", "stream_options"):
        body.pop(field)
    status, answer = server.post("/v1/chat/completions", body)
    expected = " ".join(answer["choices"][0]["message"]["content"].split()) if status == 200 else answer
    check("it is what the server says", " ".join(page.text(".assistant .answer").split()) == expected, expected)
    stats = page.text(".assistant .stats").replace("\u00a0", " ")
    check("tokens are counted", stats.startswith(f"{answer['usage']['completion_tokens']} tokens · "), stats)
    check("speed, first token and cache", all(word in stats for word in ("tokens/s", "first token after", " cached")),
          stats)
    check("no thoughts", page.evaluate("document.querySelector('.assistant .thoughts').hidden"))
    check("screen readers hear the answer", page.text("#announcer").endswith("Answer complete"), page.text("#announcer"))


def stop(page, server, how):
    """Esc and the button end the request in the server too."""
    page.evaluate("window.extra = {ignore_eos: true, max_tokens: 3500}")
    ask(page, "Tell me a story.", wait=False)
    page.wait("document.querySelector('.assistant:last-child .answer').innerText.length > 40")
    check(f"the server works ({how})", server.load()["num_reqs"] == 1, server.load())
    check(f"the list says so ({how})", page.evaluate("document.querySelectorAll('.running').length") == 1)
    how_to = {"Esc": lambda: page.key("Escape"), "button": lambda: page.click("#stop")}
    how_to[how]()
    check(f"stopped ({how})", page.wait(DONE, 20))
    page.evaluate("window.extra = {}")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and server.load()["num_reqs"] > 0:
        time.sleep(0.02)
    check(f"the server works no more ({how})", server.load()["num_reqs"] == 0, server.load())
    check(f"what came is kept ({how})", len(page.text(".assistant .answer")) > 40 and page.text(".note").startswith("Stopped."),
          page.text(".note"))
    check(f"focus is back in the field ({how})", page.evaluate("document.activeElement.id") == "input")


def thinking(page):
    page.click("#thinking")
    check("the switch shows", page.evaluate("document.querySelector('#thinking').ariaPressed") == "true")
    ask(page, SUM)
    check("the server is asked to think", page.evaluate("bodies.at(-1).chat_template_kwargs.thinking") is True)
    folded = page.evaluate("(({open, hidden}) => !open && !hidden)([...document.querySelectorAll('.thoughts')].at(-1))")
    check("thoughts are there and folded", folded)
    check("folded text is not visible",
          not page.evaluate("[...document.querySelectorAll('.thought-text')].at(-1).checkVisibility()"))
    title = page.text(".thought-title")
    check("their time and length are shown", title.startswith("Thought for ") and title.endswith(" tokens"), title)
    page.click(".thoughts summary")
    thought = page.text(".thought-text")
    check("a click unfolds them", page.evaluate("[...document.querySelectorAll('.thought-text')].at(-1).checkVisibility()")
          and thought.strip() != "", thought)
    answer = page.text(".assistant .answer")
    check("the answer is right and without thoughts", answer == "225620", answer)
    page.click("#thinking")
    ask(page, "Please add 1 and 2.")
    history = page.evaluate("bodies.at(-1).messages")
    check("thoughts are not sent back", history[-2] == {"role": "assistant", "content": "225620"}, history)


def reload(page):
    before = [page.evaluate("[...document.querySelectorAll('.answer, .bubble')].map((node) => node.textContent)"),
              page.text("#title"), page.evaluate("document.querySelectorAll('.chat').length")]
    page.reload()
    page.wait(DONE)
    after = [page.evaluate("[...document.querySelectorAll('.answer, .bubble')].map((node) => node.textContent)"),
             page.text("#title"), page.evaluate("document.querySelectorAll('.chat').length")]
    check("a reload keeps the conversation", before == after and len(before[0]) > 3, (before, after))
    check("and the settings", page.evaluate("JSON.parse(localStorage[`hadal.chat.${location.hash.slice(1)}`]).settings.seed") == 7)


def conversations(page):
    page.click("#new-chat")
    scripted(page, "first\nline", [{"content": "one"}])
    check("the first line names it", page.text("#title") == "first", page.text("#title"))
    check("two conversations", page.evaluate("document.querySelectorAll('.chat').length") == 2)
    check("the new one is empty of the old", page.evaluate("bodies.at(-1).messages.length") == 1)

    scripted(page, "second", [{"content": "two"}])
    page.click(".user [aria-label='Edit message']")
    check("editing begins with the text", page.evaluate("document.activeElement.value") == "second")
    page.type(" thoughts")
    page.evaluate("window.script = {events: [{content: 'three'}]}")
    page.key("Enter")
    page.wait("document.querySelector('.assistant:last-child .answer')?.innerText === 'three'")
    check("an edited message has its own answer, after what was before it",
          page.evaluate("bodies.at(-1).messages.map((message) => message.content)") == ["first\nline", "one",
                                                                                       "second thoughts"])
    page.evaluate("window.script = {events: [{content: 'four'}]}")
    page.click("[aria-label='Answer again']")
    page.wait("document.querySelector('.assistant:last-child .answer')?.innerText === 'four'")
    check("answered again", page.evaluate("document.querySelectorAll('.assistant').length") == 2)

    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.click("[aria-label='Copy answer']")
    check("copied", page.wait("window.copied === 'four'", 10))

    page.evaluate("""URL.createObjectURL = (blob) => { blob.text().then((text) => { window.exported = text; });
                                                        return 'data:,'; }""")
    page.click(".current [aria-label^='Export']")
    page.wait("window.exported")
    exported = json.loads(page.evaluate("exported"))
    check("exported with every version", [message["content"] for message in exported["conversations"][0]["messages"]] ==
          ["first\nline", "one", "second", "two", "second thoughts", "three", "four"], exported)

    page.click(".current [aria-label^='Rename']")
    page.type("Another <b>name</b>")
    page.key("Enter")
    check("renamed", page.text("#title") == "Another <b>name</b>" and page.text(".current .chat-title") ==
          "Another <b>name</b>", page.text("#title"))
    page.click(".current [aria-label^='Delete']")
    check("deleted", page.wait("document.querySelectorAll('.chat').length === 1", 10) and
          page.evaluate("Object.keys(localStorage).filter((key) => key.startsWith('hadal.chat.')).length") == 1)
    page.click("#toast button")
    check("and back", page.wait("document.querySelectorAll('.chat').length === 2", 10) and
          page.text("#title") == "Another <b>name</b>")
    page.click(".chat-row:last-child .chat")
    check("the other one is opened", page.text("#title") == STORY, page.text("#title"))
    page.evaluate("history.back()")
    check("the browser's way back works", page.wait("document.querySelector('#title').innerText.startsWith('Another')", 10))


def two_tabs(browser, page, server):
    other = type(page)(browser, browser.tab(page.context), 1200, 800, page.context)
    other.run_first(FETCH)
    other.open(server.url)
    other.wait("document.querySelectorAll('.chat').length === 2")
    scripted(other, "from the other tab", [{"content": "yes"}])
    check("another tab's conversation appears", page.wait("document.querySelectorAll('.chat').length === 3", 20))


def phone(browser, server):
    page = open_page(browser, server, width=360, height=740)
    page.resize(360, 740, mobile=True)
    fits = "document.documentElement.scrollWidth <= 360 && document.querySelector('#scroller').scrollWidth <= 360"
    check("the empty page fits 360 px", page.evaluate(fits))
    wide = "# Heading\n\n" + "w" * 300 + "\n\n```\n" + "code " * 60 + "\n```\n\n| " + " | ".join(["column"] * 12) + \
        " |\n|" + "---|" * 12 + "\n\nhttps://example.org/" + "path" * 60
    scripted(page, "u" * 200, [{"reasoning_content": "t" * 200}, {"content": wide}])
    page.evaluate("document.querySelector('.thoughts').open = true")
    check("wide answers fit", page.evaluate(fits))
    inside = page.evaluate("""[...document.querySelectorAll('.bar *, .composer *, .message, .bubble, .code, .table')]
      .filter((node) => node.checkVisibility()).every((node) => {
        const box = node.getBoundingClientRect();
        return box.left >= 0 && box.right <= 360;
      })""")
    check("nothing sticks out", inside)
    check("the list is out of the way", page.evaluate("document.querySelector('#sidebar').inert"))
    page.click("#open-sidebar")
    check("the list opens", page.evaluate("!document.querySelector('#sidebar').inert && document.querySelector('.main').inert"))
    page.key("Escape")
    check("and closes", page.evaluate("document.querySelector('#sidebar').inert && !document.querySelector('.main').inert")
          and page.evaluate("document.activeElement.id") == "open-sidebar")
    page.click("#open-settings")
    check("settings fit", page.evaluate("document.querySelector('#settings').getBoundingClientRect().right <= 360 && "
                                        "document.querySelector('#settings').scrollWidth <= 360"))
    page.key("Escape")


def errors(browser, server):
    page = open_page(browser, server)
    body = json.dumps({"error": {"message": "the queue is <b>full</b>"}})
    for status, headers, title, advice in (
            (503, {"Retry-After": "3"}, "The server is busy", "in 3 seconds"),
            (400, {}, "The server did not accept the request", "the queue is <b>full</b>"),
            (413, {}, "The conversation is too long", "Start a new chat"),
            (500, {}, "The server failed", "Try again")):
        page.evaluate(f"window.script = {json.dumps({'status': status, 'headers': headers, 'body': body})}")
        ask(page, "question")
        shown = page.text(".error") or ""
        check(f"status {status}", title in shown and advice in shown, shown)
    scripted(page, "question", [{"content": "half an answer"}, {"error": {"message": "it broke"}}])
    # A worker turns the answer's text into what is displayed.
    check("an error inside the stream", "it broke" in (page.text(".error") or "") and
          page.wait("[...document.querySelectorAll('.assistant .answer')].at(-1)?.innerText === 'half an answer'"),
          page.text("body"))
    scripted(page, "question", [{"content": "half an answer"}], cut=True)
    check("a stream without an end", "The connection broke" in (page.text(".error") or ""), page.text(".error"))
    count = page.evaluate("document.querySelectorAll('.assistant').length")
    page.evaluate("window.script = {events: [{content: 'whole'}]}")
    page.click(".assistant:last-child .error button")
    check("trying again replaces it", page.wait("document.querySelector('.assistant:last-child .answer').innerText === 'whole'", 20)
          and page.evaluate("document.querySelectorAll('.assistant').length") == count)
    page.evaluate("window.script = null; window.extra = {temperature: -1}")
    ask(page, "question")
    check("the server's own words", "temperature" in (page.text(".error") or ""), page.text(".error"))
    page.evaluate("window.extra = {}")
    return page


def keys(browser):
    with Server("--api-key", "secret", "--served-model-name", "hadal-tiny") as server:
        server.url = f"http://127.0.0.1:{server.port}/"
        page = open_page(browser, server)
        check("a key is asked for", "API key" in (page.text(".error") or ""), page.text(".error"))
        for key in ("wrong", "secret"):
            page.click(".error input")
            page.type(key)
            page.key("Enter")
            if key == "wrong":
                check("a wrong key", page.wait("document.querySelector('.error')?.innerText.includes('not the right one')", 20))
        check("the right key", page.wait("!document.querySelector('.error') && document.querySelector('#model').textContent", 20))
        ask(page, SUM)
        check("answers with the key", page.text(".assistant .answer").strip() != "" and not page.text(".error"))
        check("without a cache report none is shown", "cached" not in page.text(".stats"), page.text(".stats"))
        check("the key stays in the tab", page.evaluate("!JSON.stringify(localStorage).includes('secret')"))


def clean(page, server, expected_errors=()):
    """The page sent requests to no other host, and the console is empty."""
    elsewhere = [request["request"]["url"] for request in page.events("Network.requestWillBeSent")
                 if not request["request"]["url"].startswith((server.url, "about:", "data:", "blob:"))]
    check("no request to another host", not elsewhere, elsewhere)
    said = [entry["entry"]["text"] for entry in page.events("Log.entryAdded")
            if not any(word in entry["entry"]["text"] for word in expected_errors)]
    said += [str(event) for kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled") for event in page.events(kind)]
    check("the console is empty", not said, said)


def main():
    if find_chromium() is None:
        skip("the chat page: there is no chromium (scripts/setup --ci installs it)")
        return finish()
    with Browser() as browser:
        with Server("--enable-cache-report", "--served-model-name", "hadal-tiny") as server:
            server.url = f"http://127.0.0.1:{server.port}/"
            served(server)
            page = open_page(browser, server)
            first_look(page, server)
            stream(page, server)
            stop(page, server, "Esc")
            stop(page, server, "button")
            thinking(page)
            reload(page)
            conversations(page)
            two_tabs(browser, page, server)
            clean(page, server)
            page = open_page(browser, server)
            page_text.run(page, check, scripted)
            clean(page, server)
            page_chat.run(lambda: open_page(browser, server), check, ask, scripted, DONE)
            page_access.run(lambda **size: open_page(browser, server, **size), check, scripted, DONE)
            phone(browser, server)
            page = errors(browser, server)
            clean(page, server, expected_errors=("400",))
            check("exit code", server.stop() == 0, server.text())
            ask(page, "Is anybody there?")
            shown = page.text(".error") or ""
            check("the server is gone", "cannot be reached" in shown and f"http://127.0.0.1:{server.port}" in shown, shown)
        keys(browser)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
