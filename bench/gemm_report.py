#!/usr/bin/env python3
"""Reports what bench/run_gemm_h200.sh measured, as Markdown: every row with all its figures on standard
output, or (--pages) each row beside the fastest peer of each kind in docs/measurements. The report's last
line says how many goals are reached and how many rows are slower than each peer."""
import argparse
import pathlib
import sys

from report_rows import (FIGURES, FLAG, NAME, NUMBER, OPTIONAL, POSITIVE, TIMES, VERDICT, add_pages_option,
                         geometric_mean, goal, machine_of, rows_of, table, write_part)

PROGRAM = "bench/gemm_report.py"
FIELDS = {"kind": NAME, "groups": POSITIVE, "m": POSITIVE, "n": POSITIVE, "k": POSITIVE, "us": POSITIVE, "mhz": NUMBER,
          "bytes": POSITIVE, "flop": POSITIVE, "floor_us": POSITIVE, "stored_us": OPTIONAL, "peers": TIMES,
          "more": FIGURES, "library": FLAG, "value": NUMBER, "reach": NUMBER, "aim": NUMBER, "unit": NAME, "verdict": VERDICT}
# The kinds of rows, with their headings. gemm_peers.py describes the peers.
SECTIONS = {"fp8": "FP8, scales of 128 × 128 and 1 × 128", "bf16": "bf16", "int8": "INT8, scales of rows and channels (torch's product: int32 sums without scales)",
            "grouped_fp8": "Grouped experts, FP8",
            "absorb_query_bf16": "Absorbed: q · W_UK, bf16 weights", "absorb_query_fp8": "Absorbed: q · W_UK, FP8 weights",
            "expand_value_bf16": "Absorbed: o · W_UV, bf16 weights", "expand_value_fp8": "Absorbed: o · W_UV, FP8 weights, to FP8 rows",
            "moe_v3_fp8": "Experts of V3 at TP8, FP8: router, gate, 256 of 256 × 7168 (top 8) and a shared one, sum and norm",
            "moe_v2_bf16": "Experts of V2-Lite, bf16: router, gate, 64 of 1408 × 2048 (top 6) and two shared ones, sum and norm"}
ABSORBED = ("absorb_", "expand_")  # prefixes of their kinds
EXPERT_KINDS = ("grouped_fp8", "moe_v3_fp8", "moe_v2_bf16")  # on a separate page
DIRECT = "cublaslt"  # table_rows.h's kDirectLibrary
STAGES = ("router", "route", "permute", "gate_up", "activation", "down")


def fastest(row, of):
    """Returns the shortest time of the peers for which of(name) is true; None if there is none."""
    return min((us for name, us in row["peers"].items() if of(name)), default=None)


def deep_gemm_us(row):
    """Returns the time of DeepGEMM with which a row is compared: the best time of the same run, including the transpose of the
    scales that its users need; if there is none, the stored time; if there is neither, None."""
    same_run = fastest(row, lambda name: name.startswith("deepgemm") and not name.endswith("_bare"))
    return row["stored_us"] if same_run is None else same_run


def bare_us(row):
    return fastest(row, lambda name: name.startswith("deepgemm") and name.endswith("_bare"))


def torch_us(row):
    return fastest(row, lambda name: not name.startswith(("deepgemm", "scaled_mm", DIRECT)) and not name.endswith("_dense"))


def library_us(row):
    """Returns torch's time; None if ours is the library's own kernel."""
    return None if row["library"] else torch_us(row)


def direct_us(row):
    return row["peers"].get(DIRECT)


def coarse_us(row):
    return fastest(row, lambda name: name.startswith("scaled_mm"))


# Rows are compared with these peers. If a row has several of one kind, the fastest counts.
RIVALS = {"DeepGEMM": deep_gemm_us, "DeepGEMM's kernel alone": bare_us, "a library's same product": library_us,
          "cuBLASLt called directly": direct_us, "torch's FP8 of coarser scales": coarse_us}


def shape_of(row):
    if row["kind"].startswith("moe_"):
        return f"{row['m']}"
    if row["kind"].startswith(ABSORBED):
        return f"{row['m']} × {row['groups']} heads"
    return " × ".join(str(row[name]) for name in ("groups", "m", "n", "k") if name != "groups" or row["groups"] > 1)


def time_of(us):
    return f"{us:.2f}" if us < 100.0 else f"{us:.1f}"


def compared(us, row):
    """Returns a peer's time and its ratio to ours, in bold if ours is longer, unless ours is the library's own kernel."""
    ratio = us / row["us"]
    text = f"{time_of(us)} ({ratio:.3f})" if abs(ratio - 1) < 0.005 else f"{time_of(us)} ({ratio:.2f})"
    return text if us >= row["us"] or row["library"] else f"**{text}**"


def verdict(row):
    return " ".join(filter(None, [goal(row), "the library's own kernel" if row["library"] else ""]))


def stages_of(row):
    """Returns the time that each kernel adds to the chain; the last cell is that of the sum and norm."""
    cells, before = [], 0.0
    for name in STAGES:
        until = row["more"].get(f"us_to_{name}")
        cells.append("" if until is None else f"{until - before:.1f}")
        before = before if until is None else until
    return [*cells, f"{row['us'] - before:.1f}" if before else ""]


