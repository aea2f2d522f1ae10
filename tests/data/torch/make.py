"""Writes the golden files of this folder with the real torch (2.11.0): python make.py [FOLDER]"""

import argparse
import collections
import json
import os
import sys
import zipfile

import torch

DTYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2",
]


def ramp(dtype):
    """Two elements whose bytes are 0, 1, 2, ..."""
    size = torch.empty(0, dtype=dtype).element_size()
    content = torch.arange(2 * size, dtype=torch.uint8)
    if dtype == torch.bool:
        content = torch.tensor([0, 1], dtype=torch.uint8)
    return content.view(dtype)


def state_dict():
    torch.manual_seed(0)
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    tied = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = collections.OrderedDict()
    state["embed.weight"] = tied
    state["lm_head.weight"] = tied.view(2, 3)  # Another object over the same storage.
    state["base"] = base
    state["row"] = base[1]
    state["transposed"] = base.t()
    state["scalar"] = torch.tensor(2.5, dtype=torch.float64)
    state["none"] = torch.empty(0, 3, dtype=torch.int64)
    state._metadata = collections.OrderedDict([("", {"version": 1}), ("embed", {"version": 2})])
    return state


def nested():
    model = torch.nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.bias.copy_(torch.tensor([3.0]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 10,
        "big": 2**40,
        "huge": 2**70,
        "name": "tiny",
        "flag": True,
        "nothing": None,
        "rate": 0.25,
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "size": torch.Size([2, 3]),
        "mixed": [1, (2, "x"), {"deep": torch.ones(2)}],
        "empty": {"dict": {}, "list": []},
        3: {"integer key": torch.zeros(1)},
    }


def write(folder):
    def path(name):
        return os.path.join(folder, name)

    torch.save(state_dict(), path("state.pt"))
    torch.save(nested(), path("nested.pt"))
    torch.save({name: ramp(getattr(torch, name)) for name in DTYPES}, path("dtypes.pt"))
    torch.save(torch.arange(4, dtype=torch.int16), path("bare.pt"))
    torch.save({"p": torch.nn.Parameter(torch.ones(2)), "q": torch.nn.Parameter(torch.ones(1), requires_grad=False),
                "t": torch.ones(1, requires_grad=True)}, path("parameter.pt"))
    torch.save({f"layers.{i:03}.weight": torch.full((2, 2), float(i)) for i in range(300)}, path("many.pt"))
    same = torch.arange(3.0)
    torch.save({"x": {"w": same}, "y": same, "z": [same]}, path("same_object.pt"))
    shared = {"w": torch.arange(2.0)}
    torch.save({"x": shared, "y": shared}, path("same_dict.pt"))
    z, real = torch.tensor([1 + 2j, 3 + 4j]), torch.arange(2.0)
    torch.save({"plain": z, "conj": z.conj(), "neg": torch._neg_view(real)}, path("conj.pt"))
    torch.save({"w": torch.ones(2), "args": argparse.Namespace(lr=1.0, hidden=torch.ones(3))}, path("namespace.pt"))
    torch.save({"w": torch.ones(2), "sparse": torch.eye(3).to_sparse(), "meta": torch.empty(2, device="meta")},
               path("sparse.pt"))
    torch.save({"w": torch.ones(2), "s": torch.ones(3).untyped_storage()}, path("bare_storage.pt"))
    torch.save({"w": torch.ones(2)}, path("legacy.pt"), _use_new_zipfile_serialization=False)
    torch.save({"w": torch.arange(2.0)}, path("no_byteorder.pt"), _disable_byteorder_record=True)
    torch.save({"w": torch.arange(2.0)}, path("protocol4.pt"), pickle_protocol=4)
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.arange(2.0)}, path("no_crc.pt"))
    torch.serialization.set_crc32_options(True)
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), path("script.pt"))
    with zipfile.ZipFile(path("state.pt")) as source:
        with zipfile.ZipFile(path("deflated.pt"), "w", zipfile.ZIP_DEFLATED) as target:
            for record in source.infolist():
                target.writestr(zipfile.ZipInfo(record.filename), source.read(record), zipfile.ZIP_DEFLATED)
        with zipfile.ZipFile(path("big_endian.pt"), "w") as target:
            for record in source.infolist():
                content = b"big" if record.filename.endswith("byteorder") else source.read(record)
                target.writestr(zipfile.ZipInfo(record.filename), content)

    os.makedirs(path("hf"), exist_ok=True)
    torch.save({"a": torch.arange(2.0), "b": torch.arange(3.0)}, path("hf/pytorch_model-00001-of-00002.bin"))
    torch.save({"c": torch.arange(4.0)}, path("hf/pytorch_model-00002-of-00002.bin"))
    first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    with open(path("hf/pytorch_model.bin.index.json"), "w") as index:
        json.dump({"metadata": {"total_size": 36}, "weight_map": {"a": first, "b": first, "c": second}}, index, indent=2)


if __name__ == "__main__":
    write(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
