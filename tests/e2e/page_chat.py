"""Tests what the chat page does with a conversation: files, versions, continued answers, search, import, settings, keys."""
import json

STORED = "JSON.parse(localStorage[`hadal.chat.${location.hash.slice(1)}`])"
TEXTS = "[...document.querySelectorAll('.bubble, .answer')].map((node) => node.textContent)"


def drop(page, name, content, how):
    """Gives the page a file, by a drop or a paste; `content` is a JavaScript expression of a Blob's content."""
    page.evaluate(f"""(() => {{
      const data = new DataTransfer();
      data.items.add(new File([{content}], {json.dumps(name)}));
      const event = '{how}' === 'drop' ? new DragEvent('drop', {{dataTransfer: data, bubbles: true, cancelable: true}})
        : new ClipboardEvent('paste', {{clipboardData: data, bubbles: true, cancelable: true}});
      document.querySelector('#input').dispatchEvent(event);
    }})()""")


def paste(page, text):
    """Pastes a text; returns whether the page left the paste to the field."""
    return page.evaluate(f"""(() => {{
      const data = new DataTransfer();
      data.setData('text/plain', {json.dumps(text)});
      return document.querySelector('#input').dispatchEvent(
        new ClipboardEvent('paste', {{clipboardData: data, bubbles: true, cancelable: true}}));
    }})()""")


def files(page, check, ask, done):
    chips = "[...document.querySelectorAll('#files .file')].map((node) => node.innerText.replace(/\\s+/g, ' '))"
    drop(page, "notes.txt", "'Please add 1 and 2.'", "drop")
    check("a dropped file is a chip with its tokens", page.wait(f"/^notes.txt \\d+ tokens$/.test({chips}[0])", 20),
          page.evaluate(chips))
    counted = page.evaluate("""fetch('v1/tokenize', {method: 'POST', headers: {'Content-Type': 'application/json'},
      body: JSON.stringify({prompt: 'Please add 1 and 2.', add_special_tokens: false})}).then((a) => a.json())""")["count"]
    check("the number is the server's", page.evaluate(chips) == [f"notes.txt {counted} tokens"], page.evaluate(chips))
    check("a file alone can be sent", not page.evaluate("document.querySelector('#send').disabled"))
    drop(page, "more.md", "'# more'", "paste")
    check("a pasted file too", page.wait(f"{chips}.length === 2", 20))
    check("a short paste goes into the field", paste(page, "short"))
    check("a long one becomes a chip", not paste(page, "long text " * 500) and
          page.wait(f"/^Pasted text [\\d,]+ tokens$/.test({chips}[2])", 20), page.evaluate(chips))
    drop(page, "picture.png", "new Uint8Array([137, 80, 78, 71, 255, 0])", "drop")
    check("what is no text is refused", page.wait("document.querySelector('#toast').innerText.includes('picture.png')", 20),
          page.text("#toast"))
    drop(page, "large.txt", "'x'.repeat((1 << 20) + 1)", "drop")
    check("what is too large too", page.wait("document.querySelector('#toast').innerText.includes('more than 1 MB')", 20))
    page.click("#files [aria-label='Remove Pasted text']")
    page.click("#files [aria-label='Remove more.md']")
    check("chips can be removed", page.wait(f"{chips}.length === 1", 10))
    page.evaluate("window.script = {events: [{content: '3'}]}")
    ask(page, "What is asked?")
    sent = page.evaluate("bodies.at(-1).messages")
    check("the model reads the file before the question", sent == [{"role": "user", "content":
          "[file name]: notes.txt\n[file content begin]\nPlease add 1 and 2.\n[file content end]\nWhat is asked?"}], sent)
    check("the message shows its chip, and the field has none", page.evaluate("document.querySelectorAll('.user .file').length")
          == 1 and page.evaluate("document.querySelector('#files').hidden"))
    page.reload()
    page.wait(done)
    check("a reload keeps the file", page.evaluate("document.querySelectorAll('.user .file').length") == 1)


