"""torch.save files both ways, compared in bytes, dtype, shape, strides, aliasing and containers."""
import collections
import unittest

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


class Torch(LiveTest):
    def gather(self, value, *options) -> dict:
        torch.save(value, self.dir / "in.pt")
        shardctl("gather", self.dir / "in.pt", "-o", self.dir / "out.pt", *options)
        return torch.load(self.dir / "out.pt", weights_only=True)

    def test_containers_strides_and_objects_survive(self):
        strides_of(self, self.gather(state()), state())

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

    def test_sparse_and_quantized_are_listed_and_refused(self):
        torch.save({"w": noise((2,)), "s": torch.eye(3).to_sparse(),
                    "q": torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)}, self.dir / "in.pt")
        objects = {o["name"]: o["type"] for o in shardctl_json("inspect", self.dir / "in.pt")["objects"]}
        self.assertIn("sparse", objects["s"])
        self.assertIn("quantized", objects["q"])
        for name in "s", "q":
            error = shardctl_json("convert", self.dir / "in.pt", "-o", self.dir / "out.pt", "--include", name, code=8)
            self.assertIn(name, error["message"])

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
