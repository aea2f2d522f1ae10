"""A storage reader and a storage writer for torch.distributed.checkpoint, for checkpoints of any format."""

from __future__ import annotations

import dataclasses
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint._traverse import traverse_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from shardctl._checkpoint import Checkpoint, Handle, refuse_options
from shardctl._checkpoint import open as open_checkpoint
from shardctl._errors import NotFound, Unsupported, Usage, unsupported
from shardctl._extension import native
from shardctl._memory import dtype_name, torch_dtype, usage
from shardctl._paths import PathLike, encoded
from shardctl._ranks import call_of, default_group, together
from shardctl._save import HeldTensor, State, check_plain, write
from shardctl._sharding import own_rank
from shardctl._values import refuse_opaque

__all__ = ["Reader", "Writer"]

_Item = tuple[tuple[Union[str, int], ...], Any]  # The path, and the value or Handle.


class Reader(StorageReader):  # type: ignore[misc, unused-ignore]
    """Loads a checkpoint of any format through torch.distributed.checkpoint.load(..., storage_reader=Reader(SRC)).

    Each rank reads only its own pieces, in one run over the files. As with DCP's own reader, elements are converted if
    the state has a different dtype.

    flatten_state_dict: as that of the planner. False: an item for each key of the checkpoint, which may be a dict.
    options: those of shardctl.open().
    """

    def __init__(self, source: Union[PathLike, Sequence[PathLike], Checkpoint], *, flatten_state_dict: bool = True,
                 **options: Any) -> None:
        super().__init__()
        refuse_options(source, options)
        self._source: Any = source
        self._is_flat = flatten_state_dict
        self._options = options
        self._opened: Optional[Checkpoint] = None
        self._found: Optional[dict[str, _Item]] = None
        self._failed: Optional[Exception] = None  # The reason for which the metadata could not be read.

    @property
    def _checkpoint(self) -> Checkpoint:
        if self._opened is None:
            is_open = isinstance(self._source, Checkpoint)
            self._opened = self._source if is_open else open_checkpoint(self._source, **self._options)
        assert self._opened is not None
        return self._opened

    @property
    def checkpoint_id(self) -> Any:
        return self._source

    def reset(self, checkpoint_id: Optional[PathLike] = None) -> None:
        if checkpoint_id is not None:
            self._source = checkpoint_id
        self._opened = self._found = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        try:
            open_checkpoint(checkpoint_id).close()
        except Exception:
            return False
        return True

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        if "rank" in kwargs and self._failed is not None:  # dcp.load has dropped the exception, and tries this.
            return Metadata({}, planner_data={})  # set_up_storage_reader raises it again.
        self._failed = None
        try:
            return self._metadata()
        except Exception as error:
            self._failed = error
            raise

    def _metadata(self) -> Metadata:
        checkpoint = self._checkpoint
        entries: dict[str, Union[TensorStorageMetadata, BytesStorageMetadata]] = {}
        for name in checkpoint:
            try:
                entries[name] = _entry(self._tensor(name))
            except (NotFound, Usage):  # Ranks have different tensors, and this one has none.
                continue
            except Unsupported:  # torch lacks the dtype.
                continue
        paths: dict[str, tuple[Union[str, int], ...]] = {}
        for name, (path, value) in self._items.items():
            if not isinstance(value, Handle):
                entries.setdefault(name, BytesStorageMetadata())
                for inner in _names_of_tensors(value, name):
                    entries.pop(inner, None)
            paths[name] = path
        objects = checkpoint._all_objects()
        for name in objects:
            if objects.differs(name):  # For an error that names it, if this rank has no value.
                entries.setdefault(name, BytesStorageMetadata())
        return Metadata(state_dict_metadata=entries, planner_data={name: paths.get(name, (name,)) for name in entries},
                        storage_meta=StorageMeta(), storage_data={})

    @property
    def _items(self) -> dict[str, _Item]:
        if self._found is None:
            self._found = _items_of(self._checkpoint._tree(own_rank(), torch.Size), self._is_flat)
        return self._found

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._failed is not None:
            raise self._failed

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        pairs, items = [], []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes(item.storage_index.fqn))
                continue
            target = planner.resolve_tensor(item).detach()
            pairs.append((self._box(item), target))
            items.append((item, target))
        self._checkpoint.read_into(pairs, cast=True)
        for item, target in items:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _tensor(self, name: str) -> Handle:
        """The tensor, or this rank's own if ranks have different ones."""
        return self._checkpoint._of_rank(name, own_rank())

    def _box(self, item: ReadItem) -> Handle:
        sizes = tuple(item.lengths)
        return self._tensor(item.storage_index.fqn)._with(tuple(item.storage_offsets), sizes, (True,) * len(sizes))

    def _bytes(self, name: str) -> io.BytesIO:
        if name in self._items:
            _, value = self._items[name]
            refuse_opaque(name, value)
            value = _with_tensors(value)
        else:
            value = self._checkpoint._value(name, own_rank())
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
        except Exception as error:
            message = f"cannot load the object '{name}' through torch.distributed.checkpoint: {error}"
            raise unsupported(message, tensor=name) from error
        stream.seek(0)
        return stream


