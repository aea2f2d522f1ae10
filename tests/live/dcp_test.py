"""torch.distributed.checkpoint both ways: folders from real ranks are read, ours load on any number of ranks."""
import inspect
import itertools
import unittest

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh

from support import LiveTest, assert_same_tensor, assert_same_tensors, noise, shardctl, shardctl_json, spawn

PLACEMENTS = {"rows": [Shard(0)], "columns": [Shard(1)], "uneven": [Shard(0)], "few": [Shard(0)], "copy": [Replicate()]}


def whole() -> dict[str, torch.Tensor]:
    return {"rows": noise((16, 6), torch.float32, 1), "columns": noise((5, 12), torch.bfloat16, 2),
            "uneven": noise((11, 3), torch.int16, 3), "few": noise((3, 4), torch.float8_e4m3fn, 4), "copy": noise((4,), torch.bool, 5)}


def distribute(tensor: torch.Tensor, mesh, placement) -> DTensor:
    """This rank's part as a DTensor, without a collective: Gloo cannot move every dtype."""
    part = tensor
    if isinstance(placement, Shard):
        pieces = tensor.chunk(mesh.size(), placement.dim)
        empty = tensor.narrow(placement.dim, 0, 0)
        part = pieces[mesh.get_rank()] if mesh.get_rank() < len(pieces) else empty
    return DTensor.from_local(part.clone(), mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride())


def save_folder(rank: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (4,))
    state = {"model": {name: distribute(tensor, mesh, PLACEMENTS[name][0]) for name, tensor in whole().items()},
             "plain": noise((2, 2), torch.float64, 6), "scalar": noise((), torch.int32, 7), "step": 10,
             "groups": [{"lr": 0.1, "params": [0, 1]}], "note": "hello"}
    dcp.save(state, checkpoint_id=path)


def zstd_extensions() -> list:
    """torch's transform, if its library is installed."""
    try:
        from torch.distributed.checkpoint._extension import ZStandard

        return [ZStandard()]
    except (ImportError, ValueError):
        return []


WAYS = {"threads": {"thread_count": 3}, "item_files": {"single_file_per_rank": False},
        "threads_item_files": {"single_file_per_rank": False, "thread_count": 2}, "zstd": {"_extensions": zstd_extensions()}}


def save_in_way(rank: int, path: str, way: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    state = {name: distribute(tensor, mesh, PLACEMENTS[name][0]) for name, tensor in whole().items()}
    state |= {"step": 10, "pair": (noise((3,), torch.float32, 8), "text")}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **WAYS[way]))


def save_without_collectives(rank: int, path: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    state = {name: distribute(tensor, mesh, PLACEMENTS[name][0]) for name, tensor in whole().items()}
    state |= {"plain": noise((2, 2), torch.float64, 6), "rng": noise((4,), torch.uint8, 10 + rank), "step": 10, "seen": rank}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path), use_collectives=False)


def load_folder(rank: int, path: str, ranks: int, out: str) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    state = {name: distribute(torch.zeros_like(tensor), mesh, PLACEMENTS[name][0]) for name, tensor in whole().items()}
    state["step"] = 0
    dcp.load({"model": {k: v for k, v in state.items() if k != "step"}, "step": 0}, checkpoint_id=path)
    torch.save({k: v.to_local().clone() for k, v in state.items() if isinstance(v, DTensor)}, f"{out}/{rank}.pt")


def load_whole(path) -> dict:
    """The view of a current unsharded reader."""
    state: dict = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


