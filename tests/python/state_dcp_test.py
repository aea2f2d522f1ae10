"""The reader and the writer for DCP, with the real torch. Environment: as for native_test.py."""
import collections
import contextlib
import copy
import pickle
import unittest
from unittest import mock

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

import shardctl
from state_case import Case, model, same


class _Unknown:
    """A class that no reader of checkpoints knows."""


class Dcp(Case):
    def test_unchanged_code_loads_every_format(self) -> None:
        wanted = {"model": model(1).state_dict(), "step": 7, "names": ["a", "b"], "rate": 0.5}
        source = self.saved(wanted, "x.pt")
        shardctl.run("split", source, "-o", self.folder / "ranks", "--ranks", "2", "--to", "torch-ranks")
        for path in (source, self.folder / "ranks"):
            state = {"model": model(2).state_dict(), "step": 0, "rate": 0.0}
            dcp.load(state, storage_reader=shardctl.dcp.Reader(path), no_dist=True)
            self.assertTrue(same(state["model"], wanted["model"]), path)
            self.assertEqual((state["step"], state["rate"]), (7, 0.5))

    def test_lists_and_tuples_have_the_names_of_torch(self) -> None:
        trained = model(1)
        optimizer = torch.optim.AdamW(trained.parameters(), betas=(0.8, 0.95))
        trained(torch.randn(4, 10)).sum().backward()
        optimizer.step()
        state = {"optim": get_optimizer_state_dict(trained, optimizer), "history": [1, [2.5]], "pair": (torch.ones(2), 1),
                 "size": torch.Size([1, 2]), "deep": [{"x": torch.ones(2)}, [torch.zeros(1), 3]]}
        sources = [self.saved(state, "x.pt"), self.folder / "dcp", self.folder / "own"]
        dcp.save(state, checkpoint_id=sources[1], no_dist=True)
        shardctl.save(state, sources[2], to="dcp")
        for source in sources[:2]:
            reader = shardctl.dcp.Reader(source)
            loaded = copy.deepcopy(state)
            loaded["optim"]["param_groups"][0]["betas"], loaded["history"], loaded["size"] = (0, 0), [], None
            loaded["deep"][0]["x"].zero_()
            dcp.load(loaded, storage_reader=reader, no_dist=True)
            self.assertEqual(str(loaded), str(state), source)
            self.assertEqual(type(loaded["size"]), torch.Size)
            whole = _load_state_dict_from_keys({"deep", "history"}, storage_reader=reader)
            self.assertEqual(str(dict(sorted(whole.items()))), str({name: state[name] for name in ("deep", "history")}))
        loaded = {"optim": copy.deepcopy(state["optim"]), "history": []}
        dcp.load(loaded, storage_reader=shardctl.dcp.Reader(sources[2]), no_dist=True)
        self.assertEqual(str(loaded), str({name: state[name] for name in loaded}))

    def test_parameters_inside_objects_are_tensors(self) -> None:
        parameter = torch.nn.Parameter(torch.ones(2))
        state = {"pair": (parameter, 1)}
        dcp.save(state, checkpoint_id=self.folder / "dcp", no_dist=True)
        for source in (self.saved(state, "x.pt"), self.folder / "dcp"):
            loaded = {"pair": None}
            dcp.load(loaded, storage_reader=shardctl.dcp.Reader(source), no_dist=True)
            self.assertTrue(torch.equal(loaded["pair"][0], parameter) and loaded["pair"][1] == 1, source)

    def test_unchanged_code_saves_every_format(self) -> None:
        wanted = {"model": model(1).state_dict(), "step": 7, "groups": [{"lr": 0.5, "betas": [0.1, 0.2]}, {"w": torch.ones(2)}]}
        dcp.save(wanted, storage_writer=shardctl.dcp.Writer(self.folder / "x.pt"), no_dist=True)
        loaded = torch.load(self.folder / "x.pt", weights_only=True)
        self.assertTrue(same(loaded["model"], wanted["model"]))
        self.assertEqual((loaded["step"], loaded["groups"][0], loaded["groups"][1].keys()), (7, wanted["groups"][0], {"w"}))
        dcp.save(wanted, checkpoint_id=self.folder / "dcp", storage_writer=shardctl.dcp.Writer(), no_dist=True)
        state = {"model": model(2).state_dict(), "step": 0, "groups": [{"lr": 0., "betas": []}, {"w": torch.zeros(2)}]}
        dcp.load(state, checkpoint_id=self.folder / "dcp", no_dist=True)
        self.assertTrue(same(state["model"], wanted["model"]))
        self.assertEqual((state["step"], state["groups"][0]), (7, wanted["groups"][0]))
        with self.assertRaises(CheckpointException) as exists:
            dcp.save(wanted, storage_writer=shardctl.dcp.Writer(self.folder / "x.pt"), no_dist=True)
        self.assertIn("already exists", str(exists.exception))

    def test_plans_that_torch_keeps_are_shared_with_its_own_writer(self) -> None:
        kept = [name for name in vars(SavePlanner) if name.startswith("_cached_")]
        writers = {"torch": dcp.FileSystemWriter, "shardctl": shardctl.dcp.Writer}
        for order in (("torch", "shardctl", "torch"), ("shardctl", "torch", "shardctl")):
            with contextlib.ExitStack() as stack:
                for name in kept:
                    stack.enter_context(mock.patch.object(SavePlanner, name, {}))
                for number, name in enumerate(order):
                    state = {"w": torch.full((3, 4), float(number)), "step": number}
                    folder = self.folder / f"{'-'.join(order)}-{number}"
                    dcp.save(state, storage_writer=writers[name](folder), no_dist=True,
                             planner=DefaultSavePlanner(enable_plan_caching=True))
                    loaded = {"w": torch.zeros(3, 4), "step": -1}
                    dcp.load(loaded, checkpoint_id=folder, no_dist=True)
                    self.assertTrue(torch.equal(loaded["w"], state["w"]) and loaded["step"] == number, folder)

    def test_dicts_are_loaded_as_a_whole(self) -> None:
        wanted = {"model": {"a.b": torch.ones(2), "c": [torch.zeros(1), 1]}, "step": 7, "w": torch.arange(3.)}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        dcp.save(wanted, checkpoint_id=self.folder / "dcp", planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
        for source in (self.saved(wanted, "x.pt"), self.folder / "dcp"):
            state = {"model": None, "step": None, "w": torch.zeros(3)}
            dcp.load(state, storage_reader=shardctl.dcp.Reader(source, flatten_state_dict=False), planner=planner, no_dist=True)
            self.assertEqual(str(state), str(wanted))

    def test_tensors_without_elements_are_refused_by_name(self) -> None:
        freed = torch.ones(8)
        freed.untyped_storage().resize_(0)
        with FakeTensorMode():
            fake = torch.ones(8)
        for value in (freed, fake, torch.zeros(2, device="meta"), torch.zeros(2, 2).to_sparse()):
            with self.assertRaisesRegex(CheckpointException, "cannot save 'wrong'"):
                dcp.save({"wrong": value}, storage_writer=shardctl.dcp.Writer(self.folder / "x.pt"), no_dist=True)

    def test_a_dtype_that_torch_lacks_is_missing_for_dcp(self) -> None:
        header = b'{"six": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}, ' \
                 b'"w": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}}'
        source, state = self.folder / "six.safetensors", {"w": torch.zeros(1, dtype=torch.uint8)}
        source.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\7")
        dcp.load(state, storage_reader=shardctl.dcp.Reader(source), no_dist=True)
        self.assertEqual(state["w"].item(), 7)
        with self.assertRaisesRegex(CheckpointException, "six"):
            dcp.load({"six": torch.zeros(4)}, storage_reader=shardctl.dcp.Reader(source), no_dist=True)

    def test_objects_of_the_planner_are_those_of_save(self) -> None:
        Pair = collections.namedtuple("Pair", "first second")
        with mock.patch.dict(globals(), {"Pair": Pair}):
            state = {"pair": Pair(1, torch.ones(2)), "z": 1 + 2j, "array": [numpy.float32(0.5)]}
            dcp.save(state, storage_writer=shardctl.dcp.Writer(self.folder / "x.pt"), no_dist=True)
            loaded = torch.load(self.folder / "x.pt", weights_only=True)
            self.assertEqual(str(loaded), str({"pair": (1, torch.ones(2)), "z": 1 + 2j, "array": [0.5]}))
        with self.assertRaisesRegex(CheckpointException, "cannot save 'deep.wrong': .* found .*_Unknown"):
            dcp.save({"deep": {"wrong": _Unknown()}}, storage_writer=shardctl.dcp.Writer(self.folder / "y.pt"), no_dist=True)

    def test_a_checkpoint_that_cannot_be_read_is_named_by_dcp(self) -> None:
        path = self.folder / "x.pt"
        reader = shardctl.dcp.Reader(path)
        with self.assertRaises(shardctl.NotFound):
            reader.read_metadata()
        with self.assertRaisesRegex(CheckpointException, "x.pt: no such file or folder"):
            dcp.load({"step": 0}, storage_reader=reader, no_dist=True)
        torch.save({"step": 7}, path)
        dcp.load(state := {"step": 0}, storage_reader=reader, no_dist=True)
        self.assertEqual(state["step"], 7)

    def test_options_are_not_for_a_checkpoint_that_is_open(self) -> None:
        with shardctl.open(self.saved({"w": torch.zeros(2)})) as found:
            for load in (lambda: shardctl.dcp.Reader(found, threads=1), lambda: shardctl.load_state_dict(found, {}, threads=1)):
                with self.assertRaisesRegex(shardctl.Usage, "a checkpoint that is open"):
                    load()

    def test_ranks_outside_the_default_group_need_theirs(self) -> None:
        with self.assertRaises(shardctl.Usage) as refused:
            shardctl.dcp.Writer(self.folder / "x.pt")._group_of(2)
        again = pickle.loads(pickle.dumps(refused.exception))  # Another rank or process sends it so.
        self.assertIn("process_group=GROUP", again.hint)

    def test_a_missing_name_is_reported_by_dcp(self) -> None:
        with self.assertRaises(CheckpointException) as missing:
            dcp.load({"none": torch.zeros(1)}, storage_reader=shardctl.dcp.Reader(self.saved(model().state_dict())), no_dist=True)
        self.assertIn("none", str(missing.exception))


if __name__ == "__main__":
    unittest.main()
