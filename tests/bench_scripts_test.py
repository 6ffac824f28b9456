#!/usr/bin/env python3
"""Tests the scripts of bench/: their errors about wrong arguments and missing things, and the numbers of the reports and
pages that they write. The numbers are compared with ones worked out by hand. The tests need no GPU, no torch and no
build."""
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench_pages import copy_of_pages, has_parts
from script_checks import COUNTS, ROOT, executable, expect, expect_torch_script, run_all

DECODE = {"format": "bf16", "batch": 1, "q_len": 1, "keys": 1024, "heads": 16, "ragged": False, "us": 5.0, "first_us": 10.0,
          "plan_us": 3.0, "tb_s": 0.2, "tflop_s": 7.0, "ceiling": 0.05, "mhz": 1980, "flash_mla_us": 20.0, "peer_us": None,
          "value": 5.0, "reach": 5.0, "aim": 4.0, "unit": " us", "verdict": "reach"}
PREFILL = {"heads": 128, "sequences": 1, "tokens": 4096, "us": 600.0, "tflops": 573.0}


def test_report(work):
    command = [sys.executable, ROOT / "bench/mla_report.py", work]
    decode = work / "decode.jsonl"
    expect("mla_report.py: a folder without decode.jsonl is an error", command, 1, ["decode.jsonl is missing"])
    decode.write_text("\n")
    expect("mla_report.py: an empty decode.jsonl is an error", command, 1, ["decode.jsonl is empty"])
    whole = json.dumps(DECODE)
    without_us = json.dumps({name: value for name, value in DECODE.items() if name != "us"})
    for name, lines, said in [("a cut line", [whole[:50]], "decode.jsonl:1: not JSON"),
                              ("a list in place of an object", [whole, "[1]"], "decode.jsonl:2: not a JSON object"),
                              ("a missing field", [whole, "", without_us], "decode.jsonl:3: no 'us'"),
                              ("a null", [whole.replace("5.0", "null", 1)], "decode.jsonl:1: 'us' is null, not a number above 0"),
                              ("a zero", [whole.replace("1024", "0", 1)], "decode.jsonl:1: 'keys' is 0, not a number above 0"),
                              ("a number in place of a flag", [whole.replace("false", "0", 1)], "decode.jsonl:1: 'ragged' is 0, not true or false")]:
        decode.write_text("\n".join(lines) + "\n")
        expect(f"mla_report.py: a row with {name} is an error", command, 1, [said])
    # The ratios are 4 and 1 (geometric mean 2), and 2 and 0.5 (mean 1) with inputs that are not settled.
    other = {**DECODE, "batch": 2, "us": 20.0, "first_us": 40.0, "unit": "x FlashMLA", "verdict": "missed"}
    decode.write_text(whole + "\n" + json.dumps(other) + "\n")
    said = ["0 of 2 rows are slower; the geometric mean of the ratios is 2.00, and 1.00 over the 1 rows that have no goal",
            "1 of 2 rows are slower and the geometric mean is 1.00",
            "Goals reached: 1 of 2, 0 of them at the aim: 1 of the 1 rows with a goal of their own, and 0 of the 1 rows that"]
    expect("mla_report.py: the report has the ratios that were worked out by hand",
           command, 0, [*said, "| 2 × 1 × 1024 | 16 | 20.0 |"], on_stdout=True, has_not=["Prefill"])
    pages = copy_of_pages(work)
    expect("mla_report.py: --pages writes the page", [*command, "--pages", pages], 0, [], on_stdout=True)
    has_parts("mla.md", pages, [*said, "| 1 × 1 × 1024 | 16 | 5.0 | 5% | 20.0 | reach: 5 us (5, 4) |", "| 16 | 1 | 1024 | 5.0 (4.00) |",
                                "| 1 × 4096 | 128 | 1098.7 |"])  # the prefill row stays, because this run has
                                                                 # none
    (work / "prefill.jsonl").write_text(json.dumps(PREFILL) + "\n{\"heads\": 1")
    expect("mla_report.py: a cut line of prefill.jsonl is an error", command, 1, ["prefill.jsonl:2: not JSON"])
    (work / "prefill.jsonl").write_text(json.dumps(PREFILL) + "\n")
    expect("mla_report.py: the report has a table of prefill",
           command, 0, ["## Prefill", "| 1 × 4096 | 128 | 600.0 | 573 |"], on_stdout=True)
    expect("mla_report.py: --help says what the options are", [*command[:2], "--help"], 0, ["--pages", "DIR"], on_stdout=True)
    expect("mla_report.py: a missing folder argument is an error", command[:2], 2, ["DIR"])
    expect("mla_report.py: an unknown option is an error", [*command, "--long"], 2, ["--long"])


