"""Drives a headless Chromium through a minimal client of its DevTools protocol over a pipe. It needs only the standard
library."""
import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " "), "ArrowUp": (38, ""), "ArrowDown": (40, ""),
        "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Delete": (46, ""), "F2": (113, ""), "k": (75, "k"), "O": (79, "O")}


def find_chromium():
    """Returns the path of a Chromium, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """`with Browser() as browser:` starts the browser, and ends it and removes its profile afterwards."""

    def __init__(self, ready_s=60):
        self.profile = tempfile.TemporaryDirectory(prefix="hadal-chromium-", ignore_cleanup_errors=True)
        to_browser, self.write_end = os.pipe()
        self.read_end, from_browser = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync",
                 "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "about:blank"]
        if os.geteuid() == 0:
            flags.insert(0, "--no-sandbox")

        def place_pipes():  # the browser reads descriptor 3 and writes descriptor 4
            source, sink = os.dup(to_browser), os.dup(from_browser)
            for fd in (source, sink):
                if fd in (3, 4):
                    raise OSError("descriptors 3 and 4 must be free")
            os.dup2(source, 3)
            os.dup2(sink, 4)

        self.log = tempfile.TemporaryFile()
        self.spare = [os.dup(0) for _ in range(4)]  # keeps the pipes of place_pipes() above descriptor 4
        self.process = subprocess.Popen([find_chromium(), *flags], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, close_fds=False, preexec_fn=place_pipes)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.next_id = 0
        self.events = []
        self.send("Browser.getVersion", timeout=ready_s)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(OSError, RuntimeError):
            self.send("Browser.close", timeout=10)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for fd in (self.write_end, self.read_end, *self.spare):
            os.close(fd)
        self.log.close()
        self.profile.cleanup()

    def read_message(self, timeout):
        """Returns the next message, or None after `timeout` seconds without one."""
        deadline = time.monotonic() + timeout
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.read_end], [], [], left)[0]:
                return None
            part = os.read(self.read_end, 1 << 20)
            if not part:
                self.log.seek(0)
                raise RuntimeError(f"the browser ended:\n{self.log.read().decode(errors='replace')[-2000:]}")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, params=None, session=None, timeout=60):
        """Returns the result of a command; events that arrive meanwhile are kept in `events`."""
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read_message(timeout)
            if answer is None:
                raise RuntimeError(f"no answer to {method} after {timeout} s")
            if answer.get("id") != self.next_id:
                self.events.append(answer)
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error'].get('message')}")
            else:
                return answer["result"]

    def page(self, width=1200, height=800):
        """Opens a page in a separate context: it shares no stored data with other pages."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        return Page(self, self.tab(context), width, height, context)

    def tab(self, context):
        target = self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        return self.send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]


class Page:
    def __init__(self, browser, session, width, height, context):
        self.browser, self.session, self.context = browser, session, context
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def send(self, method, params=None, timeout=60):
        return self.browser.send(method, params, self.session, timeout)

    def events(self, method):
        """Returns the parameters of the events of this page."""
        return [event["params"] for event in self.browser.events
                if event.get("method") == method and event.get("sessionId") == self.session]

    def resize(self, width, height, mobile=False, scale=1):
        self.send("Emulation.setDeviceMetricsOverride",
                  {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile})

    def prefer(self, scheme):
        """Sets prefers-color-scheme."""
        self.send("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def run_first(self, script):
        """Runs `script` before the scripts of every later document."""
        self.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def open(self, url):
        self.send("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def reload(self):
        self.evaluate("window.isOld = true")
        self.send("Page.reload")
        self.wait("document.readyState === 'complete' && !window.isOld")

    def evaluate(self, expression):
        """Returns the value of a JavaScript expression; promises are awaited."""
        result = self.send("Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True})
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(f"{expression}: {details.get('exception', {}).get('description', details['text'])}")
        return result["result"].get("value")

    def wait(self, expression, timeout=60):
        """Polls until the expression is true; returns False if it never becomes true."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            with contextlib.suppress(RuntimeError):  # the document may be changing
                if self.evaluate(f"Boolean({expression})"):
                    return True
            time.sleep(0.03)
        return False

    def text(self, selector):
        """Returns the visible text of the last matching element, or None."""
        return self.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].at(-1)?.innerText ?? null")

    def click(self, selector):
        """Clicks into the middle of the last matching element with real mouse events, once it stands still, because the
        click would miss on a page that scrolls or draws above the element."""
        place = self.evaluate(f"""(async () => {{
          const middle = () => {{
            const node = [...document.querySelectorAll({json.dumps(selector)})].at(-1);
            node.scrollIntoView({{block: 'nearest'}});
            const box = node.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
          }};
          for (let before = middle(), tries = 0; ; ++tries) {{
            await new Promise((resolve) => setTimeout(resolve, 35));  // two frames
            const now = middle();
            if ((now[0] === before[0] && now[1] === before[1]) || tries === 100) return now;
            before = now;
          }}
        }})()""")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", {"type": kind, "x": place[0], "y": place[1], "button": "left",
                                                   "clickCount": 1})

    def type(self, text):
        self.send("Input.insertText", {"text": text})

    def key(self, name, shift=False, control=False):
        code, text = KEYS[name]
        text = "" if control else text
        event = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code,
                 "modifiers": 8 * shift + 2 * control}
        self.send("Input.dispatchKeyEvent", {"type": "keyDown", "text": text, **event})
        self.send("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def screenshot(self):
        """Returns the bytes of a PNG."""
        return base64.b64decode(self.send("Page.captureScreenshot", {"format": "png"})["data"])
