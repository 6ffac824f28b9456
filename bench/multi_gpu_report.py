#!/usr/bin/env python3
"""Reports what bench/run_multi_gpu_h200.sh measured, as Markdown on standard output or (--pages) in docs/measurements/multi-gpu.md.
Decode rows stand beside one GPU's time where the model fits on one, and beside their floor: what a rank reads at 4.3 TB/s, and for
each exchange 3 µs and what the rank receives at 400 GB/s."""
import argparse
import pathlib
import sys

from report_rows import NUMBER, POSITIVE, Table, add_pages_option, report_parts, rows_of, table

PROGRAM = "bench/multi_gpu_report.py"
PAGE = "multi-gpu.md"
SHAPE = {"batch_size": POSITIVE, "input_len": POSITIVE}
DECODE = {**SHAPE, "median_decode_latency": POSITIVE, "median_decode_gpu_latency": POSITIVE, "bandwidth_gb_s": POSITIVE,
          "decode_exchanges": NUMBER, "decode_exchanged_bytes": NUMBER, "decode_exchange_latency_modelled": NUMBER}
STEP = {**SHAPE, "median_decode_gpu_latency": POSITIVE, "decode_exchange_latency_modelled": NUMBER}
PREFILL = {**SHAPE, "prefill_latency": POSITIVE, "prefill_throughput": POSITIVE}
SERVING = {"max_concurrency": POSITIVE, "output_throughput": POSITIVE, "median_ttft_ms": POSITIVE, "median_tpot_ms": POSITIVE}
# Files, the model, and the part of docs/measurements/decode.md with one GPU's rows; None if the model does not fit on one.
MODELS = [(("lite-bf16", "lite-bf16.4k"), "V2-Lite, bf16", "lite-bf16"),
          (("v3-fp8",), "V3 cut to six layers, FP8", "v3-fp8"),
          (("v2",), "V2's dims, `--quantization fp8`, FP8 cache", None),
          (("v3-22",), "V3 cut to 22 layers, FP8", None)]
PREFILLS = [("prefill.lite-bf16", "V2-Lite, bf16"), ("prefill.v3-fp8", "V3 cut to six layers, FP8")]
SPECULATIONS = [("lite-bf16", "V2-Lite, bf16, `--tp-size 2`"), ("lone", "V3, FP8, a lone rank of `--tp-size 8`")]
BANDWIDTH, EXCHANGE_S, LINK = 4.3e12, 3e-6, 400e9
RANKS = 2


def figure(cell):
    return float(cell.replace(",", ""))


def floor_ms(row, ranks):
    """Returns the floor of a row. The row's bytes are those of all ranks together, and the ranks read equal parts of them."""
    read = row["bandwidth_gb_s"] * 1e9 * row["median_decode_latency"] / ranks
    return 1e3 * (read / BANDWIDTH + row["decode_exchanges"] * EXCHANGE_S + row["decode_exchanged_bytes"] / LINK)


def decode_table(directory):
    out = []
    for names, title, part in MODELS:
        one_gpu = Table(PROGRAM, "decode.md", part) if part else None
        for row in (row for name in names for row in rows_of(PROGRAM, directory / f"{name}.jsonl", DECODE)):
            ms = 1e3 * row["median_decode_gpu_latency"]
            shape = f"{row['batch_size']} × {row['input_len']}"
            alone = float(one_gpu.row(shape)["GPU ms"]) if one_gpu else None
            floor = floor_ms(row, RANKS)
            out.append([title, shape, f"{ms:.3f}", f"{row['batch_size'] / ms * 1e3:,.0f}",
                        f"{floor:.2f}", f"{floor / ms:.0%}", f"{alone:.2f}" if alone else "does not fit",
                        f"{alone / ms:.2f}" if alone else ""])
    return table(["model", "batch × context", "GPU ms", "tok/s", "floor ms", "share of floor", "one H200, ms", "ratio"],
                 out) if out else ""


def lone_table(directory):
    out = []
    for row in rows_of(PROGRAM, directory / "lone.jsonl", DECODE):
        ms, exchanges = 1e3 * row["median_decode_gpu_latency"], 1e3 * row["decode_exchange_latency_modelled"]
        out.append([f"{row['batch_size']} × {row['input_len']}", f"{ms:.2f}", f"{exchanges:.2f}", f"{ms + exchanges:.2f}"])
    return table(["batch × context", "GPU ms of the lone rank", "exchanges, modelled, ms", "sum, a projection, ms"], out) if out else ""


