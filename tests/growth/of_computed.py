"""Adapters that are merged, and averages: pairs, tensors, ranks of products, and patterns of alphas."""
import json
from collections.abc import Callable
from pathlib import Path

import safetensors_files
from family import Family


def tensors(shapes: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file of zeros."""
    return safetensors_files.head(shapes) + bytes(sum(safetensors_files.bytes_of(*each) for each in shapes.values()))


def pair(module: str, rank: int = 1, rows: int = 2, columns: int = 2) -> dict[str, tuple[str, list[int]]]:
    return {f"base_model.model.{module}.lora_A.weight": ("F32", [rank, columns]),
            f"base_model.model.{module}.lora_B.weight": ("F32", [rows, rank])}


def with_adapter(base: Callable[[int], dict], adapter: Callable[[int], dict], config: Callable[[int], dict] = lambda n: {}):
    def make(folder: Path, n: int) -> Path:
        (folder / "adapter").mkdir()
        (folder / "adapter/adapter_model.safetensors").write_bytes(tensors(adapter(n)))
        (folder / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 2, "r": 1} | config(n)))
        (folder / "base.safetensors").write_bytes(tensors(base(n)))
        return folder / "base.safetensors"
    return make


def averaged(shapes: Callable[[int], dict]):
    def make(folder: Path, n: int) -> Path:
        (folder / "x.safetensors").write_bytes(tensors(shapes(n)))
        return folder / "x.safetensors"
    return make


def weights(n: int) -> dict:
    return {f"m{i}.weight": ("F32", [2, 2]) for i in range(n)}


def pairs(n: int) -> dict:
    return {name: each for i in range(n) for name, each in pair(f"m{i}").items()}


def lora(what: str, first: int, make) -> Family:
    return Family("lora", what, first, make, lambda n: ["--lora", "adapter"], verbs=("gather", "digest"))


FAMILIES = [
    lora("pairs", 500, with_adapter(weights, pairs)),
    lora("one long row", 1 << 14, with_adapter(lambda n: {"m.weight": ("F32", [1, n])}, lambda n: pair("m", 1, 1, n))),
    lora("one long column", 1 << 14, with_adapter(lambda n: {"m.weight": ("F32", [n, 1])}, lambda n: pair("m", 1, n, 1))),
    lora("patterns of alphas", 100, with_adapter(lambda n: weights(50), lambda n: pairs(50),
                                                 lambda n: {"alpha_pattern": {f"x{i}": 3 for i in range(n)}})),
    Family("average", "tensors", 1000, averaged(weights), verbs=("average",)),
    Family("average", "integers", 1000, averaged(lambda n: {f"m{i}": ("I64", [1]) for i in range(n)}), verbs=("average",)),
    Family("average", "one long row", 1 << 14, averaged(lambda n: {"m": ("F32", [1, n])}), verbs=("average",)),
]
