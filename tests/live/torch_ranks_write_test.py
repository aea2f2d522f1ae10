"""Per-rank files of shardctl, loaded by real torch in one gloo process per rank.

A rank loads its file of every case's checkpoint and compares it with the whole state in state.pt: local tensors,
offsets, placements, metadata, objects, and torch's gathered result.
"""
import unittest

import torch
import torch.distributed as dist
from torch.distributed._shard.api import load_with_process_group
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from support import LiveTest, noise, raw_bytes, shardctl, shardctl_json, spawn

CARRIED = (torch.float32, torch.int64)  # Dtypes that gloo moves between ranks, without NaN.
PLACEMENTS = {"R": Replicate, "S": Shard, "_S": _StridedShard}


def state() -> dict:
    tied = noise((5, 3), torch.float32, 1)
    return {
        "model": {
            "five": tied, "tied": tied, "eight": torch.arange(8), "one": noise((1, 4), torch.int16, 2), "row": torch.arange(3.0).reshape(1, 3),
            "bfloat16": noise((7, 4), torch.bfloat16, 3), "bool": noise((9, 2), torch.bool, 4),
            "float8": noise((4, 6), torch.float8_e4m3fn, 5), "uint16": noise((6, 5), torch.uint16, 6),
            "cube": torch.arange(4 * 6 * 5).reshape(4, 6, 5), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 4),
            "parameter": torch.nn.Parameter(torch.arange(16.0).reshape(4, 4)),
        },
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.arange(15.0).reshape(5, 3)}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1], "fused": None}],
        },
        "epoch": 7, "name": "run", "nothing": {},
    }


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in items:
        yield from leaves(item, path + (key,))
    if not items:
        yield ".".join(map(str, path)), value


def by_indices(whole, indices):
    """The elements of `whole` with these flat indices, for any dtype, as bytes."""
    rows = whole.detach().contiguous().reshape(-1).view(torch.uint8).reshape(whole.numel(), whole.element_size())
    return rows[indices.reshape(-1)].numpy().tobytes()


def check_same(found, wanted, name):
    assert (found.dtype, tuple(found.shape)) == (wanted.dtype, tuple(wanted.shape)), (name, found, wanted)
    assert raw_bytes(found) == raw_bytes(wanted), name


def check_shards(found, whole, name, case):
    """Local shards are at their recorded offsets, all ranks' shards are the tensor, and gather() assembles it."""
    indices = torch.arange(whole.numel()).reshape(whole.shape)
    metadata = found.metadata()
    assert tuple(metadata.size) == tuple(whole.shape) and metadata.tensor_properties.dtype == whole.dtype, name
    assert found.dtype == whole.dtype and tuple(found.shape) == tuple(whole.shape), name
    assert isinstance(found.sharding_spec(), ChunkShardingSpec if case["spec"] == "chunk" else EnumerableShardingSpec), name
    seen = torch.zeros(whole.shape, dtype=torch.int64)
    for shard in metadata.shards_metadata:
        seen[tuple(slice(o, o + n) for o, n in zip(shard.shard_offsets, shard.shard_sizes))] += 1
    assert (seen == 1).all(), name
    mine = [shard for shard in metadata.shards_metadata if shard.placement.rank() == dist.get_rank()]
    assert [shard.metadata for shard in found.local_shards()] == mine, name
    assert len(mine) == case.get("local_shards", len(mine)) or whole.shape[0] % 4, (name, len(mine))
    for shard in found.local_shards():
        box = tuple(slice(o, o + n) for o, n in zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes))
        assert list(shard.tensor.shape) == shard.metadata.shard_sizes, name
        assert raw_bytes(shard.tensor) == by_indices(whole, indices[box]), name
    if case["spec"] == "chunk":
        built = found.sharding_spec().build_metadata(whole.shape, metadata.tensor_properties)
        for shard in built.shards_metadata:  # torch's own may begin past the end, for which its gather() fails.
            shard.shard_offsets[:] = [min(o, n) for o, n in zip(shard.shard_offsets, whole.shape)]
        assert metadata == built, (name, metadata, built)
    if whole.dtype in CARRIED:
        out = torch.full(whole.shape, -1, dtype=whole.dtype) if dist.get_rank() == 0 else None
        found.gather(dst=0, out=out)
        assert out is None or raw_bytes(out) == raw_bytes(whole), name


