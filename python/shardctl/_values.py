"""Values of classes, built from the parts that a checkpoint records. Nothing is imported or called by a name in a checkpoint."""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Mapping
from typing import Any, Callable, Optional

from shardctl._errors import unsupported

class Opaque:
    """A value of a class that shardctl does not create. `type` is its name."""

    __slots__ = ("type",)
    type: str

    def __init__(self, type: str) -> None:
        self.type = type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"Opaque({self.type!r})"


def value_of_class(type: str, parts: Any) -> Any:
    """The value of a class with these parts, which values.h describes. An Opaque if they are None or wrong, or if the library
    of the class is missing."""
    make = _numpy if type.startswith("numpy.") else _MAKERS.get(type)
    try:
        return Opaque(type) if make is None or parts is None else make(parts)
    except (ImportError, RuntimeError, TypeError, ValueError):
        return Opaque(type)


def _device(parts: tuple[Any, ...]) -> Any:
    import torch

    return torch.device(*parts)


def _torch_dtype(name: str) -> Any:
    import torch

    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(name)
    return found


def _numpy(parts: tuple[bool, str, Optional[tuple[int, ...]], bool, bytearray]) -> Any:
    import numpy

    is_dtype, code, shape, is_column_major, elements = parts
    if not re.fullmatch("[<>]([biufc][0-9]+|[US][0-9]+)", code):  # Objects, dates and records need more than a code.
        raise ValueError(code)
    dtype = numpy.dtype(code)
    if is_dtype:
        return dtype
    if shape is None:
        (number,) = numpy.frombuffer(elements, dtype)
        return number
    if dtype.itemsize == 0:
        raise ValueError(code)
    array = numpy.frombuffer(elements, dtype).reshape(shape, order="F" if is_column_major else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "argparse.Namespace": lambda parts: argparse.Namespace(**parts),
    "complex": lambda parts: complex(*parts),
    "torch.device": _device,
    "torch.dtype": _torch_dtype,
    "types.SimpleNamespace": lambda parts: types.SimpleNamespace(**parts),
}


def _opaque_in(value: Any) -> Optional[Opaque]:
    """The first Opaque in a value and its containers."""
    todo, known = [value], set()
    while todo:
        each = todo.pop()
        if isinstance(each, Opaque):
            return each
        if isinstance(each, (argparse.Namespace, types.SimpleNamespace)):
            each = vars(each)
        if isinstance(each, (Mapping, list, tuple, set, frozenset)) and id(each) not in known:
            known.add(id(each))
            todo += [*each, *each.values()] if isinstance(each, Mapping) else each
    return None


def refuse_opaque(name: str, value: Any) -> None:
    """Raises Unsupported if a value of a checkpoint is or contains an Opaque."""
    opaque = _opaque_in(value)
    if opaque is not None:
        message = f"cannot load '{name}': shardctl does not create values of class {opaque.type}"
        hint = "leave it out of the state (with strict=False), and load it by the library that saved it"
        raise unsupported(message, hint, tensor=name, found=opaque.type)
