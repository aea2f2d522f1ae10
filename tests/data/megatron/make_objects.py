"""Saves objects that contain tensors and functions with the real Megatron-Core 0.16.1, beside one tensor: the folder `objects`.

Needs megatron-core 0.16.1 on PYTHONPATH, as make.py does.
"""
import argparse
import shutil
import tempfile
from pathlib import Path

import torch

import make


def save_rank(rank: int, out: str) -> None:
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    make.set_parallel()
    rng = [{"random_rng_state": (3, (1, 2), None), "torch_rng_state": torch.arange(20, dtype=torch.uint8), "rng_tracker_states": {}}]
    state = {"w": ShardedTensor.from_rank_offsets("decoder.final_layernorm.weight", torch.arange(8.0)),
             "rng": ShardedObject("rng_state", rng, (1,), (0,)),
             "args": argparse.Namespace(num_layers=2, activation_func=torch.nn.functional.silu), "checkpoint_version": 3.0, "iteration": 3,
             "optimizer": {"grad_scaler": {"scale": torch.tensor([65536.0])}, "empty": {}, "by_number": {1: "one", 2: "two"},
                           "param_groups": [{"lr": 0.5, "step": torch.tensor(4)}]}}
    Path(out).mkdir(parents=True)
    dist_checkpointing.save(state, out)


if __name__ == "__main__":
    folder = Path(__file__).parent / "objects"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:  # The save records its folder.
        make.spawn(save_rank, 1, f"{scratch}/objects")
        shutil.copytree(f"{scratch}/objects", folder)
