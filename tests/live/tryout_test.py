"""Unusual checkpoints: rare containers, keys and pickle protocols, shared views, devices, FSDP2 with TP, ShardedTensor."""
import argparse
import collections
import pathlib
import pickle
import unittest

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh

from dcp_test import load_whole
from support import LiveTest, assert_same_tensor, assert_same_tensors, noise, shardctl, shardctl_json, spawn
from torch_test import strides_of


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 10), torch.nn.Linear(10, 7, bias=False)
        self.register_buffer("steps", torch.arange(5))

    def forward(self, x):
        return self.b(self.a(x))


def trained(shape: tuple) -> dict:
    """The state dict of a small model after one step of AdamW: FSDP2 over the mesh's first axis, TP over its second."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = Net()
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[: len(shape)])
    if len(shape) == 2:
        parallelize_module(model, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"] if len(shape) == 2 else mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def flat(state: dict) -> dict:
    moments = {f"{name}.{key}": full(value) for name, own in state["optim"]["state"].items() for key, value in own.items()}
    return {name: full(value) for name, value in state["model"].items()} | moments


def save_trained(rank: int, path: str, whole: str) -> None:
    state = trained((2, 2))
    dcp.save(state | {"note": b"\x00\xff", "none": None}, checkpoint_id=path)
    tensors = flat(state)
    if rank == 0:
        torch.save(tensors, whole)


def load_trained(rank: int, path: str, out: str) -> None:
    state = trained((dist.get_world_size(),))
    for tensor in torch.utils._pytree.tree_leaves(state):
        if isinstance(tensor, torch.Tensor):
            tensor.detach().zero_()
    dcp.load(state, checkpoint_id=path)
    tensors = flat(state)
    if rank == 0:
        torch.save(tensors, out)


def save_sharded_tensor(rank: int, path: str) -> None:
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    tensor = noise((2, 4))
    shards = [Shard(tensor[i : i + 1, 2 * rank : 2 * rank + 2].clone(), ShardMetadata([i, 2 * rank], [1, 2], f"rank:{rank}/cpu"))
              for i in range(2)]
    dcp.save({"model": {"w": init_from_local_shards(shards, 2, 4)}}, checkpoint_id=path)


class Torch(LiveTest):
    def gather(self, value, protocol: int = 2, **options):
        torch.save(value, self.dir / "in.pt", pickle_protocol=protocol)
        shardctl("gather", self.dir / "in.pt", "-o", self.dir / "out.pt")
        return torch.load(self.dir / "out.pt", weights_only=False, **options)

    def test_rare_containers_and_keys_survive(self):
        state = {"default": collections.defaultdict(dict, {"a": noise((2,)), 3: {"b": noise((3,))}}),
                 "counter": collections.Counter("hello"), "deque": collections.deque([1, "x"], maxlen=5),
                 "lists": [[noise((2,)), [noise((3,)), ()]], [[[]]]], "namespace": argparse.Namespace(lr=0.1, at=pathlib.Path("a")),
                 1: noise((1,)), 2.5: noise((2,)), None: noise((3,)), (1, "a"): noise((4,)), "": noise((5,)), "é\n\x1b": noise((6,)),
                 "numpy": [np.float32(1.5), np.int64(3)], "zero": -0.0, "long": -(2**400), "text": "é\0" * 70000}
        strides_of(self, self.gather(state), state)

    def test_protocol_does_not_change_what_a_value_is(self):
        state = {"bytes": b"\x00\xff\xe9x", "empty": b"", "array": bytearray(b"1\xff"), "set": {1}, "frozen": frozenset(["a"])}
        for protocol in (2, 3, 4, 5):
            with self.subTest(protocol=protocol):
                strides_of(self, self.gather(state, protocol), state)
                objects = shardctl_json("inspect", self.dir / "in.pt")["objects"]
                self.assertEqual({o["name"]: o["type"] for o in objects},
                                 {"bytes": "bytes", "empty": "bytes", "array": "bytearray", "set": "set", "frozen": "frozenset"})
                shardctl("diff", self.dir / "in.pt", self.dir / "out.pt")
                (self.dir / "out.pt").unlink()

    def test_overlapping_views_share_a_storage(self):
        base = noise((100,), torch.float64)
        state = {"a": base[:60], "b": base[40:], "every": base[::2], "windows": base.as_strided((3, 3), (1, 1), 5)}
        found = self.gather(state)
        strides_of(self, found, state)
        self.assertEqual(len({t.untyped_storage().data_ptr() for t in found.values()}), 1)

    def test_parameter_with_a_tensor_in_an_attribute_is_read_without_it(self):
        parameter = torch.nn.Parameter(noise((2,)))
        parameter.mask = noise((3,))
        torch.save({"w": parameter}, self.dir / "in.pt")
        self.assertIn("without the attributes of its Python object: 'w'",
                      shardctl_json("convert", self.dir / "in.pt", "-o", self.dir / "out.pt")["warnings"][0])
        found = torch.load(self.dir / "out.pt")["w"]
        self.assertTrue(torch.equal(found, parameter) and type(found) is torch.nn.Parameter)
        self.assertFalse(hasattr(found, "mask"))
        dcp.save({"pair": (parameter, 1)}, checkpoint_id=self.dir / "dcp", no_dist=True)  # In one bytes item.
        warnings = shardctl_json("convert", self.dir / "dcp", "-o", self.dir / "pair.pt")["warnings"]
        self.assertIn("tensors are read without the attributes of their Python objects: 'pair.0'", warnings)
        found, one = torch.load(self.dir / "pair.pt")["pair"]
        self.assertTrue(torch.equal(found, parameter) and one == 1)
        self.assertFalse(hasattr(found, "mask"))

    def test_parameters_of_float8_load_again(self):
        parameter = torch.nn.Parameter(noise((4,)).to(torch.float8_e4m3fn))
        found = self.gather({"w": parameter})["w"]
        self.assertTrue(type(found) is torch.nn.Parameter and found.requires_grad)
        self.assertTrue(torch.equal(found.detach().view(torch.uint8), parameter.detach().view(torch.uint8)))
        dcp.save({"w": parameter}, checkpoint_id=self.dir / "dcp", no_dist=True)
        shardctl("gather", self.dir / "dcp", "-o", self.dir / "w.pt")
        found = torch.load(self.dir / "w.pt")["w"]
        self.assertTrue(torch.equal(found.detach().view(torch.uint8), parameter.detach().view(torch.uint8)))

    def test_container_with_a_tensor_in_an_attribute_is_refused(self):
        shared = noise((3,))
        for value in ([noise((2,))], shared):
            state = collections.OrderedDict(w=noise((2,)), shared=shared)
            state.more = value
            torch.save({"model": state}, self.dir / "in.pt")
            for out in ("out.pt", "ranks"):
                options = ("--to", "torch-ranks", "--ranks", 2) if out == "ranks" else ()
                error = shardctl_json("convert", self.dir / "in.pt", "-o", self.dir / out, *options, code=8)
                self.assertIn("'model'", error["message"])
            self.assertIn("'model'", shardctl_json("inspect", self.dir / "in.pt")["warnings"][0])

    def test_state_dict_of_python_2_is_read(self):
        class Python2(pickle._Pickler):
            dispatch = dict(pickle._Pickler.dispatch)

            def ordered_dict(self, value):
                self.save_reduce(collections.OrderedDict, ([[key, item] for key, item in value.items()],), obj=value)

            dispatch[collections.OrderedDict] = ordered_dict

        class Module:
            Pickler = Python2
            dump = staticmethod(lambda value, file, protocol: Python2(file, protocol).dump(value))

        state = {"model": collections.OrderedDict(w=noise((2, 3)), b=noise((3,))), "empty": collections.OrderedDict()}
        for zip_file in (True, False):
            torch.save(state, self.dir / "in.pt", pickle_module=Module, _use_new_zipfile_serialization=zip_file)
            shardctl("gather", self.dir / "in.pt", "-o", self.dir / "out.pt", "--force")
            strides_of(self, torch.load(self.dir / "out.pt"), state)

    def test_parameter_with_plain_attributes_keeps_them(self):
        parameter = torch.nn.Parameter(noise((2,)))
        parameter.partition_dim = 0
        self.assertEqual(self.gather({"w": parameter})["w"].partition_dim, 0)

    def test_device_is_kept(self):
        tag, torch.serialization.location_tag = torch.serialization.location_tag, lambda storage: "cuda:1"
        self.addCleanup(setattr, torch.serialization, "location_tag", tag)
        devices = []
        self.gather({"w": noise((3,))}, map_location=lambda storage, device: devices.append(device) or storage)
        self.assertEqual(devices, ["cuda:1"])

    def test_unknown_class_is_named_with_the_option_that_reads_the_rest(self):
        torch.save(torch.nn.Linear(2, 2), self.dir / "in.pt")
        error = shardctl_json("inspect", self.dir / "in.pt", code=4)
        self.assertIn("torch.nn.modules.linear.Linear", error["message"])
        self.assertIn("--unknown-globals opaque", error["hint"])


class Dcp(LiveTest):
    def test_fsdp_with_tp_and_adamw_continues_on_other_ranks(self):
        spawn(save_trained, 4, str(self.dir / "ckpt"), str(self.dir / "whole.pt"))
        shardctl("reshard", self.dir / "ckpt", "-o", self.dir / "other", "--mesh", "a=3,b=2", "--place", "**=S(0),S(1)")
        spawn(load_trained, 2, str(self.dir / "other"), str(self.dir / "loaded.pt"))
        assert_same_tensors(self, torch.load(self.dir / "loaded.pt"), torch.load(self.dir / "whole.pt"))
        found = load_whole(self.dir / "other")
        self.assertEqual((found["note"], found["none"]), (b"\x00\xff", None))

    def test_sharded_tensor_of_several_local_shards(self):
        spawn(save_sharded_tensor, 2, str(self.dir / "ckpt"))
        shardctl("gather", self.dir / "ckpt", "-o", self.dir / "out.pt")
        assert_same_tensor(self, torch.load(self.dir / "out.pt")["model"]["w"], noise((2, 4)), "model.w")


if __name__ == "__main__":
    unittest.main()
