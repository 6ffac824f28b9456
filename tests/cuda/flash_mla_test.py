#!/usr/bin/env python3
"""Compares hadal.flash_mla on a GPU with a float64 reference in torch: FlashMLA's dense decoding cases and their tolerances, then
caches and queries of other strides, long queries, FP8 records, CUDA graphs, reuse of metadata, and what is refused. It
needs torch and the wheels of scripts/wheel (or HADAL_PYTHON_PATH, a directory that they are installed into).

    tests/cuda/flash_mla_test.py [--filter TEXT] [--seconds N | --seconds inf]

The last line is "N passed, N failed". FlashMLA's cases are several thousand: they come in random order and end after
--seconds (300), or when all are done.
"""
import argparse
import itertools
import math
import os
import random
import sys
import time

if os.environ.get("HADAL_PYTHON_PATH"):
    sys.path.insert(0, os.environ["HADAL_PYTHON_PATH"])

try:
    import torch
except ModuleNotFoundError:
    sys.exit("flash_mla_test.py needs torch")
if not torch.cuda.is_available():
    sys.exit("flash_mla_test.py needs a GPU, and torch finds none")

from hadal.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata

DEVICE = torch.device("cuda", 0)
ROW, LATENT, PAGE = 576, 512, 64
ABSURD_PAGE = 2_147_000_000
# These are the tolerances of FlashMLA's test: each output may differ by an absolute or by a relative amount, and all
# outputs together by a cosine difference.
OUT_ABSOLUTE, OUT_RELATIVE, OUT_COSINE = 8e-4, 2.01 / 128, 5e-6
LSE_ABSOLUTE, LSE_RELATIVE = 1e-6, 8.01 / 65536
FP8_COSINE, FP8_LSE = 5e-4, 1e-3


