"""Per-rank files of real ranks: ShardedTensor and DTensor on 2 and 4 gloo processes, gathered and compared by value."""
import json
import shlex
import subprocess
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import Shard as LocalShard
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed._shard import sharded_tensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from support import SHARDCTL, LiveTest, assert_same_tensors, noise, raw_bytes, shardctl, shardctl_json, spawn


def whole() -> dict[str, torch.Tensor]:
    return {"even": noise((8, 6), torch.float32, 1), "uneven": noise((11, 3), torch.bfloat16, 2),
            "few": noise((3, 5), torch.int64, 3), "line": noise((9,), torch.float8_e4m3fn, 4),
            "none": torch.empty(0, 4)}


def part(tensor: torch.Tensor, mesh, placements) -> DTensor:
    """This rank's part, without a collective: Gloo cannot move every dtype."""
    local = tensor
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            size, index = mesh.size(axis), mesh.get_local_rank(axis)
            pieces = local.chunk(size, placement.dim)
            local = pieces[index] if index < len(pieces) else local.narrow(placement.dim, 0, 0)
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())


def save(folder: str, state) -> None:
    torch.save(state, Path(folder, f"rank_{dist.get_rank()}.pt"))


def save_chunks(rank: int, folder: str) -> None:
    """ShardedTensors by ChunkShardingSpec, the last of them empty and past the end."""
    world, state = dist.get_world_size(), {}
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{r}/cpu" for r in range(world)])
    for name, full in whole().items():
        state[name] = sharded_tensor.empty(spec, *full.shape, dtype=full.dtype)
        for shard in state[name].local_shards():
            first, rows = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
            shard.tensor.copy_(full[first:first + rows])
    save(folder, {"model": state, "plain": noise((3,), torch.float64, 9), "step": 7})


def save_boxes(rank: int, folder: str) -> None:
    """Two boxes on rank 0, none on the last rank."""
    full, last = whole()["even"], dist.get_world_size() - 1
    boxes = {0: [([0, 0], [8, 2]), ([0, 2], [3, 4])], 1: [([3, 2], [5, 4])]} if last > 1 else {0: [([0, 0], [8, 6])]}
    shards = [LocalShard(full[o[0]:o[0] + s[0], o[1]:o[1] + s[1]].clone(), ShardMetadata(o, s, f"rank:{rank}/cpu"))
              for o, s in boxes.get(rank, [])]
    save(folder, {"even": init_from_local_shards(shards, *full.shape)})


