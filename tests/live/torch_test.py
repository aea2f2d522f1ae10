"""torch.save files both ways, compared in bytes, dtype, shape, strides, aliasing and containers."""
import collections
import json
import unittest
import zipfile

import numpy
import torch

from support import COMPLEX, FLOATS, INTEGERS, LiveTest, assert_same_tensor, assert_same_tensors, noise, shardctl, shardctl_json


def state() -> dict:
    base = noise((40, 30), torch.float32, 1)
    tied = noise((17, 8), torch.bfloat16, 2)
    return {
        "model": collections.OrderedDict(
            embed=tied, head=tied, transposed=noise((6, 9), torch.float32, 3).t(), row=noise((1000, 100), torch.float32, 4)[7],
            left=base[:, :10], right=base[:, 10:], param=torch.nn.Parameter(noise((3, 3), torch.float16, 5)),
            scalar=noise((), torch.float64, 6), empty=noise((0, 3)), expanded=noise((4, 1)).expand(4, 5)),
        "dtypes": {str(d): noise((2, 3), d, i) for i, d in enumerate(FLOATS + INTEGERS + COMPLEX + (torch.bool,))},
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": noise((3, 3))}, 1: {"step": 2}},
                      "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1], "fused": None}]},
        "step": 10, "big": 2**70, "negative": -(2**40), "name": "run", "flags": [True, False, None], "ratio": float("inf"),
        "dtype": torch.bfloat16, "size": torch.Size([2, 3]), "device": torch.device("cuda:1"), "bytes": b"\x00\xff",
        "set": {1, 2}, "complex": 1 + 2j, "nothing": {}, "empty_list": [], "tuple": (1, ("a", noise((2,), torch.int32, 9))),
    }


def strides_of(test, found, wanted, path=""):
    """Walks two containers side by side: same types, keys and order, equal leaves, same strides."""
    if isinstance(wanted, torch.Tensor):
        test.assertEqual(type(found), type(wanted), path)
        test.assertEqual(found.requires_grad, wanted.requires_grad, path)
        assert_same_tensor(test, found, wanted, path, strides=True)
    elif isinstance(wanted, dict):
        test.assertEqual(type(found), type(wanted), path)
        test.assertEqual(list(found), list(wanted), path)
        for key in wanted:
            strides_of(test, found[key], wanted[key], f"{path}.{key}")
    elif isinstance(wanted, (list, tuple)):
        test.assertEqual(type(found), type(wanted), path)
        test.assertEqual(len(found), len(wanted), path)
        for i, (a, b) in enumerate(zip(found, wanted)):
            strides_of(test, a, b, f"{path}.{i}")
    else:
        test.assertEqual(type(found), type(wanted), path)
        test.assertEqual(found, wanted, path)


