#!/usr/bin/env python3
"""Lets random hostile cases (tests/hostile) and honest clients use one server for a while, and measures an honest neighbour.
    tests/soak/hostile_soak.py [--minutes 30] [--seed N] [--slack FACTOR] [--patience FACTOR] [--serve FLAGS]
$HADAL_BINARY is the server's binary.
Two cases run at any time, from another address than the honest clients'. Every honest request must have the
answer that it had before. At the end no request runs and no request memory is in use, and the server ends by
SIGTERM with exit code 0. The gaps between the honest neighbour's tokens (99th percentile, weighted by time)
and /health (p99) are compared with the same build undisturbed; --slack multiplies the bounds, for machines
that are busy with other work; --patience multiplies the time in which one answer must come, for sanitized
builds. The last line is "N passed, N failed"."""
import argparse
import asyncio
import collections
import os
import pathlib
import random
import shlex
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS / "hostile")]
from attack import Attack  # noqa: E402
from counting import check, finish  # noqa: E402
import hostile_test  # noqa: E402

HONEST_CLIENTS = 2
ATTACKERS = 2
REPORT_S = 60


class Soak:
    def __init__(self, server, minutes, seed):
        self.server, self.seed = server, seed
        self.until = time.monotonic() + 60 * minutes
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.problems = []
        # Cases that disturb by design are left out.
        self.cases = [case for case in hostile_test.CASES if case.group == "plain" and case.neighbours]

    def note(self, what, problem=None):
        with self.lock:
            self.counts[what] += 1
            if problem is not None and len(self.problems) < 20:
                self.problems.append(problem)

    def honest(self):
        while time.monotonic() < self.until:
            try:
                answer = self.server.answer()
                self.note("honest answers", None if answer == self.server.known else f"an honest request got {answer!r}")
            except Exception as error:  # pylint: disable=broad-except  # whatever it is, it is not an answer
                self.note("honest answers", f"an honest request got {error!r}")
            time.sleep(0.05)

    def attack(self, number):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)
        rng = random.Random(f"{self.seed} {number}")
        while time.monotonic() < self.until:
            case = rng.choice(self.cases)
            try:
                seen = asyncio.run(Attack(self.server.port, case, tls=False).run(lambda: None))
            except Exception as error:  # pylint: disable=broad-except  # a dead attacker would go unnoticed
                self.note("hostile cases", f"{case.full_name}: {error!r}")
                continue
            wrong = {status: count for status, count in seen.statuses.items() if status not in case.statuses | {503, 429}}
            self.note("hostile cases", f"{case.full_name}: statuses {wrong}" if wrong else None)

    def run(self):
        threads = [threading.Thread(target=self.honest) for _ in range(HONEST_CLIENTS)]
        threads += [threading.Thread(target=self.attack, args=(number,)) for number in range(ATTACKERS)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            until = time.monotonic() + REPORT_S
            while time.monotonic() < until and any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
            if self.server.process.poll() is not None:
                self.until = 0.0
            print(f"{dict(self.counts)}, {self.server.memory() / hostile_test.MIB:.0f} MiB", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--slack", type=float, default=1.0, help="multiplies the bounds on the neighbour's delays")
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the time for one answer")
    parser.add_argument("--serve", default="", help="more flags of the server, in one word")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    hostile_test.IDLE_S *= options.patience
    server = hostile_test.Watched("plain", shlex.split(options.serve), fills_pool=False)
    try:
        base = server.measure_undisturbed(10)
        soak = Soak(server, options.minutes, options.seed)
        server.tell("mark")
        soak.run()
        now = server.tell("mark")
        server.tell("pause")
        check("the server lives", server.process.poll() is None, server.text()[-3000:])
        check("every honest request has its answer, every hostile one an allowed status", not soak.problems, soak.problems)
        check("both kinds of clients were served",
              soak.counts["honest answers"] > 0 and now["streams"] > 0 and soak.counts["hostile cases"] > 0, dict(soak.counts))
        check("the neighbour saw no error", not now["errors"], now["errors"])
        for name, ratio, floor in (("gap_p99", hostile_test.GAP_RATIO, hostile_test.GAP_FLOOR_S),
                                   ("health_p99", hostile_test.HEALTH_RATIO, hostile_test.HEALTH_FLOOR_S)):
            most = hostile_test.bound(options.slack * ratio, base[name], floor) + now["noise_p90"]
            print(f"{name}: undisturbed {base[name] * 1e3:.1f} ms, under attack {now[name] * 1e3:.1f} ms, "
                  f"allowed {most * 1e3:.1f} ms")
            check(f"the neighbour's {name} is within the promise", now[name] <= most, f"{now[name]} s of {most} s")
        stuck = server.idle(1 << 50, options.slack)
        check("no request runs and no request memory is in use", not stuck, stuck)
        check("a known request has its answer", server.answer() == server.known)
        server.neighbour.kill()
        check("SIGTERM ends the server with exit code 0", server.stop() == 0, server.text()[-3000:])
        said = server.text()
        check("no sanitizer has reported anything", "Sanitizer" not in said and "runtime error" not in said, said[-5000:])
    finally:
        server.__exit__()
    return finish()


if __name__ == "__main__":
    sys.exit(main())
