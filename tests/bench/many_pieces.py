"""Time and memory of `inspect` for a DCP folder of many ranks with many tensors: every rank has a piece of every tensor.

  many_pieces.py SHARDCTL [--ranks N] [--tensors N] [--folder DIR]

The script writes .metadata as torch pickles it (protocol 4, an object for each piece, its index and its place), without
torch's objects for all pieces, which take 1.6 kB each. The ranks' files have the same bytes, so they are links to one.
1,000 ranks and 20,000 tensors need 3.4 GB on the disk and 20 GB of memory.
"""
import argparse
import io
import multiprocessing
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy
from many_files import measure

ELEMENTS = 4  # A piece has so many.
METADATA = "torch.distributed.checkpoint.metadata"
KEYS = ["properties", "size", "chunks", "offsets", "sizes", "fqn", "offset", "index", "relative_path", "length",
        "state_dict_metadata", "planner_data", "storage_data", "storage_meta"]
CLASSES = {"Metadata": METADATA, "TensorStorageMetadata": METADATA, "ChunkStorageMetadata": METADATA, "TensorProperties": METADATA,
           "MetadataIndex": METADATA, "_MEM_FORMAT_ENCODING": METADATA, "_StorageInfo": "torch.distributed.checkpoint.filesystem",
           "Size": "torch", "float32": "torch", "_get_layout": "torch.serialization"}
REMEMBER, TUPLE, CALL, MAKE, FILL = b"\x94", b"\x85", b"R", b")\x81", b"b"


class Pickle:
    """Opcodes of one pickle. `place` has the numbers that the memo gives to classes, keys and files."""

    def __init__(self, file, files: list[str]):
        self.file, self.count, self.place = file, 0, {}
        self.put(b"\x80\x04(")
        for name, module in CLASSES.items():
            self.put(text(module), REMEMBER, text(name), REMEMBER, b"\x93", REMEMBER)
            self.place[name] = self.count - 1
        for word in [*KEYS, *files, "torch.strided"]:
            self.put(text(word), REMEMBER)
            self.place[word] = self.count - 1
        self.put(b"1")

    def put(self, *codes: bytes) -> None:
        for code in codes:
            self.file.write(code)
            self.count += code == REMEMBER

    def put_rows(self, rows: numpy.ndarray, remembered: int) -> None:
        self.file.write(rows.tobytes())
        self.count += remembered * len(rows)

    def get(self, name: str) -> bytes:
        return b"j" + struct.pack("<I", self.place[name])

    def new(self, name: str) -> list[bytes]:
        """An object that has no attributes yet, and the dict of them, open."""
        return [self.get(name) + MAKE, REMEMBER, b"}", REMEMBER, b"("]

    def size(self, number: bytes) -> list[bytes]:
        return [self.get("Size"), number, TUPLE, REMEMBER, TUPLE, REMEMBER, CALL, REMEMBER]


def text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


def integer(number: int) -> bytes:
    return b"J" + struct.pack("<i", number)


def table(codes: list[bytes], columns: dict[bytes, numpy.ndarray]) -> tuple[numpy.ndarray, int]:
    """A row of opcodes for each value of the columns, whose keys are found once in `codes`. With the number of REMEMBER."""
    line = b"".join(codes)
    rows = numpy.tile(numpy.frombuffer(line, numpy.uint8), (len(next(iter(columns.values()))), 1))
    for mark, values in columns.items():
        assert line.count(mark) == 1, mark
        begin = line.index(mark)
        rows[:, begin:begin + len(mark)] = values
    return rows, codes.count(REMEMBER)


def integers(values: numpy.ndarray) -> numpy.ndarray:
    return numpy.concatenate([numpy.full((len(values), 1), ord("J"), numpy.uint8), values.astype("<i4").view(numpy.uint8).reshape(-1, 4)], 1)


