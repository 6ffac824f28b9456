"""Counts the checks of the test that runs: `check(name, good, detail)` for each, and `sys.exit(finish())` at the end."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

from tally import Tally  # noqa: E402  pylint: disable=wrong-import-position

TALLY = Tally()
check, skip, finish = TALLY.check, TALLY.skip, TALLY.close
