"""Lazy access to the tensors of a checkpoint, through the native extension."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from shardctl._errors import Corruption, NotFound, Unsupported, failure, unsupported
from shardctl._extension import native
from shardctl._memory import (
    NUMPY,
    Memory,
    check_dense,
    check_ranges,
    is_packed,
    is_torch,
    memory_of,
    new_array,
    new_tensor,
    note_changes,
    usage,
)
from shardctl._options import adapters, from_anywhere, is_opaque, named_dtype, plain_dtype, texts
from shardctl._paths import PathLike, encoded
from shardctl._values import refuse_opaque, value_of_class

if TYPE_CHECKING:
    from shardctl import _native
    from shardctl._documents import Chunk

_MOST_BESIDE = 32 << 20  # Bytes of memory beside targets that are on a device or not contiguous.

if TYPE_CHECKING:
    Index = Union[int, slice, "ellipsis"]
else:
    Index = Any


class RankValues(dict[int, Any]):
    """The values that ranks store under one name, by rank."""


class _Objects(Mapping[str, Any]):
    """The values of a checkpoint by name. Each is made when it is asked for, also after the checkpoint was closed."""

    def __init__(self, opened: _native.Checkpoint) -> None:
        self._opened = opened
        self._found: dict[str, Any] = {}
        self._indices: dict[str, list[tuple[Optional[int], int]]] = {}  # With their ranks.
        for index, (name, rank) in enumerate(opened.objects()):
            self._indices.setdefault(name, []).append((rank, index))

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            if len(self._indices[name]) > 1 and not self.differs(name):
                raise _same_name("values", name)
            made = [(rank, self._opened.object_value(index, value_of_class)) for rank, index in self._indices[name]]
            by_rank = RankValues({rank: value for rank, value in made if rank is not None})
            self._found[name] = by_rank if self.differs(name) else made[-1][1]
        return self._found[name]

    def differs(self, name: str) -> bool:
        """Whether its values differ between ranks, so that it is a RankValues."""
        return self._indices[name][-1][0] is not None

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def __iter__(self) -> Iterator[str]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _same_name(what: str, name: str) -> Unsupported:
    return unsupported(f"two {what} have the name '{name}', in which dots join the keys of the checkpoint",
                       "read the file with the library that wrote it", tensor=name)


class Handle:
    """A tensor of a checkpoint, or a box of one. No element is read before numpy(), torch(), read_into() or __dlpack__()."""

    __slots__ = ("_block", "_box", "_checkpoint", "_full_shape", "_index", "_kept", "alias_of", "dtype", "name", "rank")
    name: str
    dtype: str
    rank: Optional[int]  # The rank that has this tensor as its own; None if there is one of that name.
    alias_of: Optional[str]  # The name of the tensor with the same memory.

    def __init__(self, checkpoint: Checkpoint, index: int) -> None:
        self._checkpoint = checkpoint
        self._index = index
        (self.name, self.dtype, self._block, self._full_shape, self.rank,
         self.alias_of) = checkpoint._opened().tensor(index)
        self._box: tuple[tuple[int, ...], tuple[int, ...]] = ((0,) * len(self._full_shape), self._full_shape)
        self._kept: tuple[bool, ...] = (True,) * len(self._full_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor or the box."""
        return tuple(size for size, kept in zip(self._box[1], self._kept) if kept)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return sum(self._kept)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._box[1])

    @property
    def nbytes(self) -> int:
        """The bytes of the elements. Elements of less than a byte are packed."""
        elements, count = self._block
        return -(-self.size // elements) * count

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._full_shape

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first corner of the box in the whole tensor."""
        return self._box[0]

    @property
    def placements(self) -> Optional[tuple[str, ...]]:
        """How the ranks that wrote the checkpoint sharded the whole tensor: ("S(0)",); None if it does not record that."""
        return self._checkpoint._opened().placements(self._index)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The stored boxes of the whole tensor."""
        from shardctl._documents import Chunk

        return tuple(Chunk(*each) for each in self._checkpoint._opened().chunks(self._index))

    def __repr__(self) -> str:
        return f"<shardctl.Handle {self.name!r} {self.dtype} {list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __bool__(self) -> bool:
        """True, also without elements or dimensions, so that `if checkpoint.get(name):` finds every tensor."""
        return True

    def __iter__(self) -> Iterator[Handle]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: Union[Index, tuple[Index, ...]]) -> Handle:
        """The box of integers, slices (of step 1) and `...`. Reads nothing."""
        keys = _expand(key if isinstance(key, tuple) else (key,), self.ndim)
        offsets, sizes, kept = list(self._box[0]), list(self._box[1]), list(self._kept)
        dims = [dim for dim, is_kept in enumerate(self._kept) if is_kept]
        for dim, each in zip(dims, keys):
            if isinstance(each, slice):
                start, stop, step = each.indices(sizes[dim])
                if step != 1:
                    raise ValueError(f"cannot read with step {step}: only slices of step 1")
                offsets[dim], sizes[dim] = offsets[dim] + start, max(0, stop - start)
                continue
            index = _integer(each)
            if not -sizes[dim] <= index < sizes[dim]:
                raise IndexError(f"index {index} is out of range for dimension {dim} of size {sizes[dim]}")
            offsets[dim], sizes[dim], kept[dim] = offsets[dim] + index % sizes[dim], 1, False
        return self._with(tuple(offsets), tuple(sizes), tuple(kept))

    def _with(self, offsets: tuple[int, ...], sizes: tuple[int, ...], kept: tuple[bool, ...]) -> Handle:
        box = Handle.__new__(Handle)
        box._checkpoint, box._index = self._checkpoint, self._index
        box._full_shape, box._block = self._full_shape, self._block
        box.name, box.dtype, box.rank, box.alias_of = self.name, self.dtype, self.rank, self.alias_of
        box._box, box._kept = (offsets, sizes), kept
        return box

    def numpy(self, *, into: Any = None) -> Any:
        """The elements as an array of numpy: a new one, or `into`. bfloat16 and float8 need the package ml_dtypes."""
        array = new_array(self.shape, self.dtype) if into is None else into
        self.read_into(array)
        return array

    def torch(self, *, into: Any = None, device: Any = None) -> Any:
        """The elements as a tensor of torch: a new one on the CPU or on `device`, or `into`."""
        if into is not None:
            self.read_into(into)
            return into
        tensor = new_tensor(self.shape, self.dtype)
        self.read_into(tensor)
        return tensor if device is None else tensor.to(device)

    def to(self, device: Any = None, dtype: Any = None) -> Any:
        """The elements as a new tensor of torch on a device, converted to a dtype. With it, loaders that take lazy slices
        of safetensors also take handles."""
        import torch

        tensor = new_tensor(self.shape, self.dtype if dtype is None else named_dtype(dtype))
        self.read_into(tensor, cast=True)
        return tensor if device is None else tensor.to(torch.device(device))

    def read_into(self, target: Any, *, cast: bool = False) -> None:
        """Fills a tensor of torch, an array of numpy or a writable buffer, in parallel and without a copy.

        Shape and dtype must be those of the box; a buffer of bytes must have its size. A tensor on a device, or one that
        is not contiguous, is filled through memory of its size.
        cast: converts the elements if the target has a different dtype, like torch's `to`.
        """
        self._checkpoint.read_into([(self, target)], cast=cast)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        if copy is False:
            raise ValueError("cannot read a tensor without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule of a new tensor in this process's memory."""
        if options.get("copy") is False:
            raise BufferError("cannot read a tensor without a copy")
        return self._exporter().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def _exporter(self) -> Any:
        """An object that exports the elements through DLPack: numpy's for its own dtypes, otherwise torch's."""
        if self.dtype in NUMPY:
            with contextlib.suppress(ImportError):  # torch works without numpy.
                return self.numpy()
        return self.torch()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._checkpoint, self.name, self.rank, self.dtype, self._full_shape, self._box, self._kept)

    def _read(self, memory: Memory, dtype: str) -> tuple[int, Sequence[int], Sequence[int], str, int, int]:
        return (self._index, *self._box, dtype, memory.address, memory.nbytes)