def expected_placements(case, whole):
    """The case's placements, R if the tensor lacks the dimension."""
    made = []
    for text in case["place"]:
        kind, _, rest = text.partition("(")
        numbers = [int(n) for n in rest.rstrip(")").split(",")] if rest else []
        lacks = numbers and numbers[0] >= whole.dim()
        made.append(Replicate() if kind == "R" or lacks else PLACEMENTS[kind](numbers[0], **({"split_factor": numbers[1]} if kind == "_S" else {})))
    return tuple(made)


def check_dtensor(found, whole, name, case, mesh):
    placements = expected_placements(case, whole)
    assert found.placements == placements, (name, found.placements, placements)
    assert found.dtype == whole.dtype and found.shape == whole.shape and found.stride() == whole.stride(), name
    assert found.requires_grad == whole.requires_grad, name
    indices = torch.arange(whole.numel()).reshape(whole.shape)
    for placement, parts, index in zip(placements, mesh.shape, mesh.get_coordinate()):
        if not isinstance(placement, Replicate):
            indices = placement._split_tensor(indices, parts, with_padding=False, contiguous=False)[0][index]
    local = found.to_local()
    assert tuple(local.shape) == tuple(indices.shape), (name, local.shape, indices.shape)
    assert raw_bytes(local) == by_indices(whole, indices), name
    assert found.device_mesh == mesh and hash(found.device_mesh) == hash(mesh), (name, found.device_mesh, mesh)
    assert found.device_mesh.get_coordinate() == mesh.get_coordinate(), name
    if whole.dtype in CARRIED:
        assert raw_bytes(found.full_tensor()) == raw_bytes(whole), name


def check_case(folder, case, meshes, whole):
    rank, world = dist.get_rank(), dist.get_world_size()
    path = folder / case["name"] / f"rank-{rank:05}-of-{world:05}.pt"
    if case["as"] == "sharded_tensor":
        with load_with_process_group(dist.group.WORLD):
            found = torch.load(path, weights_only=False)
    else:
        # torch 2.11 lists DTensor's classes as safe, but not these, which its own pickles name.
        from torch.distributed._mesh_layout import _MeshLayout
        with torch.serialization.safe_globals([_MeshLayout, _StridedShard]):
            found = torch.load(path, weights_only=True)
        check_tree(torch.load(path, weights_only=False), whole, case, meshes)
    check_tree(found, whole, case, meshes)


def check_tree(found, whole, case, meshes):
    wanted = dict(leaves(whole))
    found = dict(leaves(found))
    assert list(found) == list(wanted)
    cut = 0
    for name, value in wanted.items():
        if isinstance(found[name], ShardedTensor):
            check_shards(found[name], value, name, case)
            cut += 1
        elif isinstance(found[name], DTensor):
            check_dtensor(found[name], value, name, case, meshes[tuple(case["mesh"])])
            cut += 1
        elif isinstance(value, torch.Tensor):
            check_same(found[name], value, name)
        else:
            assert found[name] == value and type(found[name]) is type(value), name
    assert cut == case["cut"], (cut, case)
    tied = [found[f"model.{name}"] for name in ("five", "tied")]
    parts = [t.to_local() if isinstance(t, DTensor) else t.local_shards()[0].tensor if isinstance(t, ShardedTensor) and t.local_shards() else None for t in tied]
    assert parts[0] is None or parts[0].data_ptr() == parts[1].data_ptr()


def check_cases(rank, folder, case_list):
    whole = torch.load(folder / "state.pt", weights_only=False)
    meshes = {}
    for case in case_list:
        # The files name the process groups of the first mesh that a program makes.
        if case["as"] == "dtensor" and tuple(case["mesh"]) not in meshes:
            names = case["axes"] and tuple(case["axes"])
            meshes[tuple(case["mesh"])] = init_device_mesh("cpu", tuple(case["mesh"]), mesh_dim_names=names)
    for case in case_list:
        try:
            check_case(folder, case, meshes, whole)
        except Exception as error:
            raise AssertionError(f"case {case['name']} on rank {rank}: {type(error).__name__}: {error}") from error
        dist.barrier()


