#!/usr/bin/env python3
"""Evaluates the bundled model on the GPU with each KV-cache format, once with its FP8 weights (W8A8) and once
with the same weights as bfloat16; the bfloat16 weights are also run with --dtype float16. By default all
questions are asked, and each task's score may be at most one in a hundred below the score kept with the
model. With --limit only the first questions of each task are asked; the answers that may be wrong are then
those that the kept score has wrong among all questions, plus one in a hundred of the questions asked.

    HADAL_BINARY=build/cuda-release/hadal tests/cuda/e2e_evals.py [--limit N] [--verbose]
"""
import argparse
import json
import pathlib
import struct
import sys
import tempfile

import gpu_checks as gpu

KV_FORMATS = ("bfloat16", "fp8_e4m3", "fp8_e5m2")
BLOCK = 128


def e4m3(code):
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    return sign * (mantissa / 8 * 2.0 ** -6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


CODES = [e4m3(code) for code in range(256)]


def bf16_tables(scale):
    """Returns two 256-byte tables: the low and the high byte of bfloat16(code · scale), rounded to the nearest even."""
    low, high = bytearray(256), bytearray(256)
    for code, value in enumerate(CODES):
        bits = struct.unpack("<I", struct.pack("<f", value * scale))[0]
        bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16 if value == value else 0x7fc0
        low[code], high[code] = bits & 255, bits >> 8
    return bytes(low), bytes(high)


def widen(codes, shape, scales):
    """Returns e4m3 codes [rows, columns] with one scale per 128 × 128 block as bfloat16 bytes."""
    rows, columns = shape
    blocks = -(-columns // BLOCK)
    out = bytearray(2 * rows * columns)
    tables = {}
    for row in range(rows):
        for block in range(blocks):
            scale = scales[row // BLOCK * blocks + block]
            if scale not in tables:
                tables[scale] = bf16_tables(scale)
            begin, end = row * columns + block * BLOCK, row * columns + min(columns, (block + 1) * BLOCK)
            part = codes[begin:end]
            out[2 * begin:2 * end:2] = part.translate(tables[scale][0])
            out[2 * begin + 1:2 * end:2] = part.translate(tables[scale][1])
    return bytes(out)


def make_bf16_model(directory):
    """Writes the bundled checkpoint with its FP8 blocks multiplied out."""
    tensors, data = {}, {}
    for path in sorted(gpu.TINY.glob("*.safetensors")):
        blob = path.read_bytes()
        begin = 8 + int.from_bytes(blob[:8], "little")
        for name, tensor in json.loads(blob[8:begin]).items():
            if name != "__metadata__":
                tensors[name] = tensor
                data[name] = blob[begin + tensor["data_offsets"][0]:begin + tensor["data_offsets"][1]]
    header, body, offset = {}, [], 0
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        dtype, content = tensor["dtype"], data[name]
        if dtype == "F8_E4M3":
            scales = data[name + "_scale_inv"]
            content = widen(content, tensor["shape"], struct.unpack(f"<{len(scales) // 4}f", scales))
            dtype = "BF16"
        header[name] = {"dtype": dtype, "shape": tensor["shape"], "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
        body.append(content)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (directory / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"".join(body))
    config = json.loads((gpu.TINY / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (directory / name).write_bytes((gpu.TINY / name).read_bytes())
    return directory


def check(model, dtype, kv_format, limit):
    kept = json.loads((gpu.TINY / "eval/scores.json").read_text(encoding="utf-8"))["kv_bfloat16"]
    questions = sorted((gpu.TINY / "eval").glob("*.jsonl"))
    scores = json.loads(gpu.run(gpu.HADAL, "eval", "--model-path", model, *gpu.GPU, "--max-total-tokens", 131072, "--data",
                                *questions, *limit, "--dtype", dtype, "--kv-cache-dtype", kv_format, "--json", timeout=900))
    assert set(scores["tasks"]) == set(kept), set(scores["tasks"]) ^ set(kept)
    short = []
    for task, score in scores["tasks"].items():
        # The kept scores count the CPU's mistakes among all questions. With --limit the bound therefore also
        # allows the mistakes that come after the limit, so the check never fails merely because the first questions are harder.
        allowed = kept[task]["total"] - kept[task]["correct"] + max(1, score["total"] // 100)
        if score["total"] - score["correct"] > allowed:
            short.append(f"{task} {score['correct']} of {score['total']}")
    assert not short, f"{', '.join(short)}; kept: {kept}"
    return f"{scores['all']['correct']} of {scores['all']['total']}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, help="questions a task; all otherwise")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hadal-gpu-evals-") as directory:
        widened = make_bf16_model(pathlib.Path(directory))
        limit = ("--limit", options.limit) if options.limit else ()
        checks = [(f"{name} weights, {kv_format} cache",
                   lambda model=model, kv_format=kv_format: check(model, "auto", kv_format, limit))
                  for name, model in (("FP8", gpu.TINY), ("bfloat16", widened)) for kv_format in KV_FORMATS]
        checks.append(("float16 weights and cache", lambda: check(widened, "float16", "auto", limit)))
        return gpu.main(checks, workers=2)


if __name__ == "__main__":
    sys.exit(main())
