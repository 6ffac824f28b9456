#!/usr/bin/env python3
"""Compares every #include under src/ with the folder table of docs/architecture.md: one claim per folder."""
import re
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent / "src"
KERNELS = {"kernels/params", "kernels/cpu", "kernels/cuda"}

# folder -> the folders it may include besides itself. The folders of kernels/ count one by one.
MAY_INCLUDE = {
    "base": set(),
    "tensor": {"base"},
    "kernels/params": {"base"},
    "kernels/cpu": {"kernels/params", "base"},
    "kernels/cuda": {"kernels/params", "base"},
    "ops": {"tensor", "base"} | KERNELS,
    "comm": {"tensor", "base"} | KERNELS,
    "cache": {"base"},
    "scheduler": {"cache", "base"},
    "model": {"ops", "comm", "tensor", "kernels/params", "kernels/cuda", "base"},
    "engine": {"model", "scheduler", "cache", "comm", "ops", "tensor", "kernels/params", "kernels/cuda", "base"},
    "text": {"base"},
    "server": {"engine", "text", "base"},
    "capi": {"tensor", "kernels/params", "kernels/cuda", "base"},
}
MAY_INCLUDE["cli"] = set(MAY_INCLUDE) - {"capi"}
MAY_USE_CUDA = re.compile(r"kernels/cuda/.*\.(cpp|cu|cuh)|tensor/cuda_\w+\.cpp|comm/nccl\w*\.cpp")
CUDA_HEADER = re.compile(r"(cuda|cublas|nccl|nv|cooperative_groups|cutlass|cute/|mma\.h|cub/|thrust/)\w*")


def folder_of(path):
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "kernels" else parts[0]


def violation(path, quote, header):
    """Why `path` (relative to src/) may not have this #include, or None."""
    if quote == "<":
        if CUDA_HEADER.match(header) and not MAY_USE_CUDA.fullmatch(path):
            return "CUDA headers belong into kernels/cuda, tensor/cuda_*.cpp and comm/nccl*.cpp"
        return None
    if header.startswith("hwy/"):  # Highway, which asks to be included with quotes
        return None
    if not (SRC / header).is_file():
        return "project includes are rooted at src/, and there is no such file"
    own, other = folder_of(path), folder_of(header)
    if own != other and other not in MAY_INCLUDE.get(own, set()):
        return f"{own} may include {', '.join(sorted(MAY_INCLUDE.get(own, set()))) or 'nothing'} only"
    return None


def main():
    folders = {}
    for file in sorted(SRC.rglob("*")):
        if file.suffix not in (".h", ".cpp", ".cu", ".cuh", ".inc"):
            continue
        path = file.relative_to(SRC).as_posix()
        broken = folders.setdefault(folder_of(path), [])
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
            why = include and violation(path, *include.groups())
            if why:
                broken.append(f"src/{path}:{number}: {include.group(2)}: {why}")
    # The rules themselves: a checker that cannot object would pass everything.
    assert violation("base/log.cpp", '"', "text/tokenizer.h") and violation("ops/mla.h", "<", "cuda_runtime_api.h")
    unknown = sorted(set(folders) - set(MAY_INCLUDE))
    for line in [f"src/{name}: not in the table of tests/layering_test.py" for name in unknown] + sum(
            folders.values(), []):
        print(line)
    failed = len(unknown) + sum(bool(broken) for name, broken in folders.items() if name not in unknown)
    print(f"{len(folders) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
