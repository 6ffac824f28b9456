"""Tests how the chat page renders a model's text: always as Markdown, however it arrives, and never as markup."""
import json

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

# Rendered text may contain only these elements and attributes.
ALLOWED = """(() => {
  const tags = new Set(('P BR EM STRONG DEL CODE PRE A UL OL LI BLOCKQUOTE HR H3 H4 H5 H6 TABLE THEAD TBODY TR TH TD ' +
                        'DIV SPAN BUTTON SVG PATH').split(' '));
  const names = new Set(['class', 'href', 'title', 'target', 'rel', 'start', 'type', 'aria-label', 'viewBox', 'd',
                         'aria-hidden']);
  const found = [];
  for (const node of document.querySelectorAll('.text *, .thought-text *, .bubble *')) {
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
   - inner two

     with a paragraph
3. third

* a
* b
- other list

> quoted **text**
> > deeper

```python
def f(x):
    return x < 1 and "**no**"
```

| left | right |
|:-----|------:|
| a\\|b | `1` |

---
Text [with a link](https://example.org/a_(b)?q=1 "title"), <https://example.org/x> and https://example.org/end.
    indented line
~~~
never closed
"""

EXPECTED = """<h3>Title with <code>code</code></h3>
<p>A paragraph with <strong>bold</strong>, <em>italics</em>, <strong><em>both</em></strong>, <del>gone</del> and
 snake_case_names,<br>a second line, 2 * 3 * 4 and *no emphasis*.</p>
<ol><li>first</li><li>second<ul><li><p>inner <em>one</em></p></li><li><p>inner two</p><p>with a paragraph</p></li></ul></li>
<li>third</li></ol><ul><li>a</li><li>b</li></ul><ul><li>other list</li></ul>
<blockquote><p>quoted <strong>text</strong></p><blockquote><p>deeper</p></blockquote></blockquote>
<pre><code>def f(x):
    return x &lt; 1 and "**no**"</code></pre>
<table><thead><tr><th>left</th><th>right</th></tr></thead>
<tbody><tr><td>a|b</td><td><code>1</code></td></tr></tbody></table><hr>
<p>Text <a>with a link</a>, <a>https://example.org/x</a> and <a>https://example.org/end</a>.<br>indented line</p>
<pre><code>never closed
</code></pre>"""

