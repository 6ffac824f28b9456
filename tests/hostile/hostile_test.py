#!/usr/bin/env python3
"""Puts hostile clients on a real server and measures what they cost its other clients.
    tests/hostile/hostile_test.py [--filter TEXT] [--list] [--verbose] [--slack FACTOR] [--serve FLAGS]
$HADAL_BINARY is the server's binary. --slack multiplies the bounds on the neighbour's delays and the time in which answers must
come, for machines that are slow or busy with other work; --serve gives the server more flags ("--device cuda").
The cases are rows of cases_*.py. The cases of a group share one server; after a case that kills or blocks it,
the next ones get a fresh one. After each case the test checks that the server is alive, answers a known
request as before, has no running request and has released its memory. docs/security.md says what the bounds
mean. The last line is "N passed, N failed"."""
import argparse
import asyncio
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from serving import Server  # noqa: E402

from attack import GRACE_S, Attack  # noqa: E402
import cases_dialects  # noqa: E402
import cases_memory  # noqa: E402
import cases_requests  # noqa: E402
import cases_texts  # noqa: E402
import cases_transport  # noqa: E402
from case import MIB, Case, post  # noqa: E402

CASES = (cases_requests.CASES + cases_texts.CASES + cases_transport.CASES + cases_memory.CASES +
         cases_dialects.CASES)
KEY = "the-key"
GROUPS = {"plain": ["--enable-metrics"], "keys": ["--api-key", KEY, "--admin-api-key", "the-admin-key"], "tls": [],
          "memory": ["--enable-metrics", "--max-request-memory", "64"],
          "ranks": ["--enable-metrics", "--device", "cpu", "--tp-size", "2"],
          "limits": ["--enable-metrics", "--max-logprobs", "5", "--max-request-tokens", "20000", "--max-prompt-logprobs", "5000",
                     "--allow-get-admin"]}
KNOWN = {"text": "The river", "sampling_params": {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}}

HONEST = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}}
# The scores of a prompt are computed anew for each request, so this is a long step every time.
HONEST_PROMPT = {"input_ids": [200 + i % 50 for i in range(500)], "return_logprob": True, "logprob_start_len": 0,
                 "sampling_params": {"max_new_tokens": 1}}
# These are the honest clients beside the neighbour: (request, how many).
COMPANY = ((HONEST, 4), (HONEST_PROMPT, 1))

# The promise is stated as ratios to the undisturbed run. The floors are the delays that a busy machine adds
# by itself: on two cores that two compilers occupy, an undisturbed run shows gaps of up to 12 ms and health
# times of up to 15 ms.
HEALTH_RATIO, HEALTH_FLOOR_S = 10, 0.010  # p90 over time; the floor makes it the promise's 100 ms
GAP_RATIO, GAP_FLOOR_S = 3, 0.015  # "later by at most twice the p99" is at most three times the p99
START_RATIO, START_FLOOR_S = 10, 0.05
CEILING = 4  # an undisturbed run counts for at most this many floors, because a noisier run would excuse any delay
UNDISTURBED_S, RETRY_UNDISTURBED_S, ATTEMPTS = 1.5, 0.7, 3
IDLE_S = 15  # until nothing runs and no memory is held; after that the server counts as blocked
FILL_S = 120  # for a prompt that only fills the pool: on a busy machine two ranks wait for each other's core
OWN_HEADERS = 8192  # the block that a request for /metrics itself holds
RETURN_BYTES = 64 * MIB  # what the allocator may keep after a case, beyond half of the growth that the case may cause


LATE = "neighbour's"  # complaints about a delay begin with this word
GROWN = "memory grew"  # complaints about the peak of the memory begin with these words
RUNNING = []  # servers that this process has to end