def _items_of(tree: Any, is_flat: bool) -> dict[str, _Item]:
    """The items of a checkpoint, by the names that the planners of this torch have for them. The first of equal names."""
    items: dict[str, _Item] = {}

    def visit(path: tuple[Union[str, int], ...], value: Any) -> None:
        items.setdefault(".".join(map(str, path)), (path, value))

    if isinstance(tree, (list, tuple)):
        tree = dict(enumerate(tree))
    state: dict[str, Any] = dict(tree) if isinstance(tree, Mapping) else {"": tree}
    if is_flat:
        traverse_state_dict(state, visit, lambda value: isinstance(value, Handle))
    else:
        for key, value in state.items():
            visit((str(key),), value)
    return items


def _names_of_tensors(value: Any, name: str) -> Iterator[str]:
    """The names of the tensors inside an item."""
    if isinstance(value, Handle):
        yield name
    elif isinstance(value, (Mapping, list, tuple)):
        for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _names_of_tensors(each, f"{name}.{key}")


def _with_tensors(value: Any) -> Any:
    """An item with tensors in the place of Handles."""
    if isinstance(value, Handle):
        return value.torch()
    if isinstance(value, Mapping):
        return {key: _with_tensors(each) for key, each in value.items()}
    return type(value)(map(_with_tensors, value)) if isinstance(value, (list, tuple)) else value  # Also of a torch.Size.


def _entry(handle: Handle) -> TensorStorageMetadata:
    """The tensor as one chunk, because the library finds the stored boxes of the pieces that are read."""
    size = torch.Size(handle.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * handle.ndim), sizes=size)
    properties = TensorProperties(dtype=torch_dtype(handle.dtype))
    return TensorStorageMetadata(properties=properties, size=size, chunks=[whole])


@dataclasses.dataclass(frozen=True)
class _Place:
    """The storage's part of a plan. Planners with enable_plan_caching keep plans in the class, so one that Writer made may come
    to torch's writer, which needs `prefix`, and one of torch's writer to Writer."""

    prefix: str
    ranks: int


