#!/usr/bin/env python3
"""Tests the scripts of bench/ that measure and report matrix products and experts, as bench_scripts_test.py does for the others."""
import json
import os
import sys

from bench_pages import copy_of_pages, has_parts
from script_checks import COUNTS, ROOT, executable, expect, expect_torch_script, run_all

PRODUCT = {"kind": "fp8", "groups": 1, "m": 64, "n": 2112, "k": 7168, "us": 10.0, "mhz": 1980, "bytes": 20000000,
           "flop": 2000000000, "floor_us": 4.6, "stored_us": 12.2, "peers": {}, "more": {}, "library": False,
           "value": 10.0, "reach": 7.5, "aim": 6, "unit": " us", "verdict": "missed"}
EXPERTS = {**PRODUCT, "kind": "moe_v3_fp8", "groups": 257, "m": 4, "n": 7168, "k": 256, "us": 30.0, "floor_us": 20.0,
           "stored_us": None, "more": {"hit": 30.5, "us_to_router": 4.0, "us_to_route": 7.5, "us_to_gate_up": 17.5,
                                       "us_to_activation": 19.0, "us_to_down": 26.0},
           "value": 1.5, "reach": 1.6, "aim": 1.25, "unit": "x the floor", "verdict": "reach"}


def test_gemm_report(work):
    command = [sys.executable, ROOT / "bench/gemm_report.py", work]
    gemm, moe = work / "gemm.jsonl", work / "moe.jsonl"
    expect("gemm_report.py: a folder without gemm.jsonl is an error", command, 1, ["gemm.jsonl is missing"])
    gemm.write_text(json.dumps(PRODUCT) + "\n")
    expect("gemm_report.py: a folder without moe.jsonl is an error", command, 1, ["moe.jsonl is missing"])
    moe.write_text("")
    expect("gemm_report.py: an empty moe.jsonl is an error", command, 1, ["moe.jsonl is empty"])
    moe.write_text(json.dumps(EXPERTS) + "\n")
    whole = json.dumps(PRODUCT)
    for name, line, said in [("a cut line", whole[:60], "gemm.jsonl:1: not JSON"),
                             ("a missing field", whole.replace("floor_us", "floor"), "gemm.jsonl:1: no 'floor_us'"),
                             ("a zero", whole.replace("10.0", "0", 1), "gemm.jsonl:1: 'us' is 0, not a number above 0"),
                             ("peers that are no numbers", whole.replace('"peers": {}', '"peers": {"matmul": "x"}'), "'peers' is"),
                             ("a number in place of an object", whole.replace('"more": {}', '"more": 3'), "'more' is 3, not an object of numbers"),
                             ("an unknown kind", whole.replace('"fp8"', '"fp9"'), "'kind' is 'fp9', not one of fp8, bf16")]:
        gemm.write_text(line + "\n")
        expect(f"gemm_report.py: a row with {name} is an error", command, 1, [said])
    # DeepGEMM's stored ratios are 1.22 and 1 (mean 1.10). 20 MB in 10 us are 2 TB/s, and 2 GFLOP in 10 us are
    # 200 TFLOP/s.
    other = {**PRODUCT, "us": 12.2, "verdict": "", "m": 128}
    gemm.write_text(whole + "\n" + json.dumps(other) + "\n")
    expect("gemm_report.py: the report compares with stored times", command, 0,
           ["DeepGEMM is stored", "| FP8, scales of 128 × 128 and 1 × 128 | 0 of 1 | 0 of 2 slower, 1.10 |",
            "| Experts of V3 at TP8, FP8 | 1 of 1 |  |",
            "| 64 × 2112 × 7168 | 10.00 | 4.60 | 46% | 2.00 | 200 | 1980 | 12.2 | **missed**: 10 us (7.5, 6) |",
            "| 4 | 30.5 | 30.00 | 20.00 | 67% |", "reach: 1.5x the floor (1.6, 1.25) | 4.0 | 3.5 |  | 10.0 | 1.5 | 7.0 | 4.0 |",
            "1 of 2 goals are reached, 0 of them at the aim. Slower rows: 0 of 2 are slower than DeepGEMM."],
           on_stdout=True, has_not=["a library's same product", "| 0 of 0"])
    # When measured in the same run, DeepGEMM has ratios of 0.9 and 1.6, and its kernel alone has 0.5. torch's faster product
    # has 0.8 and, in the other row, 2. A library has 0.998 and 2, or 0.9 if it is called directly. One kernel is the
    # library's own.
    beside = [{**PRODUCT, "peers": {"deepgemm": 9.0, "deepgemm_bare": 5.0, "scaled_mm": 8.0, "scaled_mm_row": 11.0}},
              {**PRODUCT, "peers": {"deepgemm": 18.0, "deepgemm_contiguous": 16.0, "scaled_mm": 20.0}},
              {**PRODUCT, "kind": "bf16", "stored_us": None, "verdict": "", "peers": {"matmul": 9.98}},
              {**PRODUCT, "kind": "bf16", "stored_us": None, "verdict": "", "peers": {"matmul": 9.97}, "library": True},
              {**PRODUCT, "kind": "int8", "stored_us": None, "verdict": "", "peers": {"int_mm": 20.0, "cublaslt": 9.0}}]
    absorbed = [{**PRODUCT, "kind": kind, "groups": 16, "m": 4, "stored_us": None, "verdict": "", "us": us,
                 "peers": {"bmm": 6.0, "bmm_dense": dense}, "more": more}
                for kind, us, dense, more in [("absorb_query_bf16", 3.0, 4.0, {}), ("absorb_query_fp8", 6.5, 4.5, {}),
                                              ("expand_value_bf16", 2.0, 7.0, {}), ("expand_value_fp8", 2.5, 7.0, {"us_to_bf16": 1.9})]]
    gemm.write_text("".join(json.dumps(row) + "\n" for row in beside))
    (work / "machine.txt").write_text("NVIDIA H200, 580\n")
    expect("gemm_report.py: the report compares with times of the same run", command, 0,
           ["This was measured on one NVIDIA H200 with driver 580.", "DeepGEMM is of the same run", "| 0 of 2 | 1 of 2 slower, 1.20 | 1 of 1 slower, 0.50 |  |  | "
            "1 of 2 slower, 1.26 |", "| bf16 |  |  |  | 1 of 1 slower, 1.00 |", "**9.98 (0.998)** |  |",
            "| 9.97 (0.997) | the library's own kernel |", "|  |  | 0 of 1 slower, 2.00 | 1 of 1 slower, 0.90 |  |",
            "**9.00 (0.90)** | **5.00 (0.50)** | **8.00 (0.80)** | 11.00 (1.10) |",
            "1 of 3 goals are reached, 0 of them at the aim. Slower rows: 1 of 2 are slower than DeepGEMM, "
            "1 of 1 are slower than DeepGEMM's kernel alone, "
            "1 of 2 are slower than a library's same product, 1 of 1 are slower than cuBLASLt called directly, "
            "1 of 2 are slower than torch's FP8 of coarser scales; 1 rows of the library's own kernel are not counted."],
           on_stdout=True)
    pages = copy_of_pages(work)
    expect("gemm_report.py: --pages writes the pages", [*command, "--pages", pages], 0, [], on_stdout=True)
    has_parts("gemm.md", pages,
           ["-->\nThis was measured on one NVIDIA H200 with driver 580.\n\n| rows | µs | floor µs | TFLOP/s | DeepGEMM µs | its kernel alone µs | torch, coarser scales µs | verdict (",
            "| 10.00 | 4.60 | 200 | **9.00 (0.90)** | **5.00 (0.50)** | **8.00 (0.80)** | **missed**: 10 µs (7.5, 6) |",
            "| 64 × 2112 × 7168 | 10.00 | 4.60 | 9.97 (0.997) | the library's own kernel |", "| torch µs | cuBLASLt directly µs |",
            "1 of 3 goals", "| 1 × 16 | 1.61 |"])
    has_parts("experts.md", pages, ["| 4 | 30.5 | 30.00 | 20.00 | 1.50 | 67 | reach: 1.5× the floor (1.6, 1.25) |"])
    gemm.write_text("".join(json.dumps(row) + "\n" for row in absorbed))
    expect("gemm_report.py: --pages writes the absorbed products", [*command, "--pages", pages], 0, [], on_stdout=True)
    has_parts("gemm.md", pages, ["| 4 × 16 | 3.00 | **6.50** | 6.00 | 4.00 | 2.00 | 1.90 | 2.50 | 6.00 | 7.00 |",
                                 "1 of 4 are slower than a library's same product"])
    expect("gemm_report.py: the report has the absorbed products", command, 0, ["| to bf16 µs |", "| 1.90 |"], on_stdout=True)
    expect("gemm_report.py: --help says what the options are", [*command[:2], "--help"], 0, ["DIR"], on_stdout=True)
    expect("gemm_report.py: a missing folder argument is an error", command[:2], 2, ["DIR"])