def branches(page, check, scripted, done):
    page.click("#new-chat")
    scripted(page, "question", [{"content": "first"}])
    page.evaluate("window.script = {events: [{content: 'second'}]}")
    page.click("[aria-label='Answer again']")
    page.wait(f"{done} && document.querySelector('.assistant .answer').innerText === 'second'")
    check("a new answer is a version", page.text(".assistant .version").replace("\u202f", "") == "2/2")
    scripted(page, "more", [{"content": "after the second"}])
    page.click(".assistant [aria-label='Previous version']")
    page.wait("document.querySelector('.assistant .answer').innerText === 'first'")
    check("the one before has nothing after it", page.evaluate(TEXTS) == ["question", "first"], page.evaluate(TEXTS))
    check("the focus stays with the steps", page.evaluate("document.activeElement.ariaLabel") == "Next version")
    page.evaluate("window.script = {events: [{content: 'edited answer'}]}")
    page.click(".user [aria-label='Edit message']")
    page.type(" edited")
    page.key("Enter")
    page.wait(f"{done} && document.querySelector('.assistant .answer').innerText === 'edited answer'")
    check("an edited question is a version with its own answer", page.evaluate(TEXTS) == ["question edited", "edited answer"],
          page.evaluate(TEXTS))
    page.click(".user [aria-label='Previous version']")
    page.wait("document.querySelectorAll('.assistant').length === 2")
    page.wait(done)
    check("the way back leads to the newest branch", page.evaluate(TEXTS) == ["question", "second", "more",
                                                                             "after the second"], page.evaluate(TEXTS))
    page.evaluate("window.script = {events: [{content: 'x'}]}")
    scripted(page, "last", [{"content": "x"}])
    check("only the shown branch is sent", page.evaluate("bodies.at(-1).messages.map((message) => message.content)") ==
          ["question", "second", "more", "after the second", "last"])
    shown = page.evaluate(TEXTS)
    page.reload()
    page.wait(done)
    check("a reload keeps the branch", page.evaluate(TEXTS) == shown, page.evaluate(TEXTS))


def resume(page, check, scripted, done):
    page.click("#new-chat")
    scripted(page, "write", [{"reasoning_content": "hm"}, {"content": "one, "},
                             {"choices": [{"delta": {}, "finish_reason": "length"}]}])
    check("the limit is named", "token limit" in page.text(".note"), page.text(".note"))
    page.evaluate("window.script = {events: [{content: 'two'}, {choices: [{delta: {}, finish_reason: 'stop'}]}]}")
    page.click(".note button")
    check("a cut answer goes on", page.wait(f"{done} && document.querySelector('.answer').innerText === 'one, two'", 20),
          page.text(".answer"))
    body = page.evaluate("bodies.at(-1)")
    check("the server is asked to go on with it", body["continue_final_message"] is True and body["messages"][-1] ==
          {"role": "assistant", "content": "one, "} and not body["chat_template_kwargs"]["thinking"], body)
    check("and nothing is left to continue", not page.evaluate("document.querySelector('.note')"))
    page.click("#new-chat")
    page.evaluate("window.script = null; window.extra = {temperature: 0, max_tokens: 20}")
    page.click("#input")
    page.type("Tell me a short story about a brave fox.")
    page.key("Enter")
    page.wait(f"{done} && document.querySelector('.note button')")
    begun = page.text(".answer")
    page.evaluate("window.extra = {temperature: 0, max_tokens: 300}")
    page.click(".note button")
    page.wait(f"{done} && !document.querySelector('.note')")
    check("the model itself goes on where it stopped", page.text(".answer").startswith(begun) and
          len(page.text(".answer")) > len(begun) + 40, page.text(".answer"))
    page.evaluate("window.extra = {}")


