"""Implements as much of torch as hadal.flash_mla uses before it launches anything: tensors that consist only of a description,
exported through real DLPack capsules. With it the module's checks run on machines with neither torch nor a GPU."""
import ctypes
import math
import sys
import types

CPU, CUDA = 1, 2  # DLPack's device types
INT, UINT, FLOAT, BFLOAT = 0, 1, 2, 4  # and type codes


class Type(tuple):
    """Describes a dtype: (DLPack code, bits, whether DLPack can express it)."""


bfloat16, float16, float32 = Type((BFLOAT, 16, True)), Type((FLOAT, 16, True)), Type((FLOAT, 32, True))
int32, int64, uint8 = Type((INT, 32, True)), Type((INT, 64, True)), Type((UINT, 8, True))
float8_e4m3fn = Type((FLOAT, 8, False))


class Device(tuple):
    """Holds (DLPack device type, index)."""

    def __str__(self):
        return "cpu" if self[0] == CPU else "cuda:%d" % self[1] if self[0] == CUDA else "meta"


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Tensor:
    """Strides are in elements. If `strides` is None, they are None in the capsule too, which means dense."""

    def __init__(self, shape, dtype, strides=None, device=(CUDA, 0), address=1 << 20, offset=0):
        self.shape, self.dtype, self.strides, self.device = tuple(shape), dtype, strides, Device(device)
        self.address, self.offset, self.requires_grad = address, offset, False
        self.streams_asked = []
        self._kept = []

    def element_size(self):
        return self.dtype[1] // 8

    def view(self, dtype):
        assert dtype[1] == self.dtype[1]
        return Tensor(self.shape, dtype, self.strides, self.device, self.address, self.offset)

    def numel(self):
        return math.prod(self.shape)

    def described(self):
        code, bits, known = self.dtype
        if self.device[0] not in (CPU, CUDA):
            raise BufferError("Cannot pack tensors on meta")
        if not known:
            raise BufferError("DLPack has no such type")
        count = len(self.shape)
        made = _DLTensor(data=self.address, device_type=self.device[0], device_id=self.device[1], ndim=count, code=code,
                         bits=bits, lanes=1, shape=(ctypes.c_int64 * count)(*self.shape), byte_offset=self.offset,
                         strides=None if self.strides is None else (ctypes.c_int64 * count)(*self.strides))
        self._kept.append(made)
        return made

    def __dlpack__(self, stream=None):
        self.streams_asked.append(stream)
        made = self.described()
        return _new_capsule(ctypes.addressof(made), b"dltensor", None)


class _Exchange(ctypes.Structure):
    """Holds DLPack's table of C functions."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
                ("not_used", ctypes.c_void_p * 3), ("borrow", ctypes.c_void_p), ("current_stream", ctypes.c_void_p)]


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
def _borrow(tensor, out):
    out[0] = tensor.described()
    tensor.borrowed += 1
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current_stream(device_type, device_id, out):
    BorrowedTensor.streams_asked_for.append((device_type, device_id))
    out[0] = 0
    return 0


def _table(major):
    made = _Exchange(major=major, minor=3, borrow=ctypes.cast(_borrow, ctypes.c_void_p),
                     current_stream=ctypes.cast(_current_stream, ctypes.c_void_p))
    _tables.append(made)
    return _new_capsule(ctypes.addressof(made), b"dlpack_exchange_api", None)


_tables = []


class BorrowedTensor(Tensor):
    """Exports its tensor through the table, as newer libraries do."""
    borrowed = 0
    streams_asked_for = []
    __dlpack_c_exchange_api__ = _table(1)


class FutureTensor(Tensor):
    """Has a table of an unknown kind."""
    borrowed = 0
    __dlpack_c_exchange_api__ = _table(2)


def install():
    """Puts the stand-in where `import torch` finds it."""
    torch = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.uint8 = uint8
    torch.cuda = types.SimpleNamespace(current_device=lambda: 0)
    sys.modules["torch"] = torch