def save_lines(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    save(folder, {name: part(full, mesh, [Shard(0)]) for name, full in whole().items()})


def save_grid(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    columns = lambda full: Shard(1) if full.dim() > 1 else Replicate()
    save(folder, {name: part(full, mesh, [Shard(0), columns(full)]) for name, full in whole().items()})


def save_copies(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    save(folder, {name: part(full, mesh, [Replicate(), Shard(0)]) for name, full in whole().items()})


def save_twice_cut(rank: int, folder: str) -> None:
    """The same dimension cut by both axes, slowest first."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2))
    save(folder, {name: part(full, mesh, [Shard(0), Shard(0)]) for name, full in whole().items()})


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(6, 10, bias=False), torch.nn.Linear(10, 6, bias=False)

    def forward(self, x):
        return self.down(self.up(x))


def save_fsdp_tp(rank: int, folder: str) -> None:
    """FSDP2 over tensor parallelism (strided shards), with the state of an optimizer."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(5)
    net = Net()
    with torch.no_grad():
        for index, parameter in enumerate(net.parameters()):
            parameter.copy_(torch.arange(60.0).reshape(parameter.shape) + 100 * index)
    full = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(net, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters())
    for name, parameter in net.named_parameters():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    strided = any(isinstance(p, _StridedShard) for t in net.state_dict().values() for p in t.placements)
    after = {f"model.{name}": tensor.full_tensor() for name, tensor in net.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        after |= {f"optimizer.state.{index}.{name}": tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                  for name, tensor in state.items()}
    if rank == 0:
        torch.save({"strided": strided, "full": after, "before": full}, Path(folder).parent / "full.pt")
    save(folder, {"model": net.state_dict(), "optimizer": optimizer.state_dict()})


def save_partial(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    save(folder, {"sum": DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)})


def save_parameters(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    save(folder, {"p": torch.nn.Parameter(distribute_tensor(torch.arange(10.0), mesh, [Shard(0)]))})


def save_submeshes(rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    full = whole()["uneven"]
    save(folder, {"tp": part(full, mesh["tp"], [Shard(0)]), "all": part(full, mesh._flatten(), [Shard(0)])})


def save_under_way(rank: int, folder: str) -> None:
    """The local tensors are results of finished collectives without a wait: torch.save does not wait."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_gather_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    local = all_gather_tensor(torch.arange(6.0).reshape(2, 3) + rank, 0, mesh)
    dist.barrier(mesh.get_group())
    assert isinstance(local, AsyncCollectiveTensor)
    save(folder, {"a": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)})


def save_batch_norms(rank: int, folder: str) -> None:
    """FSDP of version 1, whose ranks have different statistics of their batches."""
    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)]
    model = FSDP(torch.nn.Sequential(*layers), use_orig_params=True, device_id=torch.device("cpu"))
    model(noise((3, 4), torch.int8, rank).float())
    for name, kind in {"sharded": StateDictType.SHARDED_STATE_DICT, "local": StateDictType.LOCAL_STATE_DICT}.items():
        with FSDP.state_dict_type(model, kind):
            state = {"model": model.state_dict()}
        Path(folder, name).mkdir(exist_ok=True)
        save(f"{folder}/{name}", state)


class TorchRanks(LiveTest):
    def written(self, function, ranks: int) -> Path:
        folder = self.dir / "ranks"
        folder.mkdir()
        spawn(function, ranks, str(folder))
        return folder

    def gathered(self, folder: Path) -> dict:
        shardctl("gather", folder, "-o", self.dir / "out.pt")
        return torch.load(self.dir / "out.pt", weights_only=False)

    def check(self, function, ranks: int) -> None:
        found = self.gathered(self.written(function, ranks))
        assert_same_tensors(self, found, {name: tensor for name, tensor in whole().items() if name in found})
        self.assertTrue(found)

    def test_chunks_of_sharded_tensors(self):
        for ranks in 2, 4:
            with self.subTest(ranks=ranks):
                self.setUp()
                found = self.gathered(self.written(save_chunks, ranks))
                assert_same_tensors(self, found["model"], whole())
                self.assertEqual(raw_bytes(found["plain"]), raw_bytes(noise((3,), torch.float64, 9)))
                self.assertEqual(found["step"], 7)

    def test_boxes_of_sharded_tensors(self):
        self.check(save_boxes, 4)

    def test_lines(self):
        self.check(save_lines, 4)

    def test_grid(self):
        self.check(save_grid, 4)

    def test_copies(self):
        self.check(save_copies, 4)

    def test_one_dimension_cut_twice(self):
        self.check(save_twice_cut, 4)

    def test_two_ranks_on_a_grid_of_two_by_one(self):
        self.check(save_grid, 2)

    def test_fsdp_over_tensor_parallelism(self):
        folder = self.written(save_fsdp_tp, 4)
        saved = torch.load(self.dir / "full.pt")
        self.assertTrue(saved["strided"], "nothing is cut in strides")
        digests = {t["name"]: t["digest"] for t in shardctl_json("digest", folder, "--algorithm", "sha256")["tensors"]}
        shardctl("gather", folder, "-o", self.dir / "out.pt")
        torch.save({name: tensor.clone() for name, tensor in saved["full"].items()}, self.dir / "wanted.pt")
        wanted = {t["name"]: t["digest"] for t in
                  shardctl_json("digest", self.dir / "wanted.pt", "--algorithm", "sha256")["tensors"]}
        self.assertEqual(digests, wanted)
        found = torch.load(self.dir / "out.pt", weights_only=False)
        self.assertEqual(found["optimizer"]["param_groups"][0]["params"], [0, 1])

    def test_parameters(self):
        found = self.gathered(self.written(save_parameters, 2))
        self.assertEqual(found["p"].tolist(), list(range(10)))

    def test_results_under_way(self):
        found = self.gathered(self.written(save_under_way, 2))
        once = torch.cat([torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3) + 1])
        self.assertTrue(torch.equal(found["a"], torch.cat([once, once])))

    def test_meshes_of_a_part_of_the_world(self):
        found = self.gathered(self.written(save_submeshes, 4))
        for name in "tp", "all":
            self.assertEqual(raw_bytes(found[name]), raw_bytes(whole()["uneven"]))

    def test_partial_is_refused(self):
        shardctl("inspect", self.written(save_partial, 2), code=8)

    def follow_hints(self, *arguments) -> None:
        """Runs the command, and at most two commands of hints."""
        for _ in range(3):
            done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)
            if done.returncode == 0:
                return
            self.assertIn("running_", done.stderr)
            arguments = shlex.split(done.stderr.split("hint: shardctl ")[1].splitlines()[0])
        self.fail(done.stderr)

    def test_buffers_that_differ_are_skipped_by_the_hints(self):
        folder = self.written(save_batch_norms, 2)
        for verb, options in {"gather": ["--strip-prefix", "model."], "reshard": ["--ranks", 3], "export": []}.items():
            self.follow_hints(verb, folder / "sharded", "-o", self.dir / verb, *options)
            tensors = shardctl_json("inspect", self.dir / verb)["tensors"]
            names = {each["name"].removeprefix("model.") for each in tensors}
            self.assertTrue({"0.weight", "1.bias", "1.num_batches_tracked", "2.weight", "3.bias"} <= names, names)
        error = shardctl_json("gather", folder / "local", "-o", self.dir / "flat.pt", code=4)
        self.assertIn("SHARDED_STATE_DICT", error["hint"])

    def test_a_missing_rank_is_named(self):
        folder = self.written(save_lines, 4)
        (folder / "rank_2.pt").unlink()
        error = json.loads(shardctl("inspect", folder, "--json", code=3))
        self.assertEqual((error["rank"], error["file"]), (2, "rank_2.pt"))

    def test_a_file_of_another_save_is_named(self):
        folder = self.written(save_lines, 4)
        other = self.dir / "other"
        other.mkdir()
        spawn(save_lines, 2, str(other))
        (other / "rank_1.pt").rename(folder / "rank_1.pt")
        error = json.loads(shardctl("inspect", folder, "--json", code=4))
        self.assertEqual((error["kind"], error["file"]), ("world_size_mismatch", "rank_1.pt"))


if __name__ == "__main__":
    unittest.main()
