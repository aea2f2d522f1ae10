"""Saves state of this process's memory as a checkpoint, alone or together with the other ranks."""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypeVar, Union

from shardctl._checkpoint import Checkpoint
from shardctl._checkpoint import open as open_checkpoint
from shardctl._errors import Unsupported, Usage, unsupported
from shardctl._extension import native
from shardctl._memory import ML_DTYPES, NUMPY, check_ranges, dtype_name, is_a, is_held, is_packed, is_torch, is_wrapper, usage
from shardctl._paths import PathLike, encoded
from shardctl._ranks import Ranks, call_of, default_group, together
from shardctl._sharding import boxes_of_dtensor, is_dtensor, is_sharded_tensor, placement_text

_T = TypeVar("_T")
_PLAIN = (type(None), bool, int, float, str, bytes)
_MOST_DEPTH = 256  # kMaxValueDepth of libshard.
_Box = tuple[tuple[int, ...], tuple[int, ...], int, int]  # Offsets, sizes, address, bytes.


def save(state: Mapping[str, Any], destination: PathLike, *, to: Optional[str] = None,
         like: Union[PathLike, Checkpoint, None] = None, collective: Optional[bool] = None, force: bool = False,
         manifest: bool = False, sync: bool = True, threads: Optional[int] = None, max_memory: int = 64 << 20) -> None:
    """Saves a state dict as a checkpoint, from the memory of its tensors, without a copy in between.

    The destination appears as a whole or not at all: an error or Ctrl-C leaves it unchanged. The tensors must not change
    meanwhile. Those on a device, or not contiguous, are first copied.

    state: tensors of torch, arrays of numpy and other values, by name, in dicts, lists and tuples. Names in the
        checkpoint are the keys joined by dots. Tensors that are the same memory stay tied if the format can express that.
    destination: a file whose suffix names the format, or a folder with `to` or `like`.
    to: the name of a format: "safetensors", "torch", "dcp", ...
    like: a checkpoint. The new one is sharded in the same way, in a format that stores shards.
    collective: whether all ranks of torch's default process group save one checkpoint together. Each rank then writes
        its own pieces of DTensors and ShardedTensors, and one of them each plain tensor, which must be equal on all. By
        default, they do if this rank's state has a DTensor or ShardedTensor; all ranks must decide alike.
    force: replaces an existing destination.
    manifest: also writes hashes of all files, which verify() checks.
    sync: forces the files to disk before the destination appears.
    threads: the number of threads that write; by default, this rank's share of the processors.
    max_memory: bytes for buffers.
    Warns (UserWarning, on rank 0) about content that the format cannot express.
    """
    group = _finite(lambda: _group_for(state, collective))
    collected = State(keeps_versions=to in ("torch", "torch-ranks") or (to is None and _is_torch_file(destination)))
    with call_of(group) as ranks:
        root = together(ranks, lambda: collected.add_root(state))
        texts = write(collected, root, destination, ranks, to=to, like=like, force=force, manifest=manifest, sync=sync,
                      threads=threads, max_memory=max_memory)
    for text in texts:
        warnings.warn(text, stacklevel=2)


def _finite(walk: Callable[[], _T]) -> _T:
    """The result of a walk over a state. Raises Usage if the state has no end."""
    try:
        return walk()
    except RecursionError:
        raise _endless() from None


def _endless() -> Usage:
    return usage("cannot save a state that contains itself, or is nested too deeply")


def _is_torch_file(path: PathLike) -> bool:
    return bool(native().format_of_suffix(encoded(path)) == "torch")


def _group_for(state: Any, collective: Optional[bool]) -> Any:
    """The process group of the ranks that save; None if this process saves alone."""
    group = default_group()
    if group is None or collective:
        return group
    sharded = next(_sharded_names(state, ""), None)
    if collective is None:
        return None if sharded is None else group
    if sharded is not None:
        raise usage(f"cannot save '{sharded}' by one rank", "a plain tensor", "a sharded tensor", sharded,
                    "save with all ranks, or save full_tensor() of it")
    return None


def _sharded_names(value: Any, name: str) -> Iterator[str]:
    """The names of the DTensors and ShardedTensors of a state."""
    if is_dtensor(value) or is_sharded_tensor(value):
        yield name
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _sharded_names(each, _below(name, key))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _sharded_names(each, _below(name, i))


