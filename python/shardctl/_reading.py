"""From parsed JSON to the dataclasses of _documents.py, by their annotations."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, Callable, Optional

from shardctl import _documents
from shardctl._documents import Document

_SCHEMAS: Mapping[str, type[Document]] = {
    "shardctl.diff/1": _documents.Difference,
    "shardctl.digest/1": _documents.Digest,
    "shardctl.error/1": _documents.ErrorDocument,
    "shardctl.inspect/1": _documents.Inspection,
    "shardctl.plan/1": _documents.Plan,
    "shardctl.progress/1": _documents.Progress,
    "shardctl.result/1": _documents.Result,
    "shardctl.verify/1": _documents.Verification,
}

_Read = Callable[[Any], Any]


def _read_tuple(read: Optional[_Read]) -> _Read:
    if read is None:
        return tuple
    return lambda value: tuple(map(read, value))


def _read_optional(read: _Read) -> _Read:
    return lambda value: None if value is None else read(value)


@functools.cache
def _reader(annotation: Any) -> Optional[_Read]:
    """A function that converts a JSON value to the annotated type; None if they are the same."""
    if dataclasses.is_dataclass(annotation):
        return _object_reader(typing.cast(type, annotation))
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is tuple:
        return _read_tuple(_reader(arguments[0]))
    if type(None) in arguments and len(arguments) == 2:
        read = _reader(arguments[0])
        return None if read is None else _read_optional(read)
    return None


def _fields(kind: type) -> tuple[tuple[str, str, Optional[_Read]], ...]:
    """Each field's name, its key in JSON (`from_` is "from"), and its reader."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    return tuple((name, name.rstrip("_"), _reader(hints[name])) for name in names)


def _object_reader(kind: type) -> _Read:
    fields = _fields(kind)
    adapt: Optional[Callable[[dict[str, Any]], None]] = getattr(kind, "_adapt", None)

    def read(found: Any) -> Any:
        if adapt is not None:
            found = dict(found)
            adapt(found)
        return kind(**{name: found[key] if each is None else each(found[key]) for name, key, each in fields if key in found})

    return read


def document(found: Mapping[str, Any]) -> Document:
    """The document as the dataclass of its schema; a schema without one is a plain Document."""
    kind: Any = _SCHEMAS.get(found["schema"], Document)
    read = _reader(kind)
    assert read is not None
    result: Document = read({**found, "json": found})
    return result