def _restored(checkpoint: Checkpoint, name: str, rank: Optional[int], dtype: str, full_shape: tuple[int, ...],
              box: tuple[tuple[int, ...], tuple[int, ...]], kept: tuple[bool, ...]) -> Handle:
    """A handle that was pickled. Raises Corruption if the checkpoint, which was opened again, no longer has the tensor."""
    same = [handle for handle in checkpoint._named(name) if handle.rank == rank]
    found = [f"{handle.dtype} {list(handle.full_shape)}" for handle in same]
    if found != [expected := f"{dtype} {list(full_shape)}"]:
        message = f"cannot unpickle a handle of tensor '{name}': the checkpoint changed after it was pickled"
        raise Corruption(failure(None, 4, "corruption", message, file=checkpoint._label, tensor=name, rank=rank,
                                 expected=expected, found=", ".join(found) or None))
    return same[0]._with(*box, kept)


def _integer(key: Any) -> int:
    is_mask = str(getattr(key, "dtype", type(key).__name__)).removeprefix("torch.") == "bool"
    if is_mask or getattr(key, "ndim", 0) != 0 or not hasattr(type(key), "__index__"):
        raise TypeError(f"an index is an integer, a slice or '...', not {type(key).__name__}")
    return operator.index(key)


def _expand(keys: tuple[Any, ...], ndim: int) -> list[Any]:
    """One key per dimension, in place of `...` and missing ones."""
    dots = [i for i, key in enumerate(keys) if key is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if len(keys) - len(dots) > ndim:
        raise IndexError(f"too many indices: the tensor has {ndim} dimensions")
    at = dots[0] if dots else len(keys)
    after = keys[at + 1 :]
    filler = [slice(None)] * (ndim - at - len(after))
    return [*keys[:at], *filler, *after]


class Checkpoint(Mapping[str, Handle]):
    """An open checkpoint: a mapping from names to Handles. Tensors are read when they are asked for.

    Threads may share it. Reading releases the GIL. The process that unpickles one opens it again, with its Handles.
    """

    def __init__(self, label: str, arguments: dict[str, Any]) -> None:
        """arguments: those of the native extension's open()."""
        self._native: Optional[_native.Checkpoint] = native().open(**arguments)
        self._label, self._arguments = label, from_anywhere(arguments)
        self._names: Optional[list[str]] = None
        self._objects: Optional[_Objects] = None

    def __reduce__(self) -> tuple[Any, ...]:
        self._opened()
        return Checkpoint, (self._label, self._arguments)

    def _opened(self) -> _native.Checkpoint:
        if self._native is None:
            raise ValueError("the checkpoint is closed")
        return self._native

    @property
    def format(self) -> str:
        """The format's name: "safetensors", "torch", "dcp", ..."""
        return self._opened().format

    @property
    def world_size(self) -> Optional[int]:
        """The number of ranks that wrote it; None if it does not record that."""
        return self._opened().world_size

    @property
    def metadata(self) -> dict[str, str]:
        """The texts that it stores beside its tensors, such as safetensors' __metadata__."""
        return self._opened().metadata()

    @property
    def warnings(self) -> list[str]:
        """Facts about the source that a user should know."""
        return self._opened().warnings()

    @property
    def objects(self) -> Mapping[str, Any]:
        """The values that are not tensors, by name. A value that differs between ranks is a RankValues. A value of a class
        that shardctl does not create is an Opaque; nothing in the checkpoint is executed. Each value is made when it is asked
        for, also after the checkpoint was closed. Values of torch and numpy need these packages."""
        return self._all_objects()

    def _all_objects(self) -> _Objects:
        if self._objects is None:
            self._objects = _Objects(self._opened())
        return self._objects

    def _list(self) -> list[str]:
        if self._names is None:
            self._names = self._opened().keys()
        return self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._list())

    def __len__(self) -> int:
        return len(self._list())

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        first, last = self._opened().find(name)
        return first < last

    def __getitem__(self, name: str) -> Handle:
        """The tensor of that name. Raises KeyError if there is none, and Usage if ranks have different ones."""
        first, last = self._opened().find(name) if isinstance(name, str) else (0, 0)
        if first == last:
            raise KeyError(name)
        if last - first > 1:
            if Handle(self, first).rank is None:
                raise _same_name("tensors", name)
            raise usage(f"ranks have different tensors '{name}': choose one with tensor(name, rank=N)", tensor=name)
        return Handle(self, first)

    def _value(self, name: str, rank: Optional[int]) -> Any:
        """An object; of one that differs between ranks, the value of `rank`. Raises Unsupported for an Opaque."""
        value = self.objects[name]
        if isinstance(value, RankValues):
            if rank is None or rank not in value:
                raise usage(f"ranks have different values '{name}': choose one of objects[{name!r}]", tensor=name)
            value = value[rank]
        refuse_opaque(name, value)
        return value

    def _tree(self, rank: Optional[int], of_size: Callable[[Any], object]) -> Any:
        """The containers with all Handles and objects; of those that differ between ranks, only the ones of `rank`."""
        return self._opened().tree(rank, lambda index: Handle(self, index), value_of_class, of_size)

    def _of_rank(self, name: str, rank: Optional[int]) -> Handle:
        """The tensor of that name; if ranks have different ones, that of `rank`."""
        first, last = self._opened().find(name)
        differ = last - first > 1 and Handle(self, first).rank is not None
        return self.tensor(name, rank) if differ and rank is not None else self[name]

    def _named(self, name: str) -> Iterator[Handle]:
        """The tensors of that name: one for each rank that has its own."""
        return (Handle(self, index) for index in range(*self._opened().find(name)))

    def tensor(self, name: str, rank: int) -> Handle:
        """The tensor of that name that a rank has as its own."""
        for handle in self._named(name):
            if handle.rank == rank:
                return handle
        message = f"rank {rank} has no tensor '{name}' of its own"
        raise NotFound(failure(None, 3, "not_found", message, tensor=name))

    def read_into(self, targets: Union[Mapping[str, Any], Iterable[tuple[Union[str, Handle], Any]]], *,
                  cast: bool = False) -> int:
        """Fills many targets in one run over the files, with all threads: see Handle.read_into.

        targets: pairs of a name or a Handle, and a target; or a mapping of names.
        Returns the number of bytes that were read. After an error the content of the targets is undefined.
        """
        pairs: Any = targets.items() if isinstance(targets, Mapping) else targets
        count, beside = 0, 0
        reads: list[Any] = []
        memories: list[Memory] = []

        def run() -> None:
            nonlocal count, beside
            count += self._opened().read(reads)
            note_changes(memories)
            for memory in memories:
                if memory.finish is not None:
                    memory.finish()
            reads.clear()
            memories.clear()
            beside = 0

        for source, target in pairs:
            for handle, part in _parts(self._own(source), target):
                memory = memory_of(part)
                reads.append(handle._read(memory, _checked(handle, memory, cast)))
                memories.append(memory)
                beside += memory.nbytes if memory.finish is not None else 0
                if beside > _MOST_BESIDE // 2:
                    run()
        run()
        return count

    def _own(self, source: Union[str, Handle]) -> Handle:
        if isinstance(source, str):
            return self[source]
        if source._checkpoint is not self:
            raise usage(f"cannot read tensor '{source.name}' by a checkpoint that it does not belong to", repr(self),
                        repr(source._checkpoint), source.name)
        return source

    def close(self) -> None:
        """Closes the files. Handles cannot be read afterwards."""
        self._native = self._objects = None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native is None:
            return f"<shardctl.Checkpoint {self._label!r}, closed>"
        count = self._native.tensor_count
        return f"<shardctl.Checkpoint {self._label!r}, {self.format}, {count} tensor{'' if count == 1 else 's'}>"