class Batch:
    """Holds random queries, lengths and a paged cache whose unused slots are NaN and whose unused table entries are out of range."""

    def __init__(self, lengths, s_q=1, h_q=16, h_kv=1, dtype=torch.bfloat16, seed=0):
        generator = torch.Generator(device=DEVICE).manual_seed(seed)
        self.lengths, self.dtype, self.h_kv = lengths, dtype, h_kv

        def values(*shape):
            return torch.randn(shape, generator=generator, device=DEVICE, dtype=dtype).div_(10).clamp_(-1, 1)

        self.q = values(len(lengths), s_q, h_q, ROW)
        columns = max((max(lengths) + PAGE - 1) // PAGE, 1)
        pages = len(lengths) * columns
        order = torch.randperm(pages, generator=generator, device=DEVICE).to(torch.int32)
        self.table = order.view(len(lengths), columns).contiguous()
        self.cache = values(pages, PAGE, h_kv, ROW)
        self.seqlens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
        at = torch.arange(columns * PAGE, device=DEVICE)[None, :] >= self.seqlens[:, None]
        unused = torch.empty(pages, PAGE, dtype=torch.bool, device=DEVICE)
        unused[self.table.long()] = at.view(len(lengths), columns, PAGE)
        self.cache[unused] = float("nan")
        first = torch.arange(columns, device=DEVICE)[None, :] * PAGE
        self.clean_table = self.table.clone()
        self.table[first >= self.seqlens[:, None]] = ABSURD_PAGE

    def keys(self, sequence, cache=None):
        """Returns float64 [length, h_kv, 576]."""
        length = self.lengths[sequence]
        pages = self.clean_table[sequence, :(length + PAGE - 1) // PAGE].long()
        cache = self.cache if cache is None else cache
        return cache[pages].reshape(-1, self.h_kv, ROW)[:length].double()

    def run(self, causal, metadata=None, **more):
        metadata = metadata if metadata is not None else get_mla_metadata()[0]
        return flash_mla_with_kvcache(self.q, more.pop("cache", self.cache), self.table, self.seqlens, LATENT, metadata,
                                      causal=causal, **more)


def reference(batch, causal, scale=ROW**-0.5, cache=None):
    count, s_q, h_q, _ = batch.q.shape
    out = torch.zeros(count, s_q, h_q, LATENT, dtype=torch.float64, device=DEVICE)
    lse = torch.full((count, h_q, s_q), math.inf, dtype=torch.float64, device=DEVICE)
    group = h_q // batch.h_kv
    for s in range(count):
        length = batch.lengths[s]
        if length == 0:
            continue
        keys = batch.keys(s, cache).transpose(0, 1)  # [h_kv, length, 576]
        q = batch.q[s].double().view(s_q, batch.h_kv, group, ROW).permute(1, 2, 0, 3).reshape(batch.h_kv, -1, ROW)
        scores = (q @ keys.transpose(1, 2)).view(batch.h_kv, group, s_q, length) * scale
        if causal:
            seen = torch.arange(length, device=DEVICE)[None, :] < (length - s_q + 1 +
                                                                   torch.arange(s_q, device=DEVICE)[:, None])
            scores.masked_fill_(~seen, -math.inf)
        sums = scores.logsumexp(dim=-1)
        weights = (scores - sums[..., None]).exp().nan_to_num(0.0)
        values = (weights.view(batch.h_kv, -1, length) @ keys[..., :LATENT]).view(batch.h_kv, group, s_q, LATENT)
        out[s] = values.permute(2, 0, 1, 3).reshape(s_q, h_q, LATENT)
        lse[s] = torch.where(sums == -math.inf, math.inf, sums).view(h_q, s_q)
    return out, lse


def worst(error, allowed, name, got, expected):
    """Returns a line about the element that is furthest out of bounds."""
    at = int((error / allowed).argmax())
    place = []
    for size in reversed(got.shape):
        place.insert(0, at % size)
        at //= size
    place = tuple(place)
    return (f"{name}{list(place)} is {got[place].item():.6g}, expected {expected[place].item():.6g}; "
            f"{int((error > allowed).sum())} of {error.numel()} are wrong")


def difference(result, expected, fp8=False):
    """Says what is wrong with (out, lse), or returns None."""
    (out, lse), (ref_out, ref_lse) = result, expected
    if out.shape != ref_out.shape or lse.shape != ref_lse.shape or lse.dtype != torch.float32:
        return f"out {tuple(out.shape)}, lse {tuple(lse.shape)} {lse.dtype}"
    if not out.is_contiguous() or not lse.is_contiguous():
        return f"out's strides {out.stride()}, lse's {lse.stride()}"
    got, ref_out = out.double(), ref_out.to(out.dtype).double()
    if not torch.isfinite(got).all():
        return f"{int((~torch.isfinite(got)).sum())} of {got.numel()} outputs are not finite"
    if not torch.equal(torch.isposinf(lse), torch.isposinf(ref_lse)) or lse.isnan().any() or lse.isneginf().any():
        return (f"lse: {int(torch.isposinf(lse).sum())} +inf (expected {int(torch.isposinf(ref_lse).sum())}), "
                f"{int(lse.isneginf().sum())} -inf, {int(lse.isnan().sum())} NaN")
    norm = (got * got + ref_out * ref_out).sum()
    cosine = 0.0 if norm < 1e-12 else 1 - (2 * (got * ref_out).sum() / norm).item()
    if abs(cosine) > (FP8_COSINE if fp8 else OUT_COSINE):
        return f"cosine difference {cosine:.3g}: " + worst((got - ref_out).abs(), ref_out.abs() * OUT_RELATIVE + 1e-9,
                                                           "out", got, ref_out)
    if not fp8:
        error = (got - ref_out).abs()
        allowed = torch.clamp((ref_out.abs() + 1e-6) * OUT_RELATIVE, min=OUT_ABSOLUTE)
        if (error > allowed).any():
            return worst(error, allowed, "out", got, ref_out)
    finite = torch.isfinite(ref_lse)
    ref_lse, lse = torch.where(finite, ref_lse, 0.0), torch.where(finite, lse.double(), 0.0)
    error = (lse - ref_lse).abs()
    allowed = torch.full_like(error, FP8_LSE) if fp8 else torch.clamp(ref_lse.abs() * LSE_RELATIVE, min=LSE_ABSOLUTE)
    return worst(error, allowed, "lse", lse, ref_lse) if (error > allowed).any() else None


def check(result, expected, fp8=False):
    problem = difference(result, expected, fp8)
    assert problem is None, problem


def raises(kind, words, call):
    """Checks that the call fails with this kind of exception, whose text has all these words."""
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"'{error}' does not say {missing}"
        return
    raise AssertionError(f"no {kind.__name__}")


# ---- FlashMLA's dense decoding cases


def uneven(generator, count, mean, least):
    return [max(int(generator.gauss(mean, mean / 2)), least) for _ in range(count)]


def dense_cases():
    """Returns [(name, arguments of dense_case)]: every combination of a few values, and batches in which some sequences have no
    key."""
    heads = [(h_q, h_kv) for h_q in (1, 3, 9, 63, 64, 126, 128) for h_kv in (1, 2, 3, 8) if h_q % h_kv == 0]
    for dtype in (torch.bfloat16, torch.float16):
        kind = str(dtype).rsplit(".", maxsplit=1)[-1]
        for (h_q, h_kv), count, s_q, s_k, ragged, causal in itertools.product(
                heads, (1, 2, 6, 64), (1, 2, 4), (20, 140, 4096), (False, True), (False, True)):
            yield (f"dense {kind} b{count} s_q{s_q} s_k{s_k} h{h_q}/{h_kv} {'ragged ' * ragged}"
                   f"{'causal' if causal else 'full'}", (dtype, h_q, h_kv, count, s_q, s_k, ragged, causal, False))
        for (h_q, h_kv), causal in itertools.product(heads, (False, True)):
            yield (f"dense {kind} b128 s_q2 s_k4096 h{h_q}/{h_kv} with empty ones {'causal' if causal else 'full'}",
                   (dtype, h_q, h_kv, 128, 2, 4096, True, causal, True))


def dense_case(dtype, h_q, h_kv, count, s_q, s_k, ragged, causal, empty):
    seed = random.getrandbits(31)
    generator = random.Random(seed)
    lengths = uneven(generator, count, s_k, s_q) if ragged else [s_k] * count
    if empty:
        lengths = [0 if generator.random() < 0.5 else length for length in lengths]
    batch = Batch(lengths, s_q, h_q, h_kv, dtype, seed)
    problem = difference(batch.run(causal), reference(batch, causal))
    assert problem is None, f"seed {seed}: {problem}"


# ---- what else a caller may do


def edge_lengths():
    for causal in (True, False):
        batch = Batch([0, 1, 2, 63, 64, 65, 127, 4097, 0], s_q=3, h_q=7, seed=1)
        check(batch.run(causal), reference(batch, causal))


def no_keys_at_all():
    batch = Batch([0, 0], s_q=2, h_q=16)
    out, lse = batch.run(True)
    assert (out == 0).all() and torch.isposinf(lse).all()
    nothing = torch.empty(0, PAGE, 1, ROW, dtype=batch.dtype, device=DEVICE)
    table = torch.empty(2, 0, dtype=torch.int32, device=DEVICE)
    out, lse = flash_mla_with_kvcache(batch.q, nothing, table, batch.seqlens, LATENT, get_mla_metadata()[0])
    assert (out == 0).all() and torch.isposinf(lse).all()


def long_queries():
    for s_q, causal in itertools.product((9, 11, 12, 16), (True, False)):
        batch = Batch([5, 64, 700, 0], s_q=s_q, h_q=8, seed=s_q)
        check(batch.run(causal), reference(batch, causal))


def softmax_scale():
    batch = Batch([300, 77], h_q=16)
    check(batch.run(False, softmax_scale=0.3), reference(batch, False, scale=0.3))


def strided_cache():
    """Uses pages that are slices of larger ones, records with other bytes between them, and tables that are slices too."""
    for h_kv in (1, 2):
        batch = Batch([500, 64, 0, 3], s_q=2, h_q=16, h_kv=h_kv, seed=5)
        wide = torch.full((batch.cache.shape[0] + 1, PAGE + 3, h_kv, ROW + 64), float("nan"), dtype=batch.dtype,
                          device=DEVICE)
        wide[1:, 2:PAGE + 2, :, 64:] = batch.cache
        table = torch.full((4, batch.table.shape[1] + 5), ABSURD_PAGE, dtype=torch.int32, device=DEVICE)
        table[:, 2:2 + batch.table.shape[1]] = batch.table
        batch.table = table[:, 2:2 + batch.table.shape[1]]
        check(batch.run(True, cache=wide[1:, 2:PAGE + 2, :, 64:]), reference(batch, True))


def strided_queries():
    batch = Batch([500, 64], s_q=2, h_q=16)
    dense = batch.q
    batch.q = torch.cat([dense, dense], dim=-1)[..., ROW:]
    assert not batch.q.is_contiguous()
    check(batch.run(True), reference(batch, True))
    batch.q = dense.transpose(0, 1).contiguous().transpose(0, 1)
    check(batch.run(True), reference(batch, True))


def layers_share_metadata():
    metadata, num_splits = get_mla_metadata()
    for layer in range(3):
        batch = Batch([1000, 3000, 17, 0, 64], s_q=2, h_q=32, seed=100 + layer)
        result = flash_mla_with_kvcache(batch.q, batch.cache, batch.table, batch.seqlens, LATENT, metadata, num_splits,
                                        causal=True)
        check(result, reference(batch, True))


def table_grows():
    """Layers of one step may have tables of different widths: the width of the first layer's table decides how
    the work is cut."""
    for h_q, first, then in ((128, 3, 1500), (128, 1500, 3), (16, 3, 400)):
        metadata = get_mla_metadata()[0]
        for columns in (first, then):
            batch = Batch([150, 64], s_q=1, h_q=h_q, seed=columns)
            wide = torch.full((2, columns), ABSURD_PAGE, dtype=torch.int32, device=DEVICE)
            wide[:, :batch.table.shape[1]] = batch.table[:, :columns]
            batch.table = wide
            check(batch.run(True, metadata), reference(batch, True))


def older_metadata():
    batch = Batch([1000, 3000], s_q=2, h_q=32)
    metadata, num_splits = get_mla_metadata(batch.seqlens, 2 * 32, 1)
    check(flash_mla_with_kvcache(batch.q, batch.cache, batch.table, batch.seqlens, LATENT, metadata, num_splits,
                                 causal=True), reference(batch, True))
    raises(ValueError, ("s_q * h_q", "48"), lambda: batch.run(True, get_mla_metadata(batch.seqlens, 48, 1)[0]))
    raises(ValueError, ("batch", "3"), lambda: batch.run(True, get_mla_metadata(torch.zeros(3, dtype=torch.int32))[0]))


def cuda_graph():
    """Captures two layers with their plan, and replays them with other lengths, queries and keys."""
    batch = Batch([900, 130, 0, 64], s_q=2, h_q=16, seed=3)
    other = Batch([65, 4, 960, 1], s_q=2, h_q=16, seed=4)
    static = [tensor.clone() for tensor in (batch.q, batch.cache, batch.table, batch.seqlens)]

    def step():
        metadata = get_mla_metadata()[0]
        return [flash_mla_with_kvcache(*static, LATENT, metadata, causal=True) for _ in range(2)]

    step()  # whatever a first call sets up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for data in (batch, other, batch):
        wide = torch.full_like(static[2], ABSURD_PAGE)
        wide[:, :data.table.shape[1]] = data.table[:, :wide.shape[1]]
        padded = torch.full_like(static[1], float("nan"))
        padded[:data.cache.shape[0]] = data.cache[:padded.shape[0]]
        for tensor, value in zip(static, (data.q, padded, wide, data.seqlens)):
            tensor.copy_(value)
        for out, lse in results:
            out.fill_(float("nan"))
            lse.fill_(float("nan"))
        graph.replay()
        for result in results:
            check(result, reference(data, True))


def other_stream():
    batch = Batch([2000, 300], s_q=1, h_q=16)
    expected = reference(batch, True)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        result = batch.run(True)
    torch.cuda.synchronize()
    check(result, expected)


def equal_bits():
    for h_q, s_q in ((16, 1), (128, 2)):
        batch = Batch([4000, 130, 64, 2500], s_q=s_q, h_q=h_q)
        first = batch.run(True)
        for _ in range(5):
            again = batch.run(True)
            assert all(torch.equal(a, b) for a, b in zip(first, again)), "another run has other bits"


def with_autograd():
    batch = Batch([100], h_q=16)
    batch.q.requires_grad_()
    check(batch.run(True), reference(batch, True))


def quantised(batch, scales):
    """Returns 656-byte records of a batch's cache, and the cache that they represent."""
    values = torch.nan_to_num(batch.cache.float(), 0.0).squeeze(2)
    latent = values[..., :LATENT].reshape(*values.shape[:2], 4, LATENT // 4)
    top = latent.abs().amax(dim=-1, keepdim=True)
    if scales == "per_token":
        top = top.amax(dim=-2, keepdim=True).expand_as(top)
    scale = torch.where(top > 0, top / 448, torch.ones_like(top))
    codes = (latent / scale).to(torch.float8_e4m3fn)
    rope = values[..., LATENT:].to(torch.bfloat16)
    records = torch.cat([codes.reshape(*values.shape[:2], LATENT).view(torch.uint8),
                         scale.squeeze(-1).contiguous().view(torch.uint8), rope.contiguous().view(torch.uint8)], dim=-1)
    means = torch.cat([(codes.double() * scale.double()).reshape(*values.shape[:2], LATENT), rope.double()], dim=-1)
    return records.unsqueeze(2).contiguous(), means.unsqueeze(2)


def fp8_records():
    for scales, h_q, s_q in itertools.product(("per_128", "per_token"), (16, 128), (1, 2)):
        batch = Batch([1000, 64, 0, 3001], s_q=s_q, h_q=h_q, seed=9)
        records, means = quantised(batch, scales)
        assert records.shape[-1] == 656
        expected = reference(batch, True, cache=means)
        for cache in (records, records.view(torch.float8_e4m3fn)):
            check(batch.run(True, FlashMLASchedMeta(fp8_scales=scales), cache=cache, is_fp8_kvcache=True), expected,
                  fp8=True)


def fp8_e5m2_records():
    for h_q in (16, 128):
        batch = Batch([1000, 64, 0, 3001], s_q=2, h_q=h_q, seed=10)
        codes = torch.nan_to_num(batch.cache.float(), 0.0).to(torch.float8_e5m2)
        check(batch.run(True, cache=codes, is_fp8_kvcache=True), reference(batch, True, cache=codes.double()), fp8=True)


def alias():
    import flash_mla
    import flash_mla.flash_mla_interface as interface
    assert flash_mla.flash_mla_with_kvcache is flash_mla_with_kvcache
    assert interface.get_mla_metadata is flash_mla.get_mla_metadata is get_mla_metadata


def refused():
    batch = Batch([100, 64], s_q=1, h_q=16)
    ints = torch.zeros(2, 1, 64, dtype=torch.int32, device=DEVICE)
    for name in ("indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length"):
        raises(NotImplementedError, (name, "allowed: None"), lambda: batch.run(False, **{name: ints}))

    def call(**changed):
        values = dict(q=batch.q, k_cache=batch.cache, block_table=batch.table, cache_seqlens=batch.seqlens,
                      head_dim_v=LATENT, tile_scheduler_metadata=get_mla_metadata()[0])
        values.update(changed)
        return lambda: flash_mla_with_kvcache(**values)

    raises(TypeError, ("tile_scheduler_metadata", "Tensor"), call(tile_scheduler_metadata=ints))
    raises(TypeError, ("num_splits", "Tensor"), call(num_splits=ints))
    raises(TypeError, ("k_cache", "float16", "q"), call(k_cache=batch.cache.half()))
    raises(TypeError, ("q", "float32", "bfloat16"), call(q=batch.q.float()))
    raises(TypeError, ("block_table", "int64", "int32"), call(block_table=batch.table.long()))
    raises(TypeError, ("cache_seqlens", "int64", "int32"), call(cache_seqlens=batch.seqlens.long()))
    raises(ValueError, ("q", "512", "576"), call(q=batch.q[..., :LATENT].contiguous()))
    raises(ValueError, ("head_dim_v", "576", "512"), call(head_dim_v=ROW))
    raises(ValueError, ("q", "[2, 16, 576]"), call(q=batch.q.squeeze(1)))
    raises(ValueError, ("k_cache", "32", "64"), call(k_cache=batch.cache[:, :32]))
    raises(ValueError, ("cache_seqlens", "1", "2"), call(cache_seqlens=batch.seqlens[:1]))
    raises(ValueError, ("block_table", "device"), call(block_table=batch.table.cpu()))
    raises(ValueError, ("k_cache", "stride"), call(k_cache=torch.cat([batch.cache] * 2, dim=-1)[..., ::2]))
    raises(ValueError, ("softmax_scale", "-1"), call(softmax_scale=-1.0))
    raises(ValueError, ("k_cache", "600"), call(
        k_cache=torch.zeros(4, PAGE, 1, 600, dtype=torch.uint8, device=DEVICE), is_fp8_kvcache=True))
    metadata = get_mla_metadata()[0]
    batch.run(True, metadata)
    raises(ValueError, ("tile_scheduler_metadata", "causal"), lambda: batch.run(False, metadata))


OTHERS = (edge_lengths, no_keys_at_all, long_queries, softmax_scale, strided_cache, strided_queries, layers_share_metadata,
          table_grows, older_metadata, cuda_graph, other_stream, equal_bits, with_autograd, fp8_records, fp8_e5m2_records,
          alias, refused)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="only the cases whose name holds this")
    parser.add_argument("--seconds", type=float, default=300.0, help="for FlashMLA's cases")
    parser.add_argument("--seed", type=int, default=random.getrandbits(31))
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"seed {options.seed}")
    cases = [(function.__name__, function, ()) for function in OTHERS]
    dense = [(name, dense_case, arguments) for name, arguments in dense_cases()]
    random.shuffle(dense)
    passed = failed = left = 0
    deadline = None
    for name, function, arguments in cases + dense:
        if options.filter not in name:
            continue
        if function is dense_case:
            deadline = deadline or time.monotonic() + options.seconds
            if time.monotonic() > deadline:
                left += 1
                continue
        try:
            function(*arguments)
            passed += 1
        except Exception as error:  # pylint: disable=broad-exception-caught
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
            if "CUDA error" in str(error) and failed > 3:
                break  # the context is gone
    if left:
        print(f"{left} of {len(dense)} dense cases were left out")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
