"""torch's Hugging Face storage both ways: shards from real ranks are read, ours load and consolidate in torch."""
import json
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.tensor import Replicate, Shard, init_device_mesh

from dcp_test import distribute
from support import LiveTest, assert_same_tensors, noise, shardctl, shardctl_json, spawn

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "uneven": Shard(0), "few": Shard(0), "copy": Replicate(), "ints": Shard(0)}


def cut() -> dict[str, torch.Tensor]:
    return {"rows": noise((16, 6), torch.float32, 1), "columns": noise((5, 12), torch.bfloat16, 2),
            "uneven": noise((11, 3), torch.int16, 3), "few": noise((3, 4), torch.float8_e4m3fn, 4),
            "copy": noise((4,), torch.bool, 5), "ints": noise((9,), torch.int64, 6)}


def whole() -> dict[str, torch.Tensor]:
    return cut() | {"scalar": noise((), torch.int32, 7), "plain": noise((2, 2), torch.float64, 8), "none": torch.empty(0, 3)}


def floats() -> dict[str, torch.Tensor]:
    """A state that torch's consolidation supports: no integers, no tensors without dimensions."""
    return {"rows": noise((16, 6), torch.float32, 1), "columns": noise((5, 12), torch.bfloat16, 2),
            "uneven": noise((11, 3), torch.float16, 3)}


def grid(tensor: torch.Tensor, mesh) -> torch.Tensor:
    """Both dimensions cut over a mesh of two axes."""
    from torch.distributed.tensor import DTensor

    part = tensor
    for axis, dim in enumerate((0, 1)):
        pieces = part.chunk(mesh.size(axis), dim)
        place = mesh.get_coordinate()[axis]
        part = pieces[place] if place < len(pieces) else part.narrow(dim, 0, 0)
    return DTensor.from_local(part.clone(), mesh, [Shard(0), Shard(1)], run_check=False, shape=tensor.shape, stride=tensor.stride())


def save(rank: int, path: str, options: dict) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = whole() | {name: distribute(tensor, mesh, PLACEMENTS[name]) for name, tensor in cut().items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True, **options))


def save_grid(rank: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    state = {name: grid(tensor, mesh) if tensor.dim() == 2 else tensor for name, tensor in whole().items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True))


def save_floats(rank: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: distribute(tensor, mesh, PLACEMENTS[name]) for name, tensor in floats().items()}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True, enable_consolidation=True))


