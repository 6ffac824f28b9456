#!/usr/bin/env python3
"""Measures DeepGEMM's and torch's products and those of cuda_gemm_table_bench in one run, row by row in turn, so that a card
that is hot or slow affects all of them.

    bench/cuda/gemm_peers.py [--deepgemm-library FILE] --beside build/…/cuda_gemm_table_bench [its arguments]
    bench/cuda/gemm_peers.py [--deepgemm-library FILE] --row "fp8 64 2112 7168" [--row …]    peers alone, one JSON line per row
    bench/cuda/gemm_peers.py [--deepgemm-library FILE] --check       which peers can be measured: exit code 0, or 1 without torch

It needs torch. DeepGEMM is the installed module deep_gemm, or a library that has its kernels behind C functions, named by
--deepgemm-library or $HADAL_DEEPGEMM_LIBRARY (see DeepGemmLibrary); without either it is left out. With --beside the program
runs with --peer: for each row it writes a line "peer? ROW" and reads "name microseconds name microseconds …"; its other
lines are passed on. The rows and their peers are:

    fp8 M N K                   deepgemm (with its transpose of the activations' scales), deepgemm_bare (transposed already),
                                scaled_mm and scaled_mm_row (torch: one scale a tensor, or a row and a column; no block scales)
    grouped_fp8 GROUPS M N K    deepgemm and deepgemm_bare (masked), where M is a multiple of 128 also deepgemm_contiguous
    bf16 M N K                  matmul (torch)
    int8 M N K                  int_mm (torch, with 32 rows where M is less: it supports no fewer than 17)
    absorb_query M HEADS        bmm (torch, bf16, into records of 576 of which it writes 512, as attention reads them and ours are),
                                bmm_dense (into [heads, m, 512], which is less scattered)
    expand_value M HEADS        bmm (into [m, heads, 128], as ours are), bmm_dense (into [heads, m, 128])

A row has three rounds. In each its peers are timed once, one after the other, and so is the bench's own kernel, first in
one round and last in the next. Before each of them the card rests three times as long as it takes. A
figure is the median of the rounds, for the bench as for the peers; with --row they are this script's. DeepGEMM launches with
or without programmatic dependent launch, whichever was faster once before the first round, and counts only where its result
is right: each shape's is compared with torch's before it is timed. Times are taken as the bench's are (torch_timing.py), and
operands rotate in as many sets.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys

import beside
from torch_timing import GraphTimer, imported

PROGRAM = "bench/cuda/gemm_peers.py"
ROW_SIZES = {"fp8": 3, "grouped_fp8": 4, "bf16": 3, "int8": 3, "absorb_query": 2, "expand_value": 2}
WORST_ERROR = 0.01
ROUNDS = 3


def num_sets(weight_bytes):
    """Returns num_rotating_sets of graph_timer.h."""
    return min(max((160 << 20) // weight_bytes + 1, 2), 64)


class DeepGemmModule:
    """Calls the module deep_gemm."""

    def __init__(self, module):
        self.module = module

    def set_pdl(self, is_on):
        self.module.set_pdl(is_on)

    def transposed(self, scales):
        return self.module.get_mn_major_tma_aligned_tensor(scales)

    def dense(self, a, b, out):
        self.module.fp8_gemm_nt(a, b, out)

    def masked(self, a, b, out, rows, mean_rows):
        self.module.m_grouped_fp8_gemm_nt_masked(a, b, out, rows, mean_rows)

    def contiguous(self, a, b, out, groups):
        self.module.m_grouped_fp8_gemm_nt_contiguous(a, b, out, groups)


class DeepGemmLibrary:
    """Calls C functions around DeepGEMM's kernels: dg_transpose_scales, dg_dense, dg_masked, dg_contiguous (all return 0 or an
    error) and dg_set_pdl. They expect the scales of activations as [k / 128, rows rounded up to 4], and the scales of weights
    in torch's layout."""

    def __init__(self, torch, path):
        self.torch = torch
        self.functions = ctypes.CDLL(path)
        for name in ("dg_transpose_scales", "dg_dense", "dg_masked", "dg_contiguous", "dg_set_pdl"):
            getattr(self.functions, name)  # raises AttributeError where it is missing

    def call(self, name, *arguments):
        tensor = self.torch.Tensor
        words = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, tensor) else ctypes.c_int(a) for a in arguments]
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        code = getattr(self.functions, name)(*words, stream)
        if code != 0:
            raise RuntimeError(f"{name} returns {code}")

    def set_pdl(self, is_on):
        self.functions.dg_set_pdl(int(is_on))

    def transposed(self, scales):
        """Returns row-major scales as [rows, k / 128] views in the layout that the kernels read."""
        *groups, rows, blocks = scales.shape
        aligned = (rows + 3) // 4 * 4
        count = groups[0] if groups else 1
        out = self.torch.empty(*groups, blocks, aligned, device=scales.device)
        self.call("dg_transpose_scales", scales, out, rows, blocks, count)
        return out.transpose(-1, -2)[..., :rows, :]

    def ready(self, scales):
        return self.transposed(scales) if scales.stride(-1) == 1 else scales

    def dense(self, a, b, out):
        (m, k), n = a[0].shape, b[0].shape[0]
        self.call("dg_dense", a[0], self.ready(a[1]), b[0], b[1], out, m, n, k)

    def masked(self, a, b, out, rows, mean_rows):
        groups, m, k = a[0].shape
        self.call("dg_masked", a[0], self.ready(a[1]), b[0], b[1], out, rows, groups, m, mean_rows, b[0].shape[1], k)

    def contiguous(self, a, b, out, groups):
        (m, k), count, n = a[0].shape, b[0].shape[0], b[0].shape[1]
        self.call("dg_contiguous", a[0], self.ready(a[1]), b[0], b[1], out, groups, count, m, n, k)