class Writer(StorageWriter):  # type: ignore[misc, unused-ignore]
    """Saves a checkpoint of any format through torch.distributed.checkpoint.save(..., storage_writer=Writer(DST)).

    Each rank writes its own pieces, from their memory. The destination appears as a whole or not at all. The planner
    chooses the pieces, as for DCP's own writer.

    destination: a file whose suffix names the format, or a folder. The checkpoint_id of the call replaces it.
    to: the name of a format; by default, that of the suffix, or "dcp" for a folder.
    process_group: the process group of the call, if it is not the default one.
    options: `like`, `force`, `manifest`, `sync`, `threads` and `max_memory` of shardctl.save().
    """

    def __init__(self, destination: Optional[PathLike] = None, *, to: Optional[str] = None, process_group: Any = None,
                 **options: Any) -> None:
        super().__init__()
        unknown = options.keys() - {"like", "force", "manifest", "sync", "threads", "max_memory"}
        if unknown:
            raise usage("Writer has no such option", found=", ".join(sorted(unknown)))
        self._destination = destination
        self._to = to
        self._group = process_group
        self._options = options
        self._count: Optional[int] = None  # The number of ranks that save, on the coordinator.

    @property
    def checkpoint_id(self) -> Any:
        return self._destination

    def reset(self, checkpoint_id: Optional[PathLike] = None) -> None:
        if checkpoint_id is not None:
            self._destination = checkpoint_id

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        return True

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._count = None
        if self._destination is None:
            raise usage("Writer has no destination", "Writer(DST) or checkpoint_id")
        if not kwargs.get("use_collectives", True):
            raise unsupported("cannot save without collectives: ranks write one checkpoint together",
                              "save with use_collectives=True")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._count = len(plans)
        return [dataclasses.replace(plan, storage_data=_Place(f"__{rank}_", len(plans))) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        group = self._group_of(self._count or getattr(plan.storage_data, "ranks", None))
        state = State()
        destination: Any = self._destination
        with call_of(group) as ranks:
            root = together(ranks, lambda: _collect(state, plan, planner))
            is_flat = plan.planner_data is not None
            texts = write(state, root, destination, ranks, to=self._format(), numbered_lists=is_flat, **self._options)
        for text in texts:
            warnings.warn(text, stacklevel=2)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=_bytes_of(item), storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing is left to do: write_data has written the checkpoint's own metadata."""

    def _group_of(self, count: Optional[int]) -> Any:
        """The process group of the `count` ranks that save; None if this process saves alone."""
        if count == 1:
            return None
        group = self._group if self._group is not None else default_group()
        size = 1 if group is None else group.size()
        if count is not None and size != count:
            raise usage("the ranks that save are not those of the process group", size, count,
                        hint="name the process group of the call: Writer(..., process_group=GROUP)")
        return group

    def _format(self) -> Optional[str]:
        if self._to is not None or self._options.get("like") is not None:
            return self._to
        assert self._destination is not None  # set_up_storage_writer has checked this.
        return native().format_of_suffix(encoded(self._destination)) or "dcp"


def _collect(state: State, plan: SavePlan, planner: SavePlanner) -> Any:
    """Adds the items of a plan. Returns the tree, with dicts of indices in the place of lists."""
    paths = plan.planner_data or {}
    root: dict[Any, Any] = {}
    tensors: dict[str, HeldTensor] = {}
    for item in plan.items:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            _set(root, paths.get(name, (name,)), state.add(_object_of(planner, item), name))
            continue
        if name not in tensors:
            tensors[name] = _described(item)
            _set(root, paths.get(name, (name,)), state.put(tensors[name]))
        data: Any = planner.resolve_data(item)
        check_plain(name, data)
        described: Any = item.tensor_data
        if data.numel() > 0 or 0 in tensors[name].shape:
            tensors[name].add_box(described.chunk.offsets, data.detach())
    return root


def _set(root: dict[Any, Any], path: Sequence[Any], value: Any) -> None:
    for key in path[:-1]:
        root = root.setdefault(key, {})
    root[path[-1]] = value


def _described(item: WriteItem) -> HeldTensor:
    data: Any = item.tensor_data
    return HeldTensor(dtype_name(data.properties), tuple(data.size), item.type == WriteItemType.SHARD)


def _bytes_of(item: WriteItem) -> int:
    data: Any = item.tensor_data
    return 0 if data is None else data.chunk.sizes.numel() * data.properties.dtype.itemsize


def _object_of(planner: SavePlanner, item: WriteItem) -> Any:
    """The value of an item that is not a tensor. The planner has only its bytes, which it pickled from a value of this process,
    so all classes are safe to load."""
    stream: Any = planner.resolve_data(item)
    stream.seek(0)
    try:
        return torch.load(stream, weights_only=False)
    except Exception as error:
        message = f"cannot save the object '{item.index.fqn}': {str(error).partition(chr(10))[0]}"
        raise unsupported(message, tensor=item.index.fqn) from error
