"""Memory that a caller has, and memory that is made for a result: arrays of numpy, tensors of torch, buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional

from shardctl._errors import Usage, failure, unsupported
from shardctl._extension import native

NUMPY = frozenset(
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64 complex64 complex128".split()
)
ML_DTYPES = frozenset(
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
)
NOT_IN_TORCH = frozenset("float6_e2m3fn float6_e3m2fn bcomplex32 qint8 quint8 qint32 quint4x2 quint2x4".split())


@dataclass
class Memory:
    """Writable memory of the process. `finish` moves the elements to their place if that is a different one."""

    address: int
    nbytes: int
    owner: object  # Keeps the memory alive.
    dtype: Optional[str] = None  # None: bytes of any dtype.
    shape: Optional[tuple[int, ...]] = None  # None: any shape of that many bytes.
    finish: Optional[Callable[[], object]] = None


def usage(message: str, expected: object = None, found: object = None, tensor: Optional[str] = None,
          hint: Optional[str] = None) -> Usage:
    """The exception for a wrong argument."""
    return Usage(failure(None, 2, "invalid_argument", message, hint, expected=expected, found=found, tensor=tensor))


def check_ranges(**given: tuple[int, int]) -> None:
    """Checks numbers from 1 to their largest. Raises Usage, and TypeError if one is not an integer."""
    for name, (value, most) in given.items():
        if not hasattr(type(value), "__index__"):
            raise TypeError(f"{name} is an integer, not {type(value).__name__}")
        if not 1 <= value <= most:
            raise usage(f"{name} is out of range", f"1 to {most}", value)


def numpy_dtype(dtype: str) -> Any:
    """numpy's dtype with a name of torch. Raises Unsupported if it needs a package that is missing, or if there is none."""
    import numpy

    if dtype in NUMPY:
        return numpy.dtype(dtype)
    if dtype in ML_DTYPES:
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise unsupported(f"numpy has no dtype {dtype}", "install ml_dtypes, or read it with torch()") from None
        return numpy.dtype(getattr(ml_dtypes, dtype))
    hint = "read it with torch()" if dtype not in NOT_IN_TORCH else "read its bytes with read_into()"
    raise unsupported(f"numpy has no dtype {dtype}", hint)


def torch_dtype(dtype: str) -> Any:
    """torch's dtype with that name. Raises Unsupported if there is none that tensors can have."""
    import torch

    found = None if dtype in NOT_IN_TORCH else getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise unsupported(f"torch has no tensors of dtype {dtype}", "read its bytes with read_into()")
    return found


def is_a(value: object, module: str, name: str) -> bool:
    """Whether it is of that class of a module. Imports nothing, because a module that is not imported has no values."""
    home = sys.modules.get(module)
    return home is not None and isinstance(value, getattr(home, name))


def is_torch(value: object) -> bool:
    """Whether it is a tensor of torch. Imports nothing."""
    return is_a(value, "torch", "Tensor")


def dtype_name(value: Any) -> str:
    """The name of the dtype of a tensor of torch or an array of numpy."""
    return str(getattr(value.dtype, "name", value.dtype)).removeprefix("torch.")


def is_lazy(tensor: Any) -> bool:
    """Whether it is a parameter or buffer of torch that has no shape yet."""
    from torch.nn.parameter import is_lazy as is_lazy_in_torch

    return bool(is_lazy_in_torch(tensor))


def is_wrapper(tensor: Any) -> bool:
    """Whether a tensor of torch is of a class that has its elements in other tensors, such as DTensor."""
    import torch

    plain: Any = torch.Tensor  # Its types omit this method.
    return type(tensor).__torch_dispatch__ is not plain.__torch_dispatch__


def is_packed(tensor: Any) -> bool:
    """Whether a tensor of torch is packed in this host's memory, so that it can be filled in place."""
    on_host: bool = tensor.device.type == "cpu" and tensor.is_contiguous()
    return on_host and not tensor.is_conj() and not tensor.is_neg()