def calls(page, check, scripted):
    """Arguments of a call arrive in pieces, or whole."""
    page.click("#new-chat")
    call = {"index": 0, "id": "c0", "type": "function", "function": {"name": "weather", "arguments": ""}}
    scripted(page, "call", [{"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
                            {"tool_calls": [{"index": 0, "function": {"arguments": '"Bergen"}'}}]},
                            {"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "time", "arguments": "{}"}}]}])
    shown = page.evaluate("[...document.querySelectorAll('.calls .code')].map((node) => node.innerText.split('\\n').filter(Boolean))")
    check("calls are shown", shown == [["calls weather", '{"city": "Bergen"}'], ["calls time", "{}"]], shown)


def search(page, check, scripted):
    page.click("#new-chat")
    scripted(page, "about whales", [{"content": "The **narwhal** lives in the Arctic."}])
    page.click("#new-chat")
    scripted(page, "about bread", [{"content": "Flour and water."}])
    rows = "[...document.querySelectorAll('.chat')].map((node) => node.innerText)"
    page.key("k", control=True)
    check("Ctrl+K goes to the search", page.evaluate("document.activeElement.id") == "search")
    page.type("NARWHAL arctic")
    found = page.evaluate(rows)
    check("texts are searched, and the place is shown", len(found) == 1 and "about whales" in found[0] and
          "narwhal" in found[0], found)
    check("the number is said", page.text("#found") == "1 found", page.text("#found"))
    page.key("Enter")
    check("Enter opens the first", page.text("#title") == "about whales", page.text("#title"))
    page.key("k", control=True)
    page.type("no such word")
    check("nothing is found", page.evaluate(rows) == [] and page.text("#found") == "Nothing found")
    page.key("Escape")
    check("Escape ends the search", len(page.evaluate(rows)) >= 2)


def move(page, check):
    """An exported file can be imported as the same conversations, whatever their content."""
    stored = page.evaluate(STORED)
    file = {"format": "hadal-chat", "version": 2, "conversations": [{**stored, "title": "imported"}]}
    old = {"format": "hadal-chat", "version": 1, "conversations": [
        {"id": "abc", "title": "old", "named": False, "created": 1, "updated": 1, "messages": [
            {"role": "user", "content": "asked"}, {"role": "assistant", "content": "answered", "stats": {"tokens": "<b>"}}]}]}

    def choose(content):
        page.evaluate(f"""(() => {{
          const data = new DataTransfer();
          data.items.add(new File([{json.dumps(content)}], 'chats.json'));
          const field = document.querySelector('#import-chooser');
          field.files = data.files;
          field.dispatchEvent(new Event('change'));
        }})()""")

    count = page.evaluate("document.querySelectorAll('.chat').length")
    choose(json.dumps(file))
    check("an import stands beside what has its id", page.wait(f"document.querySelectorAll('.chat').length === {count + 1}", 20)
          and page.text("#title") == "imported", page.text("#title"))
    choose(json.dumps(old))
    check("files of the first version are read", page.wait("document.querySelector('#title').innerText === 'old'", 20) and
          page.wait(f"JSON.stringify({TEXTS}) === '[\"asked\",\"answered\"]'", 20), page.evaluate(TEXTS))
    for content, said in (("{", "no file that this page"), (json.dumps({"format": "hadal-chat", "conversations": [{}]}), "damaged"),
                          (json.dumps({"format": "hadal-chat"}), "damaged")):
        choose(content)
        check(f"refused: {content}", page.wait(f"document.querySelector('#toast').innerText.includes('{said}')", 20),
              page.text("#toast"))


def settings(page, check, scripted):
    page.click("#new-chat")
    page.click("#open-settings")
    for name, value in (("system", "Be brief."), ("min_p", "0.1"), ("frequency_penalty", "0.5"), ("presence_penalty", "-1"),
                        ("repetition_penalty", "1.1"), ("stop", "END\nSTOP"), ("top_k", "40")):
        page.evaluate(f"document.querySelector('#settings [name={name}]').focus()")
        page.type(value)
    page.evaluate("""(() => {
      const form = document.querySelector('#settings-form');
      form.elements.effort.value = 'high';
      form.elements.effort.dispatchEvent(new Event('input', {bubbles: true}));
      form.elements.thinking.click();
    })()""")
    page.click("#settings .primary")
    scripted(page, "with settings", [{"content": "yes"}])
    body = page.evaluate("bodies.at(-1)")
    check("every setting is sent", [body.get(name) for name in (
        "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop", "top_k", "reasoning_effort")] ==
        [0.1, 0.5, -1, 1.1, ["END", "STOP"], 40, "high"] and body["messages"][0] == {"role": "system", "content": "Be brief."},
        body)
    page.click("#new-chat")
    scripted(page, "without", [{"content": "yes"}])
    body = page.evaluate("bodies.at(-1)")
    check("another conversation has its own", "min_p" not in body and "stop" not in body and body["messages"][0]["role"] ==
          "user" and not body["chat_template_kwargs"]["thinking"], body)
    page.click("#open-settings")
    page.evaluate("document.querySelector('#settings [name=top_p]').focus()")
    page.type("0.9")
    page.click("#keep-settings")
    page.click("#settings .primary")
    page.click("#new-chat")
    scripted(page, "new", [{"content": "yes"}])
    check("until they are kept for new ones", page.evaluate("bodies.at(-1).top_p") == 0.9)
    usage = {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 24, "reasoning_tokens": 0}}
    scripted(page, "long", [{"content": "x"}, usage])
    length = page.evaluate("fetch('v1/models').then((a) => a.json()).then((b) => b.data[0].max_model_len)")
    check("the context meter tells what is used", page.evaluate("document.querySelector('#context').ariaValueText") ==
          f"1,024 of {length:,} tokens of context", page.evaluate("document.querySelector('#context').ariaValueText"))
    page.click("#input")
    page.type("draft")
    check("and counts what is about to be sent", page.evaluate("document.querySelector('#context').ariaValueText")
          .startswith("about 1,026"), page.evaluate("document.querySelector('#context').ariaValueText"))


def keys(page, check, scripted):
    page.key("O", shift=True, control=True)
    check("Ctrl+Shift+O begins a conversation", page.text("#title") == "New chat" and
          page.evaluate("document.activeElement.id") == "input")
    page.evaluate("document.querySelector('#input').value = ''")
    suggestions = page.evaluate("[...document.querySelectorAll('.suggestion')].map((node) => node.innerText)")
    check("the bundled model is asked what it can do", "Please add 217254 and 8366." in suggestions, suggestions)
    scripted(page, "a question", [{"content": "an answer"}])
    page.key("ArrowUp")
    check("Up edits the last message", page.evaluate("document.activeElement.value") == "a question")
    page.key("Escape")
    check("Escape leaves it", not page.evaluate("document.querySelector('.edit')"))
    page.click("#input")
    page.type("draft")
    page.key("ArrowUp")
    check("Up stays in a field with text", page.evaluate("document.activeElement.id") == "input")
    page.evaluate("document.querySelector('#input').value = ''; document.querySelector('#search').focus()")
    count = page.evaluate("document.querySelectorAll('.chat').length")
    page.key("Tab")
    page.key("Tab")
    check("a conversation is one stop of the Tab key", page.evaluate(
        "[...document.querySelectorAll('.chat')].indexOf(document.activeElement)") == 1)
    page.key("ArrowUp")
    page.key("ArrowRight")
    check("the arrows reach what can be done with it", page.evaluate("document.activeElement.dataset.does") == "rename")
    page.key("ArrowLeft")
    page.key("ArrowDown")
    page.key("F2")
    check("F2 renames", page.evaluate("document.activeElement.className") == "rename")
    page.key("Escape")
    page.key("Delete")
    check("Delete deletes", page.wait(f"document.querySelectorAll('.chat').length === {count - 1}", 10))
    check("the focus goes to the next", page.evaluate("document.activeElement.className") == "chat",
          page.evaluate("document.activeElement.outerHTML"))


def run(open_page, check, ask, scripted, done):
    page = open_page()
    files(page, check, ask, done)
    branches(page, check, scripted, done)
    resume(page, check, scripted, done)
    calls(page, check, scripted)
    search(page, check, scripted)
    move(page, check)
    settings(page, check, scripted)
    keys(page, check, scripted)
