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


def stored_at(file: str, begin: int, length: int, zstd: bool = False) -> bytes:
    transforms = {"transform_descriptors": b"](" + text("stream.zstd/1") + b"e"} if zstd else {}
    place = dict_of(relative_path=text(file), offset=number(begin), length=number(length), **transforms)
    return built(FILESYSTEM, "_StorageInfo", place)


def dcp_objects(count: int, file: str, length: int, zstd: bool) -> bytes:
    """A .metadata of objects whose items, all of one length, follow one another."""
    names = [f"b{i}" for i in range(count)]
    stored = b"}(" + b"".join(text(each) + built(METADATA, "BytesStorageMetadata", b"}") for each in names) + b"u"
    entries = b"}(" + b"".join(
        built(METADATA, "MetadataIndex", dict_of(fqn=text(each), offset=b"N", index=b"N")) +
        stored_at(file, i * length, length, zstd) for i, each in enumerate(names)) + b"u"
    return pickled(built(METADATA, "Metadata", dict_of(state_dict_metadata=stored, planner_data=b"N", storage_data=entries)))


def dcp_metadata(shape, chunks, places, zstd: bool = False) -> bytes:
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
        stored_at(file, begin, length, zstd)
        for at, index, file, begin, length in places) + b"u"
    stored = built(METADATA, "TensorStorageMetadata", dict_of(properties=properties, size=size_of(shape), chunks=boxes))
    return pickled(built(METADATA, "Metadata", dict_of(state_dict_metadata=b"}" + text("w") + stored + b"s",
                                                       planner_data=b"N", storage_data=entries)))


def zstd_zeros(front: bytes, zeros: int, back: bytes) -> bytes:
    """A zstd frame of `front`, that many zeros, and `back`. Zeros are run-length blocks: 4 bytes for 128 KiB (RFC 8878)."""
    most = 1 << 17
    def block(kind: int, size: int, content: bytes, last: int = 0) -> bytes:
        return struct.pack("<I", last | kind << 1 | size << 3)[:3] + content
    runs = block(1, most, b"\0") * (zeros // most) + block(1, zeros % most, b"\0")
    return b"\x28\xb5\x2f\xfd\x00\x38" + block(0, len(front), front) + runs + block(0, len(back), back, last=1)


def sparse(path: Path, size: int, begin: bytes = b"", end: bytes = b"") -> None:
    """A file of `size` bytes that takes no room."""
    with path.open("wb") as out:
        out.truncate(size)
        out.write(begin)
        out.seek(size - len(end))
        out.write(end)