def deep_gemm_of(torch, path):
    """Returns DeepGEMM, or None with the reason on standard error."""
    if path:
        try:
            return DeepGemmLibrary(torch, path)
        except (OSError, AttributeError) as error:
            sys.exit(f"{PROGRAM}: --deepgemm-library {path}: {error}")
    try:
        import deep_gemm
    except Exception as error:  # its start fails, too, for example when no compiler is there
        print(f"{PROGRAM}: DeepGEMM is left out: {sys.executable} cannot import deep_gemm ({error}), and no --deepgemm-library "
              "is named", file=sys.stderr)
        return None
    return DeepGemmModule(deep_gemm)


class Peers:
    def __init__(self, torch, deep_gemm):
        self.torch = torch
        self.deep_gemm = deep_gemm
        self.timer = GraphTimer(torch)
        self.random = torch.Generator(device="cuda").manual_seed(11)
        self.row, self.contenders = None, []  # the latest measurement: (name, call, sets[, PDL])

    def normal(self, *shape):
        return self.torch.randn(*shape, device="cuda", generator=self.random)

    def copies(self, one, count):
        """Returns `count` copies of a tensor, one after the other in a new first dimension."""
        bytes_of = one.contiguous().view(self.torch.uint8)
        return bytes_of.repeat(count, *([1] * one.dim())).view(one.dtype)

    @staticmethod
    def num_inputs(sets, input_bytes):
        return max(1, min(sets, (512 << 20) // input_bytes))

    def codes(self, *shape):
        return (self.normal(*shape) * 100.0).clamp(-448.0, 448.0).to(self.torch.float8_e4m3fn)

    def scales(self, *shape):
        return self.torch.rand(*shape, device="cuda", generator=self.random) * 0.01 + 0.005

    def rounded(self, *shape):
        return self.normal(*shape).to(self.torch.bfloat16)

    def measure(self, row):
        """Returns {name: microseconds} of a row, given in words, from one round. The row's operands are kept until another row
        is measured."""
        if row != self.row:
            self.row, self.contenders = row, []
            self.torch.cuda.empty_cache()
            kind, *sizes = row.split()
            self.contenders = getattr(self, kind)(*(int(size) for size in sizes))
        found = {}
        for contender in list(self.contenders):
            us = self.tried(*contender)
            if us is None:
                self.contenders.remove(contender)
            else:
                found[contender[0]] = us
        return found

    def measure_rounds(self, row):
        """Returns {name: microseconds}: the medians of all rounds."""
        rounds = [self.measure(row) for _ in range(ROUNDS)]
        return {name: statistics.median(found[name] for found in rounds if name in found) for name in rounds[0]}

    def tried(self, name, call, sets, is_dependent=False):
        """Returns microseconds, or None with the reason on standard error."""
        if self.deep_gemm:
            self.deep_gemm.set_pdl(is_dependent)
        try:
            return self.timer.microseconds(call, sets)
        except (RuntimeError, ValueError) as error:
            print(f"{PROGRAM}: {name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
            return None
        finally:
            if self.deep_gemm:
                self.deep_gemm.set_pdl(False)

    def error_of(self, out, a, a_scales, b, b_scales):
        """Returns the relative error of the first columns, compared with float32 products."""
        columns = min(256, b.shape[0])
        left = a.float() * a_scales.repeat_interleave(128, 1)
        right = b[:columns].float() * b_scales.repeat_interleave(128, 0)[:columns].repeat_interleave(128, 1)
        wanted = left @ right.t()
        return ((out[:, :columns].float() - wanted).norm() / wanted.norm()).item()

    def deep_gemm_contenders(self, name, run, check, sets):
        """Returns run(i, transposed) with and without its transpose, each launched in the faster way, if its results are right."""
        try:
            run(0, False)
            error = check()
            if not error <= WORST_ERROR:
                raise RuntimeError(f"its result is off by {error:.3g}")
        except (RuntimeError, ValueError) as error:
            print(f"{PROGRAM}: {name} is left out: {str(error).splitlines()[0]}", file=sys.stderr)
            return []
        found = []
        for is_transposed in (False, True):
            ways = [(name + ("_bare" if is_transposed else ""), lambda i, t=is_transposed: run(i, t), sets, is_dependent)
                    for is_dependent in (False, True)]
            timed = [(us, way) for way in ways if (us := self.tried(*way)) is not None]
            found += [min(timed, key=lambda pair: pair[0])[1]] if timed else []
        return found

    def fp8(self, m, n, k):
        torch = self.torch
        sets = num_sets(n * k)
        a_sets = self.num_inputs(sets, m * k)
        a, b = self.copies(self.codes(m, k), a_sets), self.copies(self.codes(n, k), sets)
        a_scales, b_scales = self.scales(m, k // 128), self.scales((n + 127) // 128, k // 128)
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        found = []
        if self.deep_gemm:
            turned = self.deep_gemm.transposed(a_scales)

            def run(i, is_transposed):
                self.deep_gemm.dense((a[i % a_sets], turned if is_transposed else a_scales), (b[i % sets], b_scales), out)

            found = self.deep_gemm_contenders("deepgemm", run, lambda: self.error_of(out, a[0], a_scales, b[0], b_scales), sets)
        one = torch.ones(1, device="cuda")
        rows, columns = self.scales(m, 1), self.scales(1, n)

        def scaled(i, left, right):
            torch._scaled_mm(a[i % a_sets], b[i % sets].t(), scale_a=left, scale_b=right, out_dtype=torch.bfloat16,
                             use_fast_accum=True)

        return [*found, ("scaled_mm", lambda i: scaled(i, one, one), sets),
                ("scaled_mm_row", lambda i: scaled(i, rows, columns), sets)]

    def grouped_fp8(self, groups, m, n, k):
        if not self.deep_gemm:
            return []
        torch = self.torch
        sets = num_sets(groups * n * k)
        most = (m + 127) // 128 * 128  # blocks are stored whole
        b = self.copies(self.copies(self.codes(n, k), groups), sets)
        b_scales = self.copies(self.scales((n + 127) // 128, k // 128), groups)
        a = self.copies(self.codes(groups * most, k), sets)
        a_scales = self.scales(groups * most, k // 128)
        out = torch.full((groups * most, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        counts = torch.full((groups,), m, dtype=torch.int32, device="cuda")
        by_group = a_scales.view(groups, most, -1)
        turned = self.deep_gemm.transposed(by_group)

        def masked(i, is_transposed):
            self.deep_gemm.masked((a[i % sets].view(groups, most, k), turned if is_transposed else by_group),
                                  (b[i % sets], b_scales), out.view(groups, most, n), counts, m)

        last = slice((groups - 1) * most, (groups - 1) * most + m)

        def error():
            return self.error_of(out[last], a[0][last], a_scales[last], b[0][-1], b_scales[-1])

        found = self.deep_gemm_contenders("deepgemm", masked, error, sets)
        if m % 128 == 0:
            whose = torch.arange(groups, dtype=torch.int32, device="cuda").repeat_interleave(most)
            flat = self.deep_gemm.transposed(a_scales)
            out.fill_(float("nan"))

            def contiguous(i, is_transposed):
                self.deep_gemm.contiguous((a[i % sets], flat if is_transposed else a_scales), (b[i % sets], b_scales), out,
                                          whose)

            found += self.deep_gemm_contenders("deepgemm_contiguous", contiguous, error, sets)
        return found

    def bf16(self, m, n, k):
        sets = num_sets(2 * n * k)
        x_sets = self.num_inputs(sets, 2 * m * k)
        x, w = self.copies(self.rounded(m, k), x_sets), self.copies(self.rounded(n, k), sets)
        return [("matmul", lambda i: self.torch.matmul(x[i % x_sets], w[i % sets].t()), sets)]

    def int8(self, m, n, k):
        torch = self.torch
        sets = num_sets(n * k)

        def random(*shape):
            return torch.randint(-127, 128, shape, dtype=torch.int8, device="cuda", generator=self.random)

        rows = m if m > 16 else 32
        x_sets = self.num_inputs(sets, rows * k)
        x, w = self.copies(random(rows, k), x_sets), self.copies(random(n, k), sets)
        return [("int_mm", lambda i: torch._int_mm(x[i % x_sets], w[i % sets].t()), sets)]

    def absorb_query(self, m, heads):
        return self.bmm(self.rounded(m, heads, 192)[:, :, :128], heads, 512, 128, 576)

    def expand_value(self, m, heads):
        return self.bmm(self.rounded(m, heads, 512), heads, 128, 512, 128)

    def bmm(self, x, heads, n, k, record):
        torch = self.torch
        sets = num_sets(2 * heads * n * k)
        w = self.copies(self.rounded(heads, n, k), sets)
        left = x.transpose(0, 1)
        out = torch.full((x.shape[0], heads, record), float("nan"), dtype=torch.bfloat16, device="cuda")
        into = out[:, :, :n].transpose(0, 1)

        def dense(i):
            return torch.bmm(left, w[i % sets].transpose(1, 2))

        # This writes into the records themselves. The results equal the dense ones, and the bytes between them do not
        # change.
        torch.bmm(left, w[0].transpose(1, 2), out=into)
        wanted = dense(0).float()
        if not (into.float() - wanted).norm() <= WORST_ERROR * wanted.norm() or not torch.isnan(out[:, :, n:]).all():
            print(f"{PROGRAM}: bmm into records is left out: its result is wrong", file=sys.stderr)
            return [("bmm_dense", dense, sets)]
        del wanted
        return [("bmm", lambda i: torch.bmm(left, w[i % sets].transpose(1, 2), out=into), sets), ("bmm_dense", dense, sets)]


def row_of(text):
    kind, *sizes = text.split() or [""]
    if len(sizes) != ROW_SIZES.get(kind) or not all(n.isascii() and n.isdigit() and int(n) > 0 for n in sizes):
        kinds = ", ".join(f"{name} and {count} sizes" for name, count in ROW_SIZES.items())
        raise argparse.ArgumentTypeError(f"'{text}': must be {kinds}, whole numbers above 0")
    return text


def parse_options():
    parser = beside.parser_of(PROGRAM, __doc__, row_of, "ROW", "cuda_gemm_table_bench")
    parser.add_argument("--deepgemm-library", default=os.environ.get("HADAL_DEEPGEMM_LIBRARY", ""), metavar="FILE")
    options = beside.parsed(parser)
    if options.deepgemm_library and not os.path.isfile(options.deepgemm_library):
        parser.error(f"--deepgemm-library {options.deepgemm_library}: no such file")
    return options


def main():
    options = parse_options()
    torch = imported(PROGRAM, "torch", "install torch with CUDA")
    deep_gemm = deep_gemm_of(torch, options.deepgemm_library)
    if options.check:
        return 0
    if not torch.cuda.is_available():
        sys.exit(f"{PROGRAM}: no GPU")
    peers = Peers(torch, deep_gemm)
    if options.beside:
        return beside.run_beside(options.beside, lambda row: " ".join(
            f"{name} {us:.3f}" for name, us in peers.measure(row_of(row)).items()))
    for row in options.row:
        print(json.dumps({"row": row, "us": {name: round(us, 2) for name, us in peers.measure_rounds(row).items()}}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
