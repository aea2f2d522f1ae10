"""The JSON documents of shardctl as dataclasses; docs/schemas.md of the project describes every field.

Schemas may grow: fields that this module does not know are left in `json` of the document, and missing optional ones
have defaults. Bytes are bytes; shapes, offsets, sizes and strides count elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from shardctl._html import inspection_html

Value = Union[None, bool, int, float, str]
Key = Union[str, int]


def _python_value(value: Any, type_name: Optional[str] = None) -> Any:
    """A Python value. JSON stores large integers, NaN and infinities as strings."""
    if type_name == "int" and isinstance(value, str):
        return int(value)
    return float(value) if type_name == "float" and value is not None else value


@dataclass(frozen=True)
class Document:
    """The document that one run printed. `json` holds all of it, including fields unknown to this version of the module."""

    schema: str
    json: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class File:
    """A file of a checkpoint; `path` is relative to its folder, for a single file the base name.

    The rank that wrote it is known for files of one rank each, and the world and the process group if ShardedTensors
    record them.
    """

    path: str
    bytes: int
    rank: Optional[int] = None
    world_size: Optional[int] = None
    local_rank: Optional[int] = None
    local_world_size: Optional[int] = None


@dataclass(frozen=True)
class Axis:
    """An axis of a device mesh."""

    name: Optional[str]
    size: int


@dataclass(frozen=True)
class Mesh:
    """A device mesh: axes with the slowest first, global ranks in row-major order."""

    axes: tuple[Axis, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Chunk:
    """A stored box of a tensor. The last three are None if the file does not contain plain little-endian elements."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: Optional[int]
    file: str
    byte_offset: Optional[int]
    byte_length: Optional[int]
    strides: Optional[tuple[int, ...]]


@dataclass(frozen=True)
class Tensor:
    """A tensor: its full shape and the chunks that store it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    placements: Optional[tuple[str, ...]]
    alias_of: Optional[str]
    chunks: tuple[Chunk, ...] = field(repr=False)
    path: Optional[tuple[Key, ...]] = None
    mesh: Optional[int] = None
    rank: Optional[int] = None

    @property
    def elements(self) -> int:
        """The number of elements of the whole tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Object:
    """A value that is not a tensor. `value` is Python's own; None for types that JSON lacks, which have a `summary`."""

    name: str
    type: str
    value: Value
    path: Optional[tuple[Key, ...]] = None
    summary: Optional[str] = None
    rank: Optional[int] = None

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> None:
        found["value"] = _python_value(found["value"], found["type"])


@dataclass(frozen=True)
class QuantizedForm:
    """The number of modules whose weights are quantized in one form."""

    form: str
    modules: int


@dataclass(frozen=True)
class Inspection(Document):
    """The content of a checkpoint: `shardctl.inspect/1`."""

    source: str
    format: str
    format_version: Optional[str]
    world_size: Optional[int]
    tensor_count: int
    object_count: int
    logical_bytes: int
    stored_bytes: int
    file_count: int
    files: tuple[File, ...] = field(repr=False)
    meshes: tuple[Mesh, ...] = field(repr=False)
    tensors: tuple[Tensor, ...] = field(repr=False)
    objects: tuple[Object, ...] = field(repr=False)
    metadata: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...] = ()
    quantized: tuple[QuantizedForm, ...] = ()

    def _repr_html_(self) -> str:
        return inspection_html(self)


@dataclass(frozen=True)
class TensorDigest:
    """The hash of a tensor's elements."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Digest(Document):
    """One hash per tensor and one for the checkpoint, the same for every format and layout: `shardctl.digest/1`."""

    algorithm: str
    checkpoint: str
    tensors: tuple[TensorDigest, ...] = field(repr=False)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a checkpoint. `severity` is "error" or "warning"."""

    severity: str
    kind: str
    file: Optional[str]
    tensor: Optional[str]
    detail: str
    not_read: bool = False


@dataclass(frozen=True)
class Checked:
    """The extent of the checks of `verify`."""

    files: int
    bytes: int
    tensors: int
    chunks: int
    crc32: int
    manifest: int


@dataclass(frozen=True)
class NotRead:
    """Content that this build does not read, and that may be whole."""

    tensors: int = 0
    objects: int = 0
    files: int = 0
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackedAgain:
    """Plain weights beside the quantized ones of `against`: codes and scales, and those that come back."""

    against: str
    modules: int
    codes: int
    same_codes: int
    scales: int
    same_scales: int


@dataclass(frozen=True)
class Verification(Document):
    """The problems of a checkpoint: `shardctl.verify/1`."""

    ok: bool
    findings: tuple[Finding, ...]
    checked: Checked
    globals: tuple[str, ...] = field(repr=False)
    findings_left_out: int = 0
    source: str = ""
    not_read: NotRead = NotRead()
    not_checked: tuple[str, ...] = ()
    dequantized: Optional[int] = None
    packed_again: Optional[PackedAgain] = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True)
