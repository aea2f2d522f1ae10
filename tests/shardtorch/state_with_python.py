"""States of four ranks between Python and C++, both ways: torch.save to load_state, save_state to torch.load.

    state_with_python.py STATE_PROGRAM

Exits 77 where torch is missing. The states are those of state_program.cpp.
"""
import collections
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
try:
    import torch
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.api import load_with_process_group
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
except ImportError as error:
    print(f"skipped: {error}", file=sys.stderr)
    sys.exit(77)

from python_ranks import spawn

RANKS = 4
warnings.filterwarnings("ignore", category=FutureWarning)  # "Please use DTensor instead"


def counted(size, dtype) -> torch.Tensor:
    return torch.arange(torch.Size(size).numel()).reshape(size).to(dtype)


def filled(tensor):
    for shard in tensor.local_shards():
        whole = counted(tensor.size(), shard.tensor.dtype)
        for dim, (offset, size) in enumerate(zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes)):
            whole = whole.narrow(dim, min(offset, whole.size(dim)), size)
        with torch.no_grad():
            shard.tensor.copy_(whole)
    return tensor


def on_cpus(*ranks) -> list[str]:
    return [f"rank:{rank}/cpu" for rank in ranks]


def boxes() -> EnumerableShardingSpec:
    return EnumerableShardingSpec([ShardMetadata([0, 0], [8, 2], "rank:0/cpu"), ShardMetadata([0, 2], [3, 4], "rank:0/cpu"),
                                   ShardMetadata([3, 2], [5, 2], "rank:1/cpu"), ShardMetadata([3, 4], [5, 2], "rank:2/cpu")])


def world_state(rank: int) -> dict:
    base = counted((3, 4), torch.int32)
    layer = torch.nn.Linear(3, 2)
    layer.load_state_dict({"weight": counted((2, 3), torch.float32), "bias": counted((2,), torch.float32)})
    nested = {"step": 1 << 40, "lr": 0.5, "name": "naïve", "flags": [True, None, -3], "pair": (1, "x"),
              5: torch.full((2,), 2.5), "phase": 1 - 2j}
    return {
        "rows": filled(sharded_tensor.empty(ChunkShardingSpec(0, on_cpus(0, 1, 2, 3)), 10, 20)),
        "columns": filled(sharded_tensor.empty(ChunkShardingSpec(-1, on_cpus(2, 0, 3, 1)), 3, 9, dtype=torch.int64)),
        "boxes": filled(sharded_tensor.empty(boxes(), 8, 6, dtype=torch.bfloat16, requires_grad=True)),
        "base": base, "view": base[:, 1:3], "transposed": counted((2, 3), torch.float64).t(),
        "conjugated": torch.complex(counted((3,), torch.float32), counted((3,), torch.float32)).conj(),
        "trained": torch.nn.Parameter(torch.ones(2, 2)), "rank": rank, "nested": collections.OrderedDict(nested),
        "layer": layer.state_dict()}


def group_state(group) -> dict:
    spec = ChunkShardingSpec(0, on_cpus(2, 3, 2, 3))
    return {"of_group": filled(sharded_tensor.empty(spec, 10, 4, dtype=torch.float64, process_group=group))}


def same(found, wanted, name: str) -> None:
    if isinstance(wanted, sharded_tensor.ShardedTensor):
        assert found.metadata() == wanted.metadata(), (name, found.metadata(), wanted.metadata())
        assert found.sharding_spec() == wanted.sharding_spec(), name
        assert len(found.local_shards()) == len(wanted.local_shards()), name
        assert found._process_group is wanted._process_group, name
        assert (found.size(), found.dtype, found.requires_grad) == (wanted.size(), wanted.dtype, wanted.requires_grad), name
        for ours, theirs in zip(found.local_shards(), wanted.local_shards()):
            assert ours.metadata == theirs.metadata, name
            same(ours.tensor, theirs.tensor, name)
    elif isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.stride(), found.requires_grad) == (wanted.dtype, wanted.stride(), wanted.requires_grad), name
        assert torch.equal(found, wanted), name
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), name
        for key in wanted:
            same(found[key], wanted[key], f"{name}.{key}")
    else:
        assert type(found) is type(wanted) and found == wanted, (name, found)


def gather(tensor) -> None:
    """The loaded tensor is alive."""
    out = torch.zeros(tensor.size()) if dist.get_rank(tensor._process_group) == 0 else None
    tensor.gather(0, out)
    assert out is None or torch.equal(out, counted(tensor.size(), torch.float32))


def save(rank: int, folder: str, group) -> None:
    torch.save(world_state(rank), Path(folder, f"world-{rank}.pt"))
    torch.save(group_state(group), Path(folder, f"group-{rank}.pt"))


def check(rank: int, folder: str, group) -> None:
    found = torch.load(Path(folder, f"world-{rank}.pt"), weights_only=False)
    same(found, world_state(rank), "world")
    assert found["base"].untyped_storage().data_ptr() == found["view"].untyped_storage().data_ptr()
    gather(found["rows"])
    with load_with_process_group(group):
        found = torch.load(Path(folder, f"group-{rank}.pt"), weights_only=False)
    same(found, group_state(group), "group")


def with_group(rank: int, folder: str, body) -> None:
    body(rank, folder, dist.new_group([2, 3]))


class StateWithPython(unittest.TestCase):
    program: str

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-state-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_python(self, body) -> None:
        spawn(with_group, RANKS, self.folder, body)

    def run_program(self, verb: str) -> None:
        ranks = [subprocess.Popen([self.program, verb, self.folder], stderr=subprocess.PIPE, text=True,
                                  env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1",
                                                    "STORE": f"{self.folder}/program-store-{verb}"})
                 for rank in range(RANKS)]
        try:
            errors = [rank.communicate(timeout=120)[1] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        self.assertEqual([(rank.returncode, error) for rank, error in zip(ranks, errors) if rank.returncode], [])

    def test_python_to_program(self):
        self.run_python(save)
        self.run_program("check")

    def test_program_to_python(self):
        self.run_program("save")
        self.run_python(check)

    def test_program_to_program(self):
        self.run_program("save")
        self.run_program("check")


if __name__ == "__main__":
    StateWithPython.program = sys.argv.pop()
    unittest.main()
