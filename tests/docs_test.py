#!/usr/bin/env python3
"""Tests that everything which the documentation names exists: links and their headings, files, flags and options of the
build. Its short tables have the figures of the measurements that they summarise, and the README shows what the program
prints."""
import glob
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "python/README.md",
                *ROOT.glob("models/*/README.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench/lab").rglob("*.md")])
TOP_FOLDERS = ("src", "tests", "tools", "scripts", "bench", "docs", "cmake", "share", "python", "models", "packaging", ".ci")
FILE_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*\.(h|cpp|cu|cuh|c|py|sh|md|json|txt|inc)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMANDS = "serve|fetch|generate|chat|logits|tokenize|detokenize|info|bench|tune|eval"
# Commands of the pages use these flags of programs that are not ours.
FOREIGN_FLAGS = {"--build", "--preset", "--target", "--no-index", "--clock-control", "--graph-profiling", "--set", "--launch-skip",
                 "--launch-count", "--benchmark_filter"}
MAX_GLOSSARY = 12
MAX_PERFORMANCE_LINES = 120


def blocks(page):
    """Yields (line number, text, is code) of a page: fenced code line by line, other lines whole."""
    in_code = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip("> ").startswith("```"):
            in_code = not in_code
            continue
        yield number, line, in_code


def spans(page):
    """Yields (line number, code) of a page: inline code, which may go on over a line's end, and lines of fenced code."""
    prose, starts, length = [], [], 0
    for number, line, is_code in blocks(page):
        if is_code:
            yield number, line
            continue
        starts.append((length, number))
        prose.append(line)
        length += len(line) + 1
    text = "\n".join(prose)
    for match in re.finditer(r"(`+)(.+?)\1", text, re.DOTALL):
        yield max(number for start, number in starts if start <= match.start()), match.group(2).replace("\n", " ")


def heading_ids(page):
    """Returns the anchors that GitHub gives the headings of a page."""
    ids = set()
    for _, line, is_code in blocks(page):
        heading = None if is_code else re.match(r"#+ (.*)", line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            ids.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return ids


def broken_links(page):
    for number, line, is_code in blocks(page):
        if is_code:
            continue
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)):
            path, _, anchor = target.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            file = (page.parent / path).resolve() if path else page
            if not file.exists():
                yield number, f"link to {target}: no such file"
            elif anchor and anchor not in heading_ids(file):
                yield number, f"link to {target}: the page has no such heading"


def expanded(word):
    """Expands a path with {a,b} into several paths."""
    braces = re.search(r"\{([^}]*)\}", word)
    if not braces:
        return [word]
    return sum((expanded(word[:braces.start()] + part + word[braces.end():]) for part in braces.group(1).split(",")), [])


def all_files():
    files = []
    for folder in TOP_FOLDERS:
        for directory, _, names in os.walk(ROOT / folder):
            files += [os.path.relpath(os.path.join(directory, name), ROOT) for name in names]
    return files


def missing_paths(page, files):
    """Yields paths that do not exist: those from the repository's root, and plain file names. In ladders, whose old steps name
    old files, plain file names are not checked."""
    names = {"/" + file for file in files}
    is_ladder = ROOT / "bench/lab" in page.parents
    for number, code in spans(page):
        for word in re.findall(r"[^\s`'\"()\[\];:=|]+", code):
            word = word.rstrip(".,/")
            if "<" in word or "$" in word or "…" in word:
                continue
            if "/" in word and word.split("/")[0] in TOP_FOLDERS:
                for path in expanded(word):
                    if not glob.glob(str(ROOT / path)):
                        yield number, f"{path}: no such file"
            elif not is_ladder and code.strip().rstrip(".,") == word:
                for path in expanded(word):
                    is_source = FILE_NAME.fullmatch(path) and re.search(r"\.(h|cpp|cu|cuh)$", path)
                    if is_source and not any(name.endswith("/" + path) for name in names):
                        yield number, f"{path}: no file of this name"


def flags_in(folders):
    found = set()
    for folder in folders:
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and (file.suffix in (".py", ".sh", ".cpp") or folder in ("scripts", ".ci")):
                found |= set(FLAG.findall(file.read_text(encoding="utf-8", errors="replace")))
    return found


def unknown_flags(page, hadal_flags, other_flags):
    for number, code in spans(page):
        command = re.search(rf"(?:^|[/\s])hadal ({COMMANDS})\b(.*)", code)
        if command:
            for flag in FLAG.findall(re.split(r"\s[|;#]|&&|  \(", command.group(2))[0]):
                if flag not in hadal_flags:
                    yield number, f"hadal {command.group(1)} {flag}: docs/flags.md has no such flag"
        else:
            for flag in FLAG.findall(code):
                if flag not in hadal_flags | other_flags | FOREIGN_FLAGS and not re.match(r"\s*(curl|hf|pip|openssl|ncu|python3 -m)\b", code):
                    yield number, f"{flag}: neither a flag of hadal nor of a script or tool here"


