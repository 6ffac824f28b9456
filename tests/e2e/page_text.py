"""Tests how the chat page renders a model's text: always as Markdown, however it arrives, and never as markup."""
import json
import re

ATTACKS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload=\"window.hacked = 1\"><iframe srcdoc=\"<script>parent.hacked = 1</script>\"></iframe>",
    "[click](javascript:window.hacked=1) [again](JaVaScRiPt:window.hacked=1) [x](java\tscript:window.hacked=1)",
    "[data](data:text/html,<script>window.hacked=1</script>) [blob](blob:null/x) [file](file:///etc/passwd)",
    "[vb](vbscript:x) <javascript:window.hacked=1> [flush](/flush_cache) [flush](flush_cache)",
    "![x](https://example.org/tracker.png) ![y](x\" onerror=\"window.hacked=1)",
    "[t](https://example.org/\"onmouseover=\"window.hacked=1) [t](https://example.org 'x' onclick=1)",
    "```<img src=x onerror=window.hacked=1>\n</code></pre><script>window.hacked = 1</script>\n```",
    "`</code><script>window.hacked = 1</script>`",
    "| <img src=x onerror=window.hacked=1> | b |\n|---|---|\n| <script>window.hacked=1</script> | </table> |",
    "# <style>*{display:none}</style>\n> <base href=https://example.org>\n- <form action=https://example.org><button>",
    "**<b onclick=window.hacked=1>**\u2028\u0000\ufffe <a href=\"javascript:window.hacked=1\">x</a>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt; &#60;img src=x onerror=window.hacked=1&#62;",
]

# Rendered text may contain only these elements and attributes, in addition to those that KaTeX draws.
ALLOWED = """(() => {
  const tags = new Set(('P BR EM STRONG DEL CODE PRE A UL OL LI BLOCKQUOTE HR H2 H3 H4 H5 H6 TABLE THEAD TBODY TR TH TD ' +
                        'DIV SPAN SUP BUTTON SVG PATH').split(' '));
  const names = new Set(['class', 'href', 'title', 'target', 'rel', 'start', 'type', 'role', 'tabindex', 'aria-label',
                         'viewBox', 'd', 'aria-hidden']);
  const found = [];
  for (const node of document.querySelectorAll('.answer *, .thought-text *, .bubble *')) {
    if (node.closest('.katex')) continue;
    if (!tags.has(node.tagName.toUpperCase())) found.push(node.tagName);
    for (const {name, value} of node.attributes) {
      if (!names.has(name)) found.push(name);
      if (name === 'href' && !/^https:\\/\\/example\\.org/.test(value)) found.push(value);
    }
  }
  return found;
})()"""

SAMPLE = """# Title with `code`

A paragraph with **bold**, *italics*, ***both***, ~~gone~~ and snake_case_names,
a second line, 2 * 3 * 4 and \\*no emphasis\\*.

1. first
2. second
   - inner *one*
   - [x] done
   - [ ] open
3. third

> quoted **text**
> > deeper

```python
def f(x):
\treturn x < 1 and "**no**"
```

| left | right |
|:-----|------:|
| a\\|b | `1`<br>x |

---
Text [with a link](https://example.org/a_(b)?q=1&r=2 "title"), [named][far], <https://example.org/x> and
https://example.org/end. Noted[^1] ![picture](https://example.org/p.png)

[far]: https://example.org/far
[^1]: A *note*.

~~~
never closed
"""

