"""Damaged files of real clients: repaired files load in the real clients, with the saved values."""
import shutil
import unittest
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

from support import LiveTest, assert_same_tensor, assert_same_tensors, noise, shardctl, shardctl_json, spawn

LAYERS = 6


def state(seed: int) -> dict:
    tied = noise((40, 16), torch.bfloat16, seed)
    layers = {f"layers.{i}.weight": noise((16, 24), torch.float32, seed + i + 1) for i in range(LAYERS)}
    return {"model": {"embed": tied, "head": tied, **layers}, "step": seed, "note": "text"}


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def lost_names(result: dict) -> list[str]:
    return sorted(loss["name"] for loss in result["lost"] if loss["name"])


class TorchFile(LiveTest):
    def setUp(self):
        super().setUp()
        self.source, self.repaired = self.dir / "state.pt", self.dir / "repaired.pt"
        self.state = state(1)
        torch.save(self.state, self.source)

    def place_of(self, record: str) -> int:
        """The offset of the record's bytes."""
        with zipfile.ZipFile(self.source) as file:
            info = file.getinfo(f"state/{record}")
            begin = info.header_offset
        header = self.source.read_bytes()[begin:begin + 30]
        return begin + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")

    def repair(self) -> dict:
        return shardctl_json("repair", self.source, "-o", self.repaired)

    def expect(self, lost: list[str]):
        found = torch.load(self.repaired, weights_only=True)
        wanted = {name: tensor for name, tensor in self.state["model"].items() if f"model.{name}" not in lost}
        assert_same_tensors(self, found["model"], wanted)
        self.assertEqual((found["step"], found["note"]), (1, "text"))
        if "embed" in wanted:
            self.assertEqual(found["model"]["embed"].data_ptr(), found["model"]["head"].data_ptr())

    def test_a_cut_file_that_torch_refuses_loads_without_the_tensors_behind_the_cut(self):
        with open(self.source, "r+b") as file:
            file.truncate(self.place_of("data/3") + 100)
        with self.assertRaises((RuntimeError, OSError)):  # "failed finding central directory", or EINVAL.
            torch.load(self.source)
        lost = lost_names(self.repair())
        self.assertEqual(lost, [f"model.layers.{i}.weight" for i in range(2, LAYERS)])
        self.expect(lost)

    def test_a_file_without_its_directory_loses_nothing(self):
        with zipfile.ZipFile(self.source) as file:
            end = file.start_dir
        with open(self.source, "r+b") as file:
            file.truncate(end)
        self.assertEqual(lost_names(self.repair()), [])
        self.expect([])

    def test_a_flipped_bit_that_torch_loads_as_a_wrong_value_is_a_loss(self):
        flip(self.source, self.place_of("data/2") + 8)
        wrong = torch.load(self.source, weights_only=True)["model"]["layers.1.weight"]
        self.assertFalse(torch.equal(wrong, self.state["model"]["layers.1.weight"]))
        self.assertEqual(lost_names(self.repair()), ["model.layers.1.weight"])
        self.expect(["model.layers.1.weight"])

    def test_a_flipped_bit_in_a_shared_storage_loses_both_names(self):
        flip(self.source, self.place_of("data/0"))
        self.assertEqual(lost_names(self.repair()), ["model.embed", "model.head"])
        self.expect(["model.embed", "model.head"])

    def test_a_legacy_file_keeps_the_storages_before_the_cut(self):
        torch.save(self.state, self.source, _use_new_zipfile_serialization=False)
        content = self.source.read_bytes()
        self.source.write_bytes(content[:len(content) - 700])
        lost = lost_names(self.repair())
        self.assertTrue(0 < len(lost) < LAYERS + 2, lost)
        self.expect(lost)


class Safetensors(LiveTest):
    def test_a_cut_file_that_the_reference_refuses_loads_without_the_tensors_behind_the_cut(self):
        tensors = {f"w{i}": noise((64, 8), torch.float32, i) for i in range(8)}
        save_file(tensors, self.dir / "m.safetensors")
        with open(self.dir / "m.safetensors", "r+b") as file:
            file.truncate((self.dir / "m.safetensors").stat().st_size - 5000)
        with self.assertRaises(SafetensorError):
            load_file(self.dir / "m.safetensors")
        result = shardctl_json("repair", self.dir / "m.safetensors", "-o", self.dir / "r.safetensors")
        self.assertEqual(lost_names(result), ["w5", "w6", "w7"])
        assert_same_tensors(self, load_file(self.dir / "r.safetensors"), {f"w{i}": tensors[f"w{i}"] for i in range(5)})


