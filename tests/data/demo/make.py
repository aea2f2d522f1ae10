"""Makes tests/data/demo/ckpt: a small training checkpoint as real torch writes it from 4 ranks. Run: make.py FOLDER

A two-layer model sharded by rows over 4 Gloo processes, its AdamW state, and a step counter: the files of a run.
Written with torch 2.11.0.
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

RANKS = 4
SHAPES = {"embed.weight": (50, 16), "layers.0.up.weight": (32, 16), "layers.0.down.weight": (16, 32), "norm.weight": (16,)}


def save(rank: int, rendezvous: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))

    def shard(name: str, seed: int, dtype: torch.dtype) -> DTensor:
        whole = torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed)).to(dtype)
        pieces = whole.chunk(RANKS)
        mine = pieces[rank] if rank < len(pieces) else whole[:0]
        return DTensor.from_local(mine.clone(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())

    state = {
        "model": {name: shard(name, i, torch.bfloat16) for i, name in enumerate(SHAPES)},
        "optimizer": {name: {"exp_avg": shard(name, 100 + i, torch.float32)} for i, name in enumerate(SHAPES)},
        "step": 1000,
        "lr": 3e-4,
    }
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(save, (f"file://{tmp}/store", os.path.abspath(sys.argv[1])), nprocs=RANKS)
