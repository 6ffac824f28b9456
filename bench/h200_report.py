#!/usr/bin/env python3
"""Reports what bench/run_h200.sh measured, as Markdown on standard output or (--pages) in docs/measurements. Each row is shown
beside its floor, which is the step's bytes at the card's read bandwidth, and beside SGLang's figure (bench/peers_h200.json)."""
import argparse
import json
import pathlib
import sys

from report_rows import NAME, NUMBER, OPTIONAL, POSITIVE, ROOT, add_pages_option, machine_of, rows_of, table, write_part

PROGRAM = "bench/h200_report.py"
PEERS = json.loads((ROOT / "bench/peers_h200.json").read_text(encoding="utf-8"))
NAMES = {"lite-bf16": "V2-Lite, bf16", "lite-fp8": "V2-Lite, `--quantization fp8`", "v3-fp8": "V3 cut to six layers, FP8"}
SHAPE = {"batch_size": POSITIVE, "input_len": POSITIVE}
DECODE = {**SHAPE, "median_decode_latency": POSITIVE, "median_decode_gpu_latency": OPTIONAL, "bandwidth_gb_s": POSITIVE,
          "distinct_experts": NUMBER}
PREFILL = {**SHAPE, "prefill_latency": POSITIVE, "prefill_throughput": POSITIVE}
SERVING = {"max_concurrency": POSITIVE, "output_throughput": POSITIVE, "median_ttft_ms": POSITIVE, "median_tpot_ms": POSITIVE}
LARGE_SERVING = {**SERVING, "median_itl_ms": NUMBER, "p99_itl_ms": NUMBER}
ABLATION = {"run_name": NAME, "median_decode_latency": POSITIVE}
LARGE = {f"large-{name}": title for name, title in NAMES.items()}
MIXED = {**DECODE, "long_rows": POSITIVE, "long_input_len": POSITIVE}
V32_FILES = ("", "-mixed", "-16", "-1", "-short", "-prompts")
PAGE_OF = {"v32": "v32.md", **dict.fromkeys([*NAMES, *LARGE, "ablation"], "decode.md"), "prefill": "prefill.md",
           **dict.fromkeys(["serving", "serving-large"], "server.md"), "start": "startup.md"}


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
        for row in rows_of(PROGRAM, directory / f"prefill.{name}.jsonl", PREFILL):
            peer = PEERS["prefill_tok_s"][name].get(shape_of(row))
            rate = row["prefill_throughput"]
            out.append([title, f"{row['batch_size']} × {row['input_len']}", f"{1e3 * row['prefill_latency']:.1f}",
                        f"{rate:,.0f}", f"{max(peer):,.0f}" if peer else "not measured",
                        f"{rate / max(peer):.2f}" if peer else ""])
    return table(["model", "batch × prompt", "ms", "tok/s", "SGLang tok/s", "ratio"], out) if out else ""


def v32_work(row, what):
    """Says what a row of V3.2's table measures; "filled" means that the cache was filled at random."""
    if "long_rows" not in row:
        return f"{what} {row['batch_size']} × {row['input_len']}" + (", filled" if row.get("fill_cache") else "")
    return (f"{what} {row['batch_size'] - row['long_rows']} × {row['input_len']} and "
            f"{row['long_rows']} × {row['long_input_len']}")


def v32_table(directory):
    out, plain, mixed = [], {}, []
    for suffix in V32_FILES:
        decodes = suffix not in ("-short", "-prompts")
        fields = MIXED if suffix == "-mixed" else DECODE if decodes else PREFILL
        rows = [rows_of(PROGRAM, directory / f"v32.{name}{suffix}.jsonl", fields,
                        ["median_decode_gpu_latency"] if decodes else []) for name in ("v3", "v32")]
        field = "median_decode_gpu_latency" if decodes else "prefill_latency"
        for v3, v32 in zip(*rows):
            out.append([v32_work(v3, "decode" if decodes else "prompt"), f"{1e3 * v3[field]:.3f}", f"{1e3 * v32[field]:.3f}",
                        f"{v32[field] / v3[field]:.3f}"])
            if suffix == "":
                plain[shape_of(v3)] = v3[field], v32[field]
            elif suffix == "-mixed":
                mixed.append((v3, v3[field], v32[field]))
    text = table(["work", "V3 ms", "V3.2 ms", "V3.2 / V3"], out) if out else ""
    for row, v3, v32 in mixed:
        if shape_of(row) in plain:
            short_v3, short_v32 = plain[shape_of(row)]
            text += (f"\n\nIf {row['long_rows']} of {row['batch_size']} sequences of {row['input_len']} tokens has {row['long_input_len']} "
                     f"instead, a step of V3.2 takes {v32 / short_v32:.3f} times as long, and one of V3 {v3 / short_v3:.3f} times.")
    return text


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