EXPECTED = """<h2>Title with <code>code</code></h2>
<p>A paragraph with <strong>bold</strong>, <em>italics</em>, <em><strong>both</strong></em>, <del>gone</del> and
 snake_case_names,<br>a second line, 2 * 3 * 4 and *no emphasis*.</p>
<ol><li>first</li><li>second<ul><li>inner <em>one</em></li><li><span></span>done</li><li><span></span>open</li></ul></li>
<li>third</li></ol>
<blockquote><p>quoted <strong>text</strong></p><blockquote><p>deeper</p></blockquote></blockquote>
<pre><code>def f(x):
\treturn x &lt; 1 and "**no**"</code></pre>
<table><thead><tr><th>left</th><th>right</th></tr></thead>
<tbody><tr><td>a|b</td><td><code>1</code><br>x</td></tr></tbody></table><hr>
<p>Text <a>with a link</a>, <a>named</a>, <a>https://example.org/x</a> and<br>
<a>https://example.org/end</a>. Noted<sup><button>1</button></sup> <a>picture</a></p>
<div><span>1</span><span>A <em>note</em>.</span></div>
<pre><code>never closed</code></pre>"""

# Compares the blocks of a text that comes at once with those of a text that grows by any step. Returns the texts for
# which they differ. The changes are put together as the page does.
GROWTH = """(async (texts) => {
  const {Blocks} = await import('/page/blocks.js');
  const wrong = [];
  const take = (screen, {changes, count}) => {
    for (const {index, kind, head, from, parts} of changes) {
      const known = screen[index];
      const kept = known && known.kind === kind && known.head === head ? known.parts.slice(0, from) : [];
      screen[index] = {kind, head, parts: [...kept, ...parts]};
    }
    screen.length = count;
  };
  for (const text of texts) {
    const whole = [];
    take(whole, new Blocks().append(text, false));
    for (const step of [1, 2, 7]) {
      const grown = [];
      const blocks = new Blocks();
      for (let at = 0; at < text.length; at += step) take(grown, blocks.append(text.slice(at, at + step), true));
      take(grown, blocks.append('', false));
      if (JSON.stringify(grown) !== JSON.stringify(whole)) {
        wrong.push([step, text]);
        break;
      }
    }
  }
  return wrong;
})"""

# Makes random texts of Markdown's own signs with a fixed seed.
RANDOM_TEXTS = """(() => {
  const parts = ['*', '**', '_', '`', '```', '~~~', '\\n', '\\n', '\\n\\n', '# ', '- ', '1. ', '> ', '|', '|-|-|\\n', ' ', '  ',
                 'a', 'word ', '[x](https://example.org)', '---\\n', '\\\\', '~~', '<b>', '\\r\\n', 'https://example.org/'];
  let state = 12345;
  const next = (n) => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor(state / 65536) % n;
  };
  return Array.from({length: 1500}, () =>
    Array.from({length: 4 + next(30)}, () => parts[next(parts.length)]).join(''));
})()"""


def attacks(page, check, scripted):
    for text in ATTACKS:
        scripted(page, text, [{"reasoning_content": text}] + [{"content": c} for c in text])
        page.evaluate("[...document.querySelectorAll('.thoughts')].at(-1).open = true")
        check(f"asked as it is: {text}", page.evaluate("[...document.querySelectorAll('.bubble')].at(-1).textContent") ==
              text, page.text(".bubble"))
        check(f"thought as it is: {text}",
              page.evaluate("[...document.querySelectorAll('.thought-text')].at(-1).textContent") == text)
    found = page.evaluate(ALLOWED)
    check("only known elements, attributes and addresses", not found, found)
    page.evaluate("""for (const node of document.querySelectorAll('.answer *')) {
      node.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
    }""")
    check("nothing ran", page.evaluate("window.hacked === undefined"))
    links = page.evaluate("[...document.querySelectorAll('.answer a')].map((node) => [node.rel, node.target])")
    check("links are kept apart", links and all(link == ["noopener noreferrer nofollow", "_blank"] for link in links), links)
    shown = page.evaluate("document.querySelector('#messages').textContent")
    check("attacks are shown as text", "<script>window.hacked = 1</script>" in shown and "onerror" in shown)
    page.reload()
    page.wait("document.querySelector('.assistant') && !document.querySelector('[aria-busy=true]')")
    check("nor after a reload", page.evaluate("window.hacked === undefined") and not page.evaluate(ALLOWED))


