"""Provides functions for the reports of one H200's tables: they read JSON lines with checked fields, make Markdown, and write
the parts of docs/measurements that --pages replaces."""
import json
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/measurements"

# These words of the error messages say what a field must be.
NAME, FLAG, POSITIVE, NUMBER, OPTIONAL = "a string", "true or false", "a number above 0", "a number", "a number or null"
FIGURES = "an object of numbers"
TIMES = "an object of numbers above 0"
VERDICT = "one of '', 'missed', 'reach' and 'aim'"


def is_of(value, kind):
    if kind == NAME:
        return isinstance(value, str)
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == VERDICT:
        return value in ("", "missed", "reach", "aim")
    if kind in (FIGURES, TIMES):
        one = NUMBER if kind == FIGURES else POSITIVE
        return isinstance(value, dict) and all(is_of(figure, one) for figure in value.values())
    if value is None:
        return kind == OPTIONAL
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return is_number and (kind != POSITIVE or value > 0)


def rows_of(program, path, fields, not_everywhere=()):
    """Returns the file's rows; none if there is no file. Ends the program at the first line that is not a complete row."""
    if not path.is_file():
        return []
    rows = []
    for i, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            sys.exit(f"{program}: {path}:{i}: not JSON")
        if not isinstance(row, dict):
            sys.exit(f"{program}: {path}:{i}: not a JSON object")
        for name, kind in fields.items():
            if name not in row and name in not_everywhere:
                continue
            if name not in row:
                sys.exit(f"{program}: {path}:{i}: no '{name}'")
            if not is_of(row[name], kind):
                sys.exit(f"{program}: {path}:{i}: '{name}' is {json.dumps(row[name])}, not {kind}")
        rows.append(row)
    return rows


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def goal(row):
    """Returns a row's verdict, its value, and in brackets reach and aim."""
    if not row["verdict"]:
        return ""
    bounds = f"{row['reach']:.3g}" + (f", {row['aim']:g}" if row["aim"] else "")
    measured = f"{row['value']:.3g}{row['unit']}"
    return f"{'**missed**' if row['verdict'] == 'missed' else row['verdict']}: {measured} ({bounds})"


def add_pages_option(parser):
    parser.add_argument("--pages", type=pathlib.Path, nargs="?", const=PAGES, metavar="DIR",
                        help="write the tables into the pages of DIR (docs/measurements) instead of printing a report; parts "
                             "without results stay as they are")


def replaced_part(program, path, text, name, new, how):
    """Returns a page's text with `new` between the markers of the part `name`, which the page must have."""
    begin, end = f"<!-- begin {name}: {program} {how} -->\n", f"\n<!-- end {name} -->"
    first = text.find(begin)
    last = text.find(end, first)
    if first < 0 or last < 0:
        sys.exit(f"{program}: {path} has no part '{name}' between '{begin.strip()}' and '{end.strip()}'")
    return f"{text[:first]}{begin}{new}{text[last:]}"


def write_part(program, pages, page, name, text, machine, title=None):
    """Replaces a part of a page of --pages, and says where it was measured. A part with a title begins with it as a heading, so
    that the page has no heading without a table."""
    path = pages / page
    if not path.is_file():
        sys.exit(f"{program}: {path} is missing")
    said = (f"### {title}\n\n" if title else "") + (f"This was measured on {machine}.\n\n" if machine else "")
    path.write_text(replaced_part(program, path, path.read_text(encoding="utf-8"), name, said + text, "--pages writes this part"),
                    encoding="utf-8")


def report_parts(program, directory, page, pages, parts):
    """Prints the parts of a report, {name: (text, title)}, or writes them into `page` of the directory `pages` if that is not None.
    A part without text stays as it is; a title is that of write_part. Ends the program if no part has a text."""
    machine = machine_of(directory)
    for name, (text, title) in parts.items():
        if text and pages:
            write_part(program, pages, page, name, text, machine, title)
        elif text:
            print(f"## {name}\n\n{text}\n")
    if not any(text for text, _ in parts.values()):
        sys.exit(f"{program}: {directory} holds no results")


def part_of(program, page, name):
    """Returns the text between the markers of a part, or below a heading up to the next one."""
    text = (PAGES / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- begin {re.escape(name)}: [^\n]*-->\n(.*?)<!-- end ", text, re.DOTALL) or \
        re.search(rf"^#+ {re.escape(name)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    if not found:
        sys.exit(f"{program}: {PAGES / page} has no part '{name}'")
    return found.group(1)


class Table:
    """Holds the first table of a part of a committed page."""

    def __init__(self, program, page, name):
        self.place = f"{program}: {page}, {name}"
        lines = [line for line in part_of(program, page, name).splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self.head, self.rows = cells[0] if cells else [], cells[2:]  # both empty where nothing has been measured yet

    def row(self, *first):
        """Returns the row that begins with these cells, as {column: cell} without bold."""
        for cells in self.rows:
            if cells[:len(first)] == list(first):
                return {name: cell.replace("**", "") for name, cell in zip(self.head, cells)}
        sys.exit(f"{self.place}: no row '{' | '.join(first)}'")


def machine_of(directory):
    """Returns a description of the machine from machine.txt (a line "name, driver" for each GPU), or None if there is no such file."""
    path = directory / "machine.txt"
    if not path.is_file():
        return None
    gpus = path.read_text(encoding="utf-8").strip().splitlines() or [""]
    name, _, driver = gpus[0].partition(", ")
    if not driver:
        return name or "an unknown machine"
    return f"one {name} with driver {driver}" if len(gpus) == 1 else f"{len(gpus)} {name} of one host with driver {driver}"


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else 0.0
