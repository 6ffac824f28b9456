#!/usr/bin/env python3
"""Reports what bench/run_speculation_h200.sh measured, as Markdown on standard output or (--pages) in
docs/measurements/speculation.md. Each row stands beside the same row of the same run without speculation."""
import argparse
import pathlib
import sys

from report_rows import NUMBER, POSITIVE, add_pages_option, report_parts, rows_of, table

PROGRAM = "bench/speculation_report.py"
PAGE = "speculation.md"
STEP = {"batch_size": POSITIVE, "input_len": POSITIVE, "median_decode_gpu_latency": POSITIVE, "median_decode_throughput": POSITIVE}
DRAFTS = {**STEP, "accept_length": POSITIVE}
LOAD = {"output_throughput": POSITIVE}
SERVING = {"max_concurrency": POSITIVE, "output_throughput": POSITIVE, "median_tpot_ms": NUMBER}
MODELS = [("lite-bf16", "V2-Lite, bf16"), ("lite-fp8", "V2-Lite, FP8"), ("v3-fp8", "V3 cut to six layers, FP8")]
SERVER_TITLE = "`hadal serve` with V2-Lite's dimensions in bf16, prompts of 1,024 tokens and answers of 256"
ACCEPTANCES = [("none", "no draft"), ("half", "0.5, 0.5, 0.5"), ("good", "0.92, 0.72, 0.36")]


def static_table(directory):
    out = []
    for name, title in MODELS:
        plain = {row["batch_size"]: row for row in rows_of(PROGRAM, directory / f"{name}.0.jsonl", STEP)}
        wide = {steps: {row["batch_size"]: row for row in rows_of(PROGRAM, directory / f"{name}.{steps}.jsonl", DRAFTS)}
                for steps in (1, 2, 3)}
        for batch, row in plain.items():
            ms = 1e3 * row["median_decode_gpu_latency"]
            cells, ratios = [], []
            for steps in (1, 2, 3):
                if batch not in wide[steps]:
                    cells.append("not measured")
                    continue
                step = wide[steps][batch]
                step_ms = 1e3 * step["median_decode_gpu_latency"]
                ratios.append(step["accept_length"] * ms / step_ms)
                cells.append(f"{step_ms:.3f}, {step['accept_length']:.2f}, {ratios[-1]:.2f}")
            if ratios:
                out.append([title, f"{batch} × {row['input_len']}", f"{ms:.3f}", *cells, f"{max(ratios):.2f}"])
    return table(["model", "batch × context", "without: ms", "1 draft: ms, tokens, ratio", "2 drafts", "3 drafts", "best ratio"],
                 out) if out else ""


def rate_of(directory, acceptance, count):
    rows = rows_of(PROGRAM, directory / f"policy.{acceptance}.{count}.jsonl", LOAD)
    return rows[-1]["output_throughput"] if rows else None


def policy_table(directory):
    out = []
    for count in sorted({int(path.name.split(".")[2]) for path in directory.glob("policy.without.*.jsonl")}):
        without = rate_of(directory, "without", count)
        rates = [rate_of(directory, acceptance, count) for acceptance, _ in ACCEPTANCES]
        out.append([str(count), f"{without:,.0f}",
                    *["not measured" if rate is None else f"{rate:,.0f}, {rate / without:.2f}" for rate in rates]])
    return table(["requests together", "without: tok/s", *[f"accepted: {words}" for _, words in ACCEPTANCES]], out) if out else ""


def serving_table(directory):
    rows = {which: {row["max_concurrency"]: row for row in rows_of(PROGRAM, directory / f"serving-{which}/serving.jsonl", SERVING)}
            for which in ("without", "with")}
    out = [[str(concurrency), f"{row['output_throughput']:,.0f}", f"{rows['with'][concurrency]['output_throughput']:,.0f}",
            f"{rows['with'][concurrency]['output_throughput'] / row['output_throughput']:.2f}"]
           for concurrency, row in rows["without"].items() if concurrency in rows["with"]]
    return table(["concurrency", "without: output tok/s", "with: output tok/s", "ratio"], out) if out else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, help="--out of bench/run_speculation_h200.sh")
    add_pages_option(parser)
    options = parser.parse_args()
    if not options.directory.is_dir():
        sys.exit(f"{PROGRAM}: {options.directory} is no directory")
    report_parts(PROGRAM, options.directory, PAGE, options.pages, {
        "static": (static_table(options.directory), None), "policy": (policy_table(options.directory), None),
        "serving": (serving_table(options.directory), SERVER_TITLE)})


if __name__ == "__main__":
    main()