# Renders whole texts, and the same texts growing character by character; returns those whose results differ.
GROWTH = """(async (texts) => {
  const {MarkdownView, renderMarkdown} = await import('/page/markdown.js');
  const wrong = [];
  for (const text of texts) {
    const whole = document.createElement('div');
    renderMarkdown(text, whole);
    for (const step of [1, 2, 7]) {
      const grown = document.createElement('div');
      const view = new MarkdownView(grown);
      for (let end = 0; end < text.length + step; end += step) view.update(text.slice(0, end));
      if (grown.innerHTML !== whole.innerHTML) {
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
    page.evaluate("""for (const node of document.querySelectorAll('.text *')) {
      node.dispatchEvent(new MouseEvent('mouseover', {bubbles: true}));
    }""")
    check("nothing ran", page.evaluate("window.hacked === undefined"))
    links = page.evaluate("[...document.querySelectorAll('.text a')].map((node) => [node.rel, node.target])")
    check("links are kept apart", links and all(link == ["noopener noreferrer nofollow", "_blank"] for link in links), links)
    shown = page.evaluate("document.querySelector('#messages').textContent")
    check("attacks are shown as text", "<script>window.hacked = 1</script>" in shown and "onerror" in shown)
    page.reload()
    check("nor after a reload", page.evaluate("window.hacked === undefined") and not page.evaluate(ALLOWED))


def markdown(page, check):
    html = page.evaluate(f"""(async () => {{
      const {{renderMarkdown}} = await import('/page/markdown.js');
      const node = document.createElement('div');
      renderMarkdown({json.dumps(SAMPLE)}, node);
      node.querySelectorAll('.code').forEach((code) => code.replaceWith(code.querySelector('pre')));
      node.querySelectorAll('.table').forEach((table) => table.replaceWith(table.firstChild));
      node.querySelectorAll('a, th, td').forEach((each) =>
        [...each.attributes].forEach(({{name}}) => each.removeAttribute(name)));
      return node.innerHTML;
    }})()""")

    def joined(text):  # line ends between elements only help to read this file
        return text.replace(">\n<", "><").replace("and\n snake", "and snake")

    check("Markdown", html == joined(EXPECTED), html)
    wrong = page.evaluate(f"{GROWTH}({json.dumps([SAMPLE, *ATTACKS])})")
    check("grown by any step, the same", not wrong, wrong)
    wrong = page.evaluate(f"{GROWTH}({RANDOM_TEXTS})")
    check("random signs grown by any step, the same", not wrong, (len(wrong), wrong[:3]))
    ends = page.evaluate("""(async () => {
      const {renderMarkdown} = await import('/page/markdown.js');
      const node = document.createElement('div');
      for (const part of ['*a ', '**', '_a', '`', '`` ` ', '[', '[a](', '> ', '- ', '<https://', '|', '# ', '***a** ', '\\\\',
                          'https://a.', '~~', '1. ', ' ']) {
        renderMarkdown(part.repeat(30000), node);
        renderMarkdown((part + '\\n').repeat(3000), node);
        renderMarkdown(Array.from({length: 200}, (_, i) => ' '.repeat(i) + part + 'x').join('\\n'), node);
      }
      renderMarkdown('*a* '.repeat(100000), node);  // more nodes than a call has arguments
      renderMarkdown('x\\n\\n'.repeat(150000), node);
      return node.childElementCount === 150000;
    })()""")
    check("hostile lengths come to an end", ends)


def smooth(page, check, scripted):
    """Many events cause few updates, and the reader's scroll position stays."""
    page.evaluate("""window.updates = 0;
      new MutationObserver(() => { window.updates += 1; })
        .observe(document.querySelector('#messages'), {childList: true, subtree: true, characterData: true})""")
    words = [{"content": f"word{i}" + ("\n\n" if i % 20 == 19 else " ")} for i in range(3000)]
    scripted(page, "many words", words)
    check("all words arrived", page.evaluate("[...document.querySelectorAll('.text')].at(-1).textContent.includes('word2999')"))
    updates = page.evaluate("window.updates")
    check("the screen is updated once a frame at most", 0 < updates < 600, updates)
    gap = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)(document.querySelector('#scroller'))"
    check("the end stays in view", page.evaluate(gap) < 4, page.evaluate(gap))
    page.evaluate("document.querySelector('#scroller').scrollTop = 100")
    check("the way to the end is offered", page.wait("!document.querySelector('#to-end').hidden", 10))
    page.evaluate("""window.script = {events: Array.from({length: 500}, (_, i) => ({content: `more${i}\\n\\n`}))};
      document.querySelector('.user [aria-label="Copy message"]').focus({preventScroll: true})""")
    page.click("#to-end")
    check("and taken", page.wait(f"{gap} < 4 && document.querySelector('#to-end').hidden", 10))


def stays(page, check):
    """A reader who has scrolled up while an answer grows stays there."""
    page.evaluate("""(() => {
      const encoder = new TextEncoder();
      window.feed = null;
      const before = window.fetch;
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
    page.type("slowly")
    page.key("Enter")
    page.wait("window.feed")
    check("dots while nothing has come", page.evaluate("!document.querySelector('.assistant:last-child .waiting').hidden"))
    page.evaluate("feed(event('x\\n\\n'.repeat(100) + 'first'))")
    page.wait("document.querySelector('.assistant:last-child').innerText.includes('first')")
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
          page.wait("document.querySelector('.assistant:last-child').innerText.includes('cut \\u{1F30A} anywhere')", 20))
    check("the reader's place is kept", page.evaluate("document.querySelector('#scroller').scrollTop") == 50)
    page.evaluate("feed('data: [DONE]\\n\\n')")
    check("complete", page.wait("document.querySelector('#stop').hidden", 20))


def run(page, check, scripted):
    attacks(page, check, scripted)
    markdown(page, check)
    smooth(page, check, scripted)
    stays(page, check)
