#!/usr/bin/env python3
"""Writes the short tables of docs/performance.md and README.md from the tables of docs/measurements, so that
no figure has to be copied by hand. Run it after a report's --pages. With --check it changes nothing, and says
which table is not up to date."""
import argparse
import re
import sys

from report_rows import ROOT, Table, part_of, replaced_part, table

PROGRAM = "bench/summary.py"
DECODE = (("lite-bf16", "V2-Lite, bf16"), ("lite-fp8", "V2-Lite, `--quantization fp8`"), ("v3-fp8", "V3 cut to six of 61 layers, FP8"))


def pair(cell):
    """Returns ("8.0", "2.79") of "8.0 (2.79)"."""
    return re.fullmatch(r"(\S+) \((\S+)\)", cell).groups()


def decode():
    rows = []
    for part, model in DECODE:
        measured, large = Table(PROGRAM, "decode.md", part), Table(PROGRAM, "decode.md", f"large-{part}")
        for batch in (1, 16, 64, 128, 512):
            if batch > 128 and not large.rows:
                continue
            row = (measured if batch <= 128 else large).row(f"{batch} × 1024")
            rows.append([model if batch == 1 else "", str(batch), row["GPU ms"], row["tok/s"], row["share of floor"], row["SGLang ms"],
                         row["ratio"]])
    return table(["model", "batch", "ms per step", "tok/s", "share of the floor", "SGLang ms", "ratio"], rows)


def prefill():
    measured = Table(PROGRAM, "prefill.md", "prefill")
    rows = [measured.row(*shape) for shape in (("V2-Lite, bf16", "1 × 4096"), ("V2-Lite, `--quantization fp8`", "1 × 4096"),
                                               ("V3 cut to six layers, FP8", "1 × 4096"), ("V3 cut to six layers, FP8", "4 × 4096"))]
    return table(["model", "prompts", "ms", "tok/s", "SGLang tok/s", "ratio"],
                 [[row["model"], row["batch × prompt"].split()[0], row["ms"], row["tok/s"], row["SGLang tok/s"], row["ratio"]]
                  for row in rows])


def server():
    measured, large = Table(PROGRAM, "server.md", "serving"), Table(PROGRAM, "server.md", "serving-large")
    columns = ["concurrency", "output tok/s", "median TTFT ms", "median TPOT ms"]
    rows = []
    for of, lengths in ((measured, "1,024 in, 256 out"), (large, "256 in, 128 out")):
        for i, cells in enumerate(of.rows):
            row = of.row(cells[0])
            rows.append(["" if i else lengths, *(row[name] for name in columns), row.get("ratio", "")])
    return table(["tokens", *columns, "ratio of tok/s to SGLang"], rows)


def kernels():
    rows = []
    for i, (heads, batch) in enumerate((("16", "1"), ("16", "128"), ("128", "128"))):
        us, ratio = pair(Table(PROGRAM, "mla.md", "mla-flash-mla").row(heads, "1", "4096")[f"batch {batch}"])
        rows.append(["" if i else "MLA decode, bf16, batch × q × keys", f"{batch} × 1 × 4096, {heads} heads", us, "FlashMLA", ratio])
    row = Table(PROGRAM, "mla.md", "mla-prefill").row("1 × 4096", "128")
    rows.append(["attention of a prompt, bf16", "1 × 4096, 128 heads", row["µs"], "cuDNN", row["ratio"]])
    for i, shape in enumerate(("1 × 2112 × 7168", "64 × 4096 × 7168", "4096 × 7168 × 16384", "4096 × 4096 × 7168")):
        row = Table(PROGRAM, "gemm.md", "fp8").row(shape)
        rows.append(["" if i else "FP8 product, m × n × k", shape, row["µs"], "DeepGEMM", pair(row["DeepGEMM µs"])[1]])
    row = Table(PROGRAM, "gemm.md", "bf16").row("1 × 2048 × 2048")
    rows.append(["bf16 product", "1 × 2048 × 2048", row["µs"], "torch", pair(row["torch µs"])[1]])
    row = Table(PROGRAM, "experts.md", "grouped_fp8").row("32 × 128 × 4096 × 7168")
    rows.append(["32 experts, FP8, rows × n × k", "128 × 4096 × 7168", row["µs"], "DeepGEMM", pair(row["DeepGEMM µs"])[1]])
    row = Table(PROGRAM, "experts.md", "moe_v3_fp8").row("16")
    rows.append(["a layer's experts, V3 at TP 8, FP8", "16 tokens", row["µs"], "the floor", f"{row['times the floor']} times it"])
    return table(["kernel", "shape", "µs", "peer", "ratio"], rows)


