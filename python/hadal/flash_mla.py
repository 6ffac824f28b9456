"""Provides FlashMLA's functions, which run Hadal's decode attention on NVIDIA Hopper GPUs.

get_mla_metadata() and flash_mla_with_kvcache() have the arguments and results of FlashMLA's functions for dense
decoding; docs/flash-mla.md lists the differences. Tensors are torch's, on one GPU. Kernels are launched on torch's
current stream and can be captured in a CUDA graph.
"""
import dataclasses
import operator
import re
from typing import Optional, Tuple

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("hadal.flash_mla works on torch's tensors, and there is no torch: install one that is built "
                              "for CUDA (the wheel does not bring it)", name="torch") from None

from hadal import _flash_mla as _native

__all__ = ["FlashMLASchedMeta", "flash_mla_with_kvcache", "get_mla_metadata"]

_ROW_DIM, _OUT_DIM = 576, 512
_E4M3_PER_TOKEN = 3  # one of the cache kinds in a config
_CONFIG_FIELDS = ("the batch of q", "s_q", "h_q", "h_kv", "the format of k_cache", "causal", "the device")
_FP8_SCALES = ("per_128", "per_token")
_multiprocessors = {}  # by device; only devices that can run the kernels


@dataclasses.dataclass
class FlashMLASchedMeta:
    """Says how the work of a batch is divided. It is empty when made. The first call with it reads cache_seqlens and fills
    it in, and later calls (the layers of one step) reuse it. They must have the same lengths, shapes and stream."""

    # The meaning of the four scales of a 656-byte record: "per_128" (each scales 128 values) or "per_token" (all are equal;
    # some kernels use that). Set it before the first call.
    fp8_scales: str = "per_128"
    # The first call must agree with these (name, value) pairs of get_mla_metadata's older arguments.
    expected: Tuple[Tuple[str, int], ...] = ()
    have_initialized: bool = False
    config: Optional[tuple] = None
    tile_scheduler_metadata: Optional["torch.Tensor"] = None  # the plan
    scratch: Optional["torch.Tensor"] = None
    most_keys: int = 0  # keys that the first call's table has room for; the choice of kernel depends on it

    def __post_init__(self):
        _check_fp8_scales(self.fp8_scales)


def get_mla_metadata(cache_seqlens=None, num_q_tokens_per_head_k=None, num_heads_k=None, num_heads_q=None,
                     is_fp8_kvcache=False, topk=None) -> Tuple[FlashMLASchedMeta, None]:
    """Returns (metadata, None), both to be passed on to flash_mla_with_kvcache. No argument is needed. If an older caller
    passes arguments, they are compared with those of the first call."""
    del is_fp8_kvcache  # flash_mla_with_kvcache has the same argument
    if topk is not None:
        raise NotImplementedError(f"topk: is {topk}; allowed: None (there is no sparse attention)")
    expected = []
    if cache_seqlens is not None:
        shape = getattr(cache_seqlens, "shape", None)
        if shape is None:
            raise TypeError(f"cache_seqlens: is a {type(cache_seqlens).__name__}; allowed: a CUDA tensor [batch]")
        if len(shape) != 1:
            raise ValueError(f"cache_seqlens: shape is {list(shape)}; allowed: [batch]")
        expected.append(("the batch of q", shape[0]))
    if num_q_tokens_per_head_k is not None:
        num_q_tokens_per_head_k = _integer("num_q_tokens_per_head_k", num_q_tokens_per_head_k)
    if num_heads_k is not None:
        num_heads_k = _integer("num_heads_k", num_heads_k)
        expected.append(("h_kv", num_heads_k))
        if num_q_tokens_per_head_k is not None:
            expected.append(("s_q * h_q", num_q_tokens_per_head_k * num_heads_k))
    if num_heads_q is not None:
        expected.append(("h_q", _integer("num_heads_q", num_heads_q)))
    return FlashMLASchedMeta(expected=tuple(expected)), None


