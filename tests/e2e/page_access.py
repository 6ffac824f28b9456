"""Tests that the chat page can be used with a screen reader, with impaired sight, on a touch screen and without a mouse:
names and roles of every control, the contrast of every text with its background, the size of touch targets, themes and
keys."""

# Returns what a screen reader could not name, and ids and roles that do not fit.
NAMES = """(() => {
  const visible = (node) => node.checkVisibility({visibilityProperty: true, opacityProperty: false});
  const named = (node) => (node.getAttribute('aria-label') || node.labels?.[0]?.textContent || node.textContent || '').trim() ||
    document.getElementById(node.getAttribute('aria-labelledby'))?.textContent;
  const wrong = [];
  for (const node of document.querySelectorAll('button, input, textarea, select, a, summary, dialog, nav, [role], [tabindex="0"]')) {
    if (visible(node) && node.getAttribute('role') !== 'status' && !node.closest('pre') && !named(node)) wrong.push(node.outerHTML);
  }
  for (const node of document.querySelectorAll('[aria-hidden=true]')) {
    if (node.querySelector('a, button, input, [tabindex]') && visible(node)) wrong.push(node.outerHTML);
  }
  const ids = [...document.querySelectorAll('[id]')].map(({id}) => id);
  wrong.push(...ids.filter((id, i) => ids.indexOf(id) !== i));
  for (const node of document.querySelectorAll('[aria-controls], [aria-describedby], [aria-labelledby]')) {
    for (const name of ['aria-controls', 'aria-describedby', 'aria-labelledby']) {
      const id = node.getAttribute(name);
      if (id && !document.getElementById(id)) wrong.push(`${name}: ${id}`);
    }
  }
  if (document.querySelectorAll('main').length !== 1 || document.querySelectorAll('h1').length !== 1) wrong.push('landmarks');
  for (const image of document.images) if (!image.hasAttribute('alt')) wrong.push(image.outerHTML);
  return wrong;
})()"""

# Returns texts whose contrast with their background is less than WCAG AA requires.
CONTRAST = """(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const wrong = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({visibilityProperty: true}) || node.closest('.sr-only, .katex-mathml, :disabled')) continue;
    const style = getComputedStyle(node);
    const ground = behind(node);
    const colour = over(parse(style.color), ground);
    const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < (large ? 3 : 4.5)) wrong.push([text.data.trim().slice(0, 30), node.className, ratio.toFixed(2)]);
  }
  return wrong;
})()"""

# Returns controls that are too small for a finger.
SMALL = """(() => {
  const wrong = [];
  for (const node of document.querySelectorAll('button, summary, input, select, textarea')) {
    if (!node.checkVisibility({visibilityProperty: true}) || node.closest('.sr-only, [inert]') || node.type === 'file') continue;
    const target = node.type === 'checkbox' ? node.closest('label') : node;
    const {width, height} = target.getBoundingClientRect();
    if (width < 44 || height < 44) wrong.push([node.id || node.ariaLabel || node.textContent, width, height]);
  }
  return wrong;
})()"""

RICH = """# A title

Text with `code`, a [link](https://example.org/), \\(x^2\\) and a note[^1].

```python
# remark
def name(value: int = 3) -> str:
    return f"text {value}" + str(None)
```

- [x] done
- [ ] open

| a | b |
|---|---|
| 1 | 2 |

> quoted

[^1]: The note.
"""


def everything(page, check, where):
    for name, script in (("named", NAMES), ("readable", CONTRAST)):
        wrong = page.evaluate(script)
        check(f"everything is {name}: {where}", not wrong, wrong)


def keyboard(open_page, check, done):
    page = open_page()
    page.type("one")
    page.key("Enter", shift=True)
    page.type("two")
    check("Shift+Enter is a new line", page.evaluate("document.querySelector('#input').value") == "one\ntwo")
    check("and sends nothing", page.evaluate("bodies.length") == 0)
    reached = []
    for _ in range(14):
        page.key("Tab")
        reached.append(page.evaluate("""(() => {
          const node = document.activeElement;
          const ring = getComputedStyle(node).outlineStyle !== 'none' || node.matches('.composer *');
          return [node.id || node.className || node.tagName, ring];
        })()"""))
    names = [name for name, _ in reached]
    for name in ("thinking", "send", "skip", "new-chat", "theme", "open-settings"):
        check(f"Tab reaches {name}", name in names, names)
    check("focus is visible", all(ring for name, ring in reached if name != "BODY"), reached)
    check("reading order", names.index("skip") < names.index("new-chat") < names.index("open-settings"), names)
    page.evaluate("document.querySelector('#open-settings').focus()")
    page.key("Enter")
    check("Enter opens settings", page.wait("document.querySelector('#settings').open", 10))
    page.key("Escape")
    check("Esc closes them, focus returns", page.wait("!document.querySelector('#settings').open", 10) and
          page.evaluate("document.activeElement.id") == "open-settings")
    page.evaluate("document.querySelector('.skip').focus()")
    page.key("Enter")
    page.evaluate("window.script = {events: [{content: 'hello'}]}")
    page.key("Enter")
    check("asked and answered by keys alone", page.wait(f"{done} && document.querySelector('.answer').innerText === 'hello'", 20))
    page.evaluate("document.querySelector('#attach').focus()")
    page.key("Tab")
    page.key(" ")
    check("the space key switches thinking", page.evaluate("document.querySelector('#thinking').ariaPressed") == "true")


