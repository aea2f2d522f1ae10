"""Cuts full tensors for this rank, as ShardedTensor and DTensor of whichever torch runs."""

import inspect

import torch
import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import empty, init_from_local_shards
from torch.distributed._shard.sharding_spec import ChunkShardingSpec

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor import placement_types
except ImportError:
    try:
        from torch.distributed._tensor import DTensor, Replicate, Shard
        from torch.distributed._tensor import placement_types
    except ImportError:
        DTensor = Replicate = Shard = placement_types = None
StridedShard = getattr(placement_types, "_StridedShard", None)
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def chunk_spec_tensor(full, dim=0, reverse=False):
    """Cut by ChunkShardingSpec; ranks past the end have an empty shard. `reverse`: the last rank has the first rows."""
    ranks = range(dist.get_world_size())
    spec = ChunkShardingSpec(
        dim=dim, placements=[f"rank:{rank}/cpu" for rank in (reversed(ranks) if reverse else ranks)]
    )
    sharded = empty(spec, *full.shape, dtype=full.dtype)
    for shard in sharded.local_shards():
        fill(shard, full)
    return sharded


def boxes_tensor(full, boxes):
    """Cut into `boxes`: (rank, offsets, sizes); EnumerableShardingSpec unless torch sees chunks in it."""
    mine = []
    for rank, offsets, sizes in boxes:
        if rank == dist.get_rank():
            metadata = ShardMetadata(shard_offsets=list(offsets), shard_sizes=list(sizes), placement=f"rank:{rank}/cpu")
            mine.append(LocalShard(torch.empty(sizes, dtype=full.dtype), metadata))
            fill(mine[-1], full)
    return init_from_local_shards(mine, *full.shape)


def rows_tensor(full):
    """Rows by the rule of torch.chunk; ranks past the end have no shard, which every DCP accepts."""
    boxes, first = [], 0
    for rank, part in enumerate(full.chunk(dist.get_world_size())):
        boxes.append((rank, [first] + [0] * (full.dim() - 1), list(part.shape)))
        first += part.shape[0]
    return boxes_tensor(full, boxes)


def box_of(full, offsets, sizes):
    for dim, (offset, size) in enumerate(zip(offsets, sizes)):
        full = full.narrow(dim, min(offset, full.shape[dim]), size)
    return full


def fill(shard, full):
    part = box_of(full, shard.metadata.shard_offsets, shard.metadata.shard_sizes)
    shard.tensor.view(torch.uint8).copy_(part.contiguous().view(torch.uint8)) if part.numel() else None


def mesh(*shape):
    ranks = torch.arange(dist.get_world_size()).reshape(shape)
    try:
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[: len(shape)] if len(shape) > 1 else ("dp",))
    except ImportError:
        from torch.distributed._tensor import DeviceMesh

        return DeviceMesh("cpu", ranks)


def part_of(full, shape, placements):
    """This rank's part, one mesh axis after the other."""
    rest, coordinate = dist.get_rank(), []
    for size in reversed(shape):
        coordinate.insert(0, rest % size)
        rest //= size
    dtype = full.dtype
    if full.element_size() in INTEGERS:  # not every dtype can be concatenated
        full = full.view(INTEGERS[full.element_size()])
    for size, index, placement in zip(shape, coordinate, placements):
        if isinstance(placement, Replicate):
            continue
        split = getattr(placement, "split_factor", 1)
        empty_part = full.narrow(placement.dim, 0, 0)
        pieces = list(full.chunk(size * split, placement.dim))
        full = torch.cat([empty_part] + pieces[index::size], placement.dim)
    return full.clone().view(dtype)


def distribute(full, device_mesh, placements):
    """DTensor of this rank's part, without moving data: gloo cannot carry every dtype."""
    shape = tuple(device_mesh.mesh.shape)
    part = part_of(full, shape, placements)
    names = inspect.signature(DTensor.from_local).parameters
    if "shape" in names:
        return DTensor.from_local(
            part, device_mesh, placements, run_check=False, shape=full.shape, stride=full.contiguous().stride()
        )
    return DTensor(part, device_mesh, placements, size=full.size(), requires_grad=False)
