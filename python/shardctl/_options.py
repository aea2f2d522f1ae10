"""Options of open(), as the native extension takes them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

from shardctl._memory import usage
from shardctl._paths import encoded


def texts(values: Optional[Mapping[str, Union[int, str]]]) -> list[str]:
    return [f"{name}={value}" for name, value in (values or {}).items()]


def named_dtype(dtype: Any) -> str:
    """The name of a dtype given as a text or as torch's or numpy's own."""
    if dtype is None or isinstance(dtype, str):
        return dtype or ""
    return str(getattr(dtype, "__name__", dtype)).removeprefix("torch.")


def plain_dtype(dtype: Any) -> str:
    """The name of a dtype in which weights can be computed. Raises Usage for another one."""
    name = named_dtype(dtype)
    if name not in ("", "bfloat16", "float16", "float32"):
        raise usage("weights cannot be dequantized to that dtype", "bfloat16, float16 or float32", name)
    return name


def adapters(lora: Any) -> list[tuple[bytes, float]]:
    """Paths and weights of adapters. Raises Usage for weights that are not numbers."""
    if isinstance(lora, (str, bytes, os.PathLike)):
        lora = (lora,)
    weights = lora if isinstance(lora, Mapping) else dict.fromkeys(lora or (), 1.0)
    for path, weight in weights.items():
        if not math.isfinite(weight):
            raise usage("the weight of an adapter is not a number", "a finite number", weight, os.fsdecode(path))
    return [(encoded(path), float(weight)) for path, weight in weights.items()]


def from_anywhere(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments for a process in a different folder: their paths do not depend on that of this process."""
    try:
        folder = os.getcwdb()
    except FileNotFoundError:  # It was removed.
        return arguments

    def path(given: bytes) -> bytes:
        return os.path.join(folder, given) if given and b"://" not in given else given

    changed: dict[str, Any] = {name: path(arguments[name]) for name in ("hf_ref", "layout")}
    if b"." in arguments["map"] or b"/" in arguments["map"]:  # Otherwise, the name of a built-in map.
        changed["map"] = path(arguments["map"])
    changed["paths"] = [path(each) for each in arguments["paths"]]
    changed["lora"] = [(path(adapter), weight) for adapter, weight in arguments["lora"]]
    return {**arguments, **changed}


def is_opaque(word: str) -> bool:
    if word not in ("refuse", "opaque"):
        raise usage("unknown_globals is not one of its words", "'refuse' or 'opaque'", repr(word))
    return word == "opaque"