class Watched(Server):
    """Holds a server, and measures its memory and its neighbour."""

    def __init__(self, group, more_flags, fills_pool=True):
        self.tls, self.key = group == "tls", KEY if group == "keys" else ""
        self.folder = tempfile.TemporaryDirectory(prefix="hadal-hostile-")
        flags = [*GROUPS[group], "--log-level-http", "warning", "--profile-dir", self.folder.name, *more_flags]
        if self.tls:
            key, certificate = f"{self.folder.name}/key.pem", f"{self.folder.name}/cert.pem"
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out",
                            certificate, "-subj", "/CN=localhost"], check=True, capture_output=True)
            flags += ["--ssl-keyfile", key, "--ssl-certfile", certificate]
        self.process = self.neighbour = self.log = None
        RUNNING.append(self)
        super().__init__(*flags)
        if fills_pool:
            self.fill_pool()
        self.known = self.answer()
        script = pathlib.Path(__file__).with_name("neighbour.py")
        self.neighbour = subprocess.Popen([sys.executable, script, str(self.port), self.key, "tls" if self.tls else "plain"],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.tell("resume")
        time.sleep(0.2)
        # The quietest of three runs counts, because one noisy moment would loosen the bounds of every case of
        # the group.
        runs = [self.measure_undisturbed(UNDISTURBED_S / 2) for _ in range(3)]
        self.group_base = {name: min(run[name] for run in runs) for name in runs[0] if isinstance(runs[0][name], float)}
        self.undisturbed = self.group_base

    def __exit__(self, *exception):
        RUNNING.remove(self)
        for process in (self.neighbour, self.process):  # None: it had not been started
            if process is not None:
                process.kill()
                process.wait()
        if self.log is not None:
            self.log.close()
        self.folder.cleanup()

    def measure_undisturbed(self, seconds):
        """Measures the neighbour alone, and beside honest clients: all share the steps of two cores. The largest value
        counts, because other work on the machine slows a step of one request much less than a step of several requests, or a
        first token that waits for the end of a step with a prompt. Returns the figures."""
        self.tell("mark")
        time.sleep(seconds)
        alone = self.tell("mark")
        headers = [f"Authorization: Bearer {self.key}"] if self.key else []
        together = []
        for request, clients in COMPANY:
            company = Case("honest", "company", post("/generate", request, headers), clients=clients, seconds=seconds / 2)
            attacked(self, company, lambda: None)
            together.append(self.tell("mark"))
        return {**alone, "gap_p99": max(alone["gap_p99"], together[0]["gap_p90"]), "alone_gap_p99": alone["gap_p99"],
                "start_p50": max(run["start_p50"] for run in (alone, *together))}

    def connect(self, timeout=30):
        import http.client
        if self.tls:
            import ssl
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, timeout=None):
        timeout = timeout or IDLE_S  # not a default value, because the soak changes IDLE_S
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        status, _, answer = self.request(method, path, body, headers, timeout=timeout)
        return json.loads(answer) if status == 200 else {"status": status, "answer": answer}

    def fill_pool(self):
        """Writes to every page of the KV cache, because memory that is first used later would count as a
        case's."""
        for first in range(4):
            self.ask("POST", "/generate", {"input_ids": [100 + first] * 4000, "sampling_params": {"max_new_tokens": 1}}, FILL_S)

    def answer(self):
        answer = self.ask("POST", "/generate", KNOWN)
        return answer.get("text") if isinstance(answer, dict) else answer

    def tell(self, command):
        self.neighbour.stdin.write(command + "\n")
        self.neighbour.stdin.flush()
        return json.loads(self.neighbour.stdout.readline())

    def memory(self, field="VmRSS"):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"^{field}:\s+(\d+) kB", status, re.M)
        return int(found[1]) << 10 if found else 0

    def reset_peak(self):
        try:
            pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="utf-8")
            return True
        except OSError:
            return False

    def running(self):
        load = self.ask("GET", "/get_load")
        load = load[0] if isinstance(load, list) else load
        return load.get("num_reqs", -1)

    def held(self):
        """Returns the bytes that the server's ledger says other requests hold, without their connections; 0 without
        metrics."""
        page = self.request("GET", "/metrics", timeout=IDLE_S)[2].decode()
        held = [float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                if line.startswith("sglang:request_memory_bytes{") and 'kind="connection"' not in line]
        return max(sum(held) - OWN_HEADERS, 0) if held else 0

    def idle(self, limit_bytes, slack):
        """Waits until nothing runs, the memory is below the limit and the ledger is empty; returns what is wrong, or ''."""
        within_s = slack * IDLE_S
        until, running, memory, held = time.monotonic() + within_s, None, 0, None
        while time.monotonic() < until:
            if self.process.poll() is not None:
                return f"the server ended with {self.process.returncode}"
            try:
                running, memory, held = self.running(), self.memory(), self.held()
            except (OSError, ValueError) as error:
                running = repr(error)
            if running == 0 and memory <= limit_bytes and held == 0:
                return ""
            time.sleep(0.05)
            if running == 0 and held == 0 and time.monotonic() > until - within_s + 3 * slack:
                return f"the memory stays at {memory / MIB:.0f} MiB, allowed are {limit_bytes / MIB:.0f} MiB"
        return f"still busy after {within_s:.0f} s: running requests {running}, {held} bytes in the ledger"


