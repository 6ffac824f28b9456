#!/usr/bin/env python3
"""Markdown of what bench/run_h200.sh left in a directory, each row beside its floor (the step's bytes at the card's
read bandwidth) and beside SGLang's figure (bench/peers_h200.json).

    bench/h200_report.py DIR"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = json.loads((ROOT / "bench/peers_h200.json").read_text(encoding="utf-8"))
NAMES = {"lite-bf16": "V2-Lite, bf16", "lite-fp8": "V2-Lite, `--quantization fp8`", "v3-fp8": "V3 cut to six layers, FP8"}


def rows_of(path):
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def shape_of(row):
    return f"{row['batch_size']}x{row['input_len']}"


def decode_table(name, rows):
    peers, distinct = PEERS["decode_ms"][name], PEERS["distinct_experts"].get(name, {})
    out = []
    for row in rows:
        seconds = row.get("median_decode_gpu_latency") or row["median_decode_latency"]
        floor = row["bandwidth_gb_s"] * 1e9 * seconds / (PEERS["bandwidth_tb_s"] * 1e12)
        peer = min(peers[shape_of(row)]) if shape_of(row) in peers else None
        experts = f"{row['distinct_experts']:.1f}"
        if str(row["batch_size"]) in distinct:
            experts += f" ({distinct[str(row['batch_size'])]})"
        out.append([f"{row['batch_size']} × {row['input_len']}", f"{1e3 * seconds:.3f}",
                    f"{1e3 * row['median_decode_latency']:.3f}", f"{row['batch_size'] / seconds:,.0f}",
                    f"{1e3 * floor:.3f}", f"{floor / seconds:.0%}", f"{peer:.3f}" if peer else "not measured",
                    f"{peer / (1e3 * seconds):.2f}" if peer else "", experts])
    header = ["batch × context", "GPU ms", "synchronous ms", "tok/s", "floor ms", "share of floor", "SGLang ms", "ratio",
              "distinct experts (peer)"]
    note = f"\n\n{peers['note']}." if "note" in peers else ""
    return table(header, out) + note


def prefill_table(directory):
    out = []
    for name, title in NAMES.items():
        for row in rows_of(directory / f"prefill.{name}.jsonl"):
            peer = PEERS["prefill_tok_s"][name].get(shape_of(row))
            rate = row["prefill_throughput"]
            out.append([title, f"{row['batch_size']} × {row['input_len']}", f"{1e3 * row['prefill_latency']:.1f}",
                        f"{rate:,.0f}", f"{max(peer):,.0f}" if peer else "not measured",
                        f"{rate / max(peer):.2f}" if peer else ""])
    return table(["model", "batch × prompt", "ms", "tok/s", "SGLang tok/s", "ratio"], out) if out else ""


def serving_table(rows):
    out = []
    for row in rows:
        peer = PEERS["serving"].get(str(row["max_concurrency"]))
        rate = row["output_throughput"]
        out.append([str(row["max_concurrency"]), f"{rate:,.0f}", f"{row['median_ttft_ms']:.0f}",
                    f"{row['median_tpot_ms']:.2f}"] +
                   ([f"{peer['tok_s']:,}, {peer['ttft_ms']}, {peer['tpot_ms']}", f"{rate / peer['tok_s']:.2f}"] if peer
                    else ["not measured", ""]))
    return table(["concurrency", "output tok/s", "median TTFT ms", "median TPOT ms", "SGLang: tok/s, TTFT, TPOT", "ratio"],
                 out)


def ablation_table(directory):
    out = []
    for path in sorted(directory.glob("ablation*.jsonl"), reverse=True):
        for row in rows_of(path):
            flags = row["run_name"][len("ablation"):].replace(".", " --") or "all on"
            out.append([flags, f"{1 / row['median_decode_latency']:.1f}", f"{1e3 * row['median_decode_latency']:.3f}"])
    if not out:
        return ""
    peer = PEERS["ablation_tok_s"]
    return table(["V2-Lite bf16, batch 1, 1k", "tok/s", "synchronous ms"], out) + (
        f"\n\nSGLang: no graph {peer['no graph'][0]}–{peer['no graph'][1]}, graph {peer['graph']}, graph + torch.compile "
        f"{peer['graph + torch.compile']} tok/s.")


def text_sections(directory, pattern):
    parts = []
    for path in sorted(directory.glob(pattern)):
        parts.append(f"`{path.stem}`\n\n```\n{path.read_text(encoding='utf-8', errors='replace').rstrip()}\n```")
    return "\n\n".join(parts)


def main():
    directory = pathlib.Path(sys.argv[1])
    machine = directory / "machine.txt"
    parts = ["# One H200: measured"]
    if machine.is_file():
        ours = machine.read_text(encoding="utf-8").strip() or "an unknown machine"
        parts.append(f"Ours on {ours}. Theirs on {PEERS['machine']}: {PEERS['about']} Floors: bytes of the step at "
                     f"{PEERS['bandwidth_tb_s']} TB/s. Ratio: how many times as fast as SGLang's best.")

    def section(title, text):
        if text:
            parts.append(f"## {title}\n\n{text}")

    for name, title in NAMES.items():
        rows = rows_of(directory / f"{name}.jsonl")
        section(f"Decode: {title}", decode_table(name, rows) if rows else "")
    section("Prefill", prefill_table(directory))
    rows = rows_of(directory / "serving.jsonl")
    section("Server: V2-Lite bf16, 1024 in, 256 out", serving_table(rows) if rows else "")
    section("Ablation", ablation_table(directory))
    if (directory / "start.json").is_file():
        starts = json.loads((directory / "start.json").read_text(encoding="utf-8"))
        rows = [[name, f"{seconds:.1f}", str(PEERS["start_s"]) if "Lite" in name else ""]
                for name, seconds in starts.items()]
        section("Start to ready", table(["model", "s", "SGLang s"], rows))
    section("Operations of a decode step", text_sections(directory, "profile.*.txt"))
    section("Kernels", text_sections(directory, "cuda_*_bench.txt"))
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