def swap_storages(value, path) -> None:
    """Saves as a big-endian machine does: every storage in the byte order of the dtype that uses it."""
    def swapped(each):
        if isinstance(each, dict):
            return {key: swapped(item) for key, item in each.items()}
        if not isinstance(each, torch.Tensor):
            return each
        width = each.element_size() // (2 if each.dtype.is_complex else 1)
        storage = each.untyped_storage().clone()
        raw = torch.empty(0, dtype=torch.uint8).set_(storage).view(-1, width)
        raw.copy_(raw.flip(1).clone())
        return torch.empty(0, dtype=each.dtype).set_(storage, each.storage_offset(), each.shape, each.stride())

    torch.save(swapped(value), path)
    with zipfile.ZipFile(path) as source:
        content = {record.filename: source.read(record) for record in source.infolist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, data in content.items():
            target.writestr(zipfile.ZipInfo(name), b"big" if name.endswith("/byteorder") else data)


class Torch(LiveTest):
    def gather(self, value, *options) -> dict:
        torch.save(value, self.dir / "in.pt")
        shardctl("gather", self.dir / "in.pt", "-o", self.dir / "out.pt", *options)
        return torch.load(self.dir / "out.pt", weights_only=True)

    def test_containers_strides_and_objects_survive(self):
        strides_of(self, self.gather(state()), state())

    def test_an_average_has_the_containers_and_aliases_of_the_first(self):
        tied = noise((17, 8), torch.bfloat16, 2)
        torch.save({"model": collections.OrderedDict(z=tied, a=tied), "pair": (1, [2, {}]), "step": 3}, self.dir / "in.pt")
        shardctl("average", self.dir / "in.pt", self.dir / "in.pt", "-o", self.dir / "out.pt")
        found = torch.load(self.dir / "out.pt", weights_only=True)
        self.assertIsInstance(found["model"], collections.OrderedDict)
        self.assertEqual((list(found), list(found["model"]), found["pair"]), (["model", "pair", "step"], ["z", "a"], (1, [2, {}])))
        self.assertEqual(found["model"]["z"].data_ptr(), found["model"]["a"].data_ptr())

    def test_parameters_stay_parameters(self):
        def state_of(value: float) -> dict:
            state = {"param": torch.nn.Parameter(torch.full((3,), value)), "more": torch.zeros(2),
                     "frozen": torch.nn.Parameter(torch.full((3,), value), requires_grad=False),
                     "grad": torch.full((3,), value).requires_grad_(), "tensor": torch.full((3,), value)}
            state["param"].partition_dim = 1
            return state

        for name, value in ("one.pt", 1.0), ("three.pt", 3.0):
            torch.save(state_of(value), self.dir / name)
        for verb, value, *words in (("convert", 1.0, "one.pt", "--exclude", "more"), ("average", 2.0, "one.pt", "three.pt"),
                                    ("average", 1.5, "one.pt", "three.pt", "--exclude", "more", "--weights", "0.75,0.25")):
            paths = [self.dir / word if word.endswith(".pt") else word for word in words]
            shardctl(verb, *paths, "-o", self.dir / "out.pt", "--force")
            found = torch.load(self.dir / "out.pt", weights_only=False)
            wanted = state_of(value)
            if "more" in words:
                del wanted["more"]
            strides_of(self, found, wanted)
            self.assertEqual(found["param"].partition_dim, 1)
        torch.save(state_of(1.0), self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "ints.pt", "--cast", "param=int8", "--cast", "grad=int32")
        found = torch.load(self.dir / "ints.pt", weights_only=False)
        self.assertEqual([(found[name].dtype, found[name].requires_grad) for name in ("param", "grad", "frozen")],
                         [(torch.int8, False), (torch.int32, False), (torch.float32, False)])

    def test_flat_parameters_of_fairscale_are_named(self):
        for rank in range(2):
            torch.save({"model": {"flat_param_0": torch.arange(6.0), "decoder.version": torch.tensor([3.0])},
                        "shard_metadata": {"param_metadata": [{"fsdp_path": "", "params": {"flat_param_0": {
                            "names": ["w"], "shapes": [torch.Size([3, 4])], "numels": [12], "padding": 0}}}]}},
                       self.dir / f"checkpoint_last-model_part-0-shard{rank}.pt")
        for verb, source in ("gather", ""), ("export", "checkpoint_last-model_part-0-shard0.pt"):
            error = shardctl_json(verb, self.dir / source, "-o", self.dir / "out", code=8)
            self.assertEqual(error["tensor"].removeprefix("model."), "flat_param_0")
            self.assertIn("consolidate_fsdp_shards", error["hint"])

    def test_aliases_stay_aliases(self):
        found = self.gather(state())["model"]
        self.assertEqual(found["embed"].data_ptr(), found["head"].data_ptr())
        self.assertEqual(found["left"].untyped_storage().data_ptr(), found["right"].untyped_storage().data_ptr())

    def test_a_row_view_is_stored_alone(self):
        self.gather({"row": noise((1000, 100))[7]})
        self.assertLess((self.dir / "out.pt").stat().st_size, 4096)

    def test_mmap_loads(self):
        self.gather(state())
        found = torch.load(self.dir / "out.pt", weights_only=True, mmap=True)
        strides_of(self, found, state())

    def test_module_state_dict_keeps_metadata(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        found = self.gather(model.state_dict())
        self.assertIsInstance(found, collections.OrderedDict)
        self.assertEqual(found._metadata, model.state_dict()._metadata)
        model.load_state_dict(found)

    def test_bare_tensor(self):
        assert_same_tensor(self, self.gather(noise((5, 3))), noise((5, 3)), "")

    def test_optimizer_resumes(self):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        found = self.gather({"optimizer": optimizer.state_dict()})
        strides_of(self, found, {"optimizer": optimizer.state_dict()})
        torch.optim.AdamW(model.parameters()).load_state_dict(found["optimizer"])

    def test_selection_prunes_the_containers(self):
        found = self.gather(state(), "--include", "optimizer.**")
        self.assertEqual(list(found), ["optimizer"])
        self.assertEqual(list(found["optimizer"]["state"]), [0, 1])

    def test_strip_prefix_flattens_to_a_model(self):
        found = self.gather(state(), "--include", "model.**", "--strip-prefix", "model.", "--objects", "drop")
        self.assertEqual(sorted(found), sorted(state()["model"]))

    def test_to_safetensors_and_back(self):
        from safetensors.torch import load_file

        model = {name: value.detach() for name, value in state()["model"].items()}
        torch.save(model, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "out.safetensors")
        assert_same_tensors(self, load_file(self.dir / "out.safetensors"), model)
        shardctl("convert", self.dir / "out.safetensors", "-o", self.dir / "back.pt")
        assert_same_tensors(self, torch.load(self.dir / "back.pt", weights_only=True), model)

    def test_objects_need_a_word_to_be_dropped(self):
        torch.save({"w": noise((2,)), "step": 3}, self.dir / "in.pt")
        error = shardctl_json("convert", self.dir / "in.pt", "-o", self.dir / "out.safetensors", code=8)
        self.assertIn("step", error["message"])
        self.assertIn("--objects drop", error["hint"])
        self.assertFalse((self.dir / "out.safetensors").exists())

    def test_other_kinds_of_tensors_are_listed_and_refused(self):
        lazy = torch.nn.LazyBatchNorm1d()
        torch.save({"w": noise((2,)), "s": torch.eye(3).to_sparse(), "p": lazy.weight, "b": lazy.running_mean,
                    "q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)}, self.dir / "in.pt")
        objects = {o["name"]: o["type"] for o in shardctl_json("inspect", self.dir / "in.pt")["objects"]}
        self.assertIn("sparse", objects["s"])
        self.assertIn("quantized", objects["q"])
        self.assertEqual([objects[name] for name in "pb"], ["torch.Tensor (uninitialized)"] * 2)
        for name in "sqpb":
            error = shardctl_json("convert", self.dir / "in.pt", "-o", self.dir / "out.pt", "--include", name, code=8)
            self.assertIn(name, error["message"])

    def test_legacy_files_by_value(self):
        value = {"model": {k: v for k, v in state()["model"].items()}, "step": 3, "dtypes": {
            str(d): noise((2, 3), d, i) for i, d in enumerate(FLOATS[:4] + INTEGERS[:5] + COMPLEX[1:] + (torch.bool,))}}
        for protocol in 2, 3, 4, 5:
            torch.save(value, self.dir / "old.pt", _use_new_zipfile_serialization=False, pickle_protocol=protocol)
            shardctl("gather", self.dir / "old.pt", "-o", self.dir / f"{protocol}.pt")
            found = torch.load(self.dir / f"{protocol}.pt", weights_only=True, mmap=True)
            strides_of(self, found, torch.load(self.dir / "old.pt", weights_only=False))
            strides_of(self, found, value)

    def test_legacy_files_with_dtypes_that_torch_writes_and_cannot_load(self):
        value = {str(d): noise((2, 3), d, i) for i, d in enumerate(FLOATS[4:] + INTEGERS[5:] + COMPLEX[:1])}
        torch.save(value, self.dir / "old.pt", _use_new_zipfile_serialization=False)
        shardctl("gather", self.dir / "old.pt", "-o", self.dir / "out.pt")
        strides_of(self, torch.load(self.dir / "out.pt", weights_only=True), value)

    def test_whole_modules_need_a_word(self):
        for old in True, False:
            torch.save({"net": torch.nn.Linear(2, 2), "w": noise((3,))}, self.dir / "net.pt", _use_new_zipfile_serialization=old)
            error = shardctl_json("inspect", self.dir / "net.pt", code=4)
            self.assertIn("torch.nn.modules.linear.Linear", error["message"])
            self.assertIn("--unknown-globals opaque", error["hint"])
            shardctl("gather", self.dir / "net.pt", "-o", self.dir / f"{old}.pt", "--unknown-globals", "opaque", "--objects", "drop")
            assert_same_tensors(self, torch.load(self.dir / f"{old}.pt", weights_only=True), {"w": noise((3,))})

    def test_deflated_records_by_value(self):
        torch.save(state(), self.dir / "in.pt")
        with zipfile.ZipFile(self.dir / "in.pt") as source, zipfile.ZipFile(self.dir / "packed.pt", "w") as target:
            for record in source.infolist():
                target.writestr(zipfile.ZipInfo(record.filename), source.read(record), zipfile.ZIP_DEFLATED)
        shardctl("gather", self.dir / "packed.pt", "-o", self.dir / "out.pt")
        found = torch.load(self.dir / "out.pt", weights_only=True)
        strides_of(self, found, state())
        self.assertEqual(found["model"]["embed"].data_ptr(), found["model"]["head"].data_ptr())

    def test_big_endian_files_by_value(self):
        value = {"dtypes": {str(d): noise((2, 3), d, i) for i, d in enumerate(FLOATS + INTEGERS + COMPLEX + (torch.bool,))},
                 "turned": noise((4, 6), torch.float32, 9).t(), "step": 3}
        swap_storages(value, self.dir / "big.pt")
        shardctl("gather", self.dir / "big.pt", "-o", self.dir / "out.pt")
        strides_of(self, torch.load(self.dir / "out.pt", weights_only=True), value)
        typed = [d for d in value["dtypes"].values() if d.dtype not in torch.storage._new_dtypes()]
        loaded = torch.load(self.dir / "big.pt", weights_only=True)["dtypes"]  # torch does not swap untyped storages
        for tensor in typed:
            assert_same_tensor(self, loaded[str(tensor.dtype)], tensor, str(tensor.dtype))

    def test_conj_and_neg_views_by_value(self):
        base = noise((3, 4), torch.complex64, 1)
        value = {"base": base, "conj": base.t().conj(), "imag": base.clone().conj().imag, "neg": torch._neg_view(base[1].clone()),
                 "both": torch._neg_view(noise((2,), torch.complex128, 2).conj()), "ints": torch._neg_view(torch.arange(5))}
        for legacy in True, False:
            torch.save({k: v for k, v in value.items() if not legacy or k != "imag"}, self.dir / "in.pt",
                       _use_new_zipfile_serialization=not legacy)
            result = shardctl_json("gather", self.dir / "in.pt", "-o", self.dir / f"{legacy}.pt")
            self.assertTrue(any("conjugated or negated" in line for line in result["warnings"]), result["warnings"])
            loaded, found = (torch.load(self.dir / name, weights_only=True) for name in ("in.pt", f"{legacy}.pt"))
            for name in found:
                self.assertFalse(found[name].is_conj() or found[name].is_neg())
                assert_same_tensor(self, found[name], loaded[name].resolve_conj().resolve_neg(), name)

    def test_tensors_with_attributes_and_buffers(self):
        tagged = noise((2, 3))
        tagged.tag = "x"
        torch.save({"tagged": tagged, "buffer": torch.nn.Buffer(noise((4,)))}, self.dir / "in.pt")
        result = shardctl_json("gather", self.dir / "in.pt", "-o", self.dir / "out.pt")
        self.assertEqual([w for w in result["warnings"] if "attributes" in w],
                         ["in.pt: 1 tensor is read without the attributes of its Python object: 'tagged'"])
        assert_same_tensors(self, torch.load(self.dir / "out.pt", weights_only=True), {"tagged": noise((2, 3)), "buffer": noise((4,))})

    def test_numpy_objects_stay_as_they_are(self):
        value = {"w": noise((2,)), "lr": numpy.float32(0.5), "rows": numpy.arange(6, dtype=">i2").reshape(2, 3),
                 "turned": numpy.arange(6.0).reshape(2, 3).T, "text": numpy.str_("x"), "kind": numpy.dtype("uint8")}
        for protocol in 2, 4, 5:
            torch.save(value, self.dir / "in.pt", pickle_protocol=protocol)
            objects = {o["name"]: o for o in shardctl_json("inspect", self.dir / "in.pt")["objects"]}
            self.assertEqual({name: o["type"] for name, o in objects.items()},
                             {"kind": "numpy.dtype", "lr": "numpy.float32", "rows": "numpy.ndarray", "text": "numpy.str_",
                              "turned": "numpy.ndarray"})
            self.assertEqual((objects["rows"]["value"], objects["rows"]["summary"]), (None, "int16[2, 3]"))
            shardctl("gather", self.dir / "in.pt", "-o", self.dir / f"{protocol}.pt")
            found, wanted = (torch.load(self.dir / name, weights_only=False) for name in (f"{protocol}.pt", "in.pt"))
            for name in ("lr", "text", "kind"):
                self.assertEqual((type(found[name]), found[name]), (type(wanted[name]), wanted[name]))
            for name in ("rows", "turned"):
                self.assertEqual(found[name].dtype, wanted[name].dtype)
                numpy.testing.assert_array_equal(found[name], value[name])

    def test_folders_of_bin_files(self):
        parts = {"pytorch_model-1-of-2.bin": {"a": noise((3, 2)), "b": noise((5,), torch.float16, 1)},
                 "pytorch_model-2-of-2.bin": {"c": noise((7,), torch.bfloat16, 2)}}
        folder = self.dir / "hf"
        folder.mkdir()
        for i, (name, tensors) in enumerate(parts.items()):
            torch.save(tensors, folder / name, _use_new_zipfile_serialization=i == 0)
        weight_map = {tensor: name for name, tensors in parts.items() for tensor in tensors}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        wanted = {name: tensor for tensors in parts.values() for name, tensor in tensors.items()}
        for i, source in enumerate((folder, folder / "pytorch_model.bin.index.json")):
            out = self.dir / f"out{i}"
            shardctl("gather", source, "-o", out, "--to", "torch", "--shards", "2")
            index = json.loads((out / "pytorch_model.bin.index.json").read_text())
            found = {}
            for name in sorted(set(index["weight_map"].values())):
                found.update(torch.load(out / name, weights_only=True))
            assert_same_tensors(self, found, wanted)

    def test_inspect_places_are_the_elements(self):
        torch.save(state()["dtypes"], self.dir / "in.pt")
        content = (self.dir / "in.pt").read_bytes()
        for tensor in shardctl_json("inspect", self.dir / "in.pt")["tensors"]:
            chunk = tensor["chunks"][0]
            wanted = state()["dtypes"]["torch." + tensor["dtype"]]
            found = content[chunk["byte_offset"] :][: chunk["byte_length"]]
            self.assertEqual(found, wanted.reshape(-1).view(torch.uint8).numpy().tobytes(), tensor["name"])


if __name__ == "__main__":
    unittest.main()