def write_tensors(out: Pickle, ranks: int, tensors: int) -> None:
    first, count = integer(-1), integer(ELEMENTS)
    codes = [*out.new("ChunkStorageMetadata"), out.get("offsets"), *out.size(first), out.get("sizes"), *out.size(count), b"u", FILL]
    rows, remembered = table(codes, {first: integers(numpy.arange(ranks) * ELEMENTS)})
    out.put(out.get("state_dict_metadata"), b"}", REMEMBER, b"(")
    for i in range(tensors):
        out.put(text(name_of(i)), REMEMBER, *out.new("TensorStorageMetadata"), out.get("properties"), out.get("TensorProperties") + MAKE,
                REMEMBER, b"(" + out.get("float32") + out.get("_get_layout") + out.get("torch.strided") + TUPLE, REMEMBER, CALL, REMEMBER,
                b"\x89" + out.get("_MEM_FORMAT_ENCODING") + b"K\0" + TUPLE, REMEMBER, CALL, REMEMBER, b"\x89t", REMEMBER, FILL,
                out.get("size"), *out.size(integer(ranks * ELEMENTS)), out.get("chunks"), b"]", REMEMBER, b"(")
        out.put_rows(rows, remembered)
        out.put(b"eu", FILL)
    out.put(b"u")


def write_places(out: Pickle, files: list[str], tensors: int, item_bytes: int) -> None:
    names = numpy.frombuffer("".join(map(name_of, range(tensors))).encode(), numpy.uint8).reshape(tensors, -1)
    offset, name = integer(-1), name_of(0)
    out.put(out.get("storage_data"), b"}", REMEMBER)
    for rank, file in enumerate(files):
        codes = [*out.new("MetadataIndex"), out.get("fqn"), text(name), REMEMBER, out.get("offset"), *out.size(integer(rank * ELEMENTS)),
                 out.get("index"), integer(rank), b"u", FILL, *out.new("_StorageInfo"), out.get("relative_path"), out.get(file),
                 out.get("offset"), offset, out.get("length"), integer(item_bytes), b"u", FILL]
        rows, remembered = table(codes, {name.encode(): names, offset: integers(numpy.arange(tensors) * item_bytes)})
        for begin in range(0, tensors, 1000):
            out.put(b"(")
            out.put_rows(rows[begin:begin + 1000], remembered)
            out.put(b"u")


def name_of(number: int) -> str:
    return f"layers.{number:06}.weight"


def write(folder: Path, ranks: int, tensors: int) -> None:
    import torch  # In a process of its own, because a process that is measured begins with the memory of its parent.

    item = io.BytesIO()
    torch.save(torch.arange(ELEMENTS, dtype=torch.float32), item)
    files = [f"__{rank}_0.distcp" for rank in range(ranks)]
    (folder / files[0]).write_bytes(item.getvalue() * tensors)
    for file in files[1:]:
        os.link(folder / files[0], folder / file)
    with open(folder / ".metadata", "wb", buffering=1 << 20) as file:
        out = Pickle(file, files)
        out.put(*out.new("Metadata"))
        write_tensors(out, ranks, tensors)
        out.put(out.get("planner_data"), b"N")
        write_places(out, files, tensors, len(item.getvalue()))
        out.put(out.get("storage_meta"), b"Nu", FILL, b".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl")
    parser.add_argument("--ranks", type=int, default=50)
    parser.add_argument("--tensors", type=int, default=20_000)
    parser.add_argument("--folder", default=None)
    options = parser.parse_args()
    for tensors in (options.tensors // 2, options.tensors):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            writer = multiprocessing.get_context("spawn").Process(target=write, args=(Path(name), options.ranks, tensors))
            writer.start(), writer.join()
            found = subprocess.run([options.shardctl, "inspect", "-q", name], capture_output=True, text=True, check=True).stdout
            assert f"{tensors} tensors, {options.ranks * tensors * ELEMENTS} elements" in found, found[:200]
            measure(f"{options.ranks:,} ranks, {tensors:,} tensors", options.shardctl, "inspect", name)


if __name__ == "__main__":
    main()