class TorchRanks(LiveTest):
    def setUp(self):
        super().setUp()
        torch.save(state(), self.dir / "state.pt")

    def write(self, kind, *options, name=None, source=None):
        out = self.dir / (name or kind)
        shardctl("split", source or self.dir / "state.pt", "-o", out, "--to", "torch-ranks", "--as", kind, *options)
        return out

    def cases(self, world, cases):
        """Writes each case and lets `world` processes load and compare them."""
        for i, case in enumerate(cases):
            case["name"] = f"case{i}"
            if "place" in case and case["axes"]:
                mesh = ",".join(f"{axis}={n}" for axis, n in zip(case["axes"], case["mesh"]))
                options = [*case.get("first", ()), "--mesh", mesh, "--place", "**=" + ",".join(case["place"])]
            else:
                options = ["--ranks", world, "--dim", case.get("dim", 0)]
            self.write(case["as"], *options, name=case["name"])
            self.assertEqual(shardctl("diff", self.dir / "state.pt", self.dir / case["name"], "-q"), "")
        spawn(check_cases, world, self.dir, cases)

    def test_two_ranks(self):
        self.cases(2, [
            {"as": "sharded_tensor", "spec": "chunk", "cut": 12, "local_shards": 1},
            {"as": "sharded_tensor", "spec": "chunk", "cut": 12, "dim": 1},
            {"as": "dtensor", "mesh": [2], "axes": None, "place": ["S(0)"], "cut": 12},
        ])

    def test_four_ranks(self):
        grid = {"mesh": [2, 2], "axes": ["dp", "tp"]}
        self.cases(4, [
            {"as": "sharded_tensor", "spec": "chunk", "cut": 12, "local_shards": 1},
            {"as": "sharded_tensor", "spec": "enumerable", **grid, "place": ["S(0)", "S(1)"], "cut": 13,
             "first": ["--place", "**.eight=S(0),S(0)"]},
            {"as": "sharded_tensor", "spec": "enumerable", **grid, "place": ["_S(0,2)", "S(0)"], "cut": 12},
            {"as": "dtensor", **grid, "place": ["S(0)", "S(1)"], "cut": 13},
            {"as": "dtensor", **grid, "place": ["R", "S(0)"], "cut": 12},
            {"as": "dtensor", **grid, "place": ["_S(0,2)", "S(0)"], "cut": 12},
            {"as": "dtensor", "mesh": [4], "axes": ["fsdp"], "place": ["S(0)"], "cut": 12},
        ])

    def test_dtensors_load_without_a_process_group(self):
        out = self.write("dtensor", "--mesh", "dp=2,tp=2", "--place", "**=S(0),S(1)")
        loaded = torch.load(out / "rank-00003-of-00004.pt", weights_only=False)
        self.assertEqual(loaded["model"]["eight"].to_local().tolist(), [4, 5, 6, 7])
        self.assertEqual(loaded["model"]["cube"].placements, (Shard(0), Shard(1)))
        self.assertEqual(loaded["model"]["cube"].to_local().tolist(), state()["model"]["cube"][2:, 3:].tolist())

    def test_plain_pieces_are_slices_and_come_back(self):
        out = self.write("plain", "--mesh", "dp=2,tp=2", "--place", "**.cube=_S(1,2),S(1)", "--place", "**=S(0),S(1)")
        found = torch.load(out / "rank-00002-of-00004.pt", weights_only=True)
        self.assertEqual(found["model"]["parameter"].tolist(), [[8.0, 9.0], [12.0, 13.0]])
        self.assertEqual(found["optimizer"]["param_groups"], state()["optimizer"]["param_groups"])
        shardctl("gather", out, "-o", self.dir / "back.pt")
        back = dict(leaves(torch.load(self.dir / "back.pt", weights_only=False)))
        for name, value in leaves(state()):
            if isinstance(value, torch.Tensor):
                check_same(back[name], value, name)
            else:
                self.assertEqual(back[name], value)

    def test_kinds_turn_into_one_another(self):
        first = self.write("dtensor", "--mesh", "dp=2,tp=2", "--place", "**=S(0),S(1)", name="first")
        second = self.write("plain", "--ranks", 3, source=first, name="second")
        third = self.write("sharded_tensor", "--ranks", 4, "--dim", 1, source=second, name="third")
        shardctl("convert", third, "-o", self.dir / "fourth", "--to", "torch-ranks", "--as", "dtensor")
        shardctl("diff", self.dir / "state.pt", self.dir / "fourth")
        self.assertEqual(shardctl_json("inspect", self.dir / "fourth")["world_size"], 4)

    def test_what_torch_saved_stays_what_it_was(self):
        """ShardedTensors with many ranks are kept by convert; replicas have no ShardedTensor."""
        out = self.write("dtensor", "--mesh", "dp=2,tp=2", "--place", "**=R,S(0)")
        shardctl("convert", out, "-o", self.dir / "no", "--to", "torch-ranks", "--as", "sharded_tensor", code=8)
        self.assertFalse((self.dir / "no").exists())


if __name__ == "__main__":
    unittest.main()