def test_run_gemm(work):
    command = [ROOT / "bench/run_gemm_h200.sh"]
    expect("run_gemm_h200.sh: --out without a directory is an error",
           [*command, "--out"], 2, ["run_gemm_h200.sh: --out needs a directory"])
    expect("run_gemm_h200.sh: --build-dir without a directory is an error",
           [*command, "--build-dir", "--out", "x"], 2, ["--build-dir needs a directory"])
    expect("run_gemm_h200.sh: an unknown option is an error", [*command, "--outt=x"], 2, ["unknown option '--outt=x'"])
    expect("run_gemm_h200.sh: --help says what the options are",
           [*command, "--help"], 0, ["--build-dir DIR", "HADAL_DEEPGEMM_LIBRARY"], on_stdout=True)
    expect("run_gemm_h200.sh: a build folder that is missing is an error",
           [*command, f"--build-dir={work}/none"], 1, ["--build-dir", "none: no such directory"])
    expect("run_gemm_h200.sh: a build folder without the benches is an error",
           [*command, "--build-dir", work], 1, ["cuda_gemm_table_bench is missing"])
    tools, build, out = work / "tools", work / "build", work / "out"
    (build / "bench/cuda").mkdir(parents=True)
    tools.mkdir()
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    own = [*command, f"--build-dir={build}", "--out", out]
    executable(tools / "nvidia-smi", "echo 9.0\n")
    executable(tools / "python3", f"case \"$1 $2\" in *gemm_report.py*) exec {sys.executable} \"$@\";; esac\nexit 1\n")
    executable(build / "bench/cuda/cuda_gemm_table_bench", f"echo '{json.dumps(PRODUCT)}' >\"$2\"\n")
    expect("run_gemm_h200.sh: a build folder with one of two benches is an error",
           own, 1, ["cuda_experts_table_bench is missing"], environment)
    bench = executable(build / "bench/cuda/cuda_experts_table_bench", "exit 3\n")
    expect("run_gemm_h200.sh: a bench that fails is named, and its results are kept",
           own, 1, ["failed: experts report", f"the results so far are in {out}/failed-"], environment)
    is_kept = any((left / "gemm.jsonl").is_file() for left in out.glob("failed-*")) and not (out / "report.md").exists()
    COUNTS["passed" if is_kept else "failed"] += 1
    executable(bench, f"echo '{json.dumps(EXPERTS)}' >\"$2\"\n")
    expect("run_gemm_h200.sh: a run ends with the report",
           own, 0, ["1 of 2 goals", "0 of 1 are slower than DeepGEMM", f"{out}/report.md"], environment,
           on_stdout=True)
    COUNTS["passed" if "## FP8" in (out / "report.md").read_text(encoding="utf-8") else "failed"] += 1