def _below(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def write(state: State, root: Any, destination: PathLike, ranks: Optional[Ranks], *, to: Optional[str] = None,
          like: Union[PathLike, Checkpoint, None] = None, force: bool = False, manifest: bool = False, sync: bool = True,
          threads: Optional[int] = None, max_memory: int = 64 << 20, numbered_lists: bool = False) -> list[str]:
    """Writes a collected state, together with `ranks` if that is not None. Returns the warnings to show on this rank.

    numbered_lists: dicts of the keys 0, 1, 2, ... become lists; each rank may have some of the keys.
    """

    def prepare() -> tuple[int, Optional[Checkpoint], bytes]:
        count = threads if threads is not None else max(1, len(os.sched_getaffinity(0)) // _ranks_here(ranks))
        check_ranges(threads=(count, 4096), max_memory=(max_memory, 1 << 62))
        followed = like if like is None or isinstance(like, Checkpoint) else open_checkpoint(like)
        return count, followed, state.pickled(root)

    count, followed, tree = together(ranks, prepare)
    found: list[str] = native().save(tree=tree, tensors=[each.described() for each in state.tensors],
                                     path=encoded(destination), to=to or "",
                                     like=None if followed is None else followed._opened(), ranks=ranks, force=bool(force),
                                     sync=bool(sync), manifest=bool(manifest), numbered_lists=numbered_lists, threads=count,
                                     max_memory=max_memory)
    return found if ranks is None or ranks.rank == 0 else []


def _ranks_here(ranks: Optional[Ranks]) -> int:
    """The number of ranks on this host; all of them if the launcher does not state it."""
    if ranks is None:
        return 1
    text = os.environ.get("LOCAL_WORLD_SIZE") or str(ranks.size)
    if not text.isdecimal() or int(text) == 0:
        raise usage("cannot use the variable LOCAL_WORLD_SIZE", "a number of ranks", text)
    return int(text)


@dataclass
class HeldTensor:
    """A tensor of the state, and its boxes in this process's memory."""

    dtype: str
    shape: tuple[int, ...]
    is_sharded: bool = False
    requires_grad: bool = False
    location: str = "cpu"
    sharding: Optional[tuple[list[str], list[int], list[int], list[str]]] = None
    boxes: list[_Box] = field(default_factory=list)
    owners: list[object] = field(default_factory=list)  # Keep the memory alive.

    def described(self) -> tuple[Any, ...]:
        return (self.dtype, self.shape, self.is_sharded, self.requires_grad, self.location, self.sharding, self.boxes)

    def add_box(self, offsets: Iterable[int], local: Any) -> None:
        """Adds a tensor of torch in its place."""
        if not is_packed(local):
            local = local.resolve_conj().resolve_neg().cpu().contiguous()
        self.owners.append(local)
        self.boxes.append((tuple(offsets), tuple(local.shape), local.data_ptr(), local.numel() * local.element_size()))


class _Number:
    """Represents a tensor in the tree."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Optional[int]:
        return value.number if type(value) is _Number else None


class State:
    """The tensors of a state, and a tree with numbers in their places.

    keeps_versions: OrderedDicts keep their type and the versions of modules (`_metadata`), which not all formats have.
    """

    def __init__(self, keeps_versions: bool = False) -> None:
        self._keeps_versions = keeps_versions
        self.tensors: list[HeldTensor] = []
        self._known: dict[object, _Number] = {}
        self._values: list[Any] = []  # Keep alive what identities in _known refer to.

    def add_root(self, state: Any) -> Any:
        """Adds a whole state. Returns its tree."""
        if not isinstance(state, Mapping):
            raise usage("cannot save a state that is not a dict", "a dict", type(state).__name__)
        return _finite(lambda: self.add(state, ""))

    def add(self, value: Any, name: str, depth: int = 0) -> Any:
        """Adds the tensors of a value. Returns its tree. Raises Usage or Unsupported for values that cannot be saved."""
        if type(value) in _PLAIN:
            return value
        if is_torch(value):
            return self._add_tensor(value, name)
        if is_a(value, "numpy", "ndarray"):
            return self._add_array(value, name)
        if is_a(value, "numpy", "generic"):
            return _number_of(value, name)
        if depth == _MOST_DEPTH:
            raise _endless()
        if isinstance(value, Mapping):
            items = {_key_of(key, _below(name, key)): self.add(each, _below(name, key), depth + 1)
                     for key, each in value.items()}
            return _ordered(items, value) if self._keeps_versions and isinstance(value, OrderedDict) else items
        if isinstance(value, (list, tuple)) and (type(value) in (list, tuple) or hasattr(value, "_fields")):
            parts = [self.add(each, _below(name, i), depth + 1) for i, each in enumerate(value)]
            return parts if isinstance(value, list) else tuple(parts)
        _check_object(value, name)
        return value

    def put(self, tensor: HeldTensor) -> Any:
        """Adds a tensor that is described already. Returns its tree."""
        self.tensors.append(tensor)
        return _Number(len(self.tensors) - 1)

    def pickled(self, root: Any) -> bytes:
        """The tree for the native extension."""
        stream = io.BytesIO()
        _Pickler(stream, 4).dump(root)
        return stream.getvalue()

    def _add_tensor(self, value: Any, name: str) -> Any:
        key = _identity(value)
        if key not in self._known:
            self._known[key] = self.put(_of_tensor(name, value))
            self._values.append(value)
        return self._known[key]

    def _add_array(self, value: Any, name: str) -> Any:
        import numpy

        if value.dtype.name not in NUMPY | ML_DTYPES or isinstance(value, numpy.ma.MaskedArray):
            raise usage(f"cannot save '{name}'", "an array of numbers", f"{type(value).__name__} of {value.dtype}", name)
        array = numpy.asarray(value, order="C", dtype=value.dtype.newbyteorder("="))
        address: int = array.__array_interface__["data"][0]
        shape = tuple(array.shape)
        box = ((0,) * len(shape), shape, address, array.nbytes)
        return self.put(HeldTensor(array.dtype.name, shape, boxes=[box], owners=[array]))


def _number_of(value: Any, name: str) -> Any:
    """A number of numpy as Python's, because torch.load(weights_only=True) refuses those of numpy."""
    number = value.item()
    if type(number) in (bool, int, float) and value.dtype.kind in "biuf":
        return number
    raise _unsupported(name, f"numpy.{type(value).__name__}")


def _key_of(key: Any, name: str) -> Any:
    """A key of a dict. Numbers and texts of numpy become Python's, which are equal to them and which formats can name."""
    if is_a(key, "numpy", "generic"):
        key = key.item()
    if type(key) not in _PLAIN:
        _check_object(key, name)
    return key


def _ordered(items: dict[Any, Any], like: Any) -> Any:
    """An OrderedDict with the versions of modules that torch's state dicts have."""
    result = OrderedDict(items)
    if hasattr(like, "_metadata"):
        result._metadata = like._metadata  # type: ignore[attr-defined]
    return result


def _check_object(value: Any, name: str) -> None:
    """Raises Unsupported unless readers know the value's classes."""
    try:
        unknown = native().unknown_class(pickle.dumps(value, 4))
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
        unknown = f"{type(value).__module__}.{type(value).__qualname__}"
    if unknown is not None:
        raise _unsupported(name, unknown)


def _unsupported(name: str, found: str) -> Unsupported:
    message = f"cannot save '{name}': it is not a value that readers of checkpoints know"
    return unsupported(message, tensor=name, found=found, expected="tensors, numbers, texts, None, dicts, lists, tuples")


def _identity(value: Any) -> object:
    """Equal for tensors that are the same elements of one memory."""
    import torch

    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and is_held(value)
    if not is_plain or value.numel() == 0 or not is_packed(value):
        return id(value)
    return (value.data_ptr(), value.dtype, tuple(value.shape))


def _of_tensor(name: str, tensor: Any) -> HeldTensor:
    import torch

    if is_sharded_tensor(tensor):
        return _of_sharded_tensor(name, tensor)
    if is_dtensor(tensor):
        return _of_dtensor(name, tensor)
    check_plain(name, tensor, type(tensor) in (torch.Tensor, torch.nn.Parameter))
    held = HeldTensor(dtype_name(tensor), tuple(tensor.shape), False, tensor.requires_grad, str(tensor.device))
    held.add_box((0,) * tensor.dim(), tensor.detach())
    return held


def check_plain(name: str, tensor: Any, is_known: bool = True) -> None:
    """Raises Usage unless the tensor's class is known, and its elements are in its memory. Raises Unsupported for a dtype
    that no format stores: torch's integers of 1 to 7 bits."""
    import torch

    if re.fullmatch("u?int[1-7]", found := dtype_name(tensor)):
        raise unsupported(f"cannot save '{name}': no format stores its dtype {found}", "save its bytes: tensor.view(torch.uint8)",
                          tensor=name)
    if not is_known or is_wrapper(tensor) or tensor.is_quantized or not is_held(tensor):
        is_lazy = torch.nn.parameter.is_lazy(tensor)
        raise usage(f"cannot save '{name}'", "a dense tensor with elements", f"{type(tensor).__name__} on {tensor.device}",
                    name, "run its module once, which sets its shape" if is_lazy else None)


def _of_sharded_tensor(name: str, tensor: Any) -> HeldTensor:
    shards, whole = tensor.local_shards(), tensor.metadata()  # Most of its own attributes warn that it is deprecated.
    location = str(shards[0].tensor.device) if shards else "cpu"
    held = HeldTensor(dtype_name(whole.tensor_properties), tuple(whole.size), True, False, location)
    for shard in shards:
        check_plain(name, shard.tensor)
        if list(shard.tensor.shape) != list(shard.metadata.shard_sizes):
            raise usage(f"a local shard of '{name}' does not match its metadata", list(shard.metadata.shard_sizes),
                        list(shard.tensor.shape), name)
        held.add_box(shard.metadata.shard_offsets, shard.tensor.detach())
    return held


def _of_dtensor(name: str, tensor: Any) -> HeldTensor:
    local, mesh = tensor.detach().to_local(), tensor.device_mesh
    check_plain(name, local)
    held = HeldTensor(dtype_name(tensor), tuple(tensor.shape), True, tensor.requires_grad, str(local.device))
    for offsets, part in boxes_of_dtensor(tensor, name, f"cannot save '{name}'"):
        held.add_box(offsets, part)
    sizes, ranks = list(mesh.shape), mesh.mesh.flatten().tolist()
    group = default_group()
    if group is not None and sorted(ranks) == list(range(group.size())):
        names = list(mesh.mesh_dim_names or [""] * len(sizes))
        held.sharding = (names, sizes, ranks, [placement_text(each) for each in tensor.placements])
    return held
