"""Folders of torch.distributed.checkpoint, its safetensors among them."""
import json
import struct

from build import (METADATA, built, dict_of, entry, name, number, pickled, safetensors, size_of, stored_at, tensor, text,
                   torch_zip, tuple_of)
from containers import swollen
from family import Family, to_folder

FILE = "__0_0.distcp"


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def properties() -> bytes:
    layout = name("torch.serialization", "_get_layout") + tuple_of(text("torch.strided")) + b"R"
    encoding = name(METADATA, "_MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R"
    return built(METADATA, "TensorProperties", tuple_of(name("torch", "float32"), layout, b"\x89", encoding, b"\x89"))


def chunk(offsets, sizes, **junk: bytes) -> bytes:
    return built(METADATA, "ChunkStorageMetadata", dict_of(offsets=size_of(offsets), sizes=size_of(sizes), **junk))


def stored_tensor(shape, chunks: bytes) -> bytes:
    return built(METADATA, "TensorStorageMetadata", dict_of(properties=properties(), size=size_of(shape), chunks=chunks))


def listed(items) -> bytes:
    return b"](" + b"".join(items) + b"e"


def index_of(fqn: str, offsets) -> bytes:
    at = b"N" if offsets is None else size_of(offsets)
    return built(METADATA, "MetadataIndex", dict_of(fqn=text(fqn), offset=at, index=b"N"))


def folder(stored: dict[str, bytes], places, planner: bytes = b"N", data: bytes = b"") -> dict[str, bytes]:
    """`places`: (name, offsets, begin, length[, zstd]) in the only file."""
    items = b"}(" + b"".join(text(fqn) + value for fqn, value in stored.items()) + b"u"
    entries = b"}(" + b"".join(
        index_of(fqn, offsets) + stored_at(FILE, *rest) for fqn, offsets, *rest in places) + b"u"
    metadata = built(METADATA, "Metadata", dict_of(state_dict_metadata=items, planner_data=planner, storage_data=entries))
    return {".metadata": pickled(metadata), FILE: data}


def item_of(count: int, strides: int = 1, stored: int | None = None) -> bytes:
    stored = count if stored is None else stored
    return torch_zip(pickled(tensor([count], [strides], count=stored)), {"data/0": bytes(4 * stored)})


def names(n: int) -> dict[str, bytes]:
    item = item_of(1)
    stored = {f"layers.{i}.weight": stored_tensor([1], listed([chunk([0], [1])])) for i in range(n)}
    return folder(stored, [(fqn, [0], i * len(item), len(item)) for i, fqn in enumerate(stored)], data=item * n)


def chunks(n: int) -> dict[str, bytes]:
    item = item_of(1)
    stored = {"w": stored_tensor([n], listed(chunk([i], [1]) for i in range(n)))}
    return folder(stored, [("w", [i], i * len(item), len(item)) for i in range(n)], data=item * n)


def names_of_chunks(n: int) -> dict[str, bytes]:
    """n names of one list of n chunks."""
    one = stored_tensor([n], listed(chunk([i], [1]) for i in range(n))) + put(7)
    return folder({"0": one, **{str(i): get(7) for i in range(1, n)}}, [])


def names_of_junk(n: int) -> dict[str, bytes]:
    """n names of a tensor whose chunk has n unused attributes."""
    junk = {f"a{i}": b"N" for i in range(n)}
    one = stored_tensor([1], listed([chunk([0], [1], **junk)])) + put(7)
    return folder({"0": one, **{str(i): get(7) for i in range(1, n)}}, [])


def names_of_paths(n: int) -> dict[str, bytes]:
    """n names at one path of n parts."""
    path = tuple_of(*[b"K\x01"] * n) + put(7)
    one = stored_tensor([1], listed([chunk([0], [1])])) + put(8)
    stored = {"0": one, **{str(i): get(8) for i in range(1, n)}}
    planner = b"}(" + b"".join(text(fqn) + (path if i == 0 else get(7)) for i, fqn in enumerate(stored)) + b"u"
    return folder(stored, [], planner)


def boxes_of_12(n: int) -> dict[str, bytes]:
    """n boxes of 12 dimensions, shifted, so that no corner cancels a corner of a different box."""
    offsets = [[i] + [i % 7] * 11 for i in range(n)]
    boxes = [chunk(at, [1] + [5 + at[0] % 3] * 11) for at in offsets]
    places = [("w", at, i, 1) for i, at in enumerate(offsets)]
    return folder({"w": stored_tensor([n] + [16] * 11, listed(boxes))}, places, data=bytes(n))


def objects(n: int) -> dict[str, bytes]:
    item = torch_zip(pickled(b"K\x01"))
    stored = {f"b{i}": built(METADATA, "BytesStorageMetadata", b"}") for i in range(n)}
    return folder(stored, [(fqn, None, i * len(item), len(item)) for i, fqn in enumerate(stored)], data=item * n)


def of_megatron(files: dict[str, bytes]) -> dict[str, bytes]:
    return files | {"metadata.json": b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'}


def sharded_objects(n: int) -> dict[str, bytes]:
    item = torch_zip(pickled(listed([b"N"])))
    stored = {f"layer._extra_state/shard_{i}_{n}": built(METADATA, "BytesStorageMetadata", b"}") for i in range(n)}
    return of_megatron(folder(stored, [(fqn, None, i * len(item), len(item)) for i, fqn in enumerate(stored)], data=item * n))


def arguments(n: int) -> dict[str, bytes]:
    common = b"}(" + b"".join(text(f"k{i}") + number(i % 200) for i in range(n)) + b"u"
    return of_megatron(names(1)) | {"common.pt": torch_zip(pickled(common))}


def zeros(n: int) -> dict[str, bytes]:
    """A chunk of n bytes of zeros whose item is a stream of zstd."""
    item = swollen(pickled(tensor([n // 4], [1], count=n // 4)), n)
    return folder({"w": stored_tensor([n // 4], listed([chunk([0], [n // 4])]))}, [("w", [0], 0, len(item), True)], data=item)


def expanded(n: int) -> dict[str, bytes]:
    """n tensors of 256 n elements, all of which are one."""
    item = item_of(256 * n, 0, 1)
    stored = {str(i): stored_tensor([256 * n], listed([chunk([0], [256 * n])])) for i in range(n)}
    return folder(stored, [(fqn, [0], i * len(item), len(item)) for i, fqn in enumerate(stored)], data=item * n)


def shard(info: dict, tensors: dict[str, int]) -> bytes:
    header = {"__metadata__": {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}}
    begin = 0
    for fqn, size in tensors.items():
        header[fqn] = entry([size], begin, begin + size)
        begin += size
    return safetensors(header, bytes(begin))


def shards(contents: list[bytes]) -> dict[str, bytes]:
    return {f"shard-{i + 1:05}-model-00001-of-00001.safetensors": data for i, data in enumerate(contents)}


def hf_names(n: int) -> dict[str, bytes]:
    """Two ranks, a half of each tensor in either's file."""
    fqns = [f"layers.{i}.weight" for i in range(n)]
    return shards([shard({fqn: {"saved_offsets": [at]} for fqn in fqns}, dict.fromkeys(fqns, 1)) for at in (0, 1)])


def hf_ranks(n: int) -> dict[str, bytes]:
    return shards([shard({"w": {"saved_offsets": [1000 * i]}}, {"w": 1000}) for i in range(n)])


def hf_absent(n: int) -> dict[str, bytes]:
    return shards([shard({**{f"absent{i}": {"saved_offsets": [i]} for i in range(n)}, "w": {"saved_offsets": [0]}}, {"w": 1})])


FAMILIES = [
    Family("dcp", "names", 64, to_folder(names)),
    Family("dcp", "chunks of one tensor", 64, to_folder(chunks)),
    Family("dcp", "names of one list of as many chunks", 250, to_folder(names_of_chunks)),
    Family("dcp", "names of one chunk of as many attributes", 4000, to_folder(names_of_junk)),
    Family("dcp", "names at one path of as many parts", 4000, to_folder(names_of_paths)),
    Family("dcp", "boxes of 12 dimensions", 32, to_folder(boxes_of_12)),
    Family("dcp", "objects", 64, to_folder(objects)),
    Family("dcp", "zeros in a stream of zstd", 1 << 22, to_folder(zeros)),
    Family("dcp", "expanded tensors and their elements", 64, to_folder(expanded)),
    Family("megatron-dist", "sharded objects", 64, to_folder(sharded_objects)),
    Family("megatron-dist", "common data", 1000, to_folder(arguments)),
    Family("dcp-hf", "names", 500, to_folder(hf_names)),
    Family("dcp-hf", "ranks", 64, to_folder(hf_ranks)),
    Family("dcp-hf", "offsets of absent tensors", 2000, to_folder(hf_absent)),
]
