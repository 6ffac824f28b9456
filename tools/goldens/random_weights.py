"""Makes random weights in numpy with exactly the bits that src/model/random_weights.h defines (read that header first).

Stored types are kept as raw bits: BF16 as uint16, F8_E4M3 as uint8, and F32 as float32; `to_float32` decodes them.
"""

import math
from dataclasses import dataclass

import numpy as np

MASK64 = (1 << 64) - 1


@dataclass
class Options:
    seed: int = 0
    num_hidden_layers: int = 1
    gate_bias_amplitude: float = 0.01
    ue8m0_scales: bool = False


def mix64(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def fnv1a64(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & MASK64
    return state


def random_words(num_words, key):
    x = np.arange(num_words, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(key & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x += np.uint32(key >> 32)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def round_to_bf16_bits(values):
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def e4m3_values():
    """Returns the 256 values of e4m3fn; NaN codes become NaN."""
    values = np.zeros(256, dtype=np.float32)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        if exponent == 15 and mantissa == 7:
            value = math.nan
        elif exponent == 0:
            value = mantissa * 2.0**-9
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values[code] = -value if code & 0x80 else value
    return values


E4M3_VALUES = e4m3_values()


def e4m3_codes(data):
    magnitude = data & np.uint8(0x7F)
    return (data & np.uint8(0x80)) | np.where(magnitude == 0x7F, np.uint8(0x7E), magnitude)


E4M3_CODE_RMS = math.sqrt(
    sum(float(E4M3_VALUES[c]) ** 2 for c in e4m3_codes(np.arange(256, dtype=np.uint8))) / 256.0)


def shared_name(name):
    if name.endswith(".embed_tokens.weight"):
        return "model.embed_tokens.weight"
    if name.endswith(".shared_head.head.weight"):
        return "lm_head.weight"
    return name


def linear_gain(name, options):
    adds_to_residual = ".o_proj." in name or ".down_proj." in name
    return 1.0 / math.sqrt(2.0 * options.num_hidden_layers) if adds_to_residual else 1.0


def real_distribution(name, fan_in, options):
    if name.endswith("norm.weight"):
        return 1.0, 0.1
    if name.endswith("norm.bias"):
        return 0.0, 0.1
    if name.endswith("embed_tokens.weight"):
        return 0.0, math.sqrt(3.0)
    if name.endswith("e_score_correction_bias"):
        return 0.0, options.gate_bias_amplitude
    return 0.0, math.sqrt(3.0) * linear_gain(name, options) / math.sqrt(float(fan_in))


def make(name, shape, dtype, options):
    """Returns one tensor as stored; dtype is safetensors' "F32", "BF16" or "F8_E4M3"."""
    count = math.prod(shape)
    key = mix64(fnv1a64(shared_name(name).encode()) ^ mix64(options.seed))
    if dtype == "F8_E4M3":
        data = random_words((count + 3) // 4, key).astype("<u4").view(np.uint8)[:count]
        return e4m3_codes(data).reshape(shape)

    r = random_words((count + 1) // 2, key).astype("<u4").view("<u2")[:count].astype(np.int32)
    last_dim = shape[-1] if shape else 1
    if name.endswith("weight_scale_inv"):
        target = linear_gain(name, options) / (math.sqrt(128.0 * last_dim) * E4M3_CODE_RMS)
        if options.ue8m0_scales:
            exponent = math.frexp(target)[1] - 1
            ratio = target / math.ldexp(1.0, exponent)
            threshold = int((ratio * ratio - 1.0) / 3.0 * 65536.0)
            low = np.float32(math.ldexp(1.0, exponent))
            return np.where(r < threshold, np.float32(2.0) * low, low).astype(np.float32).reshape(shape)
        base = target / math.sqrt(1.0 + 0.25 / 3.0)
        offset, amplitude = base, base * 0.5
    else:
        offset, amplitude = real_distribution(name, last_dim, options)
    scale = np.float32(amplitude) * np.float32(2.0**-16)
    values = (2 * r - 65535).astype(np.float32) * scale + np.float32(offset)
    if dtype == "BF16":
        return round_to_bf16_bits(values).reshape(shape)
    assert dtype == "F32", dtype
    return values.reshape(shape)


def to_float32(stored, dtype):
    if dtype == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "F8_E4M3":
        return E4M3_VALUES[stored]
    return stored


def dequantize(codes, scales):
    """Returns the float32 weights of e4m3 codes [N, K] with scales [ceil(N/128), ceil(K/128)]; the last blocks may be
    ragged."""
    rows, cols = codes.shape
    spread = np.repeat(np.repeat(scales, 128, axis=0)[:rows], 128, axis=1)[:, :cols]
    return E4M3_VALUES[codes] * spread


def checksum(stored):
    data = np.ascontiguousarray(stored).tobytes()
    words = np.frombuffer(data + b"\0" * (-len(data) % 4), dtype="<u4").astype(np.uint64)
    with np.errstate(over="ignore"):
        return int((words * (2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1))).sum(dtype=np.uint64))
