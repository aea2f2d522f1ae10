"""Writes `foreign_class`: a checkpoint of torch.distributed.checkpoint with values of classes that belong to a project.

make_foreign_class.py OUT. Needs torch (2.11 wrote the stored one). One process, no launcher. The optimizer's state is a
tensor of two inner tensors (codes and a scale), as quantised optimizers have it; `config` is an object.
"""
import pathlib
import sys
import types

import torch
import torch.distributed.checkpoint as dcp

project = types.ModuleType("my_project.states")
sys.modules["my_project"] = types.ModuleType("my_project")
sys.modules["my_project.states"] = project


class Codes(torch.Tensor):
    """int8 codes and a scale that represent float32 elements."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], []

    @classmethod
    def __tensor_unflatten__(cls, tensors, attributes, size=None, stride=None):
        return cls(tensors["codes"], tensors["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default, torch.ops.aten.clone.default):
            return cls(args[0].codes.clone(), args[0].scale.clone())
        if function is torch.ops.aten.is_pinned.default:
            return False
        raise NotImplementedError(str(function))


class Config:
    """An object of the project."""

    def __init__(self):
        self.width = 8


for each in Codes, Config:
    each.__module__ = "my_project.states"
    setattr(project, each.__name__, each)


def main() -> None:
    out = pathlib.Path(sys.argv[1]) / "foreign_class"
    codes = torch.arange(24, dtype=torch.int8).reshape(6, 4)
    state = {
        "model": {"weight": torch.arange(24, dtype=torch.float32).reshape(6, 4), "bias": torch.ones(6)},
        "optimizer": {"exp_avg": Codes(codes, torch.tensor(0.5)), "exp_avg_sq": Codes(codes + 1, torch.tensor(0.25))},
        "config": Config(),
        "step": 7,
    }
    dcp.save(state, checkpoint_id=out, no_dist=True)


if __name__ == "__main__":
    main()