def themes(open_page, check):
    page = open_page()
    light_of = """(() => { const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
                           return r + g + b; })()"""
    page.prefer("light")
    check("light as the system", page.evaluate(light_of) > 600)
    page.prefer("dark")
    check("dark as the system", page.evaluate(light_of) < 150)
    page.click("#theme")
    check("light although the system is dark", page.evaluate(light_of) > 600 and page.text("#theme") == "Theme: light")
    page.reload()
    page.wait("document.querySelector('#model').textContent")
    check("chosen once for all", page.evaluate(light_of) > 600)
    page.prefer("light")
    page.click("#theme")
    check("dark although the system is light", page.evaluate(light_of) < 150)
    contrast = page.evaluate("""['light', 'dark'].map((theme) => {
      document.documentElement.dataset.theme = theme;
      const style = getComputedStyle(document.documentElement);
      const light = (name) => {
        const hex = style.getPropertyValue(name).trim();
        const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
          .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      return Math.min(ratio('--text', '--surface'), ratio('--muted', '--surface'), ratio('--muted', '--back'),
                      ratio('--muted', '--soft'), ratio('--accent', '--soft'), ratio('--accent', '--surface'),
                      ratio('--on-accent', '--accent'), ratio('--danger', '--danger-soft'));
    })""")
    check("text is readable in both (WCAG AA)", min(contrast) >= 4.5, contrast)


def run(open_page, check, scripted, done):
    page = open_page()
    for theme in ("light", "dark"):
        page.prefer(theme)
        page.click("#new-chat")
        everything(page, check, f"empty, {theme}")
        scripted(page, "question", [{"reasoning_content": "thought"}, {"content": RICH},
                                    {"choices": [{"delta": {}, "finish_reason": "length"}]}])
        page.wait("document.querySelector('.formula.drawn') && document.querySelector('.hljs-keyword')")
        page.evaluate("document.querySelector('.thoughts').open = true")
        page.evaluate("window.script = {status: 503, body: '{}'}")
        page.click("#input")
        page.type("fails")
        page.key("Enter")
        page.wait("document.querySelector('.error')")
        page.evaluate("document.querySelector('#input').value = ''")
        everything(page, check, f"a conversation, {theme}")
        page.click("#open-settings")
        everything(page, check, f"settings, {theme}")
        page.key("Escape")
    live = page.evaluate("[document.querySelector('#messages').role, document.querySelector('#announcer').ariaLive]")
    check("messages are a log, and answers are read from a live region", live == ["log", "polite"], live)

    page = open_page(width=390, height=844)
    page.resize(390, 844, mobile=True)
    wrong = page.evaluate(SMALL)
    check("a finger hits everything: empty", not wrong, wrong)
    scripted(page, "question", [{"reasoning_content": "thought"}, {"content": RICH},
                                {"choices": [{"delta": {}, "finish_reason": "length"}]}])
    wrong = page.evaluate(SMALL)
    check("a finger hits everything: a conversation", not wrong, wrong)
    page.click("#open-settings")
    wrong = page.evaluate(SMALL)
    check("a finger hits everything: settings", not wrong, wrong)
    columns = page.evaluate("new Set([...document.querySelectorAll('#settings input[type=number]')].map((node) => node.getBoundingClientRect().x)).size")
    check("settings are one column", columns == 1, columns)
    page.key("Escape")
    page.click("#open-sidebar")
    page.wait("document.querySelector('.sidebar.open')")
    wrong = page.evaluate(SMALL)
    check("a finger hits everything: the list", not wrong, wrong)
    keyboard(open_page, check, done)
    themes(open_page, check)
