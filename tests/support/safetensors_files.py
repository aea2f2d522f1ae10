"""safetensors files, written without any library, also larger than memory."""
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional, Union

BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16, "BF16": 16,
        "F32": 32, "F64": 64, "C64": 64}
Shapes = Mapping[str, tuple[str, Sequence[int]]]  # By name: dtype and shape.


def bytes_of(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * BITS[dtype] // 8


def head(shapes: Shapes, metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The bytes before the elements of these tensors, which follow one another."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + bytes_of(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()  # Without spaces, as safetensors writes it.
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write(path: Union[Path, str], shapes: Shapes, elements: Iterable[bytes] = (),
          metadata: Optional[Mapping[str, str]] = None) -> None:
    """Writes the parts of `elements`, which may be endless, until the file is full. If they end before, the rest is a hole."""
    begin, left = head(shapes, metadata), sum(bytes_of(*each) for each in shapes.values())
    with open(path, "wb") as file:
        file.write(begin)
        file.truncate(len(begin) + left)
        for part in elements:
            left -= file.write(part[:left])
            if left == 0:
                break
