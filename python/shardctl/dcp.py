"""A storage reader for torch.distributed.checkpoint, over a checkpoint of any format."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from shardctl._checkpoint import Checkpoint, Handle, PathLike
from shardctl._checkpoint import open as open_checkpoint
from shardctl._errors import Unsupported, failure
from shardctl._memory import torch_dtype

__all__ = ["Reader"]


class Reader(StorageReader):  # type: ignore[misc, unused-ignore]
    """Loads a checkpoint of any format through torch.distributed.checkpoint.load(..., storage_reader=Reader(SRC)).

    Each rank reads only its own pieces, in one run over the files. As with DCP's own reader, elements are converted if
    the state has a different dtype. `options` are those of shardctl.open().
    """

    def __init__(self, source: Union[PathLike, Sequence[PathLike], Checkpoint], **options: Any) -> None:
        super().__init__()
        self._source: Any = source
        self._options = options
        self._opened: Optional[Checkpoint] = None

    @property
    def _checkpoint(self) -> Checkpoint:
        if self._opened is None:
            is_open = isinstance(self._source, Checkpoint)
            self._opened = self._source if is_open else open_checkpoint(self._source, **self._options)
        return self._opened

    @property
    def checkpoint_id(self) -> Any:
        return self._source

    def reset(self, checkpoint_id: Optional[PathLike] = None) -> None:
        if checkpoint_id is not None:
            self._source = checkpoint_id
        self._opened = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: PathLike) -> bool:
        try:
            open_checkpoint(checkpoint_id).close()
        except Exception:
            return False
        return True

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        checkpoint = self._checkpoint
        entries: dict[str, Union[TensorStorageMetadata, BytesStorageMetadata]] = {}
        for name in checkpoint:
            entries[name] = _entry(self._tensor(name))
        for name in checkpoint.objects:
            entries.setdefault(name, BytesStorageMetadata())
        return Metadata(state_dict_metadata=entries, storage_meta=StorageMeta(), storage_data={})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

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
        first, last = self._checkpoint._opened().find(name)
        if last - first > 1 and torch.distributed.is_initialized():
            return self._checkpoint.tensor(name, torch.distributed.get_rank())
        return self._checkpoint[name]

    def _box(self, item: ReadItem) -> Handle:
        sizes = tuple(item.lengths)
        return self._tensor(item.storage_index.fqn)._with(tuple(item.storage_offsets), sizes, (True,) * len(sizes))

    def _bytes(self, name: str) -> io.BytesIO:
        value = self._checkpoint.objects.get(name)
        stream = io.BytesIO()
        try:
            torch.save(value, stream)
        except Exception as error:
            message = f"cannot load the object '{name}' through torch.distributed.checkpoint: {error}"
            raise Unsupported(failure(None, 8, "unsupported", message, tensor=name)) from error
        stream.seek(0)
        return stream


def _entry(handle: Handle) -> TensorStorageMetadata:
    """The tensor as one chunk: the library finds the stored boxes of the pieces that are read."""
    size = torch.Size(handle.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * handle.ndim), sizes=size)
    properties = TensorProperties(dtype=torch_dtype(handle.dtype))
    return TensorStorageMetadata(properties=properties, size=size, chunks=[whole])