def section(kind, rows):
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    is_moe = kind.startswith("moe_")
    has_stored = any(row["stored_us"] for row in rows)
    has_cosine = any("cosine" in row["more"] for row in rows)
    has_bf16 = any("us_to_bf16" in row["more"] for row in rows)
    has_stages = any(f"us_to_{STAGES[0]}" in row["more"] for row in rows)
    is_absorbed = kind.startswith(ABSORBED)
    is_grouped = kind == "grouped_fp8"
    head = ["tokens" if is_moe else "m × heads" if is_absorbed else "groups × m × n × k" if is_grouped else "m × n × k"]
    head += (["experts hit"] if is_moe else []) + ["µs", "floor µs", "of the ceiling", "TB/s", "TFLOP/s", "MHz"]
    head += (["DeepGEMM µs, stored"] if has_stored else []) + [f"{name} µs" for name in peers]
    head += (["to bf16 µs"] if has_bf16 else []) + (["cosine", "of the original"] if has_cosine else []) + ["verdict: measured (reach, aim)"]
    head += [*(name.replace("_", " ") for name in STAGES), "sum and norm"] if has_stages else []
    lines = []
    for row in rows:
        cells = [shape_of(row)] + ([f"{row['more'].get('hit', 0.0):.1f}"] if is_moe else [])
        cells += [time_of(row["us"]), time_of(row["floor_us"]), f"{100 * row['floor_us'] / row['us']:.0f}%",
                  f"{row['bytes'] / row['us'] * 1e-6:.2f}", f"{row['flop'] / row['us'] * 1e-6:.0f}", f"{row['mhz']:.0f}"]
        cells += [f"{row['stored_us']:.1f}" if row["stored_us"] else ""] if has_stored else []
        cells += [compared(row["peers"][name], row) if name in row["peers"] else "" for name in peers]
        cells += [time_of(row["more"]["us_to_bf16"])] if has_bf16 else []
        cells += [f"{row['more'].get(name, 0.0):.6f}" for name in ("cosine", "cosine_of_original")] if has_cosine else []
        lines.append(cells + [verdict(row)] + (stages_of(row) if has_stages else []))
    return f"## {SECTIONS[kind]}\n\n" + table(head, lines)


def short_section(kind, rows):
    """Returns the table of a page, with the fastest peer of each kind."""
    is_moe = kind.startswith("moe_")
    rivals = {} if is_moe else {"DeepGEMM": deep_gemm_us, "its kernel alone": bare_us, "torch": torch_us,
                                "cuBLASLt directly": direct_us, "torch, coarser scales": coarse_us}
    rivals = {name: us for name, us in rivals.items() if any(us(row) for row in rows)}
    has_rate = is_moe or "DeepGEMM" in rivals
    head = ["tokens", "experts hit"] if is_moe else ["rows"]
    head += ["µs", "floor µs"] + (["times the floor"] if is_moe else []) + (["TFLOP/s"] if has_rate else [])
    head += [f"{name} µs" for name in rivals] + ["verdict (reach, aim)"]
    lines = []
    for row in rows:
        cells = [shape_of(row)] + ([f"{row['more'].get('hit', 0.0):.1f}"] if is_moe else [])
        cells += [time_of(row["us"]), time_of(row["floor_us"])]
        cells += ([f"{row['us'] / row['floor_us']:.2f}"] if is_moe else [])
        cells += [f"{row['flop'] / row['us'] * 1e-6:,.0f}"] if has_rate else []
        cells += [compared(us(row), row) if us(row) else "" for us in rivals.values()]
        lines.append(cells + [verdict(row).replace(" us", " µs").replace("x the", "× the").replace("x Deep", "× Deep")])
    return table(head, lines)


def short_absorbed(rows):
    """Returns one table of all absorbed products: our times, and those of torch's bmm in bf16, both with output rows like ours
    and head by head. bmm's times are taken from the row of bf16 weights. One of our times is bold if bmm was faster in its row."""
    found = {}
    for row in rows:
        found.setdefault((row["groups"], row["m"]), {})[row["kind"]] = row

    def cells(of, product):
        bf16, fp8 = (of.get(f"{product}_{name}") for name in ("bf16", "fp8"))
        own = [(bf16, "us"), (fp8, "us")]
        if product == "expand_value":
            own.insert(1, (fp8, "us_to_bf16"))
        texts = []
        for row, name in own:
            us = row and (row["us"] if name == "us" else row["more"].get(name))
            is_slower = us and row["peers"].get("bmm", us) < us
            texts.append("" if not us else f"**{time_of(us)}**" if is_slower else time_of(us))
        peers = (bf16 or fp8 or {"peers": {}})["peers"]
        return texts + [time_of(peers[name]) if name in peers else "" for name in ("bmm", "bmm_dense")]

    head = ["tokens × heads", "q · W_UK µs", "FP8", "bmm", "bmm, head by head", "o · W_UV µs", "FP8", "FP8 to FP8 rows", "bmm",
            "bmm, head by head"]
    return table(head, [[f"{m} × {heads}", *cells(of, "absorb_query"), *cells(of, "expand_value")]
                                                        for (heads, m), of in sorted(found.items())])


