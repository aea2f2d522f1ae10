"""The content of the golden files, and the expected results of a reader. Runs under every torch that they come from."""

import functools
import hashlib
import io
import math
from collections import OrderedDict

import torch

DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64
    complex128 bcomplex32 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu
    float4_e2m1fn_x2""".split()
NEW_DTYPES = [
    name for name in DTYPES if name.startswith(("uint16", "uint32", "uint64", "bcomplex", "float8", "float4"))
]
SIMPLE = ("NoneType", "bool", "int", "float", "str")  # by their exact types: numpy's scalars are no simple objects


@functools.lru_cache(maxsize=None)
def saves(name):
    """Whether this torch has the dtype and can save it: there were releases between the two."""
    try:
        torch.save(of_dtype(name), io.BytesIO())
        return True
    except (AttributeError, KeyError):
        return False


def available(names=DTYPES):
    return [name for name in names if saves(name)]


def of_dtype(name, rows=4, columns=3):
    """Rows x columns of a byte pattern; NaN payloads of every kind may be among the floats."""
    dtype = getattr(torch, name)
    width = len(logical_bytes(torch.empty(1, dtype=dtype)))
    pattern = [(37 * i + 11) % 256 for i in range(rows * columns * width)]
    if name == "bool":
        return torch.tensor(pattern, dtype=torch.uint8).reshape(rows, columns) % 2 == 1
    return torch.tensor(pattern, dtype=torch.uint8).reshape(rows, columns * width).view(dtype)


def model():
    """The tensors in every format of every version."""
    return {
        "embed.weight": torch.arange(-10, 11, dtype=torch.int64).reshape(7, 3),
        "layer.bias": (torch.arange(12, dtype=torch.float32) / 4 - 1).to(torch.bfloat16),
        "layer.weight": torch.arange(60, dtype=torch.float32).reshape(12, 5) / 8 - 3,
    }


def module_state():
    """A state dict as Module.state_dict() makes it, with _metadata and an integer buffer."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape) / 4 - index)
    return module.state_dict()


def plain(dtypes):
    """Everything that one file can contain, except numpy, conj and neg."""
    base = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    weight = torch.arange(6, dtype=torch.float32).reshape(3, 2)
    return {
        "dtypes": {name: of_dtype(name) for name in dtypes},
        "zero_d": torch.tensor(3.5),
        "empty": torch.zeros(0, 3),
        "views": {
            "base": base,
            "transposed": base.t(),
            "every_second": base[:, 1::2],
            "tail": base[2:],
            "expanded": torch.arange(3, dtype=torch.int16).expand(2, 3),
            "channels_last": torch.arange(16, dtype=torch.uint8)
            .reshape(1, 2, 2, 4)
            .contiguous(memory_format=torch.channels_last),
        },
        "tied": {"embed": weight, "head": weight, "part": weight[1:]},
        "parameter": torch.nn.Parameter(weight + 1),
        "frozen": torch.nn.Parameter(weight + 2, requires_grad=False),
        "module": module_state(),
        "step": 10,
        "numbers": {
            "lr": 0.1,
            "big": 2**40,
            "past_2_53": 2**60 + 1,
            "huge": 2**70,
            "negative": -5,
            "very_negative": -(2**65),
        },
        "special": {"inf": math.inf, "minus_inf": -math.inf, "nan": math.nan, "minus_zero": -0.0, "tiny": 5e-324},
        "flags": {"yes": True, "no": False, "none": None},
        "text": 'gr\u00fc\u00df \u4f60\u597d\n\t"quoted" \\',
        "nested": [1, [2.5, "x"], (3, {"deep": torch.tensor([1.0, 2.0])}), []],
        "integer_keys": {0: torch.tensor([7]), 1: "one"},
        "empty_dict": {},
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
    }


def training():
    """A model and its optimizer, as a training loop saves them."""
    values = {"weight": model()["layer.weight"], "bias": model()["layer.bias"]}
    return {
        "model": values,
        "optim": {
            "state": {0: {"step": torch.tensor(5.0), "exp_avg": values["weight"] * 2}, 1: {"step": torch.tensor(6.0)}},
            "param_groups": [{"lr": 0.125, "betas": (0.9, 0.999), "amsgrad": False, "params": [0, 1]}],
        },
        "step": 1234,
        "best": -0.5,
        "run": "golden",
        "resumed": None,
    }


def logical_bytes(tensor):
    """Row-major elements, conj and neg resolved. Machines that make golden files are little-endian."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat = tensor.contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def leaves(value, path=()):
    """(path, leaf) of every tensor and object."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, path + (key,))
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from leaves(item, path + (index,))
    else:
        yield path, value


def map_tensors(value, change, path=()):
    """`value` with change(name, tensor) for every tensor; containers become plain dicts and lists."""
    if isinstance(value, dict):
        return {key: map_tensors(item, change, path + (key,)) for key, item in value.items()}
    if isinstance(value, list):
        return [map_tensors(item, change, path + (index,)) for index, item in enumerate(value)]
    return change(".".join(map(str, path)), value) if isinstance(value, torch.Tensor) else value


def describe_tensor(name, tensor):
    return {
        "name": name,
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(logical_bytes(tensor)).hexdigest(),
    }


def describe_object(name, value):
    """Type None when it is no simple one."""
    kind = type(value) if isinstance(value, (type(None), bool, int, float, str)) else None
    if kind is int and abs(value) > 2**53 or kind is float and not math.isfinite(value):
        value = str(value)
    return {"name": name, "type": kind and kind.__name__, "value": value}


def expect(value):
    """Tensors and simple objects under `value`: the content that a reader must report."""
    found = [(".".join(map(str, path)), leaf) for path, leaf in leaves(value)]
    tensors = [describe_tensor(name, leaf) for name, leaf in found if isinstance(leaf, torch.Tensor)]
    objects = [describe_object(name, leaf) for name, leaf in found if not isinstance(leaf, torch.Tensor)]
    return {
        "tensors": sorted(tensors, key=lambda entry: entry["name"]),
        "objects": sorted((entry for entry in objects if entry["type"] in SIMPLE), key=lambda entry: entry["name"]),
    }
