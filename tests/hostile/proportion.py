"""Small files that describe much: one node under many names, streams of zeros, holes. And as large ones that are honest."""
import json
import struct
import zipfile
from pathlib import Path

from build import METADATA, built, dcp_objects, dict_of, name, number, pickled, size_of, sparse, tensor, text, torch_file, torch_zip, tuple_of
from case import READ, by_verb, everywhere, files_of, lazily

SHARDED = "torch.distributed._shard"


def kept(value: bytes, key: int) -> bytes:
    """The value, and LONG_BINPUT."""
    return value + b"r" + struct.pack("<I", key)


def again(key: int) -> bytes:
    """LONG_BINGET."""
    return b"j" + struct.pack("<I", key)


def items(pairs) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in pairs) + b"u"


def listed(values) -> bytes:
    return b"](" + b"".join(values) + b"e"


def small(*numbers: int) -> bytes:
    return b"](" + b"".join(b"M" + struct.pack("<H", each) for each in numbers) + b"e"


def under_names(value: bytes, count: int) -> bytes:
    """A dict in which `count` names share one value."""
    return items((f"t{i}", kept(value, 9_000_000) if i == 0 else again(9_000_000)) for i in range(count))


def strided() -> bytes:
    return name("torch.serialization", "_get_layout") + tuple_of(text("torch.strided")) + b"R"


# .metadata of dcp