def load(rank: int, path: str, out: str) -> None:
    """Loads into this world's own shards, and returns this rank's result."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {name: torch.zeros_like(tensor) for name, tensor in whole().items()}
    state |= {name: distribute(torch.zeros_like(tensor), mesh, PLACEMENTS[name]) for name, tensor in cut().items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(path))
    torch.save({name: state[name].to_local().clone() if name in PLACEMENTS else state[name] for name in state}, f"{out}/{rank}.pt")


def load_whole(path) -> dict:
    state: dict = {}
    _load_state_dict(state, storage_reader=HuggingFaceStorageReader(str(path)), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


class DcpHf(LiveTest):
    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        path = cls.shared.name
        spawn(save, 2, path + "/two", {})
        spawn(save, 4, path + "/four", {})
        spawn(save, 2, path + "/files", {"fqn_to_index_mapping": {name: i % 3 + 1 for i, name in enumerate(sorted(whole()))}})
        spawn(save_grid, 4, path + "/grid")
        cls.saves = [path + "/two", path + "/four", path + "/files", path + "/grid"]
        torch.save(whole(), path + "/whole.pt")
        cls.digest = shardctl_json("digest", path + "/whole.pt")["checkpoint"]

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def test_saves_of_real_ranks_are_read_by_value(self):
        for path in self.saves:
            with self.subTest(path=path):
                self.assertEqual(shardctl_json("inspect", path)["format"], "dcp-hf")
                self.assertEqual(shardctl_json("digest", path)["checkpoint"], self.digest)

    def test_inspect_says_who_wrote_what(self):
        document = shardctl_json("inspect", self.saves[1])
        self.assertEqual(document["world_size"], 4)
        rows = next(t for t in document["tensors"] if t["name"] == "rows")
        self.assertEqual([(c["offsets"], c["sizes"], c["rank"]) for c in rows["chunks"]], [([4 * r, 0], [4, 6], r) for r in range(4)])

    def test_gathered_shards_load_elsewhere(self):
        shardctl("gather", self.saves[3], "-o", self.dir / "out.safetensors")
        assert_same_tensors(self, load_file(self.dir / "out.safetensors"), whole())

    def test_ours_load_in_torch_whole(self):
        for options in (["--ranks", 3], ["--ranks", 2, "--dim", -1], ["--ranks", 40], ["--mesh", "a=2,b=2", "--place", "**=S(0),S(1)"],
                        ["--mesh", "a=3,b=2", "--place", "**=S(0),R"], ["--shards", 3]):
            with self.subTest(options=options):
                out = self.dir / "-".join(map(str, options)).replace("*", "x")
                shardctl("split", self.shared.name + "/whole.pt", "--to", "dcp-hf", "-o", out, *options)
                assert_same_tensors(self, load_whole(out), whole())
                self.assertEqual(shardctl_json("digest", out)["checkpoint"], self.digest)

    def test_ours_load_on_ranks_of_the_same_and_another_number(self):
        shardctl("reshard", self.saves[1], "-o", self.dir / "ours", "--ranks", 4)
        for ranks in (4, 2):
            with self.subTest(ranks=ranks):
                spawn(load, ranks, str(self.dir / "ours"), str(self.dir))
                parts = [torch.load(self.dir / f"{rank}.pt") for rank in range(ranks)]
                found = {name: torch.cat([part[name] for part in parts], PLACEMENTS[name].dim) if isinstance(PLACEMENTS.get(name), Shard)
                         else parts[-1][name] for name in whole()}
                assert_same_tensors(self, found, whole())

    def test_ours_consolidate_in_torch(self):
        torch.save(floats(), self.dir / "floats.pt")
        shardctl("split", self.dir / "floats.pt", "--to", "dcp-hf", "--ranks", 5, "-o", self.dir / "ours")
        consolidate_safetensors_files(str(self.dir / "ours"), str(self.dir), fqn_to_index_mapping=dict.fromkeys(floats(), 1))
        assert_same_tensors(self, load_file(self.dir / "model-00001-of-00001.safetensors"), floats())

    def test_a_consolidated_folder_is_whole_tensors_with_a_note(self):
        spawn(save_floats, 2, str(self.dir / "out"))
        document = shardctl_json("inspect", self.dir / "out")
        self.assertEqual(document["format"], "safetensors")
        self.assertEqual(shardctl_json("digest", self.dir / "out"), shardctl_json("digest", self.dir / "out" / "sharded"))
        result = shardctl_json("gather", self.dir / "out", "-o", self.dir / "x.safetensors")
        self.assertTrue(any("sharded/" in line for line in result["warnings"]), result["warnings"])

    def test_a_full_save_of_one_process_is_read(self):
        state = {"a": noise((3, 2)), "b": noise((4,), torch.int64)}
        dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(self.dir / "full"), fqn_to_index_mapping={"a": 1, "b": 2}), no_dist=True)
        self.assertEqual(shardctl_json("inspect", self.dir / "full")["format"], "safetensors")
        shardctl("gather", self.dir / "full", "-o", self.dir / "out.safetensors")
        assert_same_tensors(self, load_file(self.dir / "out.safetensors"), state)

    def test_a_lost_rank_is_exit_3(self):
        shardctl("reshard", self.saves[1], "-o", self.dir / "ours", "--ranks", 4)
        (self.dir / "ours" / "shard-00004-model-00001-of-00001.safetensors").unlink()
        error = json.loads(shardctl("digest", self.dir / "ours", "--json", code=3))
        self.assertEqual((error["rank"], error["kind"]), (3, "missing_file"))

    def test_dcp_and_back(self):
        shardctl("convert", self.saves[3], "--to", "dcp", "-o", self.dir / "dcp")
        shardctl("convert", self.dir / "dcp", "--to", "dcp-hf", "-o", self.dir / "back")
        assert_same_tensors(self, load_whole(self.dir / "back"), whole())


if __name__ == "__main__":
    unittest.main()
