"""Counts checks for every test script here, and prints the closing line. A check that did not run, because a package,
browser or library is missing, is counted as skipped; with CI=true it is a failure."""
import os
import re

LINE = re.compile(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?")


class Tally:
    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    @classmethod
    def last_in(cls, output):
        """Returns the last closing line of a test's output, or None."""
        lines = LINE.findall(output)
        return cls(*(int(count or 0) for count in lines[-1])) if lines else None

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def check(self, name, good, detail=""):
        """Counts one check, and prints its detail if it failed; returns whether it has passed."""
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {name}: {detail}", flush=True)
        return bool(good)

    def skip(self, why, count=1):
        """Counts checks that cannot run here, and says why."""
        print(f"SKIPPED {why}", flush=True)
        self.skipped += count

    def __str__(self):
        return f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else "")

    def close(self):
        """Prints the closing line; returns the exit code."""
        if self.skipped and os.environ.get("CI") == "true":
            print(f"CI=true: {self.skipped} checks that did not run count as failures")
            self.failed, self.skipped = self.failed + self.skipped, 0
        print(self)
        return 1 if self.failed else 0