def cpu():
    large = Table(PROGRAM, "cpu.md", "V2-Lite's dimensions cut to 9 layers (5.2 B parameters, 10.4 GB in bf16)")
    small = Table(PROGRAM, "cpu.md", "Small model (hidden 512, 8 layers, 8 heads, 16 experts of 256 top-4, vocabulary 8192; 156 MB in bf16)")
    rows = []
    for name, measured, works in (("9 layers", large, ("decode, batch 1, empty context", "decode, batch 1, 1k context", "prefill 512")),
                                  ("small", small, ("decode, batch 1, 1k context", "decode, batch 16"))):
        for work in works:
            row = measured.row(work)
            rows.append([f"{name}: {work}", row["Hadal, tok/s"], row["llama.cpp, tok/s"].split()[0],
                         row["ratio" if "ratio" in row else "ratio to the better"]])
    return table(["work", "Hadal tok/s", "llama.cpp tok/s", "ratio"], rows)


def results():
    """Returns the README's six rows."""
    def page(name):
        return f"[{name}](docs/measurements/{name}.md)"

    one = Table(PROGRAM, "decode.md", "lite-bf16").row("1 × 1024")
    v3 = Table(PROGRAM, "decode.md", "v3-fp8").row("64 × 1024")
    served = Table(PROGRAM, "server.md", "serving").row("64")
    mean = re.search(r"Beside FlashMLA \d+ of (\d+) rows are slower;\s+the geometric mean of the\s+ratios is ([\d.]+),",
                     part_of(PROGRAM, "mla.md", "mla-summary"))
    product = Table(PROGRAM, "gemm.md", "fp8").row("64 × 4096 × 7168")
    cores = Table(PROGRAM, "cpu.md", "V2-Lite's dimensions cut to 9 layers (5.2 B parameters, 10.4 GB in bf16)").row("decode, batch 1, 1k context")
    theirs, ratio = pair(product["DeepGEMM µs"])
    return table(["work", "machine", "Hadal", "peer", "ratio", "page"], [
        ["V2-Lite bf16, decode, batch 1, 1k context", "H200", f"{one['GPU ms']} ms", f"SGLang, {one['SGLang ms']} ms", one["ratio"],
         page("decode")],
        ["V3 FP8 (six layers), decode, batch 64, 1k context", "H200", f"{v3['GPU ms']} ms", f"SGLang, {v3['SGLang ms']} ms", v3["ratio"],
         page("decode")],
        ["V2-Lite bf16, server, 64 requests at once", "H200", f"{served['output tok/s']} tok/s",
         f"SGLang, {served['SGLang: tok/s, TTFT, TPOT'].split(', ')[0]} tok/s", served["ratio"], page("server")],
        [f"MLA decode bf16, geometric mean of {mean.group(1)} shapes", "H200", "", "FlashMLA", mean.group(2), page("mla")],
        ["FP8 product with block scales, 64 × 4096 × 7168", "H200", f"{product['µs']} µs", f"DeepGEMM, {theirs} µs", ratio, page("gemm")],
        ["V2-Lite bf16 (9 layers), decode, batch 1, 1k context", "two CPU cores", f"{cores['Hadal, tok/s']} tok/s",
         f"llama.cpp, {cores['llama.cpp, tok/s'].split()[0]} tok/s", cores["ratio"], page("cpu")]])


def main():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for name, parts in (("docs/performance.md", {"decode": decode, "prefill": prefill, "server": server, "kernels": kernels, "cpu": cpu}),
                        ("README.md", {"results": results})):
        path = ROOT / name
        text = old = path.read_text(encoding="utf-8")
        for part, make in parts.items():
            new = replaced_part(PROGRAM, path, text, part, make(), "writes this part")
            if new != text:
                stale.append(f"{name}: the table '{part}' is not that of docs/measurements; {PROGRAM} writes it")
            text = new
        if text != old and not options.check:
            path.write_text(text, encoding="utf-8")
    if options.check and stale:
        sys.exit("\n".join(stale))


if __name__ == "__main__":
    main()