def _parts(handle: Handle, target: Any) -> Iterator[tuple[Handle, Any]]:
    """The target, or parts of it if it is filled through memory beside it that would be large."""
    if is_torch(target):
        check_dense(target)
    if not is_torch(target) or is_packed(target) or tuple(target.shape) != handle.shape:
        yield handle, target
    else:
        yield from _small_parts(handle, target.detach(), 0)


def _small_parts(handle: Handle, target: Any, dim: int) -> Iterator[tuple[Handle, Any]]:
    """Parts of at most half of _MOST_BESIDE: rows of a dimension, or parts of each row."""
    nbytes = target.numel() * target.element_size()
    if nbytes <= _MOST_BESIDE // 2:
        yield handle, target
        return
    rows = target.shape[dim]
    step = max(1, _MOST_BESIDE // 2 * rows // nbytes)
    for row in range(0, rows, step):
        count = min(step, rows - row)
        key = (*[slice(None)] * dim, slice(row, row + count))
        yield from _small_parts(handle[key], target.narrow(dim, row, count), dim + 1)


def _checked(handle: Handle, memory: Memory, cast: bool) -> str:
    """The dtype of the memory. Raises Usage if the memory does not fit the box."""
    if memory.shape is not None and memory.shape != handle.shape:
        raise usage(f"cannot read tensor '{handle.name}' into memory of a different shape", list(handle.shape),
                    list(memory.shape), handle.name)
    if memory.dtype is None or memory.dtype == handle.dtype:
        return handle.dtype
    if not cast:
        raise usage(f"cannot read tensor '{handle.name}' into memory of a different dtype", handle.dtype, memory.dtype,
                    handle.name, "convert the elements with cast=True")
    return memory.dtype


def open(source: Union[PathLike, Sequence[PathLike]], *, format: Optional[str] = None, map: Optional[PathLike] = None,
         set: Optional[Mapping[str, Union[int, str]]] = None, hf_ref: Optional[PathLike] = None,
         layout: Optional[PathLike] = None, dequantize: Any = None,
         lora: Union[PathLike, Sequence[PathLike], Mapping[PathLike, float], None] = None, unknown_globals: str = "refuse",
         endpoint_url: Optional[str] = None, region: Optional[str] = None, anonymous: bool = False, connections: int = 8,
         threads: Optional[int] = None, max_memory: int = 64 << 20) -> Checkpoint:
    """Opens a checkpoint of any format, and reads only its metadata. Nothing in it is executed.

    source: a file, a folder, or several files of one checkpoint; also as URLs (s3://, gs://, hf://, https://).
    format: the name of its format; by default, the content decides.
    map: the name of a model map, or the path of one. Tensors then have the names and shapes of Hugging Face's models.
    set: values of the map's variables that the checkpoint does not record.
    hf_ref: a folder with the config.json of the model.
    layout: the path of a document that describes how the files of ranks are sharded.
    dequantize: the dtype in which quantized weights are computed, as a name or as torch's own.
    lora: LoRA adapters to merge into the weights while they are read: paths, or a mapping from paths to weights.
    unknown_globals: "opaque" reads values of unknown classes as Opaque instead of refusing them.
    endpoint_url, region, anonymous, connections: for URLs: the address of an S3 service, its region, whether to send no
        credentials, and the number of requests at one time. Credentials are those that other clients use.
    threads: the number of threads that read; by default, all processors that this process may use.
    max_memory: bytes for buffers, besides the memory of the result.
    """
    paths = [source] if isinstance(source, (str, bytes, os.PathLike)) else source
    if not isinstance(paths, Sequence):
        raise TypeError(f"a source is a path or a sequence of paths, not {type(source).__name__}")
    if not all(os.fspath(path) for path in paths):
        raise usage("a source is an empty string", hint="check the variable that contains the path")
    for name, given in (("set", set), ("hf_ref", hf_ref)):
        if given and not map:
            raise usage(f"{name}= needs a model map", hint=f"drop {name}=, or name the map with map=")
    threads = len(os.sched_getaffinity(0)) if threads is None else threads
    check_ranges(threads=(threads, 4096), connections=(connections, 4096), max_memory=(max_memory, 1 << 62))
    arguments = dict(
        paths=[encoded(path) for path in paths],
        format=format or "",
        map=encoded(map or ""),
        set=texts(set),
        hf_ref=encoded(hf_ref or ""),
        layout=encoded(layout or ""),
        dequantize=plain_dtype(dequantize),
        lora=adapters(lora),
        opaque_globals=is_opaque(unknown_globals),
        endpoint_url=endpoint_url or "",
        region=region or "",
        anonymous=bool(anonymous),
        connections=connections,
        threads=threads,
        max_memory=max_memory,
    )
    return Checkpoint(" ".join(os.fsdecode(path) for path in paths), arguments)


def refuse_options(source: object, options: Mapping[str, Any]) -> None:
    """Raises Usage for options of open() beside a checkpoint that is open."""
    if options and isinstance(source, Checkpoint):
        raise usage("options cannot be given for a checkpoint that is open", found=", ".join(options))
