"""Checkpoints between C++ and torch.distributed.checkpoint, both ways, with real processes.

Usage: checkpoint_with_python.py CHECKPOINT_PROGRAM SHARDCTL. Exit code 77: torch is not installed.
"""
import inspect
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.staging import BlockingAsyncStager
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

from python_ranks import spawn

PROGRAM, SHARDCTL = sys.argv[1:3]
os.environ["PYTHONWARNINGS"] = "ignore"  # torch warns of ShardedTensor at every use.
SHAPES = {"rows": ((10, 6), torch.float32), "columns": ((6, 10), torch.bfloat16), "blocks": ((8, 8), torch.int64),
          "few": ((2, 3), torch.int32), "plain": ((3, 5), torch.float16)}


def counted(name: str) -> torch.Tensor:
    shape, dtype = SHAPES[name]
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def run_program(verb: str, folder: Path, form: str, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as rendezvous:
        started = [subprocess.Popen([PROGRAM, verb, folder, form, f"{rendezvous}/store", str(rank), str(ranks)],
                                    stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        ended = [(process.communicate(timeout=600)[1], process.returncode) for process in started]
    for errors, code in ended:
        assert code == 0, f"{verb} by {ranks} ranks: {errors}"


def shardctl(*arguments) -> str:
    done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- In Python's ranks ---

def specs(ranks: int) -> dict:
    """Other cuts than the C++ program's."""
    cpu = [f"rank:{rank}/cpu" for rank in range(ranks)]
    halves = [ShardMetadata([0, 0], [8, 5], cpu[0]), ShardMetadata([0, 5], [8, 3], cpu[-1])]
    return {"rows": ChunkShardingSpec(1, cpu), "columns": ChunkShardingSpec(0, cpu[::-1]),
            "blocks": EnumerableShardingSpec(halves), "few": ChunkShardingSpec(1, cpu)}


def make_sharded(name: str, spec, filled: bool):
    shape, dtype = SHAPES[name]
    tensor = sharded_tensor.empty(spec, *shape, dtype=dtype)
    for shard in tensor.local_shards():
        offsets, sizes = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        box = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes))
        shard.tensor.copy_(counted(name)[box] if filled else torch.full(sizes, 99).to(dtype))
    return tensor


def others(filled: bool) -> dict:
    """Plain tensors and objects, as the C++ program has them."""
    if filled:
        return {"plain": counted("plain"), "scalar": torch.tensor(2.5, dtype=torch.float64), "step": 7,
                "sizes": [1, 2, 3], "note": "hello", "optimizer": {"lr": 0.125, "momentum": torch.arange(4.0)}}
    return {"plain": torch.zeros(3, 5, dtype=torch.float16), "scalar": torch.zeros((), dtype=torch.float64), "step": 0,
            "sizes": [0, 0, 0], "note": "", "optimizer": {"lr": 0.0, "momentum": torch.zeros(4)}}


def check_sharded(name: str, tensor) -> None:
    for shard in tensor.local_shards():
        offsets, sizes = shard.metadata.shard_offsets, shard.metadata.shard_sizes
        box = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes))
        assert torch.equal(shard.tensor, counted(name)[box]), name


def check_others(state: dict) -> None:
    for name, value in others(True).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(state[name], value), name
        elif name != "optimizer":
            assert state[name] == value, name
    assert state["optimizer"]["lr"] == 0.125
    assert torch.equal(state["optimizer"]["momentum"], torch.arange(4.0))


def load_sharded(_rank: int, folder: str) -> None:
    ranks = dist.get_world_size()
    state = {name: make_sharded(name, spec, False) for name, spec in specs(ranks).items()} | others(False)
    dcp.load(state, checkpoint_id=folder)
    for name in specs(ranks):
        check_sharded(name, state[name])
    check_others(state)


def load_dtensors(_rank: int, folder: str, reader) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: distribute_tensor(torch.zeros(shape).to(dtype), mesh, [Shard(0)])
             for name, (shape, dtype) in SHAPES.items() if name != "plain"}
    state["plain"] = torch.zeros(3, 5, dtype=torch.float16)
    dcp.load(state, storage_reader=reader(folder))
    for name in SHAPES:
        value = state[name].full_tensor() if isinstance(state[name], DTensor) else state[name]
        assert torch.equal(value, counted(name)), name


