#!/usr/bin/env python3
"""Prints how fast the chat page is in a headless Chromium: the time until its first paint, the bytes loaded
before it, and the longest tasks of the main thread while answers of 20,000 tokens stream. The server is a
real one, but this script supplies the answers.

    bench/page_report.py [--tokens 20000] [--rate 2000]"""
import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))

from browser import Browser, find_chromium  # noqa: E402
from serving import Server  # noqa: E402

SECTION = """## Part {n} of the answer

The force between two bodies is \\(F = G \\frac{{m_1 m_2}}{{r^2}}\\), so that it falls with the *square* of the distance; a
**tide** is the difference between two such forces, and for a body of radius $R$ at the distance $r$ it is

$$
\\Delta F \\approx \\frac{{2 G m_1 m_2 R}}{{r^3}}, \\qquad n = {n}.
$$

1. The near side is pulled more than the middle.
2. The far side is pulled less, which `tide(r)` computes.
   - It is therefore high water on both sides.

| body | mass in kg | distance in km |
|------|-----------:|---------------:|
| Moon | 7.3e22 | 384,400 |
| Sun | 2.0e30 | 149,600,000 |

```python
def tide(mass: float, distance: float, radius: float = 6.371e6) -> float:
    \"\"\"Returns the tidal acceleration in m/s².\"\"\"
    gravity = 6.674e-11  # N m² / kg²
    return 2 * gravity * mass * radius / distance ** 3
```

"""
ANSWERS = {
    "sections with prose, formulas, lists, tables and code": lambda i: SECTION.format(n=i),
    "one list": lambda i: f"- item {i} of a list with **bold** words and `code` in it\n",
    "one table": lambda i: ("| n | square | note |\n|---|---|---|\n" if i == 0 else "") + f"| {i} | {i * i} | a *note* |\n",
    "one block of code": lambda i: ("```python\n" if i == 0 else "") + f"value_{i} = compute({i}, 'text')  # remark {i}\n",
    "one paragraph after the other": lambda i: f"This is sentence {i} of a long text, and it says nothing new.\n\n",
}

# Streams `pieces` as the answer to the next question, `rate` pieces per second, and collects the long tasks.
STREAM = """
window.long = [];
window.frames = [];
new PerformanceObserver((list) => list.getEntries().forEach(({duration}) => long.push(duration)))
  .observe({entryTypes: ['longtask']});
window.streamNext = (pieces, rate, field) => {
  const encoder = new TextEncoder();
  const before = window.fetch;
  window.fetch = async (path, options) => {
    if (!String(path).includes('chat/completions')) return before(path, options);
    window.fetch = before;
    let at = 0;
    const begun = performance.now();
    return new Response(new ReadableStream({pull: async (controller) => {
      await new Promise((resolve) => setTimeout(resolve, 10));
      const until = Math.min((performance.now() - begun) * rate / 1000, pieces.length);
      let text = '';
      for (; at < until; ++at) {
        text += 'data: ' + JSON.stringify({choices: [{index: 0, delta: {[field]: pieces[at]}, finish_reason: null}],
          usage: {prompt_tokens: 10, completion_tokens: at + 1, total_tokens: at + 11}}) + '\\n\\n';
      }
      if (at === pieces.length) text += 'data: [DONE]\\n\\n';
      if (text) controller.enqueue(encoder.encode(text));
      else controller.enqueue(new Uint8Array());
    }}));
  };
};
"""
FIRST_PAINT = """new Promise((resolve) => {
  const tell = () => {
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    if (!paint) return setTimeout(tell, 20);
    const loaded = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
      .filter((entry) => entry.responseEnd <= paint.startTime);
    resolve([paint.startTime, loaded.reduce((sum, entry) => sum + entry.decodedBodySize, 0), loaded.length]);
  };
  tell();
})"""


def first_paint(browser, url, times):
    rows = []
    for _ in range(times):
        page = browser.page()
        page.open(url)
        rows.append(page.evaluate(FIRST_PAINT))
        page.send("Page.close")
    paints = [row[0] for row in rows]
    print(f"first paint, {times} fresh loads: median {statistics.median(paints):.0f} ms, longest {max(paints):.0f} ms, "
          f"after {max(row[1] for row in rows) / 1000:.0f} kB in {max(row[2] for row in rows)} files")


def pieces_of(make, tokens):
    """Cuts a text into pieces of about four characters, as tokens are."""
    text = ""
    i = 0
    while len(text) < 4 * tokens:
        text += make(i)
        i += 1
    return [text[at:at + 4] for at in range(0, 4 * tokens, 4)]


def streaming(browser, url, name, pieces, rate, field="content"):
    page = browser.page()
    page.send("Performance.enable")
    page.run_first(STREAM)
    page.open(url)
    page.wait("document.querySelector('#model').textContent")
    page.evaluate(f"long.length = 0; streamNext({json.dumps(pieces)}, {rate}, '{field}'); 1")
    if field == "reasoning_content":
        page.evaluate("""new MutationObserver(() => document.querySelectorAll('.thoughts').forEach((n) => { n.open = true; }))
          .observe(document.querySelector('#messages'), {childList: true, subtree: true})""")
    page.click("#input")
    page.type("Explain.")
    page.key("Enter")
    page.wait("document.querySelector('.assistant')")
    done = page.wait("document.querySelector('#stop').hidden && !document.querySelector('[aria-busy=true]')",
                     len(pieces) / rate * 4 + 60)
    tasks = page.evaluate("long")
    longest = f"{max(tasks):.0f} ms" if tasks else "none"
    spent = {row["name"]: row["value"] for row in page.send("Performance.getMetrics")["metrics"]}
    busy = ", ".join(f"{label} {spent[field]:.1f} s" for label, field in (
        ("script", "ScriptDuration"), ("style", "RecalcStyleDuration"), ("layout", "LayoutDuration")))
    print(f"{name}: {'complete' if done else 'NOT COMPLETE'}, {len(tasks)} tasks over 50 ms, the longest: {longest}; {busy}")
    page.send("Page.close")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--rate", type=int, default=2000, help="tokens in a second")
    options = parser.parse_args()
    if find_chromium() is None:
        sys.exit("bench/page_report.py: there is no chromium (scripts/setup --ci installs it)")
    with Browser() as browser, Server("--served-model-name", "hadal-tiny") as server:
        url = f"http://127.0.0.1:{server.port}/"
        first_paint(browser, url, 15)
        print(f"answers of {options.tokens} tokens, {options.rate} in a second:")
        for name, make in ANSWERS.items():
            streaming(browser, url, name, pieces_of(make, options.tokens), options.rate)
        streaming(browser, url, "unfolded thoughts", pieces_of(ANSWERS["one paragraph after the other"], options.tokens),
                  options.rate, "reasoning_content")


if __name__ == "__main__":
    main()