def speculation_table(directory):
    """Returns the table of speculation. A lone rank has no exchanges, so their modelled time is added to its steps."""
    out = []
    for name, title in SPECULATIONS:
        steps = {}
        for drafts, fields in ((0, STEP), (3, {**STEP, "accept_length": POSITIVE})):
            for row in rows_of(PROGRAM, directory / f"speculation.{name}.{drafts}.jsonl", fields):
                modelled = row["decode_exchange_latency_modelled"] if name == "lone" else 0
                ms = 1e3 * (row["median_decode_gpu_latency"] + modelled)
                steps.setdefault((row["batch_size"], row["input_len"]), {})[drafts] = (ms, row.get("accept_length", 1.0))
        for (batch, context), found in steps.items():
            if len(found) < 2:
                continue
            (without, _), (ms, tokens) = found[0], found[3]
            out.append([title, f"{batch} × {context}", f"{without:.3f}", f"{ms:.3f}", f"{tokens:.2f}",
                        f"{batch * tokens / ms * 1e3:,.0f}", f"{tokens * without / ms:.2f}"])
    return table(["model", "batch × context", "without: ms a step", "3 drafts: ms a step", "tokens a step", "tok/s", "ratio"],
                 out) if out else ""


def prefill_table(directory):
    out = []
    for name, title in PREFILLS:
        for row in rows_of(PROGRAM, directory / f"{name}.jsonl", PREFILL):
            rate, shape = row["prefill_throughput"], f"{row['batch_size']} × {row['input_len']}"
            one_gpu = figure(Table(PROGRAM, "prefill.md", "prefill").row(title, shape)["tok/s"])
            out.append([title, shape, f"{1e3 * row['prefill_latency']:.1f}", f"{rate:,.0f}",
                        f"{one_gpu:,.0f}", f"{rate / one_gpu:.2f}"])
    return table(["model", "batch × prompt", "ms", "tok/s", "one H200, tok/s", "ratio"], out) if out else ""


def serving_table(directory):
    rows = rows_of(PROGRAM, directory / "serving.jsonl", SERVING)
    one_gpu = Table(PROGRAM, "server.md", "serving")
    out = [[f"{row['max_concurrency']}", f"{row['output_throughput']:,.0f}",
            one_gpu.row(f"{row['max_concurrency']}")["output tok/s"],
            f"{row['median_ttft_ms']:.1f}", f"{row['median_tpot_ms']:.2f}"] for row in rows]
    return table(["concurrency", "output tok/s", "one H200, tok/s", "median TTFT ms", "median TPOT ms"], out) if out else ""


def comm_rows(path):
    """Returns {(collective, bytes): µs} of cuda_comm_bench's table."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        words = line.split()
        if len(words) == 5 and words[1].isdigit():
            found[words[0], int(words[1])] = float(words[2])
    return found


def peer_rows(path):
    """Returns {bytes: [NCCL, one-shot, two-shot, norm, gather, scatter, to-all]} of peers_comm.py's table."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        words = line.split()
        if len(words) == 9 and all(word.replace(".", "", 1).isdigit() for word in words):
            found[int(words[1])] = [float(word) for word in words[2:]]
    return found


def comm_table(directory):
    ours, peers = comm_rows(directory / "comm.txt"), peer_rows(directory / "peers.txt")
    out = []
    for size in sorted({size for name, size in ours if name == "one-shot"}):
        nccl, one, two, norm, gather, scatter, to_all = peers.get(size, [None] * 7)
        best = min((t for t in (nccl, one, two) if t is not None), default=None)
        reduce = min(ours[name, size] for name in ("small", "one-shot", "two-shot") if (name, size) in ours)
        beside = lambda mine, peer: f"{mine:.2f} / " + ("not measured" if peer is None else f"{peer:.2f}")
        out.append([f"{size:,}", beside(reduce, best), beside(ours["norm", size], norm), beside(ours["all-gather", size], gather),
                    beside(ours["reduce-scatter", size], scatter), beside(ours["all-to-all", size], to_all)])
    return table(["bytes a rank", "all-reduce", "all-reduce, residual, norm, FP8", "all-gather", "reduce-scatter", "all-to-all"],
                 out) if out else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, help="--out of bench/run_multi_gpu_h200.sh")
    add_pages_option(parser)
    options = parser.parse_args()
    if not options.directory.is_dir():
        sys.exit(f"{PROGRAM}: {options.directory} is no directory")
    tables = {"decode": decode_table, "prefill": prefill_table, "serving": serving_table, "comm": comm_table, "lone": lone_table,
              "speculation": speculation_table}
    report_parts(PROGRAM, options.directory, PAGE, options.pages,
                 {name: (make(options.directory), None) for name, make in tables.items()})


if __name__ == "__main__":
    main()