def save_step(rank: int, path: str, seed: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    model = {name: DTensor.from_local(tensor.chunk(2)[rank].clone(), mesh, [Shard(0)], run_check=False)
             for name, tensor in state(seed)["model"].items() if name != "head"}
    dcp.save({"model": model, "scale": noise((3,), torch.float64, seed), "step": seed, "note": "text"}, checkpoint_id=path)


def load_whole(path) -> dict:
    loaded = {}
    _load_state_dict(loaded, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return loaded


class Dcp(LiveTest):
    @classmethod
    def setUpClass(cls):
        import tempfile
        cls.folder = tempfile.TemporaryDirectory(prefix="shardctl-live-")
        for step in (1, 2):
            spawn(save_step, 2, f"{cls.folder.name}/{step}", step)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        super().setUp()
        self.source = self.dir / "2"
        shutil.copytree(f"{self.folder.name}/2", self.source)

    def expect(self, lost: list[str]):
        found = load_whole(self.dir / "repaired")
        wanted = {name: tensor for name, tensor in state(2)["model"].items() if name != "head" and f"model.{name}" not in lost}
        assert_same_tensors(self, found["model"], wanted)
        if "scale" not in lost:
            assert_same_tensor(self, found["scale"], noise((3,), torch.float64, 2), "scale")
        self.assertEqual((found["step"], found["note"]), (2, "text"))

    def test_lost_metadata_is_made_anew_by_the_save_before(self):
        (self.source / ".metadata").unlink()
        shardctl("repair", self.source, "-o", self.dir / "repaired", code=4)
        result = shardctl_json("repair", self.source, "-o", self.dir / "repaired", "--like", f"{self.folder.name}/1")
        self.assertEqual(result["lost"], [])
        self.expect([])

    def test_metadata_and_a_cut_file_together(self):
        (self.source / ".metadata").write_bytes(b"\x80\x04")
        file = self.source / "__1_0.distcp"
        with open(file, "r+b") as opened:
            opened.truncate(file.stat().st_size - 1500)
        result = shardctl_json("repair", self.source, "-o", self.dir / "repaired", "--like", f"{self.folder.name}/1")
        lost = lost_names(result)
        self.assertTrue(0 < len(lost) < LAYERS, lost)
        self.expect(lost)

    def test_a_killed_save_is_read_from_its_temporary_metadata(self):
        (self.source / ".metadata").rename(self.source / ".metadata.tmp")
        self.assertEqual(shardctl_json("repair", self.source, "-o", self.dir / "repaired")["lost"], [])
        self.expect([])

    def test_a_flipped_bit_that_torch_loads_as_a_wrong_value_is_a_loss_and_torch_reads_the_noted_metadata(self):
        file = self.source / "__0_0.distcp"
        layer = state(2)["model"]["layers.3.weight"].chunk(2)[0].contiguous().view(torch.uint8).numpy().tobytes()
        flip(file, file.read_bytes().index(layer) + 5)
        self.assertEqual(lost_names(shardctl_json("repair", self.source, "-o", self.dir / "repaired")), ["model.layers.3.weight"])
        self.expect(["model.layers.3.weight"])
        self.assertIn("shardctl.lost", shardctl_json("inspect", self.dir / "repaired")["metadata"])


def save_ranks(rank: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    whole = noise((8, 6), torch.float32, 3)
    part = DTensor.from_local(whole.chunk(2)[rank % 2].clone(), mesh, [Replicate(), Shard(0)], run_check=False)
    torch.save({"w": part, "plain": noise((5,), torch.int16, 4)}, f"{path}/rank_{rank}.pt")


class Ranks(LiveTest):
    def test_a_damaged_replica_is_taken_from_another_rank(self):
        source = self.dir / "in"
        source.mkdir()
        spawn(save_ranks, 4, str(source))
        part = noise((8, 6), torch.float32, 3).chunk(2)[0].contiguous().view(torch.uint8).numpy().tobytes()
        content = (source / "rank_0.pt").read_bytes()
        flip(source / "rank_0.pt", content.index(part) + 9)
        result = shardctl_json("repair", source, "-o", self.dir / "out", "--to", "safetensors")
        self.assertEqual(result["lost"], [])
        self.assertEqual(len(result["repaired"]), 1)
        found = load_file(self.dir / "out/model.safetensors")
        assert_same_tensors(self, found, {"w": noise((8, 6), torch.float32, 3), "plain": noise((5,), torch.int16, 4)})


if __name__ == "__main__":
    unittest.main()