def flash_mla_with_kvcache(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    block_table: "torch.Tensor",
    cache_seqlens: "torch.Tensor",
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Optional["torch.Tensor"] = None,
    attn_sink: Optional["torch.Tensor"] = None,
    extra_k_cache: Optional["torch.Tensor"] = None,
    extra_indices_in_kvcache: Optional["torch.Tensor"] = None,
    topk_length: Optional["torch.Tensor"] = None,
    extra_topk_length: Optional["torch.Tensor"] = None,
) -> Tuple["torch.Tensor", "torch.Tensor"]:
    """Computes attention of q [batch, s_q, h_q, 576] over the paged cache k_cache [num_blocks, 64, h_kv, 576], whose first
    512 columns are also the values; both are bfloat16 or both float16.

    block_table [batch, max_blocks] and cache_seqlens [batch] are int32; entries past a length are not read. With `causal`,
    token t of a sequence attends to its first cache_seqlens - s_q + 1 + t keys, without it to all of them. softmax_scale
    is 576 ** -0.5 unless given. With is_fp8_kvcache, k_cache is bytes [num_blocks, 64, 1, 656]: 512 e4m3 codes, 4 float32
    scales and 64 bfloat16 per token (or [num_blocks, 64, 1, 576]: e5m2).

    Returns out [batch, s_q, h_q, 512] of q's dtype, and softmax_lse [batch, h_q, s_q], float32, natural logarithm. For a
    token without keys, out is zero and softmax_lse is +inf.
    """
    if not (indices is attn_sink is extra_k_cache is extra_indices_in_kvcache is topk_length is extra_topk_length is None):
        _refuse_sparse(indices=indices, attn_sink=attn_sink, extra_k_cache=extra_k_cache,
                       extra_indices_in_kvcache=extra_indices_in_kvcache, topk_length=topk_length,
                       extra_topk_length=extra_topk_length)
    meta = tile_scheduler_metadata
    if not isinstance(meta, FlashMLASchedMeta):
        raise TypeError(f"tile_scheduler_metadata: is a {type(meta).__name__}; allowed: the first of what "
                        "get_mla_metadata() returns")
    if num_splits is not None:
        raise TypeError(f"num_splits: is a {type(num_splits).__name__}; allowed: None, the second of what "
                        "get_mla_metadata() returns")
    _check_fp8_scales(meta.fp8_scales)
    if not isinstance(q, torch.Tensor):
        raise TypeError(f"q: is a {type(q).__name__}; allowed: a CUDA tensor")
    if is_fp8_kvcache:
        if not isinstance(k_cache, torch.Tensor):
            raise TypeError(f"k_cache: is a {type(k_cache).__name__}; allowed: a CUDA tensor")
        if k_cache.element_size() == 1:
            k_cache = k_cache.view(torch.uint8)
    if q.requires_grad:
        q = q.detach()
    call, config, lengths, stream, most_keys = _native.prepare(
        q, k_cache, block_table, cache_seqlens, head_dim_v, _ROW_DIM**-0.5 if softmax_scale is None else softmax_scale,
        causal, is_fp8_kvcache, meta.fp8_scales == "per_token")
    if meta.fp8_scales == "per_token" and config[4] != _E4M3_PER_TOKEN:
        raise ValueError("fp8_scales: is 'per_token'; allowed: per_128 (the default), because k_cache has no e4m3 "
                         "records (these need is_fp8_kvcache and [num_blocks, 64, 1, 656])")
    device = config[-1]
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return _decode(q, meta, call, config, lengths, stream, most_keys)
    return _decode(q, meta, call, config, lengths, stream, most_keys)


def _check_fp8_scales(value):
    if value not in _FP8_SCALES:
        raise ValueError(f"fp8_scales: is {value!r}; allowed: {', '.join(_FP8_SCALES)}")


def _integer(name, value):
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: is {value!r}; allowed: an integer") from None


def _multiprocessors_of(device):
    try:
        return _native.multiprocessors(device)
    except RuntimeError as error:
        said = re.search(r"CUDA error (\d+): (.*?)(?: \([^()]*:\d+\))?$", str(error), re.DOTALL)
        if said is None:
            raise
        raise RuntimeError(f"no GPU can be used: a Hopper GPU and a driver for CUDA 13.0 or later are needed, and CUDA says "
                           f"\"{said[2]}\" (CUDA error {said[1]})") from None


def _refuse_sparse(**given):
    for name, value in given.items():
        if value is not None:
            raise NotImplementedError(f"{name}: is given; allowed: None (there is no sparse attention)")


def _decode(q, meta, call, config, lengths, stream, most_keys):
    batch, s_q, h_q, h_kv = config[:4]
    device = config[-1]
    if device not in _multiprocessors:
        _multiprocessors[device] = _multiprocessors_of(device)
    sms = _multiprocessors[device]
    if stream is None:
        stream = torch.cuda.current_stream().cuda_stream
    if not meta.have_initialized:
        _check_expected(meta, config)
        plan_bytes, scratch_bytes = _native.workspace(call, sms, most_keys)
        plan = torch.empty(plan_bytes, dtype=torch.uint8, device=q.device)
        meta.scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=q.device)
        _native.plan(call, sms, most_keys, lengths, plan.data_ptr(), stream)
        meta.tile_scheduler_metadata = plan
        meta.most_keys = most_keys
        meta.config = config
        meta.have_initialized = True
    elif meta.config != config:
        changed = [f"{name} is {now}; allowed: {then}"
                   for name, now, then in zip(_CONFIG_FIELDS, config, meta.config) if now != then]
        raise ValueError(f"tile_scheduler_metadata: was made for another call: {'; '.join(changed)}")

    group = h_q // h_kv
    if h_kv == 1:
        dense_q = q.contiguous()
        out = torch.empty((batch, s_q, h_q, _OUT_DIM), dtype=q.dtype, device=q.device)
    else:  # each KV head is computed separately, with its query heads
        dense_q = q.reshape(batch, s_q, h_kv, group, q.shape[-1]).permute(2, 0, 1, 3, 4).contiguous()
        out = torch.empty((h_kv, batch, s_q, group, _OUT_DIM), dtype=q.dtype, device=q.device)
    if dense_q.data_ptr() % 16 != 0:
        dense_q = dense_q.clone()
    lse = torch.empty((batch, h_q, s_q), dtype=torch.float32, device=q.device)
    _native.decode(call, sms, meta.most_keys, dense_q.data_ptr(), out.data_ptr(), lse.data_ptr(),
                   meta.tile_scheduler_metadata.data_ptr(), meta.scratch.data_ptr(), stream)
    if h_kv > 1:
        out = out.permute(1, 2, 0, 3, 4).contiguous().view(batch, s_q, h_q, _OUT_DIM)
    return out, lse


def _check_expected(meta, config):
    given = dict(zip(_CONFIG_FIELDS, config))
    given["s_q * h_q"] = config[1] * config[2]
    for name, value in meta.expected:
        if given[name] != value:
            raise ValueError(f"tile_scheduler_metadata: get_mla_metadata was told that {name} is {value}; here it is "
                             f"{given[name]}")
