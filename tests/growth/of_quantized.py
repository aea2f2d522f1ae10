"""Quantized models: modules, statements of a configuration, and matrices of one row or column."""
import json
from collections.abc import Callable

from family import Family, to_folder
from of_computed import tensors

OPTIONS = ["--dequantize"]


def model(config: dict, shapes: dict[str, tuple[str, list[int]]]) -> dict[str, bytes]:
    """Tensors of zeros beside a config.json."""
    return {"config.json": json.dumps({"quantization_config": config}).encode(), "model.safetensors": tensors(shapes)}


def module(name: str) -> dict[str, tuple[str, list[int]]]:
    return {f"{name}.weight": ("F8_E4M3", [2, 2]), f"{name}.weight_scale": ("F32", [1])}


def modules(n: int) -> dict[str, bytes]:
    return model({"quant_method": "fp8"}, {key: each for i in range(n) for key, each in module(f"model.layers.{i}.up_proj").items()})


def ignored(entry_of: Callable[[int], str]) -> Callable[[int], dict[str, bytes]]:
    def make(n: int) -> dict[str, bytes]:
        names = {key: each for i in range(n) for key, each in module(f"m{i}").items()}
        return model({"quant_method": "fp8", "ignore": [entry_of(i) for i in range(n)]}, names)
    return make


def schemes(n: int) -> dict[str, bytes]:
    groups = {f"g{i}": {"weights": {"num_bits": 4, "group_size": 8 + i}} for i in range(n)}
    names = {}
    for i in range(n):
        names |= {f"m{i}.weight_packed": ("I32", [1, 2]), f"m{i}.weight_scale": ("F16", [1, 2])}
    return model({"quant_method": "compressed-tensors", "config_groups": groups}, names)


def in_one_column(n: int) -> dict[str, bytes]:
    return model({"quant_method": "gptq", "bits": 2}, {"a.qweight": ("I32", [n, 1]), "a.qzeros": ("I32", [1, 1]),
                                                       "a.scales": ("F16", [1, 1]), "a.g_idx": ("I32", [16 * n])})


def in_one_row(n: int) -> dict[str, bytes]:
    return model({"quant_method": "awq", "bits": 4}, {"a.qweight": ("I32", [1, n]), "a.qzeros": ("I32", [1, n]), "a.scales": ("F16", [1, 8 * n])})


def in_short_rows(n: int) -> dict[str, bytes]:
    return model({}, {"a.weight_packed": ("U8", [n, 1]), "a.weight_scale": ("U8", [n, 1])})


def experts(n: int) -> dict[str, bytes]:
    return model({"quant_method": "mxfp4"}, {"a.w_blocks": ("U8", [n, 1, 1, 16]), "a.w_scales": ("U8", [n, 1, 1])})


def family(what: str, first: int, contents: Callable[[int], dict[str, bytes]]) -> Family:
    return Family("quantized", what, first, to_folder(contents), lambda n: OPTIONS)


FAMILIES = [
    family("modules", 1000, modules),
    family("names of plain modules", 500, ignored(lambda i: f"p{i}")),
    family("patterns of plain modules", 100, ignored(lambda i: f"re:.*p{i}$")),
    family("schemes", 500, schemes),
    family("codes in one column", 1 << 12, in_one_column),
    family("codes in one row", 1 << 12, in_one_row),
    family("short rows", 1 << 14, in_short_rows),
    family("experts", 1 << 12, experts),
]
