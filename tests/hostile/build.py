"""Bytes of pickles, zips, safetensors files and dcp folders, written by hand so that nothing about them need be right."""
import io
import json
import struct
import zipfile
from pathlib import Path


def text(value: str) -> bytes:
    """BINUNICODE."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    """LONG1 of eight bytes: any signed 64-bit number."""
    return b"\x8a\x08" + struct.pack("<q", value)


def name(module: str, attribute: str) -> bytes:
    """GLOBAL."""
    return f"c{module}\n{attribute}\n".encode()


def tuple_of(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def pickled(body: bytes, protocol: int = 2) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def dict_of(**items: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def built(module: str, attribute: str, state: bytes) -> bytes:
    """An object of a class with its state, as protocol 2 writes one."""
    return name(module, attribute) + b")\x81" + state + b"b"


def storage(count: int, key: str = "0", kind: str = "FloatStorage") -> bytes:
    return tuple_of(text("storage"), name("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(shape, strides, offset: int = 0, count: int = 4, stored: bytes | None = None) -> bytes:
    """_rebuild_tensor_v2 over record data/0."""
    hooks = name("collections", "OrderedDict") + b")R"
    sizes, steps = (tuple_of(*map(number, numbers)) for numbers in (shape, strides))
    arguments = tuple_of(stored if stored is not None else storage(count), number(offset), sizes, steps, b"\x89", hooks)
    return name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def torch_zip(pickle: bytes, records: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A torch.save file: data.pkl, byteorder, version and `records`."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for record, data in {"data.pkl": pickle, "byteorder": b"little", **(records or {}), "version": b"3\n"}.items():
            archive.writestr("archive/" + record, data)
    return out.getvalue()


def torch_file(body: bytes, data: bytes = bytes(16), protocol: int = 2) -> bytes:
    """A torch.save file whose pickle is `body` and whose only storage is `data`."""
    return torch_zip(pickled(body, protocol), {"data/0": data})


def safetensors(header: bytes | dict, data: bytes = b"") -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(shape, begin: int, end: int, dtype: str = "U8") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


def size_of(numbers) -> bytes:
    return name("torch", "Size") + tuple_of(tuple_of(*map(number, numbers))) + b"R"


def dcp_metadata(shape, chunks, places) -> bytes:
    """A .metadata of one float32 tensor "w". `chunks`: (offsets, sizes); `places`: (offsets, index, file, begin, length)."""
    layout = name("torch.serialization", "_get_layout") + tuple_of(text("torch.strided")) + b"R"
    encoding = name(METADATA, "_MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R"
    properties = built(METADATA, "TensorProperties",
                       tuple_of(name("torch", "float32"), layout, b"\x89", encoding, b"\x89"))
    boxes = b"](" + b"".join(
        built(METADATA, "ChunkStorageMetadata", dict_of(offsets=size_of(at), sizes=size_of(size)))
        for at, size in chunks) + b"e"
    entries = b"}(" + b"".join(
        built(METADATA, "MetadataIndex", dict_of(fqn=text("w"), offset=size_of(at), index=number(index))) +
        built(FILESYSTEM, "_StorageInfo", dict_of(relative_path=text(file), offset=number(begin), length=number(length)))
        for at, index, file, begin, length in places) + b"u"
    stored = built(METADATA, "TensorStorageMetadata", dict_of(properties=properties, size=size_of(shape), chunks=boxes))
    return pickled(built(METADATA, "Metadata", dict_of(state_dict_metadata=b"}" + text("w") + stored + b"s",
                                                       planner_data=b"N", storage_data=entries)))


def sparse(path: Path, size: int, begin: bytes = b"", end: bytes = b"") -> None:
    """A file of `size` bytes that takes no room."""
    with path.open("wb") as out:
        out.truncate(size)
        out.write(begin)
        out.seek(size - len(end))
        out.write(end)
