"""The parts of sharded tensors of torch that this process has."""

from __future__ import annotations

import sys
from typing import Any, Optional

from shardctl._memory import is_a, usage


def is_dtensor(value: object) -> bool:
    """Whether it is a DTensor of torch. Imports nothing."""
    return is_a(value, "torch.distributed.tensor", "DTensor")


def is_sharded_tensor(value: object) -> bool:
    """Whether it is a ShardedTensor of torch. Imports nothing."""
    return is_a(value, "torch.distributed._shard.sharded_tensor", "ShardedTensor")


def own_rank() -> Optional[int]:
    """This process's rank in torch's default process group; None if there is none. Imports nothing."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    rank: int = torch.distributed.get_rank()
    return rank


def placement_text(placement: Any) -> str:
    """The placement of a DTensor as the native extension takes it: "R", "S(0)", "_S(0,2)"."""
    if placement.is_replicate():
        return "R"
    factor = getattr(placement, "split_factor", None)
    return f"S({placement.dim})" if factor is None else f"_S({placement.dim},{factor})"


def boxes_of_dtensor(tensor: Any, name: str, doing: str) -> list[tuple[tuple[int, ...], Any]]:
    """The boxes of a DTensor on this rank: their first corners in the whole tensor, and views of the local tensor. A
    strided shard may have several; a rank outside the mesh has none. Raises Usage, whose text begins with `doing`."""
    from shardctl._extension import native

    if any(placement.is_partial() for placement in tensor.placements):
        raise usage(f"{doing}: each rank has only a part of each element's sum", "Shard or Replicate", tensor.placements, name,
                    "redistribute it first")
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    local, whole = tensor.detach().to_local(), tuple(tensor.shape)
    sizes, index = list(mesh.shape), 0
    for size, at in zip(sizes, coordinate):
        index = index * size + at
    shape, boxes = native().local_part(whole, sizes, [placement_text(each) for each in tensor.placements], index)
    if tuple(shape) != tuple(local.shape):
        raise usage(f"{doing}: its local tensor has an unexpected shape", list(shape), list(local.shape), name)
    if not boxes and 0 in whole:
        return [((0,) * len(whole), local)]
    found = []
    for offsets, counts, begins in boxes:
        part = local
        for dim, (begin, count) in enumerate(zip(begins, counts)):
            part = part.narrow(dim, begin, count)
        found.append((tuple(offsets), part))
    return found