def first_row(part):
    """Returns the first row of figures of a part of docs/measurements/decode.md, as it is committed."""
    page = (ROOT / "docs/measurements/decode.md").read_text(encoding="utf-8")
    return re.search(rf"<!-- begin {part}:.*?^(\| 1 × 1024 \|.*?)$", page, re.DOTALL | re.MULTILINE)[1]


def test_h200_report(work):
    command = [sys.executable, ROOT / "bench/h200_report.py", work]
    expect("h200_report.py: a report of a folder that is missing is an error",
           [*command[:2], work / "none"], 1, ["none is no directory", "bench/run_h200.sh"])
    expect("h200_report.py: pages of an empty folder are an error", [*command, "--pages"], 1, ["has no results for the pages"])
    # 4.3 GB per step of 2 ms are 2.15 TB/s, which is half of the bandwidth. SGLang's best is 3.249 ms.
    row = {"run_name": "lite-bf16", "batch_size": 1, "input_len": 1024, "median_decode_latency": 0.0025,
           "median_decode_gpu_latency": 0.002, "bandwidth_gb_s": 2150.0, "distinct_experts": 6.0, "prefill_latency": 0.1,
           "prefill_throughput": 10240.0}
    large = {**row, "batch_size": 1024, "median_decode_gpu_latency": None}
    (work / "lite-bf16.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**large, "bandwidth_gb_s": None}) + "\n")
    expect("h200_report.py: a row without a bandwidth is an error",
           command, 1, ["lite-bf16.jsonl:2: 'bandwidth_gb_s' is null, not a number above 0"])
    (work / "lite-bf16.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(large) + "\n")
    (work / "prefill.v3-fp8.jsonl").write_text(json.dumps({**row, "input_len": 4096, "prefill_throughput": 183818.0}) + "\n")
    serving = {"max_concurrency": 1, "output_throughput": 578.0, "median_ttft_ms": 14.4, "median_tpot_ms": 1.5}
    (work / "serving.jsonl").write_text(json.dumps(serving) + "\n" + json.dumps({**serving, "max_concurrency": 512}) + "\n")
    for name in ("lite-bf16", "lite-fp8"):
        (work / f"large.{name}.jsonl").write_text(json.dumps({**row, "batch_size": 512}) + "\n")
    many = {**serving, "max_concurrency": 1024, "median_itl_ms": 13.3, "p99_itl_ms": 77.2}
    (work / "serving-large.jsonl").write_text(json.dumps(many) + "\n")
    (work / "ablation--disable-fusion.jsonl").write_text(json.dumps({**row, "run_name": "ablation--disable-fusion"}) + "\n")
    (work / "start.json").write_text(json.dumps({"V2-Lite, full size": 1.84, "hadal-tiny": 0.62}))
    (work / "machine.txt").write_text("NVIDIA H200, 580\n")
    decode = ["| 1 × 1024 | 2.000 | 2.500 | 500 | 1.000 | 50% | 3.249 | 1.62 | 6.0 |",
              "| 1024 × 1024 | 2.500 | 2.500 | 409,600 | 1.250 | 50% | not measured |  | 6.0 |"]
    prefill = "| V3 cut to six layers, FP8 | 1 × 4096 | 100.0 | 183,818 | 91,909 | 2.00 |"
    server = ["| 1 | 578 | 14 | 1.50 | 289, 45, 3.3 | 2.00 |", "| 512 | 578 | 14 | 1.50 | not measured |  |"]
    mixed = {"long_rows": 1, "long_input_len": 32768}
    for name, factor, mixed_s in (("v3", 1.0, 0.009), ("v32", 1.5, 0.0126)):
        rows = [{**row, "batch_size": 64, "median_decode_gpu_latency": seconds, **fields} for seconds, fields in (
            (factor * 0.008, {}), (mixed_s, mixed), (factor * 0.002, {"fill_cache": True}))]
        for suffix, one in zip(("", "-mixed", "-16"), rows):
            (work / f"v32.{name}{suffix}.jsonl").write_text(json.dumps(one) + "\n")
    sparse = ["| decode 64 × 1024 | 8.000 | 12.000 | 1.500 |", "| decode 63 × 1024 and 1 × 32768 | 9.000 | 12.600 | 1.400 |",
              "| decode 64 × 1024, filled | 2.000 | 3.000 | 1.500 |",
              "If 1 of 64 sequences of 1024 tokens has 32768 instead, a step of V3.2 takes 1.050 times as long, and one of V3 1.125 times."]
    ablation, start = "| --disable-fusion | 400.0 | 2.500 |", ["| V2-Lite, full size | 1.8 | 38 |", "| hadal-tiny | 0.6 |  |"]
    expect("h200_report.py: the report has the figures that were worked out by hand",
           command, 0, ["Ours on one NVIDIA H200 with driver 580.", *decode, prefill, *server, *sparse, ablation, *start],
           on_stdout=True)
    pages = copy_of_pages(work)
    expect("h200_report.py: --pages writes the pages", [*command, "--pages", pages], 0, [], on_stdout=True)
    # A section without new results keeps its rows.
    kept = first_row("lite-fp8")
    has_parts("decode.md", pages, ["This was measured on one NVIDIA H200 with driver 580.\n\n| batch", *decode, ablation, kept])
    has_parts("decode.md", pages, ["-->\n### V2-Lite, bf16\n\nThis was measured on one NVIDIA H200 with driver 580.\n\n|",
                                   "-->\n### V2-Lite, `--quantization fp8`\n\nThis was measured on one NVIDIA H200 with driver 580.\n\n|",
                                   "| 512 × 1024 | 2.000 | 2.500 | 256,000 | 1.000 | 50% | not measured |  | 6.0 |"])
    has_parts("prefill.md", pages, [prefill])
    has_parts("server.md", pages, [*server, "| 1024 | 578 | 14 | 1.50 | 13.30 | 77 |"])
    has_parts("startup.md", pages, start)
    has_parts("v32.md", pages, sparse)
    (pages / "prefill.md").write_text("no markers")
    expect("h200_report.py: a page without markers is an error",
           [*command, "--pages", pages], 1, ["prefill.md has no part 'prefill'"])


MULTI_GPU = {"batch_size": 1, "input_len": 1024, "median_decode_latency": 0.0025, "median_decode_gpu_latency": 0.002,
             "bandwidth_gb_s": 2150.0, "decode_exchanges": 101, "decode_exchanged_bytes": 4000000,
             "decode_exchange_latency_modelled": 0.0005, "prefill_latency": 0.1, "prefill_throughput": 10240.0}


def test_multi_gpu_report(work):
    command = [sys.executable, ROOT / "bench/multi_gpu_report.py", work]
    expect("multi_gpu_report.py: a report of a folder that is missing is an error",
           [*command[:2], work / "none"], 1, ["none is no directory"])
    expect("multi_gpu_report.py: a report of an empty folder is an error", command, 1, ["holds no results"])
    one_gpu = first_row("lite-bf16").split(" | ")[1]
    for name in ("lite-bf16", "v2", "lone"):
        (work / f"{name}.jsonl").write_text(json.dumps(MULTI_GPU) + "\n")
    # With their exchanges, the lone rank's steps take 2.5 ms, and 5 ms with drafts; the longer ones give
    # three tokens.
    for name in ("lite-bf16", "lone"):
        (work / f"speculation.{name}.0.jsonl").write_text(json.dumps(MULTI_GPU) + "\n")
    wide = {**MULTI_GPU, "median_decode_gpu_latency": 0.0045, "bandwidth_gb_s": None, "accept_length": 3.0}
    (work / "speculation.lone.3.jsonl").write_text(json.dumps(wide) + "\n")
    speculation = "| V3, FP8, a lone rank of `--tp-size 8` | 1 × 1024 | 2.500 | 5.000 | 3.00 | 600 | 1.50 |"
    (work / "prefill.v3-fp8.jsonl").write_text(json.dumps({**MULTI_GPU, "batch_size": 4, "input_len": 4096}) + "\n")
    serving = {"max_concurrency": 64, "output_throughput": 9000.0, "median_ttft_ms": 14.4, "median_tpot_ms": 1.5}
    (work / "serving.jsonl").write_text(json.dumps(serving) + "\n")
    (work / "comm.txt").write_text("".join(f"{name} 14336 {us} 1 1\n" for name, us in (
        ("small", 2.5), ("one-shot", 4.0), ("two-shot", 9.0), ("norm", 5.3), ("all-gather", 4.8), ("reduce-scatter", 3.4),
        ("all-to-all", 4.9))))
    (work / "peers.txt").write_text("1 14336 6.7 8.0 9.0 15.9 9.8 9.2 10.6\n")
    (work / "machine.txt").write_text("NVIDIA H200, 580\nNVIDIA H200, 580\n")
    # A step reads 5.375 GB, half of it on each of two ranks: 0.625 ms at 4.3 TB/s. The exchanges add 0.303 ms, and the
    # transfer of their 4 MB adds 0.01 ms.
    decode = [f"| V2-Lite, bf16 | 1 × 1024 | 2.000 | 500 | 0.94 | 47% | {float(one_gpu):.2f} | {float(one_gpu) / 2:.2f} |",
              "| V2's dims, `--quantization fp8`, FP8 cache | 1 × 1024 | 2.000 | 500 | 0.94 | 47% | does not fit |  |"]
    lone, comm = "| 1 × 1024 | 2.00 | 0.50 | 2.50 |", "| 14,336 | 2.50 / 6.70 | 5.30 / 15.90 | 4.80 / 9.80 | 3.40 / 9.20 | 4.90 / 10.60 |"
    expect("multi_gpu_report.py: the report has the figures that were worked out by hand",
           command, 0, [*decode, lone, comm, speculation, "| 4 × 4096 | 100.0 | 10,240 |", "| 64 | 9,000 |"], on_stdout=True)
    pages = copy_of_pages(work)
    expect("multi_gpu_report.py: --pages writes the page", [*command, "--pages", pages], 0, [], on_stdout=True)
    has_parts("multi-gpu.md", pages, ["measured on 2 NVIDIA H200 of one host with driver 580", *decode, lone, comm, speculation])
    (work / "comm.txt").unlink()
    (work / "lite-bf16.jsonl").write_text(json.dumps({**MULTI_GPU, "batch_size": 3}) + "\n")
    expect("multi_gpu_report.py: a row that the page of one GPU lacks is an error",
           command, 1, ["decode.md, lite-bf16: no row '3 × 1024'"])


def test_speculation_report(work):
    command = [sys.executable, ROOT / "bench/speculation_report.py", work]
    expect("speculation_report.py: a report of a folder that is missing is an error",
           [*command[:2], work / "none"], 1, ["none is no directory"])
    expect("speculation_report.py: a report of an empty folder is an error", command, 1, ["holds no results"])
    step = {"batch_size": 16, "input_len": 1024, "median_decode_gpu_latency": 0.002, "median_decode_throughput": 8000.0}
    (work / "lite-fp8.0.jsonl").write_text(json.dumps(step) + "\n")
    (work / "lite-fp8.2.jsonl").write_text(json.dumps({**step, "median_decode_gpu_latency": 0.004, "accept_length": 2.5}) + "\n")
    for acceptance, rate in (("without", 100.0), ("half", 150.0)):
        (work / f"policy.{acceptance}.16.jsonl").write_text(json.dumps({"output_throughput": rate}) + "\n")
        which = work / f"serving-{acceptance.replace('half', 'with')}"
        which.mkdir()
        (which / "serving.jsonl").write_text(json.dumps({"max_concurrency": 64, "output_throughput": rate, "median_tpot_ms": 1.5}) + "\n")
    # The steps take twice the time and give two and a half tokens.
    wanted = ["| V2-Lite, FP8 | 16 × 1024 | 2.000 | not measured | 4.000, 2.50, 1.25 | not measured | 1.25 |",
              "| 16 | 100 | not measured | 150, 1.50 | not measured |", "| 64 | 100 | 150 | 1.50 |"]
    expect("speculation_report.py: the report has the figures that were worked out by hand", command, 0, wanted, on_stdout=True)
    pages = copy_of_pages(work)
    expect("speculation_report.py: --pages writes the page", [*command, "--pages", pages], 0, [], on_stdout=True)
    has_parts("speculation.md", pages, wanted)
    (work / "lite-fp8.2.jsonl").write_text(json.dumps(step) + "\n")
    expect("speculation_report.py: a row of drafts without an accept length is an error",
           command, 1, ["lite-fp8.2.jsonl:1: no 'accept_length'"])


def test_sections(work):
    """Tests the scripts that measure sections of models, with a stand-in for hadal."""
    hadal = executable(work / "hadal", "exit 3\n")
    out = work / "out"
    for script, section, report in (("run_h200.sh", "v3-fp8", "h200_report.py"), ("run_multi_gpu_h200.sh", "v2", "multi_gpu_report.py"),
                                    ("run_speculation_h200.sh", "v3-fp8", "speculation_report.py")):
        command = [ROOT / "bench" / script]
        for option in ("--out", "--build-dir"):
            expect(f"{script}: {option} without a directory is an error",
                   [*command, option], 2, [f"{script}: {option} needs a directory"])
        expect(f"{script}: an unknown option is an error",
               [*command, "--bogus"], 2, [f"{script}: unknown option or section '--bogus'", section])
        expect(f"{script}: --help names the sections", [*command, "--help"], 0, ["Sections:", section], on_stdout=True)
        expect(f"{script}: a build folder without hadal is an error",
               [*command, "--build-dir", work / "none"], 1, ["none holds no hadal"])
        own = [*command, "--build-dir", work, "--out", out, section]
        executable(hadal, "exit 3\n")
        expect(f"{script}: a machine without a GPU is an error", own, 1, [])
        COUNTS["failed" if out.exists() else "passed"] += 1
        executable(hadal, 'test "$1" = info || exit 3\n')
        expect(f"{script}: a section that fails is named", own, 1, [f"failed: {section}"])
        # Each row replaces those of the failed run; the report reads them.
        row = json.dumps({**MULTI_GPU, "run_name": section, "distinct_experts": 6.0, "median_decode_throughput": 500.0, "accept_length": 2.0})
        executable(hadal, f"""while test $# -gt 1; do test "$1" != --result-filename || echo '{row}' >>"$2"; shift; done\n""")
        expect(f"{script}: a section runs", own, 0, [f"== {section}"], on_stdout=True)
        expect(f"{script}: {report} reads what it wrote",
               [sys.executable, ROOT / "bench" / report, out], 0, ["| 1 × 1024 | 2.000 |"], on_stdout=True)
        shutil.rmtree(out)
    expect("run_multi_gpu_h200.sh: --quick is an unknown option",
           [ROOT / "bench/run_multi_gpu_h200.sh", "--quick"], 2, ["unknown option '--quick'"])


def test_peers_comm(work):
    command = [sys.executable, ROOT / "bench/peers_comm.py"]
    expect("peers_comm.py: --help says what the options are", [*command, "--help"], 0, ["--ranks"], on_stdout=True)
    for words, said in ((["--rows", "1,x"], "--rows"), (["--ranks", "0"], "--ranks"), (["--width", "-1"], "--width")):
        expect(f"peers_comm.py: {words} is an error", [*command, *words], 2, [said, "is not a number above 0"])
    (work / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    expect("peers_comm.py: missing torch is an error", command, 1, ["torch"], {"PYTHONPATH": str(work)})


def test_summary(work):
    for name in ("docs/measurements", "bench"):
        shutil.copytree(ROOT / name, work / name)
    shutil.copy(ROOT / "README.md", work)
    shutil.copy(ROOT / "docs/performance.md", work / "docs")
    command = [sys.executable, work / "bench/summary.py"]
    expect("summary.py: the tables of README.md and performance.md are up to date", [*command, "--check"], 0, [])
    page = work / "docs/measurements/decode.md"
    text = page.read_text(encoding="utf-8")
    # This changes a figure of V3 at batch 64, which both tables show.
    old = re.search(r"<!-- begin v3-fp8:.*?^\| 64 × 1024 \| ([\d.]+) ", text, re.DOTALL | re.MULTILINE)[1]
    page.write_text(text.replace(old, "7.531"), encoding="utf-8")
    expect("summary.py: --check names the tables that differ from the pages", [*command, "--check"], 1,
           ["docs/performance.md: the table 'decode' is not that", "README.md: the table 'results' is not that"], has_not=["'cpu'"])
    expect("summary.py: the tables are written anew", command, 0, [])
    texts = [(work / name).read_text(encoding="utf-8") for name in ("README.md", "docs/performance.md")]
    COUNTS["passed" if all("7.531" in text and old not in text for text in texts) else "failed"] += 1
    page.write_text(page.read_text(encoding="utf-8").replace("| 64 × 1024 |", "| 63 × 1024 |"), encoding="utf-8")
    expect("summary.py: a page without a row that is wanted is an error",
           command, 1, ["decode.md, lite-bf16: no row '64 × 1024'"])


def test_run_mla(work):
    command = [ROOT / "bench/run_mla_h200.sh"]
    for words in (["--out"], ["--out="], ["--out", "--build-dir", "x"], ["--out", "", "--build-dir", "x"]):
        expect(f"run_mla_h200.sh: {words} lacks a directory", [*command, *words], 2, ["--out needs a directory"])
    expect("run_mla_h200.sh: --build-dir without a directory is an error",
           [*command, "--build-dir", "--out", "x"], 2, ["--build-dir needs a directory"])
    expect("run_mla_h200.sh: an unknown option is an error", [*command, "--outt=x"], 2, ["unknown option '--outt=x'"])
    expect("run_mla_h200.sh: --help says what the options are",
           [*command, "--help"], 0, ["--build-dir DIR", "FlashMLA"], on_stdout=True)
    expect("run_mla_h200.sh: a build folder that is missing is an error",
           [*command, f"--build-dir={work}/none"], 1, ["--build-dir", "none: no such directory"])
    expect("run_mla_h200.sh: a build folder without the bench is an error",
           [*command, "--build-dir", work], 1, ["cuda_mla_bench is missing"])
    blocked = work / "file"
    blocked.write_text("")
    expect("run_mla_h200.sh: an --out that cannot be made is an error",
           [*command, f"--out={blocked}/out"], 1, ["--out", "file/out"])

    # The run uses stand-ins for the driver's tool and both programs.
    tools, build, out = work / "tools", work / "build", work / "out"
    (build / "bench/cuda").mkdir(parents=True)
    tools.mkdir()
    measured = out / "failed"
    measured.mkdir(parents=True)
    (measured / "kept").write_text("")
    (out / "report.md").write_text("of an earlier run")
    environment = {"PATH": f"{tools}:{os.environ['PATH']}"}
    own = [*command, f"--build-dir={build}", "--out", out]
    executable(build / "bench/cuda/cuda_mla_prefill_bench", f"echo '{json.dumps(PREFILL)}'\n")
    bench = executable(build / "bench/cuda/cuda_mla_bench", f"echo '{json.dumps(DECODE)}' >\"$3\"\necho 5.0 us\n")
    executable(tools / "python3", f"case \"$1 $2\" in *mla_report.py*) exec {sys.executable} \"$@\";; esac\nexit 1\n")
    executable(tools / "nvidia-smi", "echo it has failed\nexit 9\n")
    expect("run_mla_h200.sh: a machine without a driver is an error",
           own, 1, ["nvidia-smi finds no driver", "it has failed"], environment)
    executable(tools / "nvidia-smi", "echo 8.0\n")
    expect("run_mla_h200.sh: a GPU that is no Hopper is an error", own, 1, ["9.0", "nvidia-smi shows 8.0"], environment)
    COUNTS["passed" if sorted(path.name for path in out.iterdir()) == ["failed", "report.md"] else "failed"] += 1
    executable(tools / "nvidia-smi", "echo 9.0\n")
    executable(bench, "exit 3\n")
    expect("run_mla_h200.sh: a bench that fails is named, and its results are kept",
           own, 1, ["failed: decode report", f"the results so far are in {out}/failed-"], environment)
    left = sorted(path.name for path in out.iterdir())
    is_kept = (left[0] == "failed" and len(left) == 3 and (measured / "kept").is_file() and
               (out / "report.md").read_text() == "of an earlier run" and (out / left[1] / "prefill.jsonl").is_file())
    COUNTS["passed" if is_kept else "failed"] += 1
    executable(bench, f"echo '{json.dumps(DECODE)}' >\"$3\"\necho 5.0 us\n")
    expect("run_mla_h200.sh: a run ends with the report", own, 0, [f"{out}/report.md"], environment, on_stdout=True)
    COUNTS["passed" if "4.00" in (out / "report.md").read_text() and (measured / "kept").is_file() else "failed"] += 1
    # The tool is missing, and there is no device.
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        (tools / "nvidia-smi").unlink()
        for name in ("bash", "dirname", "realpath", "mkdir", "mktemp", "rmdir"):
            (tools / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
        expect("run_mla_h200.sh: a machine without nvidia-smi is an error",
               own, 1, ["no GPU: nvidia-smi is missing"], {"PATH": str(tools)})


def test_flash_mla(work):
    command = [sys.executable, ROOT / "bench/cuda/mla_flash_mla.py"]
    environment = {"PYTHONPATH": str(work)}
    expect_torch_script(command, work, ["--beside", "--row"], environment, [
        ("no argument", [], "--row"),
        ("a row of three numbers", ["--row", "1,1,4096"], "BATCH,Q,KEYS,HEADS"),
        ("a row with a zero", ["--row", "1,0,4096,16"], "'1,0,4096,16'"),
        ("a row with a word", ["--row", "1,1,4k,16"], "'1,1,4k,16'"),
        ("--row together with --beside", ["--row", "1,1,4096,16", "--beside", "x"], "--row and --beside exclude each other"),
        ("--check together with --row", ["--check", "--row", "1,1,4096,16"], "--check stands alone"),
        ("--beside without a program", ["--beside"], "--beside needs"),
        ("a program that is missing", ["--beside", work / "none", "table"], "none: no such program")])
    (work / "torch.py").write_text("")
    (work / "flash_mla.py").write_text("raise ImportError('no FlashMLA here')\n")
    expect("mla_flash_mla.py: missing FlashMLA is an error",
           [*command, "--check"], 1, [sys.executable, "no FlashMLA here", "install FlashMLA"], environment)
    (work / "hadal").mkdir()
    (work / "hadal/__init__.py").write_text("")
    (work / "hadal/flash_mla.py").write_text("")
    (work / "flash_mla.py").write_text("import hadal.flash_mla\n")
    expect("mla_flash_mla.py: Hadal's own flash_mla is refused",
           [*command, "--check"], 1, ["Hadal's own", "hadal-flash-mla-alias"], environment)
    (work / "flash_mla.py").write_text("")
    expect("mla_flash_mla.py: --check accepts FlashMLA", [*command, "--check"], 0, [], environment)


if __name__ == "__main__":
    sys.exit(run_all(globals()))