class Dcp(LiveTest):
    @classmethod
    def setUpClass(cls):
        import tempfile

        cls.shared = tempfile.TemporaryDirectory()
        cls.source = cls.shared.name + "/ckpt"
        spawn(save_folder, 4, cls.source)

    @classmethod
    def tearDownClass(cls):
        cls.shared.cleanup()

    def check(self, found: dict):
        assert_same_tensors(self, found["model"], whole())
        assert_same_tensor(self, found["plain"], noise((2, 2), torch.float64, 6), "plain")
        assert_same_tensor(self, found["scalar"], noise((), torch.int32, 7), "scalar")
        self.assertEqual((found["step"], found["note"]), (10, "hello"))
        self.assertEqual(found["groups"], [{"lr": 0.1, "params": [0, 1]}])

    def test_gather_to_torch(self):
        shardctl("gather", self.source, "-o", self.dir / "out.pt")
        self.check(torch.load(self.dir / "out.pt", weights_only=True))

    def test_gather_to_safetensors(self):
        from safetensors.torch import load_file

        shardctl("gather", self.source, "-o", self.dir / "out.safetensors", "--objects", "drop", "--include", "model.**",
                 "--strip-prefix", "model.")
        assert_same_tensors(self, load_file(self.dir / "out.safetensors"), whole())

    def test_inspect_says_who_wrote_what(self):
        document = shardctl_json("inspect", self.source)
        self.assertEqual(document["world_size"], 4)
        rows = next(t for t in document["tensors"] if t["name"] == "model.rows")
        self.assertEqual([(c["offsets"], c["sizes"], c["rank"]) for c in rows["chunks"]], [([4 * r, 0], [4, 6], r) for r in range(4)])

    def test_reshard_loads_in_torch(self):
        for options in (["--ranks", 3], ["--ranks", 2, "--dim", 1], ["--mesh", "a=2,b=2", "--place", "**=S(0),S(1)"],
                        ["--mesh", "a=2,b=2", "--place", "**=_S(0,2),S(0)"], ["--mesh", "a=3,b=2", "--place", "**=R,S(-1)"]):
            with self.subTest(options=options):
                out = self.dir / "-".join(map(str, options)).replace("*", "x")
                shardctl("reshard", self.source, "-o", out, *options)
                dcp_to_torch_save(out, self.dir / "whole.pt")
                self.check(torch.load(self.dir / "whole.pt", weights_only=False))
                self.check(load_whole(out))

    def test_ranks_load_what_was_resharded(self):
        shardctl("reshard", self.source, "-o", self.dir / "out", "--ranks", 3, "--dim", -1)
        spawn(load_folder, 2, str(self.dir / "out"), 2, str(self.dir))
        parts = [torch.load(self.dir / f"{rank}.pt") for rank in range(2)]
        for name, tensor in whole().items():
            placement = PLACEMENTS[name][0]
            if isinstance(placement, Shard):
                assert_same_tensor(self, torch.cat([p[name] for p in parts], placement.dim), tensor, name)
            else:
                assert_same_tensor(self, parts[1][name], tensor, name)

    def test_torch_to_dcp_and_back(self):
        state = {"model": whole(), "optimizer": {"state": {"0": {"step": 1, "avg": noise((3, 3))}}, "groups": [{"lr": 0.5}]}}
        torch.save(state, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "--to", "dcp", "-o", self.dir / "folder")
        found = load_whole(self.dir / "folder")
        assert_same_tensors(self, found["model"], whole())
        self.assertEqual(found["optimizer"]["groups"], [{"lr": 0.5}])
        shardctl("convert", self.dir / "folder", "-o", self.dir / "back.pt")
        back = torch.load(self.dir / "back.pt", weights_only=True)
        assert_same_tensors(self, back["model"], whole())
        self.assertEqual(back["optimizer"]["state"]["0"]["step"], 1)

    def test_integer_keys_are_said_to_be_lost(self):
        torch.save({"state": {0: noise((2,)), 1: noise((3,))}, "none": {}}, self.dir / "in.pt")
        result = shardctl_json("convert", self.dir / "in.pt", "--to", "dcp", "-o", self.dir / "folder")
        self.assertTrue(any("integer" in line for line in result["warnings"]), result["warnings"])
        self.assertTrue(any("empty" in line for line in result["warnings"]), result["warnings"])

    def test_like_takes_the_other_layout(self):
        shardctl("gather", self.source, "-o", self.dir / "whole.pt")
        shardctl("split", self.dir / "whole.pt", "-o", self.dir / "like", "--like", self.source)

        def boxes(path):
            return {t["name"]: [(c["offsets"], c["sizes"]) for c in t["chunks"] if 0 not in c["sizes"]]
                    for t in shardctl_json("inspect", path)["tensors"]}

        self.assertEqual(boxes(self.dir / "like"), boxes(self.source))

    def test_the_digest_is_the_same_in_every_layout(self):
        shardctl("gather", self.source, "-o", self.dir / "one.pt")
        shardctl("reshard", self.source, "-o", self.dir / "five", "--ranks", 5)
        shardctl("split", self.dir / "one.pt", "-o", self.dir / "st", "--objects", "drop", "--shards", 2)
        digests = {shardctl_json("digest", p)["checkpoint"] for p in (self.source, self.dir / "one.pt", self.dir / "five", self.dir / "st")}
        self.assertEqual(len(digests), 1)


