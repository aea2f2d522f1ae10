"""Saves tensors of this process's memory as a checkpoint."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Optional

from shardctl._checkpoint import PathLike, native
from shardctl._memory import Memory, check_ranges, is_packed, is_torch, usage


def save(tensors: Mapping[str, Any], destination: PathLike, *, to: Optional[str] = None, force: bool = False,
         manifest: bool = False, sync: bool = True, threads: Optional[int] = None, max_memory: int = 64 << 20) -> None:
    """Saves tensors as a checkpoint, from their memory, without a copy in between.

    The destination appears as a whole or not at all: an error or Ctrl-C leaves it unchanged. The tensors must not change
    meanwhile. Those on a device, or not contiguous, are first copied.

    tensors: tensors of torch or arrays of numpy, by name. Tensors that are the same memory stay tied if the format can
        express that. Values that are not tensors are refused.
    destination: a file whose suffix names the format, or a folder with `to`.
    to: the name of a format: "safetensors", "torch", "dcp", ...
    force: replaces an existing destination.
    manifest: also writes hashes of all files, which verify() checks.
    sync: forces the files to disk before the destination appears.
    threads: the number of threads that write; by default, all processors that this process may use.
    max_memory: bytes for buffers.
    Warns (UserWarning) of what the format cannot express.
    """
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    check_ranges(threads=(threads, 4096), max_memory=(max_memory, 1 << 62))
    memories = {name: _readable(name, tensor) for name, tensor in tensors.items()}
    held = [(name, str(memory.dtype), memory.shape or (), memory.address, memory.nbytes) for name, memory in memories.items()]
    for text in native().save(tensors=held, path=os.fspath(destination), to=to or "", force=force, sync=sync,
                              manifest=manifest, threads=threads, max_memory=max_memory):
        warnings.warn(text, stacklevel=2)


def _readable(name: Any, value: Any) -> Memory:
    """The memory of a tensor's elements in row-major order. Raises Usage if the value is no tensor that can be saved."""
    if not isinstance(name, str):
        raise usage("cannot save a tensor whose name is not a str", found=repr(name))
    numpy = sys.modules.get("numpy")
    if is_torch(value):
        return _of_tensor(name, value.detach())
    if numpy is not None and isinstance(value, numpy.ndarray):
        array = numpy.asarray(value, order="C", dtype=value.dtype.newbyteorder("="))
        address: int = array.__array_interface__["data"][0]
        return Memory(address, array.nbytes, array, array.dtype.name, tuple(array.shape))
    raise usage(f"cannot save '{name}'", "a tensor of torch or an array of numpy", type(value).__name__, name)


def _of_tensor(name: str, tensor: Any) -> Memory:
    import torch

    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        error = usage(f"cannot save '{name}'", "a plain, dense tensor", f"{type(tensor).__name__} on {tensor.device}", name)
        error.hint = "full_tensor() of a DTensor is one"
        raise error
    if not is_packed(tensor):
        tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor, dtype, tuple(tensor.shape))
