#!/usr/bin/env python3
"""Compares every #include under src/ with the link edges of CMake: a folder may include itself and the folders whose
libraries its CMakeLists.txt names (DEPS and PRIVATE_DEPS of hadal_library, target_link_libraries). An edge that no #include
needs is an error too, and so are a circle of edges and a difference between CMake's folders and the table of
docs/architecture.md. Each folder is one claim."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
MAY_USE_CUDA = re.compile(r"kernels/cuda/.*\.(cpp|cu|cuh)|tensor/cuda_\w+\.cpp")
CUDA_HEADER = re.compile(r"(cuda|cublas|nccl|nv|cooperative_groups|cutlass|cute/|mma\.h|cub/|thrust/)\w*")


def commands(text):
    """Returns [(name, words)] of a CMake file, whatever its conditions; loops over literal words are unrolled."""
    text = re.sub(r"#.*", "", text)

    def unroll(loop):
        return "".join(loop[3].replace("${" + loop[1] + "}", word) for word in loop[2].split())

    text = re.sub(r"foreach\s*\(\s*(\w+)\s+([^)]*)\)(.*?)endforeach\s*\(\)", unroll, text, flags=re.DOTALL)
    return [(name, words.split()) for name, words in re.findall(r"(\w+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)", text)]


def link_edges(files):
    """Returns ({library: folder}, {library: the words it links}) of {folder: text of its CMakeLists.txt}."""
    folder_of, linked = {}, {}
    for folder, text in files.items():
        for name, words in commands(text):
            if name == "hadal_library":
                library = "hadal_" + words[0]
                folder_of[library] = folder
                starts = [at for at, word in enumerate(words) if word in ("DEPS", "PRIVATE_DEPS")]
                linked.setdefault(library, set()).update(words[starts[0]:] if starts else [])
            elif name == "add_library":
                folder_of[words[0]] = folder
            elif name == "target_link_libraries":
                linked.setdefault(words[0], set()).update(words[1:])
    return folder_of, linked


def may_include(files):
    """Returns {folder: the folders it may include besides itself}. Folders without a library have no entry."""
    folder_of, linked = link_edges(files)
    allowed = {folder: set() for folder in folder_of.values()}
    for library, words in linked.items():
        if library in folder_of:  # not an executable
            allowed[folder_of[library]] |= {folder_of[word] for word in words if word in folder_of}
    return {folder: others - {folder} for folder, others in allowed.items()}


def folder_of_file(path, folders):
    """Returns the folder of `folders` that holds the file most closely, or the first part of the file's path if no
    folder holds it."""
    parts = path.split("/")[:-1]
    for size in range(len(parts), 0, -1):
        if "/".join(parts[:size]) in folders:
            return "/".join(parts[:size])
    return path.split("/")[0]


def violation(path, quote, header, allowed):
    """Says why `path` (relative to src/) may not have this #include, or returns None."""
    if quote == "<":
        if CUDA_HEADER.match(header) and not MAY_USE_CUDA.fullmatch(path):
            return "CUDA headers belong into kernels/cuda and tensor/cuda_*.cpp"
        return None
    if header.startswith("hwy/"):  # Highway, which must be included with quotes
        return None
    if not (SRC / header).is_file():
        return "project includes are rooted at src/, and there is no such file"
    own, other = folder_of_file(path, allowed), folder_of_file(header, allowed)
    if own != other and other not in allowed.get(own, set()):
        return f"src/{own}/CMakeLists.txt does not link the library of src/{other}"
    return None


def circles(allowed):
    """Returns the folders that reach themselves along the edges."""
    def reached(folder, seen):
        for other in allowed.get(folder, set()) - seen:
            seen |= {other}
            reached(other, seen)
        return seen

    return sorted(folder for folder in allowed if folder in reached(folder, set()))


def check_the_checker():
    """Checks that the checker objects, because one that cannot would pass everything."""
    files = {"a": "hadal_library(a DEPS hadal_b)  # hadal_c",
             "b": "hadal_library(b)\ntarget_link_libraries(hadal_b PUBLIC hadal_a)",
             "c": "foreach(part x y)\nhadal_library(c_${part} PRIVATE_DEPS hadal_a fmt::fmt)\nendforeach()"}
    allowed = may_include(files)
    assert allowed == {"a": {"b"}, "b": {"a"}, "c": {"a"}}, allowed
    assert circles(allowed) == ["a", "b"] and not circles({"a": {"b"}, "b": set()})
    real = {"base": set(), "kernels/cuda": set(), "kernels/cpu/ops": {"base"}}
    assert violation("base/log.cpp", '"', "text/tokenizer/tokenizer.h", real)
    assert violation("kernels/cpu/ops/mla.h", "<", "cuda_runtime_api.h", real)
    assert violation("kernels/cpu/ops/mla.h", '"', "kernels/cuda/launch.h", real)
    assert violation("kernels/cpu/ops/mla.h", '"', "base/check.h", real) is None
    assert folder_of_file("kernels/cuda/mla/plan/x.h", real) == "kernels/cuda"


def main():
    check_the_checker()
    allowed = may_include({file.parent.relative_to(SRC).as_posix(): file.read_text(encoding="utf-8")
                           for file in sorted(SRC.rglob("CMakeLists.txt"))})
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `src/([\w/]+)/` \|", text, re.M))
    broken = {folder: {} for folder in sorted(set(allowed) | documented)}  # {folder: {what is wrong: the first place}}
    needed = {folder: set() for folder in broken}
    for file in sorted(SRC.rglob("*")):
        if file.suffix not in (".h", ".cpp", ".cu", ".cuh", ".inc"):
            continue
        path = file.relative_to(SRC).as_posix()
        own = folder_of_file(path, allowed)
        if own not in allowed:
            broken.setdefault(own, {}).setdefault(f"no CMakeLists.txt makes a library of src/{own}", f"src/{path}")
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            if include is None:
                continue
            needed[own].add(folder_of_file(include[2], allowed))
            why = violation(path, include[1], include[2], allowed)
            if why:
                broken[own].setdefault(why, f"src/{path}:{number}: {include[2]}")
    for folder, others in allowed.items():
        for other in sorted(others - needed[folder]):
            broken[folder][f"links the library of src/{other}, and nothing there includes it"] = f"src/{folder}/CMakeLists.txt"
        if not any(folder == row or folder.startswith(row + "/") for row in documented):
            broken[folder]["has no row in the folder table of docs/architecture.md"] = f"src/{folder}"
    for folder in circles(allowed):
        broken[folder]["the link edges lead back to it"] = f"src/{folder}"
    for folder in documented - set(allowed):
        broken[folder]["is in the folder table of docs/architecture.md, and CMake has no such library"] = f"src/{folder}"
    for why, place in (pair for folder in broken.values() for pair in folder.items()):
        print(f"{place}: {why}")
    failed = sum(map(bool, broken.values()))
    print(f"{len(broken) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