def slower_of(rows, peer_us):
    """Returns (slower rows, rows, geometric mean of ratios) in comparison with a peer."""
    ratios = [peer_us(row) / row["us"] for row in rows if peer_us(row)]
    return sum(ratio < 1.0 for ratio in ratios), len(ratios), geometric_mean(ratios)


def summary(rows):
    """Returns one line per section: goals, and for each peer the number of slower rows, the number of rows and the mean ratio."""
    rivals = [name for name, us in RIVALS.items() if any(us(row) for row in rows)]
    lines = []
    for kind, heading in SECTIONS.items():
        found = [row for row in rows if row["kind"] == kind]
        if not found:
            continue
        verdicts = [row["verdict"] for row in found if row["verdict"]]
        cells = [heading.split(":")[0] if kind.startswith("moe_") else heading,
                 f"{sum(v != 'missed' for v in verdicts)} of {len(verdicts)}" if verdicts else ""]
        for name in rivals:
            slower, beside, mean = slower_of(found, RIVALS[name])
            cells.append(f"{slower} of {beside} slower, {mean:.2f}" if beside else "")
        lines.append(cells)
    return table(["", "goals", *rivals], lines)


def main():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR",
                        help="where bench/run_gemm_h200.sh has written gemm.jsonl, moe.jsonl and machine.txt")
    add_pages_option(parser)
    options = parser.parse_args()
    directory = options.directory
    rows = []
    for name in ("gemm.jsonl", "moe.jsonl"):
        path = directory / name
        if not path.is_file():
            sys.exit(f"{PROGRAM}: {path} is missing; bench/run_gemm_h200.sh writes it")
        found = rows_of(PROGRAM, path, FIELDS)
        if not found:
            sys.exit(f"{PROGRAM}: {path} is empty")
        for row in found:
            if row["kind"] not in SECTIONS:
                sys.exit(f"{PROGRAM}: {path}: 'kind' is '{row['kind']}', not one of {', '.join(SECTIONS)}")
        rows += found
    machine = machine_of(directory)
    if options.pages is not None:
        write_pages(rows, options.pages, machine)
        return
    parts = ["# Matrix products and experts on one H200"]
    if machine:
        parts.append(f"This was measured on {machine}. Ceilings: 4.39 TB/s read, 805 TFLOP/s bf16, 1,529 FP8, 1,633 INT8; the floor is what "
                     "bytes or operations need at them, whichever takes longer. The number after a peer's time says how many times ours it is.")
    same_run = any(name.startswith("deepgemm") for row in rows for name in row["peers"])
    if any(us(row) for us in RIVALS.values() for row in rows):
        parts.append(f"DeepGEMM is {'of the same run' if same_run else 'stored'}, with the transpose of the activations' scales "
                     "that its users need; its kernel alone has a column of its own. torch's FP8 products scale tensors or rows, "
                     "not blocks, which is less work. A library's same product is torch's; cuBLASLt called directly (INT8) leaves "
                     "int32 sums too, by the fastest of its heuristic's algorithms. A cell has how many rows are slower than "
                     "the fastest of them, and the geometric mean of the ratios. Figures are medians of three rounds, in each of "
                     "which all are timed in turn.")
    parts.append(summary(rows))
    if any(row["kind"].startswith("moe_") for row in rows):
        parts.append("Experts are measured from the router to the next norm, as in an engine's layer; after the verdict come the times that "
                     "each kernel adds to those before it. Triton's fused experts are not measured, because torch has none.")
    parts += [section(kind, found) for kind in SECTIONS if (found := [row for row in rows if row["kind"] == kind])]
    parts.append(last_line(rows))
    print("\n\n".join(parts))


def last_line(rows):
    verdicts = [row["verdict"] for row in rows if row["verdict"]]
    last = f"{sum(v != 'missed' for v in verdicts)} of {len(verdicts)} goals are reached, {verdicts.count('aim')} of them at the aim"
    counts = []
    for name, us in RIVALS.items():
        slower, beside, _ = slower_of(rows, us)
        if beside:
            counts.append(f"{slower} of {beside} are slower than {name}")
    own = sum(row["library"] for row in rows)
    if counts and own:
        counts[-1] += f"; {own} rows of the library's own kernel are not counted"
    return f"{last}. Slower rows: {', '.join(counts)}." if counts else f"{last}."


def write_pages(rows, pages, machine):
    write_part(PROGRAM, pages, "gemm.md", "gemm-summary", last_line(rows), machine)
    absorbed = [row for row in rows if row["kind"].startswith(ABSORBED)]
    if absorbed:
        write_part(PROGRAM, pages, "gemm.md", "absorbed", short_absorbed(absorbed), machine)
    for kind in SECTIONS:
        found = [row for row in rows if row["kind"] == kind and row not in absorbed]
        if found:
            write_part(PROGRAM, pages, "experts.md" if kind in EXPERT_KINDS else "gemm.md", kind, short_section(kind, found), machine)


if __name__ == "__main__":
    main()
