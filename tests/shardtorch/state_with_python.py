"""States of four ranks between Python and C++, both ways: torch.save to load_state, save_state to torch.load.

    state_with_python.py STATE_PROGRAM

Exits 77 if torch is missing. The states are those of state_program.cpp.
"""
import collections
import contextlib
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
    from torch.distributed import rpc
    from torch.distributed._shard import sharded_tensor, shard_parameter
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


def refuses(text: str, path: Path, group=None) -> None:
    try:
        with load_with_process_group(group) if group else contextlib.nullcontext():
            torch.load(path, weights_only=False)
    except RuntimeError as error:
        assert text in str(error), (path, text, error)
        return
    raise AssertionError(f"{path} was loaded, expected: {text}")


def validate(rank: int, folder: str, group) -> None:
    """Files that C++ saved on different ranks, or under a different group, are refused like Python's own."""
    other = (rank + 1) % RANKS
    refuses(f"Local rank at save time was {other}, but at load time was {rank}", Path(folder, f"world-{other}.pt"))
    of_group = Path(folder, f"group-{rank}.pt")
    saved = rank - 2 if rank >= 2 else -1
    refuses(f"Local rank at save time was {saved}, but at load time was {rank}", of_group)
    alone = dist.new_group([2])
    if rank == 2:
        refuses("Local world size at save time was 2, but at load time was 1", of_group, alone)
    if rank == 3:
        refuses("Local rank at save time was 1, but at load time was -1", of_group, alone)


def validate_in_a_smaller_world(rank: int, folder: str) -> None:
    group = dist.new_group([2])
    if rank < 2:
        refuses("Global world size at save time was 4, but at load time was 3", Path(folder, f"group-{rank}.pt"), group)


class Model(torch.nn.Module):
    """Sharded attributes, which state_dict knows of by torch's hooks."""
    def __init__(self, depth: int = 1, fill: bool = True):
        super().__init__()
        if fill:
            setattr(self, f"sharded_tensor{depth}", filled(sharded_tensor.empty(
                ChunkShardingSpec(depth - 1, on_cpus(0, 1, 2, 3)), 10, 8)))
        else:
            setattr(self, f"sharded_tensor{depth}", None)
        if depth == 1:
            self.submodule = Model(2, fill)
            self._register_state_dict_hook(sharded_tensor.state_dict_hook)
            self._register_load_state_dict_pre_hook(sharded_tensor.pre_load_state_dict_hook, True)


def sharded_linear() -> torch.nn.Linear:
    layer = torch.nn.Linear(6, 8)
    with torch.no_grad():
        layer.weight.copy_(counted((8, 6), torch.float32))
        layer.bias.copy_(counted((8,), torch.float32))
    shard_parameter(layer, "weight", ChunkShardingSpec(0, on_cpus(0, 1, 2, 3)))
    return layer


def save_modules(rank: int, folder: str, _group) -> None:
    torch.save(Model().state_dict(), Path(folder, f"model-{rank}.pt"))
    torch.save(sharded_linear().state_dict(), Path(folder, f"linear-{rank}.pt"))


def check_modules(rank: int, folder: str, _group) -> None:
    state = torch.load(Path(folder, f"model-{rank}.pt"), weights_only=False)
    assert set(state) == {"sharded_tensor1", "submodule.sharded_tensor2"}, list(state)
    model, wanted = Model(fill=False), Model()
    model.load_state_dict(state, strict=False)
    same(model.sharded_tensor1, wanted.sharded_tensor1, "sharded_tensor1")
    same(model.submodule.sharded_tensor2, wanted.submodule.sharded_tensor2, "submodule.sharded_tensor2")
    found = torch.load(Path(folder, f"linear-{rank}.pt"), weights_only=False)
    layer = sharded_linear()
    with torch.no_grad():
        for shard in layer.weight.local_shards():
            shard.tensor.zero_()
    layer.load_state_dict(found)
    assert torch.equal(layer.weight.local_tensor(), sharded_linear().weight.local_tensor())
    assert torch.equal(layer.bias, counted((8,), torch.float32))


def with_rpc(rank: int, folder: str, body) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/python-rpc-{body.__name__}",
                                              _transports=["uv"], _channels=["basic"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=RANKS, rpc_backend_options=options)
    body(rank, folder)
    dist.barrier()
    rpc.shutdown()


def save_remote(rank: int, folder: str) -> None:
    tensor = sharded_tensor.empty(ChunkShardingSpec(0, on_cpus(0, 1, 2, 3)), 8, 3, init_rrefs=True)
    tensor.local_tensor().fill_(rank)
    torch.save({"remote": tensor}, Path(folder, f"remote-{rank}.pt"))
    dist.barrier()


def check_remote(rank: int, folder: str) -> None:
    tensor = torch.load(Path(folder, f"remote-{rank}.pt"), weights_only=False)["remote"]
    assert sorted(tensor.remote_shards()) == [other for other in range(RANKS) if other != rank]
    for owner, shards in tensor.remote_shards().items():
        assert [shard.to_here().tensor.eq(owner).all().item() for shard in shards] == [True]
    dist.barrier()


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

    def run_program(self, verb: str, ranks: int = RANKS) -> None:
        ranks = [subprocess.Popen([self.program, verb, self.folder], stderr=subprocess.PIPE, text=True,
                                  env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
                                                    "STORE": f"{self.folder}/program-store-{verb}"})
                 for rank in range(ranks)]
        try:
            errors = [rank.communicate(timeout=600)[1] for rank in ranks]
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

    def test_python_refuses_the_programs_files_on_other_ranks(self):
        self.run_program("save")
        self.run_python(validate)
        spawn(validate_in_a_smaller_world, 3, self.folder)
        with self.assertRaisesRegex(RuntimeError, "Need to initialize default process group"):
            torch.load(Path(self.folder, "world-0.pt"), weights_only=False)

    def test_program_refuses_pythons_files_on_other_ranks(self):
        self.run_python(save)
        self.run_program("validate")
        self.run_program("validate-smaller", 3)
        self.run_program("validate-alone", 1)

    def test_modules_of_python_to_program(self):
        self.run_python(save_modules)
        self.run_program("check-modules")

    def test_modules_of_program_to_python(self):
        self.run_program("save-modules")
        self.run_python(check_modules)

    def test_remote_shards_of_python_to_program(self):
        spawn(with_rpc, RANKS, self.folder, save_remote)
        self.run_program("check-remote")

    def test_remote_shards_of_program_to_python(self):
        self.run_program("save-remote")
        spawn(with_rpc, RANKS, self.folder, check_remote)

    def test_program_to_program(self):
        self.run_program("save")
        self.run_program("check")


if __name__ == "__main__":
    StateWithPython.program = sys.argv.pop()
    unittest.main()