def bound(ratio, undisturbed, floor):
    return ratio * min(max(undisturbed, floor), CEILING * floor)


def judge_delays(case, base, now, slack):
    """Returns complaints about the neighbour's delays and errors."""
    if not case.neighbours:
        return []
    noise = min(3 * now["noise_p90"], CEILING * GAP_FLOOR_S)
    rules = (("/health p90", now["health_p90"], bound(slack * HEALTH_RATIO, base["health_p90"], HEALTH_FLOOR_S)),
             ("token gap p90", now["gap_p90"], bound(slack * GAP_RATIO, base["gap_p99"], GAP_FLOOR_S)),
             ("first token p50", now["start_p50"], bound(slack * START_RATIO, base["start_p50"], START_FLOOR_S)))
    return [f"{LATE} {name} {value * 1e3:.0f} ms, allowed {most * 1e3:.0f} ms"
            for name, value, most in rules if value > most + noise] + [f"neighbour: {e}" for e in now["errors"]]


def judge_answers(case, seen):
    allowed = case.statuses | {503, 429}
    wrong = {status: count for status, count in seen.statuses.items() if status not in allowed}
    problems = [f"statuses {wrong}, allowed {sorted(case.statuses)}"] if wrong else []
    if case.answers and not seen.statuses:
        problems.append("no answer")
    most = case.answer_ratio * case.sent_bytes + case.answer_bytes
    if seen.largest_answer > most:
        problems.append(f"an answer of {seen.largest_answer} bytes, allowed {most:.0f}")
    return problems


def attacked(server, case, sample, slack=1.0):
    """Runs the clients of a case. Hostile clients have machines of their own; here they share the server's two cores, so
    their thread has a lower priority than the server (Linux has a priority for each thread)."""
    seen = []

    def attack():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        seen.append(asyncio.run(Attack(server.port, case, server.tls, slack * GRACE_S).run(sample)))

    thread = threading.Thread(target=attack)
    thread.start()
    thread.join()
    return seen[0]


def run_case(server, case, slack):
    """Returns (problems, figures, the server may be used again)."""
    before = server.memory()
    resets = server.reset_peak()
    peak = before
    server.tell("mark")

    def sample():
        nonlocal peak
        peak = max(peak, server.memory())

    seen = attacked(server, case, sample, slack)
    now = server.tell("mark")
    if server.process.poll() is not None:
        return [f"the server ended with {server.process.returncode}"], {}, False
    peak = max(peak, server.memory("VmHWM")) if resets else peak
    problems = judge_answers(case, seen) + judge_delays(case, server.undisturbed, now, slack)
    growth = peak - before
    may_grow = case.memory_ratio * case.clients * case.sent_bytes + case.memory_bytes
    if growth > may_grow:
        problems.append(f"{GROWN} by {growth / MIB:.0f} MiB, allowed {may_grow / MIB:.0f} MiB")
    server.tell("pause")
    stuck = server.idle(before + may_grow / 2 + RETURN_BYTES, slack)
    if stuck:
        problems.append(stuck)
    usable = not stuck
    try:
        if usable and (server.request("GET", "/health", timeout=IDLE_S)[0] != 200 or server.answer() != server.known):
            problems.append("a known request is answered differently, or /health is not 200")
            usable = False
    except OSError as error:
        problems.append(f"afterwards: {error!r}")
        usable = False
    figures = {"health": now["health_p90"], "gap": now["gap_p90"], "start": now["start_p50"], "memory": growth,
               "answer": seen.largest_answer, "statuses": dict(seen.statuses), "cut": seen.cut, "seconds": seen.seconds}
    if usable:
        server.tell("resume")
    return problems, figures, usable