class WaysToSave(LiveTest):
    def test_every_way_to_save_is_read(self):
        for way in WAYS:
            with self.subTest(way=way):
                if way == "zstd" and not WAYS[way]["_extensions"]:
                    self.skipTest("neither zstandard nor pyzstd is there")
                spawn(save_in_way, 2, str(self.dir / way), way)
                shardctl("gather", self.dir / way, "-o", self.dir / f"{way}.pt")
                found = torch.load(self.dir / f"{way}.pt", weights_only=True)
                assert_same_tensors(self, {name: found[name] for name in whole()}, whole())
                assert_same_tensor(self, found["pair"][0], noise((3,), torch.float32, 8), "pair.0")
                self.assertEqual((found["step"], found["pair"][1]), (10, "text"))

    def test_zstd_is_resharded_to_what_torch_loads(self):
        if not WAYS["zstd"]["_extensions"]:
            self.skipTest("neither zstandard nor pyzstd is there")
        spawn(save_in_way, 2, str(self.dir / "in"), "zstd")
        shardctl("reshard", self.dir / "in", "-o", self.dir / "out", "--ranks", 3)
        found = load_whole(self.dir / "out")
        assert_same_tensors(self, {name: found[name] for name in whole()}, whole())

    @unittest.skipUnless("use_collectives" in inspect.signature(dcp.save).parameters, "this torch always has collectives")
    def test_metadata_of_each_rank_is_merged(self):
        source = self.dir / "own"
        spawn(save_without_collectives, 2, str(source))
        document = shardctl_json("inspect", source)
        self.assertEqual(document["world_size"], 2)
        self.assertEqual([t.get("rank") for t in document["tensors"] if t["name"] == "rng"], [0, 1])
        self.assertEqual([(o["rank"], o["value"]) for o in document["objects"] if o["name"] == "seen"], [(0, 0), (1, 1)])
        self.assertIn("rng", shardctl_json("gather", source, "-o", self.dir / "out.pt", code=4)["message"])
        shardctl("gather", source, "-o", self.dir / "out.pt", "--exclude", "rng", "--exclude", "seen")
        found = torch.load(self.dir / "out.pt", weights_only=True)
        assert_same_tensors(self, {name: found[name] for name in whole()}, whole())
        assert_same_tensor(self, found["plain"], noise((2, 2), torch.float64, 6), "plain")
        self.assertEqual(found["step"], 10)
        (source / "__1.metadata").unlink()
        self.assertEqual(shardctl_json("inspect", source, code=3)["file"].rsplit("/")[-1], "__1.metadata")


class Transitions(LiveTest):
    def test_every_pair_of_formats_round_trips(self):
        state = whole() | {"tied": whole()["rows"]}
        makers = {"safetensors": "x.safetensors", "torch": "x.pt", "dcp": "x_dcp"}
        torch.save(state, self.dir / "start.pt")
        for first, second in itertools.permutations(makers, 2):
            with self.subTest(first=first, second=second):
                a = self.dir / f"{first}-{second}-a" / makers[first]
                b = self.dir / f"{first}-{second}-b" / makers[second]
                a.parent.mkdir(), b.parent.mkdir()
                shardctl("convert", self.dir / "start.pt", "--to", first, "-o", a)
                shardctl("convert", a, "--to", second, "-o", b)
                back = b.parent / "back.pt"
                shardctl("convert", b, "-o", back)
                assert_same_tensors(self, torch.load(back, weights_only=True), state)
                shardctl("diff", self.dir / "start.pt", b)


if __name__ == "__main__":
    unittest.main()
