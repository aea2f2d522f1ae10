#!/usr/bin/env python3
"""Makes the golden dcp checkpoints beside this file with the real client: torch 2.11, 4 gloo ranks on one machine.

    python make.py [OUT]

four_ranks/   a nested state dict: DTensors cut by rows (evenly, unevenly, with an empty shard), by columns and on a
              2x2 mesh, a replicated one, plain tensors of every rank, of no dimensions, empty and of odd dtypes, an
              optimizer-like dict, lists, numbers, text, None, a tuple, a tuple that contains a tensor.
one_rank/     saved by one process: no version of the tensors is cut.
expected.json name -> dtype, shape and all elements (as hex of the row-major little-endian bytes) of four_ranks.
"""
import json
import os
import shutil
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

RANKS = 4


def tensors() -> dict:
    """Whole tensors, the same on every rank."""
    base = torch.arange(17 * 6, dtype=torch.float32).reshape(17, 6)
    return {
        "rows": base.clone(),
        "rows_bf16": base.to(torch.bfloat16),
        "columns": base[:8].clone(),
        "few_rows": base[:5].clone(),
        "one_row": base[:1].clone(),
        "grid": (base[:10] * 0.5).to(torch.float16),
        "replicated": torch.arange(7, dtype=torch.int64),
    }


def state(rank: int) -> dict:
    whole = tensors()
    line = init_device_mesh("cpu", (RANKS,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    cut = {
        "rows": distribute_tensor(whole["rows"], line, [Shard(0)]),
        "rows_bf16": distribute_tensor(whole["rows_bf16"], line, [Shard(0)]),
        "columns": distribute_tensor(whole["columns"], line, [Shard(1)]),
        "few_rows": distribute_tensor(whole["few_rows"], line, [Shard(0)]),
        "one_row": distribute_tensor(whole["one_row"], line, [Shard(0)]),
        "grid": distribute_tensor(whole["grid"], square, [Shard(0), Shard(1)]),
        "replicated": distribute_tensor(whole["replicated"], line, [Replicate()]),
    }
    return {
        "model": cut,
        "plain": {
            "scalar": torch.tensor(3.5, dtype=torch.float64),
            "empty": torch.empty((0, 3), dtype=torch.int32),
            "flags": torch.tensor([True, False, True]),
            "float8": torch.arange(8, dtype=torch.float32).to(torch.float8_e4m3fn),
            "uint16": torch.arange(5).to(torch.uint16),
            "complex": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
            "transposed": torch.arange(6, dtype=torch.int16).reshape(2, 3).t(),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            f"of_rank_{rank}": torch.full((2,), rank, dtype=torch.uint8),
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(10.0), "exp_avg": torch.zeros(3)}, 1: {"step": torch.tensor(11.0)}},
            "param_groups": [{"lr": 0.001, "betas": (0.9, 0.95), "params": [0, 1]}, {"lr": 0.5, "params": []}],
        },
        "list_of_tensors": [torch.tensor([1, 2], dtype=torch.int8), "text", [torch.tensor([3.0])]],
        "plain_list": [1, "two", None],
        "tuple_of_tensors": (torch.tensor([4.0]), 5),
        "empty_dict": {},
        "step": 12345678901234567890,
        "name": "golden",
        "nothing": None,
        "yes": True,
        "rate": 0.25,
    }


def save(rank: int, out: str) -> None:
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29531", RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    dcp.save(state(rank), checkpoint_id="four_ranks", storage_writer=dcp.FileSystemWriter("four_ranks"))
    dist.destroy_process_group()


def flat(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, path + (str(key),))
    elif isinstance(value, list):
        for key, item in enumerate(value):
            yield from flat(item, path + (str(key),))
    elif isinstance(value, torch.Tensor):
        yield ".".join(path), value


def expected() -> dict:
    names = {f"model.{name}": tensor for name, tensor in tensors().items()}
    loaded = {}
    dcp.state_dict_loader._load_state_dict(
        loaded, storage_reader=dcp.FileSystemReader("four_ranks"),
        planner=dcp.default_planner._EmptyStateDictLoadPlanner(), no_dist=True)
    result = {}
    for name, tensor in flat(loaded):
        if name in names:
            assert torch.equal(names[name], tensor), name
        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes().hex()
        result[name] = {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape), "bytes": data}
    assert not set(names) - set(result)
    return result


def main() -> None:
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    shutil.rmtree("four_ranks", ignore_errors=True)
    shutil.rmtree("one_rank", ignore_errors=True)
    mp.spawn(save, args=(os.getcwd(),), nprocs=RANKS)
    dcp.save({"w": torch.arange(12.0).reshape(3, 4), "step": 7}, checkpoint_id="one_rank", no_dist=True)
    with open("expected.json", "w") as file:
        json.dump(expected(), file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