class TextDifference:
    """Dtypes that differ."""

    name: str
    a: str
    b: str


@dataclass(frozen=True)
class ShapeDifference:
    """Shapes that differ."""

    name: str
    a: tuple[int, ...]
    b: tuple[int, ...]


@dataclass(frozen=True)
class ValueDifference:
    """A tensor whose values differ: in how many elements and by how much at most."""

    name: str
    elements: int
    differing: int
    max_abs: Optional[float]
    max_rel: Optional[float]
    max_ulp: Optional[int]
    first_index: tuple[int, ...]
    dtype: Optional[str] = None
    shape: Optional[tuple[int, ...]] = None
    abs_histogram: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    ulp_histogram: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> None:
        for name in ("max_abs", "max_rel"):
            found[name] = _python_value(found[name], "float")


@dataclass(frozen=True)
class ObjectDifference:
    """An object that differs, or that one side lacks. Values are as JSON has them."""

    name: str
    a: Value = None
    b: Value = None
    in_a: bool = False
    in_b: bool = False
    form_a: Optional[str] = None
    form_b: Optional[str] = None

    @classmethod
    def _adapt(cls, found: dict[str, Any]) -> None:
        found["in_a"], found["in_b"] = "a" in found, "b" in found


@dataclass(frozen=True)
class DifferenceCounts:
    """Length of each list of a `Difference` before `--max-diffs` truncates it."""

    only_in_a: int
    only_in_b: int
    dtype: int
    shape: int
    values: int
    objects: int


@dataclass(frozen=True)
class Difference(Document):
    """How two checkpoints differ: `shardctl.diff/1`."""

    equal: bool
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    dtype: tuple[TextDifference, ...]
    shape: tuple[ShapeDifference, ...]
    values: tuple[ValueDifference, ...]
    objects: tuple[ObjectDifference, ...]
    a: str = ""
    b: str = ""
    tensor_count: int = 0
    counts: Optional[DifferenceCounts] = field(default=None, repr=False)


@dataclass(frozen=True)
class Box:
    """A box of a tensor."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Lost:
    """Content that `repair` could not read."""

    what: str
    name: Optional[str]
    dtype: Optional[str]
    shape: Optional[tuple[int, ...]]
    file: Optional[str]
    why: str
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Rename:
    """A tensor whose name `export` changes."""

    from_: str
    to: str


@dataclass(frozen=True)
class Export:
    """Results and decisions of `export`."""

    found: str
    container: Optional[str]
    reference: Optional[str]
    checked: bool
    renamed: int
    renames: tuple[Rename, ...]
    tensors_left_out: int
    objects_left_out: int
    tied: tuple[str, ...]
    copied: tuple[str, ...]


@dataclass(frozen=True)
class _Written(Document):
    """The common fields of plans and results."""

    verb: str
    source: str
    output: str
    format: str
    files: tuple[File, ...] = field(repr=False)
    tensors: int
    objects: int


@dataclass(frozen=True)
class Plan(_Written):
    """The plan of a writing verb: `shardctl.plan/1`."""

    bytes_to_read: int
    bytes_to_write: int
    copies: int
    tiles: int
    memory_bytes: int
    free_bytes: int
    warnings: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    repaired: tuple[str, ...] = ()
    export: Optional[Export] = None
    bytes_to_clone: int = 0


@dataclass(frozen=True)
class Result(_Written):
    """The result of a writing verb, whose output is complete: `shardctl.result/1`."""

    bytes_read: int
    bytes_written: int
    bytes_cloned: int
    bytes_kept: int
    cast_overflows: int
    seconds: float
    unchanged: bool
    warnings: tuple[str, ...] = ()
    lost: tuple[Lost, ...] = ()
    repaired: tuple[str, ...] = ()
    export: Optional[Export] = None


@dataclass(frozen=True)
class ErrorDocument(Document):
    """Why a verb failed: `shardctl.error/1`."""

    verb: Optional[str]
    code: int
    kind: str
    message: str
    file: Optional[str] = None
    tensor: Optional[str] = None
    rank: Optional[int] = None
    expected: Optional[str] = None
    found: Optional[str] = None
    hint: Optional[str] = None
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress(Document):
    """Progress of a verb: `shardctl.progress/1`. `bytes_total` is 0 until known; `rank` is None for the total over all ranks."""

    what: str
    bytes_done: int
    bytes_total: int
    seconds: float
    waiting_for: tuple[int, ...]
    bytes_per_second: float = 0.0
    seconds_left: Optional[float] = None
    rank: Optional[int] = None
