#!/usr/bin/env python3
"""Reports what bench/run_mla_h200.sh measured, as Markdown: every row with all its figures on standard
output, or (--pages) the goals, a comparison with FlashMLA by batch size and number of keys, and prefill in
docs/measurements."""
import argparse
import pathlib
import sys

from report_rows import (FLAG, NAME, NUMBER, OPTIONAL, POSITIVE, add_pages_option, geometric_mean, goal, machine_of, rows_of,
                         table, write_part)

PROGRAM = "bench/mla_report.py"

# Each (heads, sequences, tokens) of un-absorbed prefill has the reach, as a multiple of cuDNN's speed, and the aim, as
# (multiple of cuDNN's speed, TFLOP/s).
PREFILL_GOALS = {(128, 1, 4096): (1.0, None, 680), (128, 1, 8192): (1.0, None, 680), (128, 8, 4096): (1.0, None, 680),
                 (16, 1, 1024): (1.1, 1.5, None), (16, 1, 4096): (1.1, 1.5, None)}
BF16_TFLOPS = 805

DECODE_FIELDS = {"format": NAME, "batch": POSITIVE, "q_len": POSITIVE, "keys": POSITIVE, "heads": POSITIVE, "ragged": FLAG,
                 "us": POSITIVE, "first_us": NUMBER, "plan_us": NUMBER, "tb_s": NUMBER, "tflop_s": NUMBER, "ceiling": NUMBER,
                 "flash_mla_us": OPTIONAL, "value": NUMBER, "reach": NUMBER, "aim": NUMBER, "unit": NAME, "verdict": NAME,
                 "mhz": NUMBER, "peer_us": OPTIONAL}
PREFILL_FIELDS = {"heads": POSITIVE, "tokens": POSITIVE, "us": POSITIVE, "tflops": NUMBER, "sequences": POSITIVE,
                  "implementation": NAME}
NOT_EVERYWHERE = ("mhz", "peer_us", "sequences", "implementation")


def flash_us(row):
    """Returns FlashMLA's time for a row's ratio: the time of the same run if there is one, else the stored one."""
    return row.get("peer_us") or row["flash_mla_us"]


def flash_cells(row, is_beside):
    cells = [f"{row['flash_mla_us']:.1f}" if row["flash_mla_us"] else ""]
    if is_beside:
        cells.append(f"{row['peer_us']:.1f}" if row.get("peer_us") else "")
    return cells


def flash_head(is_beside):
    return ["FlashMLA µs, stored", "FlashMLA µs, same run"] if is_beside else ["FlashMLA µs"]


def decode_table(rows, is_beside):
    return table(["batch × q × keys", "heads", "µs", "first layer µs", "TB/s", "TFLOP/s", "of the ceiling", "MHz", "plan µs",
                  *flash_head(is_beside), "ratio", "verdict: measured (reach, aim)"],
                 [[f"{r['batch']} × {r['q_len']} × {r['keys']}" + (" ragged" if r["ragged"] else ""), str(r["heads"]),
                   f"{r['us']:.1f}", f"{r['first_us']:.1f}", f"{r['tb_s']:.2f}", f"{r['tflop_s']:.0f}",
                   f"{100 * r['ceiling']:.0f}%", f"{r.get('mhz', 0):.0f}", f"{r['plan_us']:.1f}", *flash_cells(r, is_beside),
                   f"{flash_us(r) / r['us']:.2f}" if flash_us(r) else "", goal(r)] for r in rows])


def goals_table(rows, is_beside):
    return table(["decode", "batch × q × keys", "heads", "µs", "of the ceiling", *flash_head(is_beside),
                  "verdict: measured (reach, aim)"],
                 [[r["format"], f"{r['batch']} × {r['q_len']} × {r['keys']}" + (" ragged" if r["ragged"] else ""),
                   str(r["heads"]), f"{r['us']:.1f}", f"{100 * r['ceiling']:.0f}%", *flash_cells(r, is_beside), goal(r)]
                  for r in rows if r["verdict"] and r["unit"] != "x FlashMLA"])


def flash_mla_table(rows):
    """Returns every row on which FlashMLA was measured: µs, and in brackets the speed relative to FlashMLA."""
    rows = [r for r in rows if flash_us(r)]
    batches = sorted({r["batch"] for r in rows})
    cells = {}
    for r in rows:
        ratio = flash_us(r) / r["us"]
        text = f"{r['us']:.1f} ({ratio:.2f})"
        cells.setdefault((r["heads"], r["q_len"], r["keys"]), {})[r["batch"]] = text if ratio >= 1.0 else f"**{text}**"
    return table(["heads", "q", "keys"] + [f"batch {b}" for b in batches],
                 [[str(n) for n in key] + [found.get(b, "") for b in batches] for key, found in sorted(cells.items())])