def large_serving_table(rows):
    out = [[str(row["max_concurrency"]), f"{row['output_throughput']:,.0f}", f"{row['median_ttft_ms']:.0f}",
            f"{row['median_tpot_ms']:.2f}", f"{row['median_itl_ms']:.2f}", f"{row['p99_itl_ms']:.0f}"] for row in rows]
    return table(["concurrency", "output tok/s", "median TTFT ms", "median TPOT ms", "median gap ms", "p99 gap ms"], out)


def ablation_table(directory):
    out = []
    for path in sorted(directory.glob("ablation*.jsonl"), reverse=True):
        for row in rows_of(PROGRAM, path, ABLATION):
            flags = row["run_name"][len("ablation"):].replace(".", " --") or "all on"
            out.append([flags, f"{1 / row['median_decode_latency']:.1f}", f"{1e3 * row['median_decode_latency']:.3f}"])
    if not out:
        return ""
    peer = PEERS["ablation_tok_s"]
    return table(["V2-Lite bf16, batch 1, 1k", "tok/s", "synchronous ms"], out) + (
        f"\n\nSGLang reaches {peer['no graph'][0]}–{peer['no graph'][1]} tok/s without graphs, {peer['graph']} with them, and "
        f"{peer['graph + torch.compile']} with graphs and torch.compile.")


def text_sections(directory, pattern):
    parts = []
    for path in sorted(directory.glob(pattern)):
        parts.append(f"`{path.stem}`\n\n```\n{path.read_text(encoding='utf-8', errors='replace').rstrip()}\n```")
    return "\n\n".join(parts)


def start_table(directory):
    path = directory / "start.json"
    if not path.is_file():
        return ""
    starts = json.loads(path.read_text(encoding="utf-8"))
    return table(["model", "s", "SGLang s"], [[name, f"{seconds:.1f}", str(PEERS["start_s"]) if "Lite" in name else ""]
                                             for name, seconds in starts.items()])


def main():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR", help="where bench/run_h200.sh has written its results")
    add_pages_option(parser)
    options = parser.parse_args()
    directory = options.directory
    if not directory.is_dir():
        sys.exit(f"{PROGRAM}: {directory} is no directory; bench/run_h200.sh makes one")
    machine = machine_of(directory)
    titles, texts = {}, {}
    for name, title in NAMES.items():
        rows = rows_of(PROGRAM, directory / f"{name}.jsonl", DECODE, ["median_decode_gpu_latency"])
        titles[name], texts[name] = f"Decode: {title}", decode_table(name, rows) if rows else ""
    for name, title in NAMES.items():
        rows = rows_of(PROGRAM, directory / f"large.{name}.jsonl", DECODE, ["median_decode_gpu_latency"])
        titles[f"large-{name}"] = f"Decode of large batches: {title}"
        texts[f"large-{name}"] = decode_table(name, rows) if rows else ""
    titles["v32"], texts["v32"] = "V3.2 beside V3, both cut to six layers", v32_table(directory)
    titles["prefill"], texts["prefill"] = "Prefill", prefill_table(directory)
    rows = rows_of(PROGRAM, directory / "serving.jsonl", SERVING)
    titles["serving"], texts["serving"] = "Server: V2-Lite bf16, 1024 in, 256 out", serving_table(rows) if rows else ""
    rows = rows_of(PROGRAM, directory / "serving-large.jsonl", LARGE_SERVING)
    titles["serving-large"] = "Server under many requests: V2-Lite bf16, 256 in, 128 out"
    texts["serving-large"] = large_serving_table(rows) if rows else ""
    titles["ablation"], texts["ablation"] = "Ablation", ablation_table(directory)
    titles["start"], texts["start"] = "Start to ready", start_table(directory)
    if options.pages is not None:
        if not any(texts.values()):
            sys.exit(f"{PROGRAM}: {directory} has no results for the pages; bench/run_h200.sh writes them")
        for name, text in texts.items():
            if text:
                write_part(PROGRAM, options.pages, PAGE_OF[name], name, text, machine, LARGE.get(name))
        return
    parts = ["# One H200: measured"]
    if machine:
        parts.append(f"Ours on {machine}. Theirs on {PEERS['machine']}: {PEERS['about']} Floors: bytes of the step at "
                     f"{PEERS['bandwidth_tb_s']} TB/s. Ratio: how many times as fast as SGLang's best.")
    titles["profile"], texts["profile"] = "Operations of a decode step", text_sections(directory, "profile.*.txt")
    titles["kernels"], texts["kernels"] = "Kernels", text_sections(directory, "cuda_*_bench.txt")
    parts += [f"## {titles[name]}\n\n{text}" for name, text in texts.items() if text]
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
