#!/usr/bin/env python3
"""Measures FlashMLA's dense decoding and cuda_mla_bench in one run, row by row in turn, so that a card that is hot or slow
affects both.

    bench/cuda/mla_flash_mla.py --beside build/cuda-release/bench/cuda/cuda_mla_bench table [its other arguments]
    bench/cuda/mla_flash_mla.py --row BATCH,Q,KEYS,HEADS [--row …]        FlashMLA alone, one JSON line a row
    bench/cuda/mla_flash_mla.py --check                                   whether it could: exit code 0, or 1 and why

It needs torch and an installed module `flash_mla` that is FlashMLA's own; ours under that name is refused. With --beside the
program runs with --peer: for each row of FlashMLA's table it writes a line "peer? BATCH Q KEYS HEADS" and reads the peer's
microseconds, before its own measurement in one row and after it in the next, so that neither is always second. Its other
lines are passed on. Both do the same for a row (mla_measure.h, cool_timer.h, torch_timing.py): pages in shuffled order out
of a pool of random records, so many sets of pages, queries and page tables that they exceed the L2 twice, a call of each in
one CUDA graph, a rest for the card, two replays unmeasured, and the median of five. FlashMLA's metadata are made before, as our
plan is.

Ours runs in another process, and not as the module hadal.flash_mla in this one, because there it does what an engine does:
layers after the first of a step may start before the previous layer ends, which FlashMLA's functions cannot express. The
host's speed is in neither time: a graph is queued after a kernel that holds the stream.
"""
import argparse
import json
import sys

import beside
from torch_timing import GraphTimer, imported

PROGRAM = "bench/cuda/mla_flash_mla.py"
torch = None  # set by imported()
PAGE, ROW, OUT = 64, 576, 512
ROTATED_BYTES = 128 << 20  # equals kRotatedBytes of mla_measure.h
SCALE = 0.1147


def flash_mla_module():
    """Imports torch into this module and returns FlashMLA's own module."""
    global torch
    torch = imported(PROGRAM, "torch", "install torch with CUDA")
    module = imported(PROGRAM, "flash_mla", "install FlashMLA, github.com/deepseek-ai/FlashMLA")
    if "hadal.flash_mla" in sys.modules:
        sys.exit(f"{PROGRAM}: {sys.executable} has {module.__file__}, which is Hadal's own: uninstall hadal-flash-mla-alias and "
                 "install FlashMLA, github.com/deepseek-ai/FlashMLA")
    return module


class FlashMla:
    def __init__(self, module):
        self.module = module
        self.version = getattr(self.module, "__version__", "?")
        self.random = torch.Generator(device="cuda").manual_seed(11)
        self.records = torch.randn(16, PAGE, 1, ROW, device="cuda", generator=self.random).to(torch.bfloat16)
        self.pool = self.records
        self.timer = GraphTimer(torch)

    def pages(self, count):
        if self.pool.shape[0] < count:
            self.pool = None
            self.pool = self.records.repeat((count + 15) // 16, 1, 1, 1)
        return self.pool[:count]

    def measure(self, batch, q_len, keys, heads, with_metadata=False):
        """Returns microseconds per call; with_metadata includes making its metadata."""
        per_sequence = -(-keys // PAGE)
        sets = int(min(max(ROTATED_BYTES / (batch * keys * ROW * 2) + 1, 2), 512))
        cache = self.pages(sets * batch * per_sequence)
        tables = torch.randperm(cache.shape[0], device="cuda", generator=self.random).to(torch.int32)
        tables = tables.view(sets, batch, per_sequence)
        queries = torch.randn(1, batch, q_len, heads, ROW, device="cuda", generator=self.random)
        queries = (queries * 0.3).to(torch.bfloat16).repeat(sets, 1, 1, 1, 1)
        lengths = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        torch.cuda.synchronize()  # the measured calls run on another stream
        older = (lengths, q_len * heads, 1)
        metadata = self.module.get_mla_metadata(*older)

        def call(i, plan):
            return self.module.flash_mla_with_kvcache(queries[i % sets], cache, tables[i % sets], lengths, OUT, *plan,
                                                      softmax_scale=SCALE, causal=True)

        with torch.cuda.stream(torch.cuda.Stream()):
            call(0, metadata)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call(1, metadata)
            end.record()
            end.synchronize()
            once_us = begin.elapsed_time(end) * 1e3
            calls = max(16 if once_us < 300 else 12, sets)
            return self.timer.graph_us(lambda i: call(i, self.module.get_mla_metadata(*older) if with_metadata else metadata),
                                       calls, once_us)


def shape_of(text):
    numbers = text.split(",")
    if len(numbers) != 4 or not all(n.isascii() and n.isdigit() and int(n) > 0 for n in numbers):
        raise argparse.ArgumentTypeError(f"'{text}': must be BATCH,Q,KEYS,HEADS, four whole numbers above 0")
    return tuple(int(n) for n in numbers)


def main():
    options = beside.parsed(beside.parser_of(PROGRAM, __doc__, shape_of, "BATCH,Q,KEYS,HEADS", "cuda_mla_bench"))
    module = flash_mla_module()
    if options.check:
        return 0
    if not torch.cuda.is_available():
        sys.exit(f"{PROGRAM}: no GPU")
    peer = FlashMla(module)
    if options.beside:
        return beside.run_beside(options.beside, lambda row: f"{peer.measure(*(int(n) for n in row.split())):.3f}")
    for batch, q_len, keys, heads in options.row:
        us = peer.measure(batch, q_len, keys, heads)
        whole_us = peer.measure(batch, q_len, keys, heads, with_metadata=True)
        print(json.dumps({"implementation": "flash_mla", "version": peer.version, "batch": batch, "q_len": q_len,
                          "keys": keys, "heads": heads, "us": round(us, 2),
                          "with_metadata_us": round(whole_us, 2)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