def memory_of(target: Any) -> Memory:
    """The memory of a dense tensor, an array or a buffer. Tensors that are not packed in this host's memory get memory beside
    them, and `finish` copies it."""
    if is_torch(target):
        return _memory_of_tensor(target)
    if is_a(target, "numpy", "ndarray"):
        return _memory_of_array(target)
    return _memory_of_buffer(target)


def is_held(tensor: Any) -> bool:
    """Whether a tensor of torch, not a wrapper, has all its elements in memory. On the device meta, or sparse, it has not; nor
    if its storage was freed or shrunk, as FSDP frees those of parameters."""
    import torch

    if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
        return False
    if tensor.numel() == 0:
        return True
    last: int = tensor.storage_offset() + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    held: bool = (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()
    return held


def check_dense(tensor: Any, name: Optional[str] = None) -> None:
    """Raises Usage for tensors without elements of their own: see is_held, or wrappers of other tensors (DTensor). `name` is
    that in a state, if it is part of one."""
    if not is_wrapper(tensor) and is_held(tensor):
        return
    hint = "load_state_dict() fills DTensors and ShardedTensors" if is_wrapper(tensor) else None
    if name is not None:
        hint = "put a new tensor in its place with assign=True"
    raise usage(f"cannot fill {'a tensor' if name is None else repr(name)} that has no memory of its own", "a dense tensor",
                f"{type(tensor).__name__} on {tensor.device}", name, hint)


def _memory_of_tensor(tensor: Any) -> Memory:
    import torch

    tensor = tensor.detach()
    name, shape = dtype_name(tensor), tuple(tensor.shape)
    if is_packed(tensor):
        return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor, name, shape)
    beside = torch.empty(shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")

    def finish() -> None:
        with torch.no_grad():
            tensor.copy_(beside)

    return Memory(beside.data_ptr(), beside.numel() * beside.element_size(), beside, name, shape, finish)


def _kind(is_readonly: bool, strides: Any) -> str:
    return "a read-only one" if is_readonly else f"one with strides {strides}"


def _memory_of_array(array: Any) -> Memory:
    if not array.flags.writeable or not array.flags.c_contiguous:
        raise usage("cannot fill an array that is read-only or not contiguous", "a writable C-contiguous array",
                    _kind(not array.flags.writeable, array.strides))
    if array.dtype.byteorder == ">":
        raise usage("cannot fill an array of big-endian elements", "little-endian elements", array.dtype.str)
    address: int = array.__array_interface__["data"][0]
    return Memory(address, array.nbytes, array, array.dtype.name, tuple(array.shape))


def _memory_of_buffer(target: Any) -> Memory:
    try:
        view = memoryview(target)
    except TypeError:
        kind = type(target).__name__
        raise usage("cannot fill the target", "a tensor of torch, an array of numpy or a writable buffer", kind) from None
    if view.readonly or not view.c_contiguous:
        raise usage("cannot fill a buffer that is read-only or not contiguous", "a writable contiguous buffer",
                    _kind(view.readonly, view.strides))
    return Memory(native().address_of(view), view.nbytes, view)


def note_changes(memories: Iterable[Memory]) -> None:
    """Lets autograd notice that tensors of torch were filled, so that it refuses a graph that saved their old elements."""
    changed = [memory.owner for memory in memories if memory.finish is None and is_torch(memory.owner)]
    if changed:
        sys.modules["torch"].autograd.graph.increment_version(changed)


def new_array(shape: Sequence[int], dtype: str) -> Any:
    """An array of numpy whose elements are undefined."""
    import numpy

    return numpy.empty(shape, numpy_dtype(dtype))


def new_tensor(shape: Sequence[int], dtype: str, pin: bool = False) -> Any:
    """A tensor of torch on the CPU whose elements are undefined."""
    import torch

    return torch.empty(tuple(shape), dtype=torch_dtype(dtype), pin_memory=pin)