def prefill_table(rows):
    """Returns the table and the verdicts."""
    times = {}
    for row in rows:
        key = (row["heads"], row.get("sequences", 1), row["tokens"])
        times.setdefault(key, {})[row.get("implementation", "hadal")] = row
    out, verdicts = [], []
    for key, found in times.items():
        if "hadal" not in found:
            continue
        own, peer = found["hadal"], found.get("cudnn")
        ratio = peer["us"] / own["us"] if peer else None
        said = ""
        if key in PREFILL_GOALS and ratio:
            reach, aim, aim_tflops = PREFILL_GOALS[key]
            at_aim = ratio >= aim if aim else own["tflops"] >= aim_tflops
            verdict = "missed" if ratio < reach else "aim" if at_aim else "reach"
            verdicts.append(verdict)
            said = f"{'**missed**' if verdict == 'missed' else verdict} ({reach}, " + \
                   (f"{aim})" if aim else f"{aim_tflops} TFLOP/s)")
        out.append([f"{key[1]} × {key[2]}", str(key[0]), f"{own['us']:.1f}", f"{own['tflops']:.0f}",
                    f"{100 * own['tflops'] / BF16_TFLOPS:.0f}%"] +
                   ([f"{peer['us']:.1f}", f"{peer['tflops']:.0f}", f"{ratio:.2f}"] if peer else ["", "", ""]) + [said])
    return table(["sequences × tokens", "heads", "µs", "TFLOP/s", "of the ceiling", "cuDNN µs", "cuDNN TFLOP/s", "ratio",
                  "verdict (reach, aim)"], out), verdicts


def slower_of(ratios):
    return f"{sum(ratio < 1.0 for ratio in ratios)} of {len(ratios)} rows are slower"


def summary(decode, verdicts):
    """Returns paragraphs that compare decode with FlashMLA and count the goals reached. verdicts: those of all rows."""
    parts = []
    beside = [r for r in decode if flash_us(r)]
    if beside:
        ratios = [flash_us(r) / r["us"] for r in beside]
        others = [flash_us(r) / r["us"] for r in beside if r["unit"] == "x FlashMLA"]
        parts.append(f"Beside FlashMLA {slower_of(ratios)}; the geometric mean of the ratios is {geometric_mean(ratios):.2f}, "
                     f"and {geometric_mean(others):.2f} over the {len(others)} rows that have no goal of their own (reach 1.35, "
                     "aim 1.6).")
        first = [flash_us(r) / r["first_us"] for r in beside if r["first_us"] > 0]
        if first:
            parts.append(f"With inputs that are not settled, as in a step's first layer, {slower_of(first)} and the geometric "
                         f"mean is {geometric_mean(first):.2f}.")
    same_run = [r for r in decode if r.get("peer_us") and r["flash_mla_us"]]
    if same_run:
        slower = sum(r["flash_mla_us"] < r["us"] for r in same_run)
        drift = geometric_mean([r["peer_us"] / r["flash_mla_us"] for r in same_run])
        which = f"{slower} rows are" if slower > 1 else "one row is" if slower else "no row is"
        parts.append(f"FlashMLA was measured in the same run, row by row in turn, and the ratios are of those times. They are "
                     f"{drift:.2f} times the stored ones (geometric mean); compared with the stored times, {which} slower.")
    if verdicts:
        as_fast = [r["verdict"] for r in decode if r["verdict"] and r["unit"] == "x FlashMLA"]
        reached, reached_as_fast = (sum(v != "missed" for v in some) for some in (verdicts, as_fast))
        split = f": {reached - reached_as_fast} of the {len(verdicts) - len(as_fast)} rows with a goal of their own, and " \
                f"{reached_as_fast} of the {len(as_fast)} rows that need only be as fast as FlashMLA" if as_fast else ""
        parts.append(f"Goals reached: {reached} of {len(verdicts)}, {verdicts.count('aim')} of them at the aim{split}.")
    return parts


def main():
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR",
                        help="where bench/run_mla_h200.sh has written decode.jsonl, prefill.jsonl and machine.txt")
    add_pages_option(parser)
    options = parser.parse_args()
    directory = options.directory
    if not (directory / "decode.jsonl").is_file():
        sys.exit(f"{PROGRAM}: {directory / 'decode.jsonl'} is missing; bench/run_mla_h200.sh writes it")
    decode = rows_of(PROGRAM, directory / "decode.jsonl", DECODE_FIELDS, NOT_EVERYWHERE)
    if not decode:
        sys.exit(f"{PROGRAM}: {directory / 'decode.jsonl'} is empty")
    prefill = rows_of(PROGRAM, directory / "prefill.jsonl", PREFILL_FIELDS, NOT_EVERYWHERE)
    machine = machine_of(directory)
    text, prefill_verdicts = prefill_table(prefill)
    said = summary(decode, [r["verdict"] for r in decode if r["verdict"]] + prefill_verdicts)
    is_beside = any(r.get("peer_us") and r["flash_mla_us"] for r in decode)
    if options.pages is not None:
        for name, part in (("mla-summary", "\n\n".join(said)), ("mla-goals", goals_table(decode, is_beside)),
                           ("mla-flash-mla", flash_mla_table(decode)), ("mla-prefill", text if prefill else "")):
            if part:
                write_part(PROGRAM, options.pages, "mla.md", name, part, machine)
        return
    parts = ["# MLA attention on one H200"]
    if machine:
        parts.append(f"This was measured on {machine}. Ceilings: 4.39 TB/s read, 805 TFLOP/s bf16, 1,529 FP8; a row's share is the larger one.")
    parts += said
    for name in dict.fromkeys(r["format"] for r in decode):
        parts.append(f"## Decode, {name}\n\n" + decode_table([r for r in decode if r["format"] == name], is_beside))
    if prefill:
        parts.append("## Prefill, causal, qk 192, v 128, bf16\n\n" + text)
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