def test_beside(work):
    bench = executable(work / "bench", "echo first; echo \"peer? fp8 $1\"; read answer; echo \"got $answer\"; exit 3\n")
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'bench/cuda')!r}); import beside; " \
           f"sys.exit(beside.run_beside([{str(bench)!r}], lambda row: row.upper()))"
    expect("beside.py: a bench that asks gets its peer's answer",
           [sys.executable, "-c", code], 3, ["first\ngot FP8 --PEER\n"], on_stdout=True, has_not=["peer?"])


def test_gemm_peers(work):
    command = [sys.executable, ROOT / "bench/cuda/gemm_peers.py"]
    environment = {"PYTHONPATH": str(work), "HADAL_DEEPGEMM_LIBRARY": ""}
    expect_torch_script(command, work, ["--beside", "--deepgemm-library"], environment, [
        ("no argument", [], "--row"),
        ("a row of two sizes", ["--row", "fp8 1 7168"], "fp8 and 3 sizes"),
        ("a row of an unknown kind", ["--row", "fp9 1 1 1"], "'fp9 1 1 1': must be"),
        ("an empty row", ["--row", ""], "must be fp8"),
        ("a row with a zero", ["--row", "bf16 0 2048 2048"], "whole numbers above 0"),
        ("--row together with --beside", ["--row", "bf16 1 2048 2048", "--beside", "x"], "--row and --beside exclude each other"),
        ("--check together with --row", ["--check", "--row", "bf16 1 2048 2048"], "--check stands alone"),
        ("--beside without a program", ["--beside"], "--beside needs"),
        ("a program that is missing", ["--beside", work / "none"], "none: no such program"),
        ("a library that is missing", ["--deepgemm-library", work / "none.so", "--check"], "none.so: no such file")])
    expect("gemm_peers.py: a library in the environment that is missing is an error", [*command, "--check"], 2, ["no such file"],
           {**environment, "HADAL_DEEPGEMM_LIBRARY": str(work / "none.so")})
    (work / "torch.py").write_text("")
    (work / "deep_gemm.py").write_text("raise AssertionError('no compiler here')\n")
    expect("gemm_peers.py: a DeepGEMM that cannot be imported is left out",
           [*command, "--check"], 0, ["DeepGEMM is left out", "no compiler here"], environment)
    (work / "text.so").write_text("no library\n")
    expect("gemm_peers.py: a library that cannot be loaded is an error",
           [*command, "--deepgemm-library", work / "text.so", "--check"], 1, ["text.so"], environment)
    (work / "deep_gemm.py").write_text("")
    expect("gemm_peers.py: --check accepts DeepGEMM", [*command, "--check"], 0, [], environment, has_not=["left out"])


if __name__ == "__main__":
    sys.exit(run_all(globals()))