def row(case, figures, verdict):
    if not figures:
        return f"| {case.full_name} | {case.clients} | – | – | – | – | {verdict} |"
    return (f"| {case.full_name} | {case.clients} | {figures['health'] * 1e3:.0f} | {figures['gap'] * 1e3:.0f} | "
            f"{figures['memory'] / MIB:.0f} | {figures['answer']} | {verdict} |")


def run_group(group, cases, options, counts):
    try:
        run_cases(group, cases, options, counts)
    finally:  # a runner that is ended leaves no server behind
        for server in list(RUNNING):
            server.__exit__()


def run_cases(group, cases, options, counts):
    server = None
    for case in cases:
        # A bound on time fails only if it fails three times. Each time the undisturbed run is measured again,
        # because other work on this machine disturbs both runs and a hostile request only one. The same holds
        # for a bound on the memory's peak: memory that a batch of a new shape adds to the engine's workspace is
        # kept and not added again, whereas the memory of a request is needed each time.
        for attempt in range(ATTEMPTS):
            if attempt > 0 and server is not None:
                server.undisturbed = server.measure_undisturbed(RETRY_UNDISTURBED_S)
            if server is None:
                server = Watched(group, shlex.split(options.serve))
                if options.verbose:
                    base = server.undisturbed
                    print(f"group {group}, undisturbed in ms: health p90 {base['health_p90'] * 1e3:.1f}, gap p90 "
                          f"{base['gap_p90'] * 1e3:.1f}, gap p99 {base['alone_gap_p99'] * 1e3:.1f}, in company "
                          f"{base['gap_p99'] * 1e3:.1f}, first token "
                          f"{base['start_p50'] * 1e3:.1f}, memory {server.memory() / MIB:.0f} MiB", flush=True)
            problems, figures, usable = run_case(server, case, options.slack)
            if not usable:
                server.__exit__()
                server = None
            if not all(text.startswith((LATE, GROWN)) for text in problems) or not problems:
                break
        if server is not None:
            server.undisturbed = server.group_base
        kind = "failed" if problems else "passed"
        counts[kind] += 1
        if problems:
            print(f"FAILED {case.full_name}: {'; '.join(problems)}", flush=True)
        if options.verbose:
            print(row(case, figures, kind) + (f" {figures['statuses']} cut {figures['cut']} {figures['seconds']:.1f} s"
                                              if figures else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="part of a case's name, which is CLASS/NAME")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and run none")
    parser.add_argument("--verbose", action="store_true", help="print a table of what was measured")
    parser.add_argument("--slack", type=float, default=1.0, help="multiplies the bounds on delays and the time for answers")
    parser.add_argument("--serve", default="", help="more flags of the server, in one word")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [case for case in CASES if options.filter in case.full_name]
    if options.list:
        print("\n".join(case.full_name for case in chosen))
        return 0
    names = [case.full_name for case in CASES]
    counts = {"passed": 0, "failed": 0}
    for name in sorted({name for name in names if names.count(name) > 1}):
        print(f"FAILED {name}: two cases have this name")
        counts["failed"] += 1
    if options.verbose:
        print("| case | clients | health p90 [ms] | gap p90 [ms] | memory [MiB] | answer [bytes] | verdict |\n"
              "|---|---|---|---|---|---|---|")
    started = time.monotonic()
    for group in GROUPS:
        mine = [case for case in chosen if case.group == group]
        if mine:
            run_group(group, mine, options, counts)
    print(f"{len(chosen)} cases in {time.monotonic() - started:.0f} s")
    if not chosen:
        counts["failed"] += 1
    print(f"{counts['passed']} passed, {counts['failed']} failed")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
