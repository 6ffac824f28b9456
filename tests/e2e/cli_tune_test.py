#!/usr/bin/env python3
"""Tests `hadal tune` without a GPU: what it refuses, and what --dry-run prints.

HADAL_BINARY names the binary (default build/cpu-release/hadal). It needs only the standard library.
"""

import os
import pathlib
import subprocess
import sys

from command_line import BIN, check, expect_error, run, run_tests


def test_tune(model, work):
    expect_error("tune needs a second word", 2, ["fp8-gemm or moe"], "tune")
    expect_error("tune needs a shape or a model", 2, ["--n is missing", "--model-path"], "tune", "fp8-gemm")
    expect_error("tune names the missing half of a shape", 2, ["--k is missing"], "tune", "fp8-gemm", "--n", "512")
    expect_error("tune moe needs --experts", 2, ["--experts is missing"], "tune", "moe", "--n", "256", "--k", "7168",
                 "--top-k", "8")
    expect_error("tune moe refuses more experts per token than there are", 2, ["--top-k 8", "--experts, which is 4"], "tune", "moe",
                 "--experts", "4", "--n", "256", "--k", "7168", "--top-k", "8")
    expect_error("tune refuses a shape beside a model", 2, ["--n", "--model-path, which gives the shapes"], "tune", "fp8-gemm", "--model-path", model,
                 "--n", "512")
    expect_error("--tp-size needs a model", 2, ["--tp-size needs --model-path"], "tune", "fp8-gemm", "--n", "512",
                 "--k", "512", "--tp", "2")
    expect_error("tune refuses a split that does not divide the heads", 2, ["--tp-size 3", "num_attention_heads, which is 4"], "tune", "fp8-gemm",
                 "--model-path", model, "--tp-size", "3", "--dry-run")
    expect_error("a batch has a token or more", 2, ["--m 0", "[1,"], "tune", "fp8-gemm", "--n", "512", "--k", "512", "--m", "0",
                 "--dry-run")
    expect_error("tune fp8-gemm refuses a flag of tune moe", 2, ["--experts"], "tune", "fp8-gemm", "--n", "512", "--k", "512", "--experts", "4")
    expect_error("tune refuses a directory that cannot be made", 2, ["--output-dir /proc/hadal"], "tune", "fp8-gemm", "--n", "512", "--k", "512",
                 "--output-dir", "/proc/hadal")
    expect_error("tune refuses a file as directory", 2, ["--output-dir"], "tune", "fp8-gemm", "--n", "512", "--k", "512",
                 "--output-dir", model / "config.json")
    expect_error("tune needs a GPU", 1, ["tuning needs a GPU: "], "tune", "moe", "--model-path", model, "--output-dir",
                 work / "configs")
    check("tune without a GPU makes no directory", not (work / "configs").exists())

    expect_error("tune refuses weights that no GPU holds", 2, ["--experts 512 --n 4194304 --k 4194304", "GiB; must be at most 64"],
                 "tune", "moe", "--experts", "512", "--n", "4194304", "--k", "4194304", "--top-k", "2", "--dry-run")
    expect_error("tune refuses a matrix that is too large", 2, ["--n 4194305", "4194304]"], "tune", "fp8-gemm", "--n", "4194305", "--k",
                 "128", "--dry-run")
    expect_error("tune refuses too many experts", 2, ["--experts 513", "512]"], "tune", "moe", "--n", "256", "--k", "7168",
                 "--experts", "513", "--top-k", "8", "--dry-run")
    rc, out, err = run("tune", "moe", "--experts", "512", "--n", "1400", "--k", "16384", "--top-k", "8", "--m", "65536",
                       "1", "65536", "--dry-run")
    rows = [line.split() for line in out.splitlines()]
    check("a dry run rounds up to whole blocks and takes each batch once", rc == 0 and [row[2:9] for row in rows[1:3]] == [
        ["fp8", "512", "of", "2816", "x", "16384", m] for m in ("65536", "1")] and len(rows) == 6, out + err)
    rc, out, err = run("tune", "fp8-gemm", "--n", "2112", "--k", "7168", "--m", "1", "64,512", "--dry-run")
    check("a dry run succeeds", rc == 0, err)
    for flag, shown in (("fp8", "fp8 "), ("w8a8_fp8", "fp8 rows"), ("w8a8_int8", "int8 rows"), ("blockwise_int8", "int8 "),
                        ("bf16", "bf16 ")):
        for what in (("fp8-gemm",), ("moe", "--experts", "8", "--top-k", "2")):
            rc, out, err = run("tune", *what, "--n", "512", "--k", "1024", "--m", "16", "--weight-type", flag, "--dry-run")
            check(f"a dry run of {what[0]} names the weights {flag}", rc == 0 and f" {shown} " in out.splitlines()[1], out + err)
    check("a dry run says how long tuning takes", "expected to take" in out, out)
    expect_error("a dry run refuses a file as directory", 2, ["--output-dir", "is not a directory"], "tune", "fp8-gemm", "--n", "512",
                 "--k", "512", "--dry-run", "--output-dir", model / "config.json")
    rc, out, err = run("tune", "fp8-gemm", "--n", "512", "--k", "512", "--m", "1", "--dry-run", "--output-dir",
                       work / "not" / "there")
    check("a dry run makes no directory", rc == 0 and not (work / "not").exists(), err)
    rc, out, err = run("tune", "fp8-gemm", "--n", "2112", "--k", "7168", "--m", "1", "64,512", "--dry-run")
    rows = [line.split(None, 6) for line in out.splitlines()]
    check("a dry run prints a row per batch and kernel", len(rows) == 5 and rows[0][0] == "product", out)
    chosen = {line.split()[5]: line for line in out.splitlines()[1:4]}
    check("a dry run prints the choices of the heuristic", all(text in chosen.get(m, "") for m, text in [
        ("1", "thin 8x16"), ("64", "skinny 64x64 splits 5 stages 6"), ("512", "tiled 128x64 stages 7")]), out)
    rc, out, err = run("tune", "fp8-gemm", "--model-path", model, "--quantization", "fp8", "--m", "16", "--dry-run")
    check("a dry run of a model names its products", rc == 0 and all(name in out for name in [
        "qkv_a", "q_b", "kv_b", "o_proj", "gate_up", "down", "router", "lm_head", "choices for 8 products at 1 batch size,"]),
          out + err)
    rc, out, err = run("tune", "moe", "--model-path", model, "--tp", "2", "--ep", "2", "--m", "16", "--dry-run")
    check("a dry run of experts splits them", rc == 0 and "8 of 256 x 256" in out and "8 of 256 x 128" in out, out + err)
    presets = [pathlib.Path(BIN).with_name("tune_presets"), "--presets", "v3", "v3", "--tp-size", "8", "--output-dir", work / "not"]
    done = subprocess.run([*presets, "--m", "16", "16", "--dry-run"], capture_output=True, text=True, check=False)
    check("tune_presets measures each preset and batch once", done.returncode == 0 and " for 11 products at 1 batch size," in done.stdout, done)
    done = subprocess.run([*presets, "--share", "12/12"], capture_output=True, text=True, check=False)
    check("tune_presets refuses a share of nothing", done.returncode == 2 and "N must be at most 11" in done.stderr, done)
    done = subprocess.run(presets, capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    check("tune_presets without a GPU makes no directory", done.returncode == 1 and not (work / "not").exists(), done)
    check("a dry run writes no file", not any(pathlib.Path(".").glob("N=*.json")))

    expect_error("--kernel-config-dir must exist", 1, ["--kernel-config-dir /absent: is not a directory"], "generate",
                 "--model", model, "--kernel-config-dir", "/absent", "--input-ids", "5")
    expect_error("--kernel-config-dir must not be empty", 2, ["--kernel-config-dir '': is not a directory"], "generate",
                 "--model", model, "--kernel-config-dir", "", "--input-ids", "5")
    rc, out, err = run("generate", "--model", model, "--load-format", "dummy", "--kernel-config-dir", work, "--device",
                       "cpu", "--disable-cuda-graph", "--input-ids", "5", "--max-new-tokens", "1", "--log-level", "info")
    lines = [line for line in err.splitlines() if "flags not used" in line]
    check("flags of GPUs without effect on the CPU get one line", rc == 0 and len(lines) == 1 and all(
        word in lines[0] for word in ("--kernel-config-dir", "--disable-cuda-graph", "they apply to GPUs alone")), err)
    rc, out, err = run("generate", "--model", model, "--load-format", "dummy", "--input-ids", "5", "--max-new-tokens",
                       "1", "--log-level", "info")
    check("without such flags there is no line", rc == 0 and "flags not used" not in err, err)


def claims(work, model):
    test_tune(model, work)


if __name__ == "__main__":
    sys.exit(run_tests(claims))
