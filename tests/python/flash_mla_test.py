#!/usr/bin/env python3
"""Tests hadal.flash_mla where there is no GPU: that the wheel installs and imports, what its functions are, and that every wrong
argument is refused with an error that names it, its value and what is allowed. `scripts/wheel --test` runs this;
HADAL_PYTHON_PATH is the directory that the wheels are installed into. The last line is "N passed, N failed"."""
import ctypes
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("HADAL_PYTHON_PATH") or sys.exit("HADAL_PYTHON_PATH is not set; scripts/wheel --test sets it"))
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a call that passes every check must end at "no device"
sys.path[:0] = [str(SITE), str(Path(__file__).parent)]

import stand_in
from stand_in import CPU, CUDA, Tensor, bfloat16, float16, float32, float8_e4m3fn, int32, int64, uint8

stand_in.install()

import hadal
from hadal import _flash_mla as native
from hadal import flash_mla

VERSION = re.search(r"project\(hadal VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]


def arguments(batch=2, s_q=1, h_q=16, h_kv=1, dtype=bfloat16, **changed):
    values = dict(q=Tensor((batch, s_q, h_q, 576), dtype), k_cache=Tensor((10, 64, h_kv, 576), dtype),
                  block_table=Tensor((batch, 5), int32), cache_seqlens=Tensor((batch,), int32), head_dim_v=512,
                  tile_scheduler_metadata=flash_mla.get_mla_metadata()[0])
    values.update(changed)
    return values


def accepted(**changed):
    """Every check passes, so that only the GPU is missing."""
    try:
        flash_mla.flash_mla_with_kvcache(**arguments(**changed))
    except RuntimeError as error:
        assert re.match(r"no GPU can be used: .* \(CUDA error \d+\)$", str(error)) and "/" not in str(error), error
        return
    raise AssertionError("there is no GPU, and the call went through")


def refused(kind, *words, **changed):
    try:
        flash_mla.flash_mla_with_kvcache(**arguments(**changed))
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"'{error}' does not say {missing}"
        return
    raise AssertionError(f"no {kind.__name__}")


def raised(kind, words, function):
    try:
        function()
    except kind as error:
        assert str(error).startswith(words), error
        return
    raise AssertionError(f"no {kind.__name__}")


def test_both_packages_have_the_version_of_the_project():
    assert hadal.__version__ == native.version == VERSION, (hadal.__version__, native.version, VERSION)


def test_functions_have_the_parameters_of_flash_mla():
    names = list(inspect.signature(flash_mla.flash_mla_with_kvcache).parameters)
    assert names == ["q", "k_cache", "block_table", "cache_seqlens", "head_dim_v", "tile_scheduler_metadata", "num_splits",
                     "softmax_scale", "causal", "is_fp8_kvcache", "indices", "attn_sink", "extra_k_cache",
                     "extra_indices_in_kvcache", "topk_length", "extra_topk_length"], names
    metadata, num_splits = flash_mla.get_mla_metadata()
    assert isinstance(metadata, flash_mla.FlashMLASchedMeta) and num_splits is None and not metadata.have_initialized
    metadata, num_splits = flash_mla.get_mla_metadata(Tensor((2,), int32), 16, 1)
    assert isinstance(metadata, flash_mla.FlashMLASchedMeta) and num_splits is None


def test_the_alias_has_the_same_functions():
    import flash_mla as alias
    from flash_mla.flash_mla_interface import flash_mla_with_kvcache
    assert Path(alias.__file__).is_relative_to(SITE), alias.__file__
    assert alias.flash_mla_with_kvcache is flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
    assert alias.get_mla_metadata is flash_mla.get_mla_metadata and alias.__version__ == VERSION


def test_wheels_need_no_other_package():
    """The alias installs the wheel of its own version, whose name is ours, and requires no other package."""
    asked = {found.metadata["Name"]: found.requires or [] for found in importlib.metadata.distributions(path=[str(SITE)])}
    assert asked == {"hadal-flash-mla": [], "hadal-flash-mla-alias": [f"hadal-flash-mla=={VERSION}"]}, asked


def test_wheels_hold_licences():
    """Both wheels hold our licence; the one with the library also holds a notice for each component that is linked into it."""
    for distribution in importlib.metadata.distributions(path=[str(SITE)]):
        files = {file.as_posix().partition(".dist-info/licenses/")[2]: file.locate() for file in distribution.files}
        assert "Apache License" in files["LICENSE"].read_text(encoding="utf-8"), distribution.metadata["Name"]
        if distribution.metadata["Name"] != "hadal-flash-mla":
            continue
        contents = files["third-party/CONTENTS.txt"].read_text(encoding="utf-8").splitlines()[1:]
        for line in contents:
            for name in line.rpartition(": ")[2].split(", "):
                assert files["third-party/" + name].read_text(encoding="utf-8").strip(), line
        for linked in ("libcudart_static.a", "libstdc++.a"):
            assert any(linked in line for line in contents), (linked, contents)


def test_right_arguments_are_accepted():
    accepted()
    accepted(dtype=float16, s_q=3, h_q=126, h_kv=3)
    accepted(h_q=128, s_q=17, causal=True, softmax_scale=0.1)
    accepted(k_cache=Tensor((0, 64, 1, 576), bfloat16, address=None), block_table=Tensor((2, 0), int32))
    accepted(q=Tensor((2, 1, 16, 576), bfloat16, strides=(20000, 20000, 1000, 1)))
    accepted(k_cache=Tensor((10, 64, 1, 576), bfloat16, strides=(64 * 640, 640, 7, 1), offset=128))
    for dtype in (uint8, float8_e4m3fn):
        accepted(k_cache=Tensor((10, 64, 1, 656), dtype), is_fp8_kvcache=True)
        accepted(k_cache=Tensor((10, 64, 1, 576), dtype), is_fp8_kvcache=True)


def test_no_stream_is_waited_for():
    values = arguments()
    accepted(**values)
    for name in ("q", "k_cache", "block_table", "cache_seqlens"):
        assert values[name].streams_asked == [-1], (name, values[name].streams_asked)


def test_dlpacks_functions_are_used_where_they_exist():
    """Tensors of a library that exports DLPack's C functions are read through them, others through
    __dlpack__."""
    def fast(kind):
        return dict(q=kind((2, 1, 16, 576), bfloat16), k_cache=kind((10, 64, 1, 576), bfloat16),
                    block_table=kind((2, 5), int32), cache_seqlens=kind((2,), int32))

    values = fast(stand_in.BorrowedTensor)
    accepted(**values)
    assert all(value.borrowed == 1 and not value.streams_asked for value in values.values())
    assert stand_in.BorrowedTensor.streams_asked_for == [(CUDA, 0)]
    values = fast(stand_in.FutureTensor)
    accepted(**values)
    assert all(value.borrowed == 0 and value.streams_asked == [-1] for value in values.values())
    refused(ValueError, "q: size of dimension 3 is 512",
            **dict(fast(stand_in.BorrowedTensor), q=stand_in.BorrowedTensor((2, 1, 16, 512), bfloat16)))


def test_no_call_keeps_or_drops_a_reference():
    """No object's reference count is wrong, however a call ends."""
    values = arguments()
    wrong = Tensor((3, 5), int32)
    before = [sys.getrefcount(value) for value in values.values()]
    for _ in range(50):
        accepted(**values)
        refused(ValueError, "block_table", **dict(values, block_table=wrong))
        refused(TypeError, "block_table", **dict(values, block_table=None))
    assert [sys.getrefcount(value) for value in values.values()] == before


def test_sparse_arguments_are_refused():
    for name in ("indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length"):
        refused(NotImplementedError, f"{name}: ", "allowed: None", **{name: Tensor((2, 1, 64), int32)})
    try:
        flash_mla.get_mla_metadata(Tensor((2,), int32), 16, 1, topk=2048)
    except NotImplementedError as error:
        assert "topk: is 2048; allowed: None" in str(error), error
    else:
        raise AssertionError("topk was accepted")


def test_wrong_metadata_is_refused():
    metadata = flash_mla.FlashMLASchedMeta()
    metadata.fp8_scales = "per_64"
    refused(TypeError, "tile_scheduler_metadata: is a Tensor", "get_mla_metadata()",
            tile_scheduler_metadata=Tensor((132, 8), int32))
    refused(TypeError, "num_splits: is a Tensor", "allowed: None", num_splits=Tensor((3,), int32))
    refused(ValueError, "fp8_scales: is 'per_64'; allowed: per_128, per_token",
            tile_scheduler_metadata=metadata)
    raised(ValueError, "fp8_scales: is 'per_64'; allowed: per_128, per_token",
           lambda: flash_mla.FlashMLASchedMeta(fp8_scales="per_64"))


def test_scales_per_token_need_e4m3_records():
    per_token = flash_mla.FlashMLASchedMeta(fp8_scales="per_token")
    accepted(k_cache=Tensor((10, 64, 1, 656), uint8), is_fp8_kvcache=True, tile_scheduler_metadata=per_token)
    words = ("fp8_scales: is 'per_token'; allowed: per_128", "e4m3")
    refused(ValueError, *words, tile_scheduler_metadata=per_token)
    refused(ValueError, *words, tile_scheduler_metadata=per_token, is_fp8_kvcache=True,
            k_cache=Tensor((10, 64, 1, 576), uint8))


def test_arguments_that_are_no_tensors_are_refused():
    """Arguments that should be tensors or numbers and are not are refused."""
    class Array:
        shape, device = (2, 1, 16, 576), "cpu"
    for value, name in ((None, "NoneType"), ([1], "list"), (Array(), "Array"), (3.5, "float"), ("q", "str")):
        refused(TypeError, f"q: is a {name}; allowed: a CUDA tensor", q=value)
        refused(TypeError, f"k_cache: is a {name}; allowed: a CUDA tensor", k_cache=value, is_fp8_kvcache=True)
    for name in ("k_cache", "block_table", "cache_seqlens"):
        for value in (None, [1], 3.5, "q"):
            refused(TypeError, f"{name}: is a {type(value).__name__} without", "allowed: a CUDA tensor", **{name: value})
        refused(ValueError, f"{name}: is on cpu; allowed: a CUDA device", **{name: Array()})
    refused(ValueError, "q: shape is []; allowed: [batch, s_q, h_q, 576]", q=Tensor((), bfloat16))
    refused(ValueError, "cache_seqlens: shape is []; allowed: [batch]", cache_seqlens=Tensor((), int32))
    for value in ("512", None, [512]):
        refused(TypeError, f"head_dim_v: is {value!r}; allowed: 512", head_dim_v=value)
    refused(ValueError, f"head_dim_v: is {1 << 80}; allowed: 512", head_dim_v=1 << 80)
    for value in ("x", [1.0]):
        refused(TypeError, f"softmax_scale: is {value!r}; allowed: a number above 0", softmax_scale=value)


def test_wrong_older_arguments_are_refused():
    lengths = Tensor((2,), int32)
    raised(TypeError, "cache_seqlens: is a list; allowed: a CUDA tensor [batch]",
           lambda: flash_mla.get_mla_metadata([1, 2], 16, 1))
    raised(ValueError, "cache_seqlens: shape is []; allowed: [batch]",
           lambda: flash_mla.get_mla_metadata(Tensor((), int32), 16, 1))
    raised(TypeError, "num_q_tokens_per_head_k: is 'x'; allowed: an integer",
           lambda: flash_mla.get_mla_metadata(lengths, "x", 1))
    raised(TypeError, "num_heads_k: is 'y'; allowed: an integer", lambda: flash_mla.get_mla_metadata(lengths, 16, "y"))
    raised(TypeError, "num_heads_q: is 1.5; allowed: an integer", lambda: flash_mla.get_mla_metadata(num_heads_q=1.5))


def test_missing_torch_is_an_error():
    done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import hadal.flash_mla"],
                          env=dict(os.environ, PYTHONPATH=str(SITE)), capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: hadal.flash_mla works on torch's tensors" in done.stderr.splitlines()[-1], done.stderr


def test_wrong_types_are_refused():
    refused(TypeError, "q: dtype is float32; allowed: bfloat16, float16", q=Tensor((2, 1, 16, 576), float32))
    refused(TypeError, "k_cache: dtype is float16; allowed: that of q", k_cache=Tensor((10, 64, 1, 576), float16))
    refused(TypeError, "block_table: dtype is int64; allowed: int32", block_table=Tensor((2, 5), int64))
    refused(TypeError, "cache_seqlens: dtype is int64; allowed: int32", cache_seqlens=Tensor((2,), int64))
    refused(TypeError, "q: dtype is float16; allowed: bfloat16 with is_fp8_kvcache", is_fp8_kvcache=True,
            q=Tensor((2, 1, 16, 576), float16), k_cache=Tensor((10, 64, 1, 656), uint8))
    refused(TypeError, "k_cache: dtype is bfloat16; allowed with is_fp8_kvcache: one byte", is_fp8_kvcache=True)
    refused(TypeError, "block_table: is a list without a DLPack tensor", block_table=[[1, 2], [3, 4]])
    refused(TypeError, "block_table: is a NoneType", block_table=None)
    refused(TypeError, "q: is a Tensor without a DLPack tensor (DLPack has no such type)",
            q=Tensor((2, 1, 16, 576), float8_e4m3fn))


def test_wrong_shapes_are_refused():
    refused(ValueError, "q: shape is [2, 16, 576]; allowed: [batch, s_q, h_q, 576]", q=Tensor((2, 16, 576), bfloat16))
    refused(ValueError, "q: size of dimension 3 is 512", "allowed: 576", q=Tensor((2, 1, 16, 512), bfloat16))
    refused(ValueError, "q: size of dimension 0 is 0; allowed: 1", q=Tensor((0, 1, 16, 576), bfloat16))
    refused(ValueError, "k_cache: shape is [640, 1, 576]", k_cache=Tensor((640, 1, 576), bfloat16))
    refused(ValueError, "k_cache: size of dimension 1 is 128", "allowed: 64", k_cache=Tensor((5, 128, 1, 576), bfloat16))
    refused(ValueError, "k_cache: size of dimension 3 is 512", "allowed: 576", k_cache=Tensor((10, 64, 1, 512), bfloat16))
    refused(ValueError, "k_cache: 3 KV heads for the 16 heads of q; allowed: divisors",
            k_cache=Tensor((10, 64, 3, 576), bfloat16))
    refused(ValueError, "k_cache: 1 KV heads for the 256 heads of q", "at most 128", h_q=256)
    refused(ValueError, "block_table: size of dimension 0 is 3", "allowed: 2, the batch of q",
            block_table=Tensor((3, 5), int32))
    refused(ValueError, "cache_seqlens: size of dimension 0 is 1", "allowed: 2", cache_seqlens=Tensor((1,), int32))
    refused(ValueError, "head_dim_v: is 576; allowed: 512", head_dim_v=576)
    refused(ValueError, "k_cache: last dimension is 584; allowed with is_fp8_kvcache: 656",
            k_cache=Tensor((10, 64, 1, 584), uint8), is_fp8_kvcache=True)
    refused(ValueError, "k_cache: size of dimension 2 is 2", "allowed: 1 KV head with is_fp8_kvcache",
            k_cache=Tensor((10, 64, 2, 656), uint8), is_fp8_kvcache=True)


def test_wrong_devices_and_layouts_are_refused():
    for name, value in arguments().items():
        if isinstance(value, Tensor):
            refused(ValueError, f"{name}: is on cpu; allowed: a CUDA device",
                    **{name: Tensor(value.shape, value.dtype, device=(CPU, 0))})
            refused(ValueError, f"{name}: is on meta; allowed: a CUDA device",
                    **{name: Tensor(value.shape, value.dtype, device=(0, 0))})
    refused(ValueError, "k_cache: device is cuda:1; allowed: cuda:0, where q is",
            k_cache=Tensor((10, 64, 1, 576), bfloat16, device=(CUDA, 1)))
    refused(ValueError, "q: stride of the last dimension is 2; allowed: 1",
            q=Tensor((2, 1, 16, 576), bfloat16, strides=(18432, 18432, 1152, 2)))
    refused(ValueError, "block_table: stride of the last dimension is 3; allowed: 1",
            block_table=Tensor((2, 5), int32, strides=(15, 3)))
    refused(ValueError, "k_cache: address is 0x100008; allowed: addresses that 16 divides",
            k_cache=Tensor((10, 64, 1, 576), bfloat16, offset=8))
    refused(ValueError, "k_cache: stride of dimension 1 is 1154 bytes; allowed: positive multiples of 16",
            k_cache=Tensor((10, 64, 1, 576), bfloat16, strides=(64 * 584, 577, 576, 1)))
    refused(ValueError, "k_cache: stride of dimension 1 is 672 bytes; allowed: a dense FP8 cache", is_fp8_kvcache=True,
            k_cache=Tensor((10, 64, 1, 656), uint8, strides=(64 * 656, 672, 656, 1)))
    for scale in (0.0, -0.5, float("nan"), float("inf")):
        refused(ValueError, f"softmax_scale: is {scale:g}", "allowed: above 0", softmax_scale=scale)


def test_the_library_refuses_wrong_fields():
    """Calls the C functions themselves, without the binding."""
    library = ctypes.CDLL(str(SITE / "hadal/libhadal_flash_mla.so"))
    library.hadal_mla_version.restype = ctypes.c_char_p
    assert library.hadal_mla_version().decode() == VERSION

    class Shape(ctypes.Structure):
        _fields_ = [("num_seqs", ctypes.c_int64)] + [(name, ctypes.c_int32) for name in (
            "q_len", "num_heads", "num_kv_heads", "cache", "causal", "num_sms")] + [("most_keys", ctypes.c_int64)]

    def workspace(size=200, **changed):
        shape = Shape(num_seqs=4, q_len=1, num_heads=16, num_kv_heads=1, cache=0, causal=1, num_sms=132)
        for name, value in changed.items():
            setattr(shape, name, value)
        message = ctypes.create_string_buffer(b"?" * size, size + 1)
        status = library.hadal_mla_workspace(ctypes.byref(shape), None, None, message, ctypes.c_size_t(size))
        return status, message.value.decode()

    for field, value, allowed in (("num_seqs", 0, "1 to"), ("q_len", 0, "1 to"), ("num_heads", 129, "1 to 128"),
                                  ("num_kv_heads", 0, "1 or more"), ("num_kv_heads", 3, "multiples"),
                                  ("cache", 9, "0 (bf16)"), ("num_sms", 0, "1 or more"), ("num_seqs", 20000, "1 to 16384"),
                                  ("most_keys", -1, "0 (not known)")):
        status, message = workspace(**{field: value})
        assert status == 1 and field in message and str(value) in message and f"allowed: {allowed}" in message, message
    assert workspace(num_seqs=0, size=12) == (1, "num_seqs is")  # cut to the buffer's size, and terminated
    assert library.hadal_mla_workspace(None, None, None, None, ctypes.c_size_t(0)) == 1
    # The binding passes on only what prepare() made.
    for call in (lambda: native.workspace(b"short", 132, 0), lambda: native.prepare(1, 2, 3, 4, 512, 1.0, False, False, False)):
        try:
            call()
        except (TypeError, ValueError):
            continue
        raise AssertionError("the call was accepted")


def test_a_missing_library_is_an_error():
    """Building the binding without the kernel library gives an error that says what to do."""
    with tempfile.TemporaryDirectory() as build:
        done = subprocess.run(["cmake", "-S", str(ROOT / "python"), "-B", build, "-DHADAL_FLASH_MLA_LIBRARY=/not/there.so",
                               f"-DPython_EXECUTABLE={sys.executable}"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "'/not/there.so'" in done.stderr, done.stderr
    assert "--target hadal_flash_mla" in done.stderr, done.stderr


def main():
    passed = failed = 0
    for name, test in sorted(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            passed += 1
        except Exception:  # pylint: disable=broad-exception-caught
            failed += 1
            print(f"FAILED {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