def markdown(page, check, scripted):
    scripted(page, "Markdown", [{"content": SAMPLE}])
    html = page.evaluate("""(() => {
      const node = [...document.querySelectorAll('.answer')].at(-1).cloneNode(true);
      for (const frame of node.querySelectorAll('.code')) frame.replaceWith(frame.querySelector('pre'));
      for (const frame of node.querySelectorAll('.table')) frame.replaceWith(frame.firstElementChild);
      for (const code of node.querySelectorAll('pre code')) code.textContent = code.textContent;
      for (const block of node.querySelectorAll('.block')) block.replaceWith(...block.childNodes);
      for (const each of node.querySelectorAll('*')) {
        [...each.attributes].forEach(({name}) => each.removeAttribute(name));
      }
      return node.innerHTML;
    })()""")

    def joined(text):  # line ends between elements only make this file readable
        return re.sub(r">\n+<", "><", re.sub(r"(?<=and|br>)\n(?= snake|<a)", "", text))

    check("Markdown", joined(html) == joined(EXPECTED), html)
    wrong = page.evaluate(f"{GROWTH}({json.dumps([SAMPLE, FORMULAS, *ATTACKS])})")
    check("grown by any step, the same", not wrong, wrong)
    wrong = page.evaluate(f"{GROWTH}({RANDOM_TEXTS})")
    check("random signs grown by any step, the same", not wrong, (len(wrong), wrong[:3]))
    boxes = page.evaluate("[...document.querySelectorAll('.task-box')].map((node) => node.ariaLabel)")
    check("tasks say whether they are done", boxes == ["done", "to do"], boxes)
    colours = page.evaluate("[...document.querySelectorAll('code .hljs-keyword')].map((node) => node.textContent)")
    check("code is coloured", colours == ["def", "return", "and"], colours)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.evaluate("document.querySelector('.code button').click()")
    check("code is copied as it was written, with its tabs",
          page.wait("""window.copied === 'def f(x):\\n\\treturn x < 1 and "**no**"'""", 10), page.evaluate("window.copied"))


FORMULAS = """Inline \\(a_1 * b_1\\), $x_{i}*y$ and $$e^{i\\pi}$$; it costs $5 and $10, or 3$ per month; `$no$`.

\\[
\\begin{aligned} a &= b \\\\ \\boxed{c} &< d \\end{aligned}
\\]

$$
\\int_0^1 x^2 \\, dx
$$

- in an item: \\(\\frac{1}{2}\\)

\\(\\unknowncommand{x}\\) \\(\\href{javascript:window.hacked=1}{x}\\) \\(\\includegraphics{https://example.org/x.png}\\)
"""


def formulas(page, check, scripted):
    scripted(page, "formulas", [{"content": c} for c in FORMULAS])
    last = "[...document.querySelectorAll('.answer')].at(-1)"
    check("every formula is drawn", page.wait(f"{last}.querySelectorAll('.formula.drawn').length === 8", 20),
          page.evaluate(f"{last}.innerText"))
    check("three stand on lines of their own", page.evaluate(f"{last}.querySelectorAll('.block .katex-display').length") == 3)
    sources = page.evaluate(f"[...{last}.querySelectorAll('annotation')].map((node) => node.textContent.trim())")
    check("with its signs as they were written", sources[:3] == ["a_1 * b_1", "x_{i}*y", "e^{i\\pi}"], sources)
    text = page.evaluate(f"{last}.innerText")
    check("money and code are no formulas", "it costs $5 and $10, or 3$ per month; $no$." in text, text)
    check("what cannot be read is shown as text", "\\(\\unknowncommand{x}\\)" in text, text)
    check("a formula has no links and pictures",
          not page.evaluate(f"{last}.querySelector('.formula a, .formula img') !== null"))
    check("fonts come from this server",
          page.evaluate("[...document.fonts].some((font) => font.family === 'KaTeX_Main' && font.status === 'loaded')"))