def tensor_metadata(shape, chunks: bytes) -> bytes:
    encoding = name(METADATA, "_MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R"
    properties = built(METADATA, "TensorProperties", tuple_of(name("torch", "float32"), strided(), b"\x89", encoding, b"\x89"))
    return built(METADATA, "TensorStorageMetadata", dict_of(properties=properties, size=size_of(shape), chunks=chunks))


def chunk(at: int, junk: int = 0) -> bytes:
    attributes = items([*((f"a{i}", b"N") for i in range(junk)), ("offsets", small(at)), ("sizes", small(1))])
    return built(METADATA, "ChunkStorageMetadata", attributes)


def metadata(state: bytes, planner: bytes = b"N", places: bytes = b"}") -> bytes:
    return pickled(built(METADATA, "Metadata", dict_of(state_dict_metadata=state, planner_data=planner, storage_data=places)))


def dcp(content: bytes):
    return files_of({".metadata": content, "__0_0.distcp": b""})


def folders():
    count = 10_000
    shared = tensor_metadata([count], listed(chunk(i) for i in range(count)))
    yield everywhere("dcp: 10,000 names of 10,000 chunks", lambda folder: dcp(metadata(under_names(shared, count)))(folder), 4)
    wide = tensor_metadata([1], listed([chunk(0, junk=50_000)]))
    yield everywhere("dcp: 20,000 names of a chunk with 50,000 attributes",
                     lambda folder: dcp(metadata(under_names(wide, 20_000)))(folder), 4)
    one = tensor_metadata([1], listed([chunk(0)]))
    long_path = tuple_of(*[b"K\x01"] * 20_000)
    yield everywhere("dcp: 2,000 names of a path of 20,000 parts", lambda folder: dcp(metadata(
        under_names(one, 2000), under_names(long_path, 2000)))(folder), 4)
    yield everywhere("dcp: 2,000 names of a path of 1 MB", lambda folder: dcp(metadata(
        under_names(one, 2000), under_names(tuple_of(text("k" * 1_000_000)), 2000)))(folder), 4)

    def deflated_items(folder: Path) -> Path:
        item = torch_zip(pickled(b"}" + text("x") + text("a" * 1_000_000) + b"s"), method=zipfile.ZIP_DEFLATED)
        return files_of({".metadata": dcp_objects(2000, "__0_0.distcp", len(item), False), "__0_0.distcp": item * 2000})(folder)
    yield by_verb("dcp: 2,000 objects of 1 MB in 2 KB each", deflated_items, inspect={0, 4}, json=4)


# Files of ranks

def remote_device(rank: int, worker: str | None = None) -> bytes:
    device = name("torch", "device") + tuple_of(text("cpu")) + b"R"
    who = {"_worker_name": text(worker), "_rank": b"N"} if worker else {"_worker_name": b"N", "_rank": number(rank)}
    return built("torch.distributed.remote_device", "_remote_device", dict_of(**who, _device=device))


def shard_metadata(at: int, size: int, placement: bytes) -> bytes:
    return built(SHARDED + ".metadata", "ShardMetadata",
                 dict_of(shard_offsets=small(at), shard_sizes=small(size), placement=placement))


def sharded_tensor(shape: int, shards: bytes, spec: bytes) -> bytes:
    layout, device = strided(), name("torch", "device") + tuple_of(text("cpu")) + b"R"
    kind = name(SHARDED + ".sharded_tensor.api", "ShardedTensor")
    arguments = tuple_of(kind, name("torch", "float32"), tuple_of(number(shape)), tuple_of(number(1)), number(0), layout, device, b"\x89")
    encoding = name(SHARDED + ".sharded_tensor.metadata", "MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R"
    properties = built(SHARDED + ".sharded_tensor.metadata", "TensorProperties",
                       tuple_of(name("torch", "float32"), strided(), b"\x89", encoding, b"\x89"))
    described = built(SHARDED + ".sharded_tensor.metadata", "ShardedTensorMetadata",
                      dict_of(shards_metadata=shards, size=size_of([shape]), tensor_properties=properties))
    group = built(SHARDED + ".api", "ProcessGroupState", dict_of(
        local_rank=number(0), local_world_size=number(1), global_rank=number(0), global_world_size=number(1)))
    state = tuple_of(b"]", described, group, spec, b"\x89")
    return (name("torch._tensor", "_rebuild_from_type_v2") +
            tuple_of(name("torch._utils", "_rebuild_wrapper_subclass"), kind, arguments, state) + b"R")


def chunk_spec(placements: bytes) -> bytes:
    return built(SHARDED + ".sharding_spec.chunk_sharding_spec", "ChunkShardingSpec", dict_of(dim=number(0), placements=placements))


def enumerable() -> bytes:
    return built(SHARDED + ".sharding_spec.api", "EnumerableShardingSpec", dict_of(shards=b"]"))


def ranks():
    device = kept(remote_device(0), 8_000_000)
    shards = listed(shard_metadata(i, 1, device if i == 0 else again(8_000_000)) for i in range(8000))
    yield everywhere("ranks: 8,000 names of 8,000 shards", lambda folder: files_of({"rank_0.pt": torch_file(
        under_names(sharded_tensor(8000, shards, enumerable()), 8000))})(folder), 4)
    worker = kept(remote_device(0, "w" * 1_000_000), 8_000_000)
    named = listed(shard_metadata(i, 1, worker if i == 0 else again(8_000_000)) for i in range(2000))
    yield everywhere("ranks: 2,000 shards at a worker with a name of 1 MB", lambda folder: files_of({"rank_0.pt": torch_file(
        b"}" + text("w") + sharded_tensor(2000, named, enumerable()) + b"s")})(folder), 4)
    placements = kept(listed(remote_device(i) for i in range(20_000)), 8_000_000)
    tensors = (sharded_tensor(1 + i, listed([shard_metadata(0, 1 + i, again(7_000_000))]),
                              kept(chunk_spec(placements), 8_000_001) if i == 0 else again(8_000_001)) for i in range(500))
    yield everywhere("ranks: 500 shapes over 20,000 placements", lambda folder: files_of({"rank_0.pt": torch_file(
        b"](" + kept(remote_device(0), 7_000_000) + items((f"t{i}", each) for i, each in enumerate(tensors)) + b"e")})(folder), 3, 4)


def of_ranks(files: list[bytes]) -> dict[str, bytes]:
    """Files of ranks that hold everything whole."""
    layout = {"schema": "shardctl.layout/1", "mesh": {"r": len(files)}, "rules": []}
    return {"layout.json": json.dumps(layout).encode(), **{f"rank_{rank}.pt": file for rank, file in enumerate(files)}}


def replicas():
    expanded = torch_zip(pickled(b"}" + text("w") + tensor([1 << 31], [0], count=1 << 18) + b"s"), {"data/0": bytes(1 << 20)})

    def linked(folder: Path) -> Path:
        root = files_of(of_ranks([expanded] * 64))(folder)
        for rank in range(1, 64):
            (root / f"rank_{rank}.pt").unlink()
            (root / f"rank_{rank}.pt").hardlink_to(root / "rank_0.pt")
        return root
    yield everywhere("ranks: 8 GiB in 64 links of one file", linked, 4)
    yield everywhere("ranks: honestly 8 GiB in 64 files", files_of(of_ranks([expanded] * 64)), 0)

    def views(names: int, elements: int):
        pickle = pickled(items((f"t{i}", tensor([elements], [1], i, 1 << 18)) for i in range(names)))
        return files_of(of_ranks([torch_zip(pickle, {"data/0": bytes(1 << 20)})] * 2))
    yield everywhere("ranks: 4,000 views of a storage of 1 MiB", lambda folder: views(4000, (1 << 18) - 4000)(folder), 4)
    yield everywhere("ranks: honestly 4,000 views of a storage of 1 MiB", lambda folder: views(4000, 60)(folder), 0)


# torch files

def torch_files():
    empties = pickled(b"](" + b"}" * 18_000_000 + b"e")
    yield everywhere("torch: 18,000,000 dicts in 20 KB of deflate", lazily(lambda: torch_zip(empties, method=zipfile.ZIP_DEFLATED)), 4)
    many = b"](" + kept(tensor([1], [1], count=1), 1) + again(1) * 400_000 + b"e"
    level = kept(b"](" + kept(tensor([1], [1], count=1), 1) + again(1) * 632 + b"e", 2)
    yield everywhere("torch: 400,000 names of a tensor in 4 KB", lazily(lambda: torch_file(
        b"](" + level + again(2) * 632 + b"e", bytes(4))), 4)
    yield everywhere("torch: honestly 400,000 names of a tensor", lazily(lambda: torch_file(many, bytes(4))), 0, verbs=("inspect",))
    values = b"".join(b"M" + struct.pack("<H", i % 60_000) for i in range(1_000_000))
    deep = b"](" + values + b"e"
    for depth in range(6):
        deep = b"}" + text(f"level{depth}") + deep + b"s"
    yield everywhere("torch: an honest list of 1,000,000 integers, six dicts deep", lazily(lambda: torch_file(deep)), 0, verbs=("inspect",))


def holes():
    def hole_in(content: bytes, file: str):
        def make(folder: Path) -> Path:
            root = folder / "ckpt"
            root.mkdir()
            sparse(root / file, 3 << 30, content)
            return root / file if file.endswith((".pt", ".json")) else root
        return make
    long_bytes = b"\x80\x04\x8e" + struct.pack("<Q", (3 << 30) - 1000)
    magic, protocol = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", b"\x80\x02M\xe9\x03."
    yield everywhere("hole: a text of 3 GiB in a legacy file", hole_in(magic + protocol + b"\x80\x02}." + long_bytes, "x.pt"), 4)
    yield everywhere("hole: a text of 3 GiB in .metadata", hole_in(long_bytes, ".metadata"), 4)
    yield everywhere("hole: an index of 3 GiB", hole_in(b'{"weight_map": {"a": "x.safetensors"', "model.safetensors.index.json"), 4)

    def stored_pickle(folder: Path) -> Path:
        """data.pkl of 1 GiB, all but its begin in a hole."""
        return write_stored(folder / "x.pt", long_bytes, 1 << 30)
    yield everywhere("hole: a stored data.pkl of 1 GiB", stored_pickle, 4)


def write_stored(path: Path, begin: bytes, size: int) -> Path:
    """A zip with one stored record archive/data.pkl of `size` bytes that begins with `begin`; the rest is a hole."""
    record = b"archive/data.pkl"
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, size, size, len(record), 0) + record
    central = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, size, size, len(record), 0, 0, 0, 0, 0, 0) + record
    directory = len(local) + size
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(central), directory, 0)
    sparse(path, directory + len(central) + len(end), local + begin, central + end)
    return path


def cases():
    for group in folders, ranks, replicas, torch_files, holes:
        yield from group()