def save_sharded(_rank: int, folder: str) -> None:
    ranks = dist.get_world_size()
    state = {name: make_sharded(name, spec, True) for name, spec in specs(ranks).items()} | others(True)
    dcp.save(state, checkpoint_id=folder)


def dtensors() -> dict:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: distribute_tensor(counted(name), mesh, [Shard(1)]) for name in SHAPES if name != "plain"}
    return state | others(True)


def save_dtensors(_rank: int, folder: str) -> None:
    dcp.save(dtensors(), checkpoint_id=folder)


def save_hugging_face(_rank: int, folder: str) -> None:
    tensors = {name: value for name, value in dtensors().items() if isinstance(value, torch.Tensor)}
    options = inspect.signature(HuggingFaceStorageWriter).parameters
    by_rank = "save_distributed" if "save_distributed" in options else "save_sharded"  # The latter in torch 2.8.
    dcp.save(tensors, storage_writer=HuggingFaceStorageWriter(folder, **{by_rank: True}))


def save_asynchronously(_rank: int, folder: str) -> None:
    dcp.async_save(dtensors(), checkpoint_id=folder).result()


def save_sharded_asynchronously(_rank: int, folder: str) -> None:
    """The default stager of async_save cannot copy ShardedTensors in torch 2.11; in torch 2.8 it can."""
    ranks = dist.get_world_size()
    state = {name: make_sharded(name, spec, True) for name, spec in specs(ranks).items()} | others(True)
    takes_stager = "async_stager" in inspect.signature(dcp.async_save).parameters
    stager = {"async_stager": BlockingAsyncStager()} if takes_stager else {}
    dcp.async_save(state, checkpoint_id=folder, **stager).result()


# --- Tests ---

class CheckpointsWithPython(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-checkpoint-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name) / "saved"

    def test_python_loads_what_cpp_saved(self):
        run_program("save", self.folder, "dcp", 4)
        for ranks in (4, 2):
            spawn(load_sharded, ranks, str(self.folder))
        spawn(load_dtensors, 2, str(self.folder), dcp.FileSystemReader)

    def test_python_loads_the_hugging_face_form(self):
        run_program("save", self.folder, "dcp-hf", 4)
        spawn(load_dtensors, 2, str(self.folder), HuggingFaceStorageReader)

    def test_cpp_loads_what_python_saved(self):
        spawn(save_sharded, 4, str(self.folder))
        for ranks in (4, 3, 1):
            run_program("load", self.folder, "dcp", ranks)

    def test_cpp_loads_the_hugging_face_form(self):
        spawn(save_hugging_face, 3, str(self.folder))
        for ranks in (4, 2):
            run_program("load", self.folder, "dcp-hf", ranks)

    def test_cpp_loads_what_python_saved_asynchronously(self):
        for number, save in enumerate((save_asynchronously, save_sharded_asynchronously)):
            folder = self.folder.with_name(f"async-{number}")
            spawn(save, 3, str(folder))
            for ranks in (4, 2):
                run_program("load", folder, "dcp", ranks)

    def test_cpp_loads_dtensors(self):
        spawn(save_dtensors, 3, str(self.folder))
        run_program("load", self.folder, "dcp", 2)

    def test_cpp_loads_what_cpp_saved_in_other_processes(self):
        for form in ("dcp", "dcp-hf", "torch-ranks"):
            folder = self.folder.with_name(form)
            run_program("save", folder, form, 4)
            run_program("load", folder, form, 2)

    def test_shardctl_knows_it(self):
        digests = set()
        for form in ("dcp", "torch-ranks"):
            folder = self.folder.with_name(form)
            run_program("save", folder, form, 4)
            found = json.loads(shardctl("inspect", folder, "--json"))
            self.assertEqual((found["format"], found["world_size"]), (form, 4))
            digests.add(shardctl("digest", folder))
        self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