def hostile(page, check):
    """Texts that take long to parse are shown as plain text, and the page answers meanwhile."""
    count = page.evaluate("""(() => {
      const parts = ['*a ', '**', '_a', '`', '`` ` ', '[', '[a](', '> ', '- ', '<https://', '|', '# ', '***a** ', '\\\\',
                     'https://a.', '~~', '1. ', ' ', '$', '$a', '\\\\(', '$$', '\\\\[', '[^1]', '<a', '<!--', '&#'];
      window.texts = parts.flatMap((part) => [part.repeat(30000), (part + '\\n').repeat(3000),
        Array.from({length: 200}, (_, i) => ' '.repeat(i) + part + 'x').join('\\n')]);
      texts.push('*a* '.repeat(100000), 'x\\n\\n'.repeat(20000), 'word '.repeat(200000), 'x'.repeat(1 << 20),
                 '```\\n' + 'code();\\n'.repeat(130000), '- item\\n'.repeat(20000), '$x$ '.repeat(5000),
                 '| a | b |\\n|---|---|\\n' + '| 1 | 2 |\\n'.repeat(5000));
      window.letters = (text) => text.replace(/[^a-z]/g, '').length;
      return texts.length;
    })()""")
    for i in range(count):
        page.evaluate(f"""(async () => {{
          const {{AnswerText}} = await import('/page/answer_text.js');
          window.shownText = document.createElement('div');
          window.ended = false;
          const view = new AnswerText(shownText, () => {{ if (!view.busy()) ended = true; }});
          view.update(texts[{i}], false);
        }})()""")
        shown = page.wait("ended", 120) and page.evaluate(f"letters(texts[{i}]) === 0 || letters(shownText.textContent) > 0")
        check("a hostile text comes to an end and is shown", shown, page.evaluate(f"texts[{i}].slice(0, 40)"))


def steady(page, check):
    """Elements that are complete on the screen stay as they are while the rest arrives."""
    feed(page, "growing")
    last = "document.querySelector('.assistant:last-child .answer')"
    page.evaluate(r"feed(event('# Title\n\nA formula \\(x^2\\) and `code`'))")
    check("a formula in a growing paragraph is drawn", page.wait(f"{last}.querySelector('.formula.drawn')", 20))
    page.evaluate(f"window.kept = [{last}.firstElementChild, {last}.querySelector('.formula')]")
    page.evaluate(r"feed(event(' goes on, and another begins: \\(\\frac{a'))")
    check("half a formula is text", page.wait(f"{last}.innerText.includes('\\\\(\\\\frac{{a')", 20), page.text(".answer"))
    page.evaluate(r"feed(event('}{b}\\) ends.\n\n```python\ndef f():\n    retu'))")
    check("then it is drawn", page.wait(f"{last}.querySelectorAll('.formula.drawn').length === 2", 20))
    check("complete lines of code are coloured while the block is open",
          page.wait(f"{last}.querySelector('.hljs-keyword')?.textContent === 'def'", 20))
    page.evaluate(f"kept.push({last}.querySelector('.code'), {last}.querySelector('.hljs-keyword'))")
    page.evaluate(r"feed(event('rn 1\n```\n\n- one')); feed(event('\n- two\n'))")
    page.wait(f"{last}.querySelectorAll('li').length === 2")
    page.evaluate(f"kept.push({last}.querySelector('li')); feed(event('- three'))")
    page.wait(f"{last}.querySelectorAll('li').length === 3")
    page.evaluate("feed('data: [DONE]\\n\\n')")
    page.wait("!document.querySelector('[aria-busy=true]')")
    check("blocks, formulas, lines and items that were there are the same elements",
          page.evaluate("kept.map((node) => node.isConnected)") == [True] * 5, page.evaluate("kept.map((n) => n.isConnected)"))


