"""Runs the honest client next to the hostile ones, in a process of its own: it requests /health every 20 ms and streams
short generations, and notes how long it waits. Commands come on stdin, a line each; each is answered by a line of JSON:
    mark     returns the figures since the last mark, and begins a new window
    pause    ends the stream (health goes on)      resume   streams again

Every figure is a statistic over time, not over events, because otherwise one long freeze counts as one slow event among
hundreds of fast ones. /health is requested by the clock: a probe that could not be sent while its predecessor was waiting
counts from the moment at which it was due. A gap between tokens weighs as much as it is long: 90 % of the time lies in gaps
that are not longer than p90. A probe or token that is still awaited at the mark counts with its age."""
import contextlib
import http.client
import json
import socket
import sys
import threading
import time

PERIOD_S = 0.02
NEW_TOKENS = 48
TIMEOUT_S = 60


class Neighbour:
    def __init__(self, port, key, tls):
        self.port, self.tls = port, tls
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.lock = threading.Lock()
        self.streaming = threading.Event()
        self.sleeping = threading.Event()  # the stream is paused, and its connection is closed
        self.clear()

    def clear(self):
        self.since = time.monotonic()
        self.health, self.gaps, self.starts, self.noise, self.errors = [], [], [], [], []
        self.streams = 0

    def note(self, values, value):
        with self.lock:
            values().append(value)

    def error(self, text):
        with self.lock:
            self.errors.append(str(text)[:200])

    def connect(self):
        if self.tls:
            import ssl
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)

    def ask_health(self):
        connection = None
        self.health_due = due = time.monotonic()
        while True:
            delay = due - time.monotonic()
            if delay > 0:
                time.sleep(delay)
                # Notes how late a process that only sleeps gets its turn, which is the machine's noise and not the server's.
                self.note(lambda: self.noise, max(0.0, time.monotonic() - due))
            try:
                if connection is None:
                    connection = self.connect()
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.error(f"/health: {answer.status}")
                if answer.will_close:
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                # A connection that the server closed between two probes is not an error of the server.
                if time.monotonic() - due > 1 or not isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    self.error(f"/health: {error!r}")
                connection = None
                time.sleep(PERIOD_S)
            self.note(lambda: self.health, time.monotonic() - due)
            due += PERIOD_S
            self.health_due = due

    def stream(self):
        body = json.dumps({"text": "Once upon a time", "stream": True, "sampling_params": {
            "max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}})
        while True:
            if not self.streaming.is_set():
                self.last_event = None
                self.sleeping.set()
                self.streaming.wait()
            self.sleeping.clear()
            connection = self.connect()
            try:
                self.started, self.last_event = time.monotonic(), None
                connection.request("POST", "/generate", body, {"Content-Type": "application/json", **self.headers})
                answer = connection.getresponse()
                if answer.status != 200:
                    self.error(f"/generate: {answer.status} {answer.read(200)!r}")
                    time.sleep(PERIOD_S)
                    continue
                for line in answer:
                    if not self.streaming.is_set():
                        break
                    if line.startswith(b"data: {"):
                        now = time.monotonic()
                        if b'"error"' in line[:40]:
                            self.error(line)
                        if self.last_event is None:
                            self.note(lambda: self.starts, now - self.started)
                        else:
                            self.note(lambda: self.gaps, now - self.last_event)
                        self.last_event = now
                self.streams += 1
            except (OSError, http.client.HTTPException) as error:
                self.error(f"/generate: {error!r}")
                time.sleep(PERIOD_S)
            finally:
                self.started, self.last_event = None, None
                with contextlib.suppress(OSError):
                    connection.close()

    def mark(self):
        with self.lock:
            now = time.monotonic()
            health = self.health + [now - self.health_due] * (now > self.health_due)
            # Probes that are overdue count one by one, each from the time at which it was due.
            late = now - self.health_due - PERIOD_S
            while late > 0:
                health.append(late)
                late -= PERIOD_S
            last, started = self.last_event, self.started
            gaps = self.gaps + ([now - last] if last is not None else [])
            starts = self.starts + ([now - started] if last is None and started is not None else [])
            figures = {
                "seconds": now - self.since, "health_p50": percentile(health, 50), "health_p90": percentile(health, 90), "health_p99": percentile(health, 99),
                "health_max": max(health, default=0), "gap_p50": weighted(gaps, 50), "gap_p90": weighted(gaps, 90),
                "gap_p99": weighted(gaps, 99), "gap_max": max(gaps, default=0), "start_p50": percentile(starts, 50),
                "start_max": max(starts, default=0), "noise_p90": percentile(self.noise, 90), "streams": self.streams,
                "errors": self.errors[:5]}
            self.clear()
            return figures

    def obey(self, command):
        if command == "pause":
            self.streaming.clear()
            self.sleeping.wait(TIMEOUT_S)
        elif command == "resume":
            self.sleeping.clear()
            self.streaming.set()
        return self.mark()


def percentile(values, percent):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


def weighted(values, percent):
    """Returns the value up to which `percent` of the sum of all values lies."""
    ordered, left = sorted(values), sum(values) * percent / 100
    for value in ordered:
        left -= value
        if left <= 0:
            return value
    return ordered[-1] if ordered else 0.0


def main():
    port, key, tls = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "tls"
    socket.setdefaulttimeout(TIMEOUT_S)
    neighbour = Neighbour(port, key, tls)
    neighbour.started = neighbour.last_event = None
    neighbour.health_due = time.monotonic()
    for work in (neighbour.ask_health, neighbour.stream):
        threading.Thread(target=work, daemon=True).start()
    for line in sys.stdin:
        print(json.dumps(neighbour.obey(line.strip())), flush=True)


if __name__ == "__main__":
    main()
