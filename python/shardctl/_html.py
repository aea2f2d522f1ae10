"""An inspection as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardctl._text import printable

if TYPE_CHECKING:
    from shardctl._documents import Inspection, Object, Tensor

SHOWN = 100  # Rows of a table; notebooks store all rows.


def _text(value: object) -> str:
    return html.escape(printable(str(value)))


def _size(count: int) -> str:
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.2f} {unit}"
    return f"{count} bytes"


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{tag} style='text-align:left'>{_text(cell)}</{tag}>" for cell in cells) + "</tr>"


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]], count: int) -> str:
    if not rows:
        return ""
    left_out = f"<p>{count - len(rows)} more</p>" if count > len(rows) else ""
    return f"<table>{_row('th', head)}{''.join(_row('td', row) for row in rows)}</table>{left_out}"


def _cut(tensor: Tensor) -> str:
    if tensor.placements is not None:
        return ", ".join(tensor.placements)
    return "whole" if len(tensor.chunks) == 1 else f"{len(tensor.chunks)} chunks"


def _value(item: Object) -> object:
    return item.value if item.summary is None else item.summary


def inspection_html(found: Inspection) -> str:
    """A summary, a table of tensors and one of objects, each of the first 100. All names and values are escaped."""
    parameters = sum(tensor.elements for tensor in found.tensors if tensor.alias_of is None)
    ranks = "" if found.world_size is None else f", {found.world_size} ranks"
    summary = (
        f"<p><b>{_text(found.source)}</b>: {_text(found.format)}{ranks}; {found.tensor_count} tensors, "
        f"{parameters:,} elements, {found.object_count} objects, {_size(found.logical_bytes)} in {found.file_count} files</p>"
    )
    tensors: list[tuple[object, ...]] = [
        (each.name, each.dtype, list(each.shape), _size(each.bytes), _cut(each)) for each in found.tensors[:SHOWN]
    ]
    objects: list[tuple[object, ...]] = [(each.name, each.type, _value(each)) for each in found.objects[:SHOWN]]
    warnings = "".join(f"<p>warning: {_text(warning)}</p>" for warning in found.warnings)
    return (
        f"<div>{summary}{warnings}"
        + _table(("tensor", "dtype", "shape", "size", "stored as"), tensors, len(found.tensors))
        + _table(("object", "type", "value"), objects, len(found.objects))
        + "</div>"
    )