def feed(page, question):
    """Asks a question whose answer comes from feed(text) in the page."""
    page.evaluate("""(() => {
      const encoder = new TextEncoder();
      window.feed = null;
      const before = window.realFetchOfFeed = window.realFetchOfFeed || window.fetch;
      window.fetch = async (path, options) => {
        if (!String(path).includes('chat/completions')) return before(path, options);
        return new Response(new ReadableStream({start: (controller) => {
          window.feed = (text) => controller.enqueue(encoder.encode(text));
          window.feedBytes = (bytes) => controller.enqueue(bytes);
          window.endFeed = () => controller.close();
        }}));
      };
      window.event = (text) => 'data: ' + JSON.stringify({choices: [{delta: {content: text}}]}) + '\\n\\n';
    })()""")
    page.click("#input")
    page.type(question)
    page.key("Enter")
    page.wait("window.feed")


def smooth(page, check, scripted):
    """Many events cause few updates, and the reader's scroll position stays."""
    page.evaluate("""window.updates = 0;
      new MutationObserver(() => { window.updates += 1; })
        .observe(document.querySelector('#messages'), {childList: true, subtree: true, characterData: true})""")
    words = [{"content": f"word{i}" + ("\n\n" if i % 20 == 19 else " ")} for i in range(3000)]
    scripted(page, "many words", words)
    check("all words arrived", page.evaluate("[...document.querySelectorAll('.answer')].at(-1).textContent.includes('word2999')"))
    updates = page.evaluate("window.updates")
    check("the screen is updated once a frame at most", 0 < updates < 600, updates)
    gap = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)(document.querySelector('#scroller'))"
    check("the end stays in view", page.wait(f"{gap} < 4", 10), page.evaluate(gap))
    page.evaluate("document.querySelector('#scroller').scrollTop = 100")
    check("the way to the end is offered", page.wait("!document.querySelector('#to-end').hidden", 10))
    page.evaluate("""window.script = {events: Array.from({length: 500}, (_, i) => ({content: `more${i}\\n\\n`}))};
      document.querySelector('.user [aria-label="Copy message"]').focus({preventScroll: true})""")
    page.click("#to-end")
    check("and taken", page.wait(f"{gap} < 4 && document.querySelector('#to-end').hidden", 10))


def stays(page, check):
    """A reader who has scrolled up while an answer grows stays there."""
    feed(page, "slowly")
    check("dots while nothing has come", page.evaluate("!document.querySelector('.assistant:last-child .waiting').hidden"))
    page.evaluate("feed(event('x\\n\\n'.repeat(100) + 'first'))")
    page.wait("document.querySelector('.assistant:last-child').textContent.includes('first')")
    page.evaluate("document.querySelector('#scroller').scrollTop = 50")
    page.wait("!document.querySelector('#to-end').hidden")
    page.evaluate("""(async () => {
      const bytes = new TextEncoder().encode(event('cut \\u{1F30A} anywhere'));
      for (let i = 0; i < bytes.length; ++i) {
        feedBytes(bytes.slice(i, i + 1));
        await null;
      }
    })()""")
    check("an event cut anywhere",
          page.wait("document.querySelector('.assistant:last-child').textContent.includes('cut \\u{1F30A} anywhere')", 20))
    check("the reader's place is kept", page.evaluate("document.querySelector('#scroller').scrollTop") == 50)
    page.evaluate("feed('data: [DONE]\\n\\n')")
    check("complete", page.wait("document.querySelector('#stop').hidden", 20))


def run(page, check, scripted):
    attacks(page, check, scripted)
    page.click("#new-chat")
    markdown(page, check, scripted)
    formulas(page, check, scripted)
    smooth(page, check, scripted)
    hostile(page, check)
    steady(page, check)
    page.click("#new-chat")
    stays(page, check)
