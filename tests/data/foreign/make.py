"""Writes the files of this folder: checkpoints that contain more than plain tensors and plain data.

    python make.py              torch's own files, and the forms that need no other package
    python make.py torchao      also float8 training and int8 weights, with torchao 0.18.0
    python make.py galore       also an optimizer that keeps projectors, with galore-torch 1.0

The committed files were written with torch 2.11.0. `placed` has the attributes that torch 2.15 sets on a
CheckpointableTensor, on tensors of torch 2.11: the pickles are the same.
"""
import collections
import copy
import dataclasses
import enum
import os
import pathlib
import shutil
import sys
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

HERE = pathlib.Path(__file__).resolve().parent


def numbers(*shape, dtype=torch.float32):
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32).reshape(shape) / 8).to(dtype)


class Text(str): pass
class Number(int): pass
class Items(list): pass
class Table(dict): pass
class Ordered(collections.OrderedDict): pass
Pair = collections.namedtuple("Pair", "first second")


class Labelled(dict):
    """A dict that has an attribute as well."""


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(numbers(2, 2))


@dataclasses.dataclass
class SwapState:
    index: int = 1


class Unit(enum.Enum):
    EPOCH = "ep"


class Holder:
    """An object of a user's class with a tensor in it."""


def holder(value):
    made = Holder()
    made.matrix = value
    return made


def containers():
    labelled = Labelled(a=1)
    labelled.label = "x"
    return {
        "parameters": torch.nn.ParameterDict({"b": torch.nn.Parameter(numbers(2)), "a": torch.nn.Parameter(numbers(3))}),
        "list": torch.nn.ParameterList([numbers(2, 2), numbers(1)]),
        "version": torch.__version__,
        "text": Text("t"), "number": Number(5), "items": Items([1, numbers(2)]), "table": Table(a=Table(w=numbers(4))),
        "ordered": Ordered(z=1), "pair": Pair(numbers(3), 2), "ellipsis": ..., "labelled": labelled}


def placed(rank):
    """Two pieces of a tensor in one padded buffer per rank."""
    whole = {"w": numbers(8, 3), "norm": numbers(4)}
    buffer = torch.full((7, 5), -1.0)
    offsets = [[(0, 0), (4, 0)], [(2, 0), (6, 0)]][rank]
    places = [(1, 1), (3, 1)]
    for (row, _), (at, column) in zip(offsets, places):
        buffer[at:at + 2, column:column + 3] = whole["w"][row:row + 2]
    buffer.global_shape, buffer.global_offsets = (8, 3), tuple(offsets)
    buffer.local_offsets, buffer.local_sizes = tuple(places), ((2, 3), (2, 3))
    return {"w": buffer, "norm": whole["norm"]}


def write_plain():
    torch.save(containers(), HERE / "containers.pt")
    model = {"w": numbers(2, 3), "b": numbers(3)}
    torch.save({"model": model, "optimizer": {"state": {0: {"projector": holder(numbers(2, 2))}}}, "step": 1}, HERE / "projector.pt")
    torch.save({"model": {**model, "extra": holder(numbers(2))}, "step": 1}, HERE / "in_model.pt")
    batch = Labelled(ids=numbers(2))
    batch.label = "x"
    torch.save({"model": model, "batch": batch}, HERE / "labelled.pt")
    torch.save({"model": model, "config": SwapState(), "unit": Unit.EPOCH}, HERE / "config.pt")
    knot = Holder()
    knot.other = Holder()
    knot.other.back = knot
    knot.late = numbers(2)
    torch.save({"w": numbers(2), "late": knot, "inner": knot.other}, HERE / "knot.pt")
    try:
        torch.save({"w": numbers(2), "function": lambda: 0}, HERE / "cut_save.pt")
    except Exception as error:
        print("expected:", error)
    for rank in range(2):
        (HERE / "placed").mkdir(exist_ok=True)
        torch.save(placed(rank), HERE / "placed" / f"model_rank_{rank}.pt")
        (HERE / "own").mkdir(exist_ok=True)
        torch.save({"scheduler": {"last_epoch": 3, "lr": [0.5]}, "rng": {"cpu": torch.arange(rank, rank + 6, dtype=torch.uint8)},
                    f"dp_rank_{rank}": {"seen": rank}}, HERE / "own" / f"extra_state_world_size_2_rank_{rank}.pt")
    shutil.rmtree(HERE / "objects", ignore_errors=True)
    state = {"model": model, "swap": SwapState(), "unit": Unit.EPOCH, "ellipsis": ..., "steps": {"step": 7, "text": "t"},
             "held": holder(numbers(2))}
    dcp.save({"state": state}, checkpoint_id=HERE / "objects", no_dist=True)


def float8(net):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    return convert_to_float8_training(net, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))


def net():
    made = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)).bfloat16()
    with torch.no_grad():
        for i, parameter in enumerate(made.parameters()):
            parameter.copy_(numbers(*parameter.shape) + i)
    return made


def ranks_of_float8(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = float8(net())
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    state = model.state_dict()
    dcp.save(state, checkpoint_id=f"{folder}/float8_dcp")
    pathlib.Path(folder, "float8_ranks").mkdir(exist_ok=True)
    torch.save(state, f"{folder}/float8_ranks/model_rank_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def write_torchao():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    torch.save(net().state_dict(), HERE / "truth.pt")
    torch.save({"model": float8(net()).state_dict(), "step": 1}, HERE / "float8.pt")
    quantized = net()
    quantize_(quantized, Int8WeightOnlyConfig(version=2))
    torch.save({"model": quantized.state_dict(), "step": 1}, HERE / "int8.pt")
    for name in "int8_dcp", "float8_dcp":
        shutil.rmtree(HERE / name, ignore_errors=True)
    dcp.save({"model": quantized.state_dict()}, checkpoint_id=HERE / "int8_dcp", no_dist=True)
    mp.spawn(ranks_of_float8, (str(HERE),), nprocs=2)


def write_galore():
    from galore_torch import GaLoreAdamW
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    groups = [{"params": [model.weight], "rank": 2, "update_proj_gap": 10, "scale": .25, "proj_type": "std"}, {"params": [model.bias]}]
    optimizer = GaLoreAdamW(groups, lr=1e-3)
    for parameter in model.parameters():
        parameter.grad = copy.deepcopy(parameter.data)
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}, HERE / "galore.pt")


if __name__ == "__main__":
    for cls in Text, Number, Items, Table, Ordered, Pair, Labelled, SwapState, Unit, Holder:
        cls.__module__ = "trainer.state"
    sys.modules["trainer"] = types.ModuleType("trainer")
    sys.modules["trainer.state"] = sys.modules["trainer"].state = sys.modules["__main__"]
    write_plain()
    if "torchao" in sys.argv:
        write_torchao()
    if "galore" in sys.argv:
        write_galore()