def unknown_options(page, build_files):
    for number, code in spans(page):
        for option in re.findall(r"-D(HADAL_\w+)", code):
            if option not in build_files:
                yield number, f"{option}: no such option of the build"


def figures_of(text):
    """Returns the numbers of a text as they are written, except those in links and in code."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", text)
    return {figure.rstrip(".,") for figure in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}


def other_figures(page):
    """Yields the figures of a summarising table that the linked page does not have. Either the row or the lines between the
    heading and the table name that page."""
    linked = []
    for number, line, is_code in blocks(page):
        own = [page.parent / target for target in re.findall(r"\]\(([^)#\s]*measurements/[^)#\s]+\.md)", line)]
        if line.startswith("#"):
            linked = []
        if not line.startswith("|"):
            linked += own
        elif (own or linked) and not is_code:
            known = set().union(*(figures_of(target.read_text(encoding="utf-8")) for target in own or linked if target.is_file()))
            for figure in sorted(figures_of(line) - known):
                yield number, f"{figure} is not in {' or '.join(target.name for target in own or linked)}"


def glossary_words():
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").split("## Glossary")[1]
    return [row for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE) if row != "word"]


def shown_commands():
    """Returns (command, what is shown below it) of the README's fenced blocks, lines "$ command"."""
    shown = []
    for _, line, is_code in blocks(ROOT / "README.md"):
        if is_code and line.startswith("$ "):
            shown.append((line[2:], []))
        elif is_code and shown and shown[-1] is not None:
            shown[-1][1].append(line)
        elif shown and shown[-1] is not None:
            shown.append(None)
    return [one for one in shown if one]


def printed_otherwise(binary):
    """Yields commands of the README whose output differs from what the README shows. scripts/demo is replaced by its
    last command."""
    demo = re.search(r"^exec \$build/hadal (.*)$", (ROOT / "scripts/demo").read_text(encoding="utf-8"), re.MULTILINE).group(1)
    default = re.search(r'^prompt=\$\{1:-"(.*)"\}$', (ROOT / "scripts/demo").read_text(encoding="utf-8"), re.MULTILINE).group(1)
    for command, lines in shown_commands():
        words = shlex.split(demo.replace("$prompt", default) if command == "scripts/demo" else command)
        words = words[1:] if words[0].endswith("/hadal") else words
        done = subprocess.run([binary, *words], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
                              stdin=subprocess.DEVNULL)
        # Timings, on stderr, differ in each run, and the page may break lines at other places.
        wanted = " ".join(" ".join(line for line in lines if " tok/s" not in line).split())
        if done.returncode != 0 or " ".join(done.stdout.split()) != wanted:
            yield f"{command}: prints\n{done.stdout}{done.stderr}"


def main():
    files = all_files()
    hadal_flags = set(FLAG.findall((ROOT / "docs/flags.md").read_text(encoding="utf-8")))
    other_flags = flags_in(("scripts", "bench", "tools", "tests", "python", ".ci"))
    build_files = "".join(path.read_text(encoding="utf-8") for path in (*ROOT.glob("cmake/*.cmake"), ROOT / "CMakeLists.txt",
                                                                        ROOT / "python/CMakeLists.txt"))
    results = {}  # claim: what contradicts it
    for page in PAGES:
        name = page.relative_to(ROOT)
        for claim, found in (("has links that lead somewhere", broken_links(page)),
                             ("names files that exist", missing_paths(page, files)),
                             ("names flags that exist", unknown_flags(page, hadal_flags, other_flags)),
                             ("names options that exist", unknown_options(page, build_files))):
            results[f"{name} {claim}"] = [f"{name}:{number}: {why}" for number, why in found]
    for name in ("README.md", "docs/performance.md"):
        results[f"{name} has the figures of the measurements"] = [f"{name}:{number}: {why}" for number, why in
                                                                  other_figures(ROOT / name)]
    done = subprocess.run([sys.executable, str(ROOT / "bench/summary.py"), "--check"], capture_output=True, text=True, check=False)
    results["short tables are those of docs/measurements"] = (done.stdout + done.stderr).splitlines() if done.returncode else []
    num_lines = len((ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines())
    results["docs/performance.md is short"] = [f"{num_lines} lines, allowed are {MAX_PERFORMANCE_LINES}"] \
        if num_lines > MAX_PERFORMANCE_LINES else []
    words = glossary_words()
    results["the glossary is short"] = [f"{len(words)} words, allowed are {MAX_GLOSSARY}"] \
        if not 0 < len(words) <= MAX_GLOSSARY else []
    binary = os.environ.get("HADAL_BINARY")
    if binary:
        results["README.md shows what is printed"] = list(printed_otherwise(binary)) or \
            ([] if shown_commands() else ["it shows nothing"])
    for broken in results.values():
        for line in broken:
            print(line)
    failed = sum(bool(broken) for broken in results.values())
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
