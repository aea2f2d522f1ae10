"""load_state_dict and save, with the real torch. Environment: as for native_test.py."""
import argparse
import collections
import collections.abc
import copy
import itertools
import pickle
import types
import unittest
from pathlib import Path

import numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import shardctl
from state_case import Case, model, same


class Plain(Case):
    def test_a_module_is_filled_in_place_from_every_format(self) -> None:
        wanted = model(1).state_dict()
        source = self.saved(wanted, "x.pt")
        for verb, name in (("convert", "y.safetensors"), ("split", "dcp"), ("split", "ranks")):
            more = {"dcp": ["--ranks", "3", "--to", "dcp"], "ranks": ["--ranks", "2", "--to", "torch-ranks"]}.get(name, [])
            shardctl.run(verb, source, "-o", self.folder / name, *more)
            filled = model(2)
            places = {key: tensor.data_ptr() for key, tensor in filled.state_dict().items()}
            result = shardctl.load_state_dict(self.folder / name, filled)
            self.assertEqual((result.missing_keys, result.unexpected_keys), ([], []))
            self.assertTrue(same(filled.state_dict(), wanted), name)
            self.assertEqual({key: tensor.data_ptr() for key, tensor in filled.state_dict().items()}, places)

    def test_names_and_shapes_are_reported_with_the_text_of_torch(self) -> None:
        state = model(1).state_dict()
        state["0.weight"] = torch.zeros(14, 11)
        state["extra"], state["more"] = torch.zeros(1), torch.zeros(2)
        del state["1.bias"], state["2.weight"]
        path = self.saved(state)
        filled = model(2)
        before = copy.deepcopy(filled.state_dict())
        with self.assertRaises(RuntimeError) as of_torch:
            model().load_state_dict(state)
        with self.assertRaises(RuntimeError) as own:
            shardctl.load_state_dict(path, filled)
        self.assertEqual(str(own.exception), str(of_torch.exception))
        self.assertIsInstance(own.exception, shardctl.Mismatch)
        self.assertEqual((own.exception.missing, own.exception.unexpected), (["1.bias", "2.weight"], ["extra", "more"]))
        self.assertEqual(str(pickle.loads(pickle.dumps(own.exception))), str(own.exception))
        self.assertTrue(same(filled.state_dict(), before), "nothing was changed")
        state["0.weight"] = torch.ones(14, 10)
        result = shardctl.load_state_dict(self.saved(state), filled, strict=False)
        self.assertEqual((result.missing_keys, result.unexpected_keys), (["1.bias", "2.weight"], ["extra", "more"]))
        self.assertEqual(filled[0].weight.sum(), 140)

    def test_dtypes_are_converted_only_on_request(self) -> None:
        wanted = model(1).state_dict()
        path, filled = self.saved(wanted), model(2).bfloat16()
        with self.assertRaisesRegex(shardctl.Mismatch, "dtype mismatch for 0.weight: .* float32, .* bfloat16; cast=True"):
            shardctl.load_state_dict(path, filled)
        shardctl.load_state_dict(path, filled, cast=True)
        self.assertTrue(torch.equal(filled[0].weight, wanted["0.weight"].bfloat16()))

    def test_assign_gives_memory_to_a_module_that_has_none(self) -> None:
        wanted = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in model(1).state_dict().items()}
        with torch.device("meta"):
            filled = model()
        shardctl.load_state_dict(self.saved(wanted), filled, assign=True)
        self.assertTrue(same(filled.state_dict(), wanted))
        self.assertEqual(filled[0].weight.dtype, torch.float16)
        self.assertTrue(filled[0].weight.requires_grad)

    def test_assigned_tensors_stay_tied(self) -> None:
        with torch.device("meta"):
            filled = torch.nn.ModuleDict({"embed": torch.nn.Embedding(4, 3), "head": torch.nn.Linear(3, 4, bias=False)})
        weight = torch.randn(4, 3)
        shardctl.load_state_dict(self.saved({"embed.weight": weight, "head.weight": weight}, "x.pt"), filled, assign=True)
        self.assertTrue(torch.equal(filled["head"].weight, weight))
        self.assertEqual(filled["embed"].weight.data_ptr(), filled["head"].weight.data_ptr())
        filled["head"].weight = filled["embed"].weight  # One parameter stays one.
        shardctl.load_state_dict(self.folder / "x.pt", filled, assign=True)
        self.assertIs(filled["embed"].weight, filled["head"].weight)

    def test_of_tied_parameters_one_name_is_enough(self) -> None:
        def tied() -> torch.nn.ModuleDict:
            made = torch.nn.ModuleDict({"embed": torch.nn.Embedding(4, 3), "head": torch.nn.Linear(3, 4, bias=False)})
            made["head"].weight = made["embed"].weight
            return made

        weight = torch.randn(4, 3)
        for name, device in itertools.product(("embed.weight", "head.weight"), ("cpu", "meta")):
            source = self.saved({name: weight})
            for assign in (False, True) if device == "cpu" else (True,):
                with torch.device(device):
                    filled = tied()
                self.assertEqual(shardctl.load_state_dict(source, filled, assign=assign), ([], []))
                self.assertIs(filled["head"].weight, filled["embed"].weight)
                self.assertTrue(torch.equal(filled["head"].weight, weight))
        with self.assertRaisesRegex(shardctl.Mismatch, 'Missing.*"embed.weight", "head.weight"'):
            shardctl.load_state_dict(self.saved({"other": weight}), tied())

    def test_a_batch_norm_needs_no_counter(self) -> None:
        trained, filled = model(1), model(2)
        wanted = {name: tensor for name, tensor in trained.state_dict().items() if not name.endswith("num_batches_tracked")}
        model(2).load_state_dict(dict(wanted))  # torch accepts it, because its files up to 0.4.0 lack the counter.
        path = self.saved(wanted)
        with torch.device("meta"):
            meta = model()
        for each, assign in ((filled, False), (meta, True)):
            self.assertEqual(shardctl.load_state_dict(path, each, assign=assign).missing_keys, [])
            self.assertTrue(same(each.state_dict(), trained.state_dict()))
        with self.assertRaisesRegex(shardctl.Mismatch, "num_batches_tracked"):
            shardctl.load_state_dict(path, dict(filled.state_dict()))

    def test_a_scalar_may_have_one_dimension(self) -> None:
        class Scaled(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.scale = torch.nn.Parameter(torch.zeros(()))

        path = self.saved({"scale": torch.full((1,), 3.)})
        Scaled().load_state_dict(safetensors.torch.load_file(path))  # torch takes it, because its versions up to 0.3 saved it so.
        for assign in (False, True):
            filled = Scaled()
            self.assertEqual(shardctl.load_state_dict(path, filled, assign=assign), ([], []))
            self.assertEqual((filled.scale.shape, filled.scale.item()), ((), 3))
        both = torch.full((1,), 3.)
        torch.save({"scale": both, "shift": both}, self.folder / "both.pt")
        filled = Scaled()
        filled.shift = torch.nn.Parameter(torch.zeros(1))
        shardctl.load_state_dict(self.folder / "both.pt", filled, assign=True)
        self.assertEqual((filled.scale.shape, filled.shift.shape), ((), (1,)))
        for wrong in (torch.zeros(2), torch.zeros(1, 1)):
            with self.assertRaisesRegex(shardctl.Mismatch, "size mismatch for scale"):
                shardctl.load_state_dict(self.saved({"scale": wrong}), Scaled())

    def test_an_empty_state_has_no_names(self) -> None:
        for destination, to in (("x.pt", None), ("x", "dcp"), ("x.safetensors", None)):
            shardctl.save(torch.nn.Identity().state_dict(), self.folder / destination, to=to)
            self.assertEqual(shardctl.load_state_dict(self.folder / destination, torch.nn.Identity()), ([], []))
            with self.assertRaises(shardctl.Mismatch) as mismatch:
                shardctl.load_state_dict(self.folder / destination, torch.nn.Linear(2, 2))
            self.assertEqual((mismatch.exception.missing, mismatch.exception.unexpected), (["weight", "bias"], []))
        torch.save(numpy.zeros(2), self.folder / "array.pt")
        found = shardctl.load_state_dict(self.folder / "array.pt", torch.nn.Identity(), strict=False)
        self.assertEqual(found, ([], [""]))

    def test_lazy_modules_get_their_shapes(self) -> None:
        trained = torch.nn.Linear(3, 2)
        for assign in (False, True):
            filled = torch.nn.LazyLinear(2)
            shardctl.load_state_dict(self.saved(trained.state_dict()), filled, assign=assign)
            self.assertTrue(same(filled.state_dict(), trained.state_dict()))

    def test_a_tensor_without_memory_is_refused_by_name(self) -> None:
        for tensor in (torch.zeros(2, device="meta"), torch.zeros(2).to_sparse()):
            state = {"v": torch.zeros(2), "w": tensor}
            with self.assertRaisesRegex(shardctl.Usage, "cannot fill 'w' that has no memory of its own.*\n.*assign=True"):
                shardctl.load_state_dict(self.saved({"v": torch.ones(2), "w": torch.ones(2)}), state)
            self.assertEqual(state["v"].tolist(), [0, 0])
        with self.assertRaisesRegex(shardctl.Usage, "expected a module or a state dict, found NoneType"):
            shardctl.load_state_dict(self.saved({"w": torch.ones(2)}), None)

    def test_a_value_of_a_different_kind_is_not_called_missing(self) -> None:
        wanted = {"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "s": torch.eye(2).to_sparse(), "step": 7}
        source = self.saved(wanted, "x.pt")
        for name in "qs":
            with self.assertRaisesRegex(shardctl.Unsupported, f"cannot load '{name}': shardctl does not create values of class"):
                shardctl.load_state_dict(source, {"step": 0, name: torch.zeros(2)})
        with self.assertRaisesRegex(shardctl.Mismatch, "type mismatch for step: the checkpoint has a value of type int"):
            shardctl.load_state_dict(source, {"step": torch.zeros(())})
        self.assertEqual(shardctl.load_state_dict(source, {"q": torch.zeros(2)}, strict=False).missing_keys, ["q"])

    def test_modules_whose_state_is_in_other_memory_are_filled(self) -> None:
        class Transposed(torch.nn.Linear):
            def _save_to_state_dict(self, found: dict, prefix: str, keep_vars: bool) -> None:
                super()._save_to_state_dict(found, prefix, keep_vars)
                found[prefix + "weight"] = found[prefix + "weight"].t().contiguous()

            def _load_from_state_dict(self, state: dict, prefix: str, *more: object) -> None:
                state[prefix + "weight"] = state[prefix + "weight"].t()
                super()._load_from_state_dict(state, prefix, *more)

        def copied(module: torch.nn.Module, state: dict, prefix: str, metadata: dict) -> None:
            state.update({name: tensor.clone() for name, tensor in state.items()})

        def hooked() -> torch.nn.Module:
            module = torch.nn.Linear(3, 4)
            module.register_state_dict_post_hook(copied)
            return module

        for make, assign in itertools.product((lambda: Transposed(3, 4), hooked), (False, True)):
            trained, filled = make(), make()
            path = self.saved(trained.state_dict(), "x.pt")
            shardctl.load_state_dict(path, filled, assign=assign)
            self.assertTrue(same(dict(filled.named_parameters()), dict(trained.named_parameters())))
            partly = make()
            bias = partly.bias.clone()
            shardctl.load_state_dict(self.saved({"weight": trained.state_dict()["weight"]}, "x.pt"), partly, strict=False,
                                     assign=assign)
            self.assertTrue(torch.equal(partly.weight, trained.weight) and torch.equal(partly.bias, bias))

    def test_hooks_of_a_module_run_after_it_is_filled(self) -> None:
        trained, filled, seen = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4), []
        filled.register_load_state_dict_post_hook(lambda module, keys: seen.append(module.weight.detach().clone()))
        shardctl.load_state_dict(self.saved(trained.state_dict()), filled)
        self.assertEqual(len(seen), 1)
        self.assertTrue(torch.equal(seen[0], trained.weight))

    def test_a_module_converts_what_it_is_filled_with(self) -> None:
        def halved(state: dict, prefix: str, *_: object) -> None:
            state[prefix + "weight"] = state[prefix + "weight"] / 2

        class Halving(torch.nn.Linear):
            def load_state_dict(self, state: dict, strict: bool = True) -> object:  # Without `assign`, as before torch 2.1.
                halved(state, "")
                return super().load_state_dict(state, strict)

        class NeverStrict(Halving):
            def load_state_dict(self, state: dict) -> None:  # type: ignore[override]
                super().load_state_dict(state)

        def hooked() -> torch.nn.Module:
            module = torch.nn.Sequential(torch.nn.Linear(3, 4))
            module[0]._register_load_state_dict_pre_hook(halved)
            return module

        for make in (hooked, lambda: Halving(3, 4), lambda: NeverStrict(3, 4)):
            trained, filled, expected = make(), make(), make()
            expected.load_state_dict(trained.state_dict())
            shardctl.load_state_dict(self.saved(trained.state_dict()), filled)
            self.assertTrue(same(filled.state_dict(), expected.state_dict()))
            self.assertFalse(same(filled.state_dict(), trained.state_dict()))

    def test_modules_take_their_extra_state_as_a_whole(self) -> None:
        class Counted(torch.nn.Module):
            def __init__(self, extra: object) -> None:
                super().__init__()
                self.extra = extra

            def get_extra_state(self) -> object:
                return self.extra

            def set_extra_state(self, extra: object) -> None:
                self.extra = extra

        for extra, before in ((torch.arange(5), torch.zeros(0)), (7, None)):
            filled = Counted(before)
            shardctl.load_state_dict(self.saved(Counted(extra).state_dict(), "x.pt"), filled)
            self.assertTrue(torch.equal(torch.as_tensor(filled.extra), torch.as_tensor(extra)))
        extra = {"scale": torch.ones(2), "history": [torch.arange(3), 0.5], "recipe": {"margin": 0}, "0": None}
        state, root = Counted(extra).state_dict(), torch.nn.ModuleDict({"0": Counted(None), "1": Counted(extra)})
        sources = [self.saved(state, "x.pt"), self.folder / "dcp"]
        dcp.save(state, checkpoint_id=sources[1], no_dist=True)
        for source, before in itertools.product(sources, (None, {}, {"scale": torch.zeros(1), "other": 3}, torch.zeros(0), extra)):
            filled, flat = Counted(before), {"_extra_state": before}
            shardctl.load_state_dict(source, filled)
            shardctl.load_state_dict(source, flat)
            for found in (filled.extra, flat["_extra_state"]):
                self.assertEqual(str(sorted(found.items())), str(sorted(extra.items())))
        shardctl.load_state_dict(self.saved(root.state_dict(), "x.pt"), root)
        self.assertEqual((root["0"].extra, str(root["1"].extra)), (None, str(extra)))

        keyed = {0: torch.ones(1), 1: (torch.zeros(2), 5)}  # Only the present value shows that these are no lists.
        filled = Counted({0: None, 1: (None, None)})
        shardctl.load_state_dict(self.saved(Counted(keyed).state_dict(), "x.pt"), filled)
        self.assertEqual(str(filled.extra), str(keyed))

    def test_an_extra_state_of_unclear_containers_is_refused_before_anything_changes(self) -> None:
        for extra, words in (({"scale": 1, "scale.inv": 2}, "'_extra_state.scale'.*'inv'"), ({"deep" + 2000 * ".": 1}, "too deeply")):
            state = {"w": torch.ones(2), "_extra_state": extra}
            filled = {"w": torch.zeros(2), "_extra_state": {}}
            with self.assertRaisesRegex(shardctl.Unsupported, words):
                shardctl.load_state_dict(self.saved(state, "x.pt"), filled)
            self.assertEqual((filled["w"].tolist(), filled["_extra_state"]), ([0, 0], {}))

    def test_a_value_of_a_class_that_is_not_created_is_refused_by_name(self) -> None:
        path = Path("a")
        for value in (path, numpy.array([None]), numpy.datetime64("2020"), [{"deep": (path,)}], {path}, argparse.Namespace(p=[path])):
            state, loaded = {"w": torch.ones(2), "x": value}, {"w": torch.zeros(2), "x": copy.copy(value)}
            source = self.saved(state, "x.pt")
            with self.assertRaisesRegex(shardctl.Unsupported, "cannot load 'x.*': shardctl does not create values of class "):
                shardctl.load_state_dict(source, loaded)
            self.assertEqual(loaded["w"].tolist(), [0, 0])
            shardctl.load_state_dict(source, {"w": loaded["w"]}, strict=False)
            self.assertEqual(loaded["w"].tolist(), [1, 1])
        dcp.save({"x": path}, checkpoint_id=self.folder / "dcp", no_dist=True)
        with self.assertRaisesRegex(CheckpointException, "shardctl does not create values of class "):
            dcp.load({"x": None}, storage_reader=shardctl.dcp.Reader(self.folder / "dcp"), no_dist=True)

    def test_values_of_known_classes_are_those_that_were_saved(self) -> None:
        args = argparse.Namespace(lr=0.5, params_dtype=torch.bfloat16, inner=types.SimpleNamespace(z=[1 + 2j]))
        state = {"args": args, "same": args, "none": argparse.Namespace(), "z": 1 - 2j, "dtype": torch.float16, "kind": torch.qint8,
                 "device": torch.device("cuda:1"), "cpu": torch.device("cpu"), "scalar": numpy.float32(0.1),
                 "text": numpy.str_("x"), "its": numpy.dtype("i2"), "set": {torch.float16}}
        arrays = {"plain": numpy.arange(6.).reshape(2, 3), "columns": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
                  "big": numpy.array([1, 2], ">i4"), "none": numpy.zeros((0, 3)), "point": numpy.array(5), "texts": numpy.array(["ab", ""])}
        source = self.saved({"model": model(1).state_dict(), "values": state, "arrays": arrays}, "x.pt")
        filled = model(2)
        shardctl.load_state_dict(source, filled, prefix="model.")
        self.assertTrue(same(filled.state_dict(), model(1).state_dict()))
        loaded = {"values": dict.fromkeys(state), "arrays": dict.fromkeys(arrays)}
        shardctl.load_state_dict(source, loaded, strict=False)
        self.assertEqual(loaded["values"], state)
        self.assertEqual([type(each) for each in loaded["values"].values()], [type(each) for each in state.values()])
        for name, array in arrays.items():
            numpy.testing.assert_array_equal(loaded["arrays"][name], array)
            self.assertEqual((loaded["arrays"][name].shape, loaded["arrays"][name].dtype), (array.shape, array.dtype.newbyteorder("=")))
            loaded["arrays"][name][...] = 0  # It is writable.
        self.assertEqual(shardctl.open(source).objects["values.args"], args)
        through = {"values": dict.fromkeys(("args", "z", "dtype"))}
        with torch.serialization.safe_globals([argparse.Namespace, types.SimpleNamespace]):
            dcp.load(through, storage_reader=shardctl.dcp.Reader(source), no_dist=True)
        self.assertEqual(through["values"], {name: state[name] for name in through["values"]})

    def test_arrays_that_torch_saved_are_filled_in_place(self) -> None:
        source = self.saved({"a": numpy.arange(6.).reshape(2, 3)}, "x.pt")
        state = {"a": (array := numpy.zeros((2, 3)))}
        shardctl.load_state_dict(source, state)
        self.assertIs(state["a"], array)
        self.assertEqual(array.sum(), 15)
        with self.assertRaisesRegex(shardctl.Mismatch, "size mismatch for a: .*3, 2"):
            shardctl.load_state_dict(source, {"a": numpy.zeros((3, 2))})
        with self.assertRaisesRegex(shardctl.Mismatch, "dtype mismatch for a: .* float64, .* float32"):
            shardctl.load_state_dict(source, {"a": numpy.zeros((2, 3), "f4")})

    def test_a_tensor_replaces_a_value_that_is_none(self) -> None:
        state = {"step": 0, "average": None}
        shardctl.load_state_dict(self.saved({"step": torch.tensor(7.), "average": torch.ones(2)}, "x.pt"), state)
        self.assertEqual((state["step"].item(), state["average"].tolist()), (7, [1, 1]))

    def test_values_are_made_when_they_are_asked_for(self) -> None:
        with shardctl.open(self.saved({"z": 1j, "later": 2j}, "x.pt")) as found:
            objects = found.objects
            self.assertEqual((objects["z"], "none" in objects, list(objects)), (1j, False, ["later", "z"]))
        self.assertEqual(objects["later"], 2j)
        self.assertEqual(pickle.loads(pickle.dumps(objects)), {"z": 1j, "later": 2j})
        self.assertEqual(repr(objects), "{'later': 2j, 'z': 1j}")

    def test_arrays_sizes_and_named_tuples_keep_their_types(self) -> None:
        Pair = collections.namedtuple("Pair", "first second")
        state = {"array": numpy.arange(6.).reshape(2, 3), "pair": Pair(1, torch.ones(2)), "size": torch.Size([1, 2])}
        shardctl.save(state, self.folder / "x.pt")
        array = numpy.zeros((2, 3))
        loaded = {"array": array, "pair": Pair(0, torch.zeros(2)), "size": torch.Size([3])}
        shardctl.load_state_dict(self.folder / "x.pt", loaded)
        self.assertIs(loaded["array"], array)
        self.assertEqual((array.tolist(), loaded["size"]), (state["array"].tolist(), torch.Size([1, 2])))
        self.assertEqual((type(loaded["pair"]), type(loaded["size"])), (Pair, torch.Size))
        self.assertEqual((loaded["pair"].first, loaded["pair"].second.tolist()), (1, [1, 1]))
        with self.assertRaisesRegex(shardctl.Mismatch, "dtype mismatch for array: .* float64, .* float32"):
            shardctl.load_state_dict(self.folder / "x.pt", {**loaded, "array": array.astype("f4")})
        shardctl.load_state_dict(self.folder / "x.pt", changed := {**loaded, "array": numpy.zeros((2, 3), "f4")}, assign=True)
        self.assertEqual((changed["array"].dtype, changed["array"].tolist()), (numpy.float64, array.tolist()))

    def test_an_empty_key_is_a_part_of_names(self) -> None:
        wanted = {"": {"a": torch.ones(2), "": {"b": 1}}, "c": torch.zeros(1)}
        state = {"": {"a": torch.zeros(2), "": {"b": 0}}, "c": torch.ones(1)}
        shardctl.load_state_dict(self.saved(wanted, "x.pt"), state)
        self.assertEqual(str(state), str(wanted))

    def test_two_entries_of_one_name_are_refused(self) -> None:
        with shardctl.open(self.saved({"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}, "x.pt")) as found:
            with self.assertRaisesRegex(shardctl.Unsupported, "two tensors have the name 'a.b'"):
                found["a.b"]
        with shardctl.open(self.saved({"a.b": 1, "a": {"b": 2}, "step": 3}, "y.pt")) as found:
            with self.assertRaisesRegex(shardctl.Unsupported, "two values have the name 'a.b'"):
                found.objects["a.b"]
            self.assertEqual(found.objects["step"], 3)

    def test_values_that_differ_between_ranks_are_not_mixed(self) -> None:
        source = Path(__file__).resolve().parents[1] / "data/golden/2.11.0/ranks_differ_r2"
        with self.assertRaisesRegex(shardctl.Usage, "ranks have different values 'seen'"):
            shardctl.load_state_dict(source, {"seen": 0}, strict=False)
        with self.assertRaisesRegex(CheckpointException, "ranks have different values 'seen'"):
            dcp.load({"seen": 0}, storage_reader=shardctl.dcp.Reader(source), no_dist=True)

    def test_a_part_of_a_nested_state_is_filled(self) -> None:
        trained, filled = model(1), model(2)
        optimizers = [torch.optim.Adam(each.parameters(), lr=lr) for each, lr in ((trained, 0.5), (filled, 0.1))]
        for each, optimizer in zip((trained, filled), optimizers):
            each(torch.randn(4, 10)).sum().backward()
            optimizer.step()
        state = {"model": trained.state_dict(), "optimizer": optimizers[0].state_dict(), "step": 7}
        path = self.saved(state, "x.pt")
        shardctl.load_state_dict(path, filled, prefix="model.")
        self.assertTrue(same(filled.state_dict(), trained.state_dict()))
        into = {"model": model(3).state_dict(), "optimizer": copy.deepcopy(optimizers[1].state_dict()), "step": 0}
        shardctl.load_state_dict(path, into)
        self.assertEqual((into["step"], into["optimizer"]["param_groups"][0]["lr"]), (7, 0.5))
        for index, values in state["optimizer"]["state"].items():
            self.assertTrue(same(into["optimizer"]["state"][index], values))

    def test_tied_and_transposed_parameters_are_filled(self) -> None:
        first, second = torch.zeros(3, 2), torch.zeros(2, 4)
        state = {"a": first, "b": first, "c": second.t()}
        wanted = {"a": torch.randn(3, 2), "c": torch.randn(4, 2)}
        wanted["b"] = wanted["a"].clone()
        shardctl.load_state_dict(self.saved(wanted), state)
        self.assertTrue(same(state, wanted))
        self.assertIs(state["a"], state["b"])


class Save(Case):
    def test_the_clients_load_what_was_saved(self) -> None:
        shared = torch.randn(64, 3)
        state = {"a.weight": shared, "a.tied": shared, "b.t": torch.randn(4, 6).t(), "c.half": torch.randn(5).bfloat16(),
                 "d.scalar": torch.tensor(7), "e.empty": torch.zeros(0, 3), "f.param": torch.nn.Parameter(torch.ones(2)),
                 "g.array": numpy.arange(6, dtype=numpy.int32).reshape(2, 3)}
        wanted = {name: torch.as_tensor(value).detach() for name, value in state.items()}
        shardctl.save(state, self.folder / "x.safetensors", manifest=True)
        self.assertTrue(same(safetensors.torch.load_file(self.folder / "x.safetensors"), wanted))
        self.assertTrue((self.folder / "x.safetensors.manifest.json").exists())
        self.assertTrue(shardctl.verify(self.folder / "x.safetensors"))
        shardctl.save(state, self.folder / "x.pt")
        loaded = torch.load(self.folder / "x.pt", weights_only=True)
        self.assertTrue(same(loaded, wanted))
        self.assertEqual(loaded["a.weight"].data_ptr(), loaded["a.tied"].data_ptr())
        shardctl.save(state, self.folder / "dcp", to="dcp")
        into = {name: torch.full_like(tensor, 9) for name, tensor in wanted.items()}
        dcp.load(into, checkpoint_id=self.folder / "dcp", no_dist=True)
        self.assertTrue(same(into, wanted))

    def test_numbers_of_numpy_become_those_of_python(self) -> None:
        state = {"loss": numpy.float32(0.1), "step": numpy.int64(7), "flag": numpy.bool_(True), "best": [numpy.float64(0.5)]}
        shardctl.save(state, self.folder / "x.pt")
        loaded = torch.load(self.folder / "x.pt", weights_only=True)
        self.assertEqual(loaded, {"loss": float(state["loss"]), "step": 7, "flag": True, "best": [0.5]})
        for other in (numpy.datetime64("2020"), numpy.complex64(1), numpy.longdouble(1), numpy.str_("x")):
            with self.assertRaisesRegex(shardctl.Unsupported, "cannot save 'a': .* found numpy"):
                shardctl.save({"a": other}, self.folder / "y.pt")

    def test_keys_of_numpy_become_those_of_python(self) -> None:
        shardctl.save({"state": {numpy.int64(3): torch.ones(2), numpy.str_("a"): 1}}, self.folder / "x.pt")
        self.assertEqual(list(torch.load(self.folder / "x.pt", weights_only=True)["state"]), [3, "a"])
        self.assertEqual(list(shardctl.open(self.folder / "x.pt")), ["state.3"])

    def test_nested_states_keep_their_values_and_containers(self) -> None:
        trained = model(1)
        optimizer = torch.optim.Adam(trained.parameters(), lr=0.5)
        trained(torch.randn(4, 10)).sum().backward()
        optimizer.step()
        state = {"model": trained.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "big": 2 ** 70, "none": None,
                 "text": "\u00e9", "shape": torch.Size([2, 3]), "pair": (1, [torch.ones(2), 0.5]), 3: {"dtype": torch.float16}}
        shardctl.save(state, self.folder / "x.pt")
        loaded = torch.load(self.folder / "x.pt", weights_only=True)
        self.assertEqual((list(loaded), type(loaded["model"])), (list(state), type(state["model"])))
        self.assertEqual(loaded["model"]._metadata, state["model"]._metadata)
        self.assertTrue(same(loaded["model"], state["model"]))
        self.assertEqual(loaded["optimizer"]["param_groups"], state["optimizer"]["param_groups"])
        for index, values in state["optimizer"]["state"].items():
            self.assertTrue(same(loaded["optimizer"]["state"][index], values))
        self.assertTrue(torch.equal(loaded["pair"][1][0], torch.ones(2)))
        self.assertEqual([loaded[key] for key in ("step", "big", "none", "text", "shape", 3)],
                         [state[key] for key in ("step", "big", "none", "text", "shape", 3)])

    def test_a_checkpoint_can_be_followed(self) -> None:
        state = {"w": torch.arange(12.).reshape(4, 3), "b": torch.ones(5)}
        shardctl.save(state, self.folder / "x.safetensors")
        shardctl.run("split", self.folder / "x.safetensors", "-o", self.folder / "two", "--ranks", "2", "--to", "dcp")
        shardctl.save(state, self.folder / "again", like=self.folder / "two")
        with shardctl.open(self.folder / "again") as found, shardctl.open(self.folder / "two") as wanted:
            self.assertEqual(found.world_size, 2)
            for name in wanted:
                boxes = [[(chunk.offsets, chunk.sizes, chunk.rank) for chunk in each[name].chunks] for each in (found, wanted)]
                self.assertEqual(boxes[0], boxes[1])
                self.assertTrue(torch.equal(found[name].torch(), state[name]))
        followed = self.folder / "x.safetensors"
        for path, to, reason in (("new", None, ": it is the format of `like`"), ("new", "torch", ""), ("new.pt", None, "")):
            with self.assertRaisesRegex(shardctl.Usage, rf"stores only whole tensors{reason}\nhint: omit `like`, or name"):
                shardctl.save(state, self.folder / path, to=to, like=followed)
        shardctl.save(state, self.folder / "new", to="dcp", like=followed)
        with self.assertRaisesRegex(shardctl.Usage, "the destination is an empty string"):
            shardctl.save(state, "")

    def test_a_destination_is_replaced_only_by_force_and_as_a_whole(self) -> None:
        path = self.saved({"w": torch.zeros(2)})
        with self.assertRaises(shardctl.Exists) as exists:
            shardctl.save({"w": torch.ones(2)}, path)
        self.assertEqual((exists.exception.file, exists.exception.hint), (str(path), "replace the destination with force=True"))
        self.assertEqual(safetensors.torch.load_file(path)["w"].sum(), 0)
        shardctl.save({"w": torch.ones(2)}, path, force=True)
        self.assertEqual(safetensors.torch.load_file(path)["w"].sum(), 2)
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_tensors_that_a_mapping_makes_anew_stay_apart(self) -> None:
        class Made(collections.abc.Mapping):
            def __iter__(self):
                return iter("abcdef")

            def __len__(self) -> int:
                return 6

            def __getitem__(self, name: str) -> torch.Tensor:
                return torch.full((2, 3), float(ord(name))).t()

        shardctl.save(Made(), self.folder / "x.safetensors")
        self.assertTrue(same(safetensors.torch.load_file(self.folder / "x.safetensors"), dict(Made())))

    def test_what_cannot_be_saved_is_named(self) -> None:
        path = self.folder / "x.safetensors"
        masked = numpy.ma.array([1., 2.], mask=[False, True])
        for value in (torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), [torch.zeros(1), torch.zeros(1, device="meta")],
                      numpy.zeros(2, "M8[s]"), numpy.array([self]), masked):
            with self.assertRaises(shardctl.Usage) as refused:
                shardctl.save({"w": torch.zeros(1), "wrong": value}, path)
            self.assertEqual(refused.exception.tensor, "wrong.1" if isinstance(value, list) else "wrong")
        with self.assertRaisesRegex(shardctl.Usage, "'bias' .* found UninitializedParameter on cpu.*\nhint: run its module once"):
            shardctl.save({"bias": torch.nn.LazyLinear(2).bias}, path)
        packed = torch.empty(2, dtype=torch.uint4)
        with self.assertRaisesRegex(shardctl.Unsupported, "cannot save 'm.w': .* its dtype uint4.*\nhint: save its bytes") as refused:
            shardctl.save({"m": {"w": packed}}, self.folder / "x.pt")
        self.assertEqual(refused.exception.tensor, "m.w")
        shardctl.save({"m": {"w": packed.view(torch.uint8)}}, self.folder / "bytes.pt")
        (self.folder / "bytes.pt").unlink()
        with self.assertRaises(shardctl.Unsupported) as unknown:
            shardctl.save({"deep": {"wrong": self}}, self.folder / "x.pt")
        self.assertEqual((unknown.exception.tensor, unknown.exception.found), ("deep.wrong", "__main__.Save"))
        with self.assertRaises(shardctl.Unsupported):
            shardctl.save({torch.zeros(1): 1}, self.folder / "x.pt")
        endless: dict = {}
        endless["self"] = endless
        deep: dict = {"w": torch.zeros(1)}
        for _ in range(256):
            deep = {"x": deep}
        for state in (endless, deep):
            with self.assertRaisesRegex(shardctl.Usage, "contains itself, or is nested too deeply"):
                shardctl.save(state, self.folder / "x.pt")
        with self.assertRaisesRegex(shardctl.Unsupported, "step.*\nhint: leave the values out"):
            shardctl.save({"w": torch.zeros(1), "step": 7}, path)
        with self.assertRaises(shardctl.Usage):
            shardctl.save(torch.zeros(1), path)
        for options in ({"to": "dcp"}, {"threads": 0}):
            with self.assertRaises(shardctl.Usage):
                shardctl.save({"w": torch.zeros(1)}, path, **options)
        with self.assertRaises(shardctl.Usage):
            shardctl.save({"w": torch.zeros(1)}, self.folder / "x")
        with self.assertRaisesRegex(shardctl.Unsupported, "s3://bucket/x.pt: cannot save to a URL"):
            shardctl.save({"w": torch.zeros(1)}, "s3://bucket/x.pt")
        self.assertEqual(list(self.folder.iterdir()), [])


class Transformers(Case):
    def test_a_model_of_transformers_is_filled_from_a_sharded_checkpoint(self) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 50}
        torch.manual_seed(1)
        trained = LlamaForCausalLM(LlamaConfig(**sizes))
        trained.save_pretrained(self.folder / "model")
        shardctl.run("split", self.folder / "model/model.safetensors", "-o", self.folder / "dcp", "--ranks", "4", "--to", "dcp")
        with torch.device("meta"):
            filled = LlamaForCausalLM(LlamaConfig(**sizes))
        shardctl.load_state_dict(self.folder / "dcp", filled, assign=True)
        again = LlamaForCausalLM(LlamaConfig(**sizes))
        shardctl.load_state_dict(self.folder / "model", again)
        wanted = trained.state_dict()
        self.assertTrue(same(filled.state_dict(), wanted))
        self.assertTrue(same(again.state_dict(), wanted))
        with shardctl.open(self.folder / "dcp") as lazy:
            loaded = LlamaForCausalLM.from_pretrained(None, config=LlamaConfig(**sizes, dtype="float32"), state_dict=lazy)
            half = LlamaForCausalLM.from_pretrained(None, config=LlamaConfig(**sizes), state_dict=lazy, dtype=torch.bfloat16)
        self.assertTrue(same(loaded.state_dict(), wanted))
        self.assertTrue(same(half.state_dict(), {name: tensor.bfloat16() for name, tensor in wanted.items()}))


if __name__ == "__main__":
    unittest.main()
