"""Holds what the tests of the scripts of bench/ share: pages that a report writes, and what they must
have."""
import re
import shutil
from pathlib import Path

from script_checks import COUNTS, ROOT


def copy_of_pages(work):
    return Path(shutil.copytree(ROOT / "docs/measurements", work / "pages", dirs_exist_ok=True))


def has_parts(name, pages, wanted):
    """Checks words of a page that a report has written. Its markers, headings and other text must be the same as
    before."""
    text, was = ((directory / name).read_text(encoding="utf-8") for directory in (pages, ROOT / "docs/measurements"))
    part = re.compile(r"(<!-- begin [^\n]*-->\n).*?\n?(<!-- end )", re.DOTALL)
    is_right = all(word in text for word in wanted) and part.sub(r"\1\2", text) == part.sub(r"\1\2", was)
    COUNTS["passed" if is_right else "failed"] += 1
    if not is_right:
        print(f"{name}: wanted {[word for word in wanted if word not in text]} and the same text around:\n{text}")
