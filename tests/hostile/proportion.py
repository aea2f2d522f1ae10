"""Small files that describe much: one node under many names, streams of zeros, holes. And as large ones that are honest."""
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from build import dcp_objects, number, pickled, sparse, tensor, text, torch_file, torch_zip, tuple_of
from case import READ, Case, by_verb, everywhere, files_of, lazily

sys.path.append(str(Path(__file__).resolve().parent.parent / "growth"))
import of_dcp  # noqa: E402
import of_ranks  # noqa: E402
from of_dcp import get, listed, put  # noqa: E402


def disproportionate(title: str, contents: Callable[[], dict[str, bytes]], says: str = "far too many") -> Case:
    return Case(title, lambda folder: files_of(contents())(folder), dict.fromkeys(READ, {4}), says=says)


def honest(title: str, contents: Callable[[], dict[str, bytes]]) -> Case:
    return everywhere(title, lambda folder: files_of(contents())(folder), 0)


# .metadata of dcp

def paths(count: int, path: Callable[[int], bytes]) -> dict[str, bytes]:
    """Names of tensors of one element, and the path of each."""
    fqns, item = [f"t{i}" for i in range(count)], of_dcp.item_of(1)
    tensor = of_dcp.stored_tensor([1], listed([of_dcp.chunk([0], [1])]))
    planner = b"}(" + b"".join(text(fqn) + path(i) for i, fqn in enumerate(fqns)) + b"u"
    places = [(fqn, [0], i * len(item), len(item)) for i, fqn in enumerate(fqns)]
    return of_dcp.folder(dict.fromkeys(fqns, tensor), places, planner, item * count)


def shared_path(path: bytes) -> Callable[[int], bytes]:
    return lambda i: path + put(7) if i == 0 else get(7)


def folders():
    yield disproportionate("dcp: 10,000 names of 10,000 chunks", lambda: of_dcp.names_of_chunks(10_000))
    yield honest("dcp: honestly 10,000 names of a chunk", lambda: of_dcp.names(10_000))
    yield honest("dcp: honestly 10,000 chunks of a name", lambda: of_dcp.chunks(10_000))
    yield disproportionate("dcp: 50,000 names of a chunk with 50,000 attributes", lambda: of_dcp.names_of_junk(50_000),
                           "it has 50002 attributes")
    yield disproportionate("dcp: 2,000 names of a path of 20,000 parts",
                           lambda: paths(2000, shared_path(tuple_of(*[b"K\x01"] * 20_000))))
    yield disproportionate("dcp: 2,000 names of a path of 1 MB",
                           lambda: paths(2000, shared_path(tuple_of(text("k" * 1_000_000)))))
    yield honest("dcp: honestly 2,000 names of a path of 20 parts", lambda: paths(
        2000, lambda i: tuple_of(*[b"K\x01"] * 19, number(i))))

    def deflated_items(folder: Path) -> Path:
        item = torch_zip(pickled(b"}" + text("x") + text("a" * 1_000_000) + b"s"), method=zipfile.ZIP_DEFLATED)
        return files_of({".metadata": dcp_objects(2000, "__0_0.distcp", len(item), False), "__0_0.distcp": item * 2000})(folder)
    yield by_verb("dcp: 2,000 objects of 1 MB in 2 KB each", deflated_items, inspect={0, 4}, json=4)
    yield honest("dcp: honestly 2,000 objects", lambda: of_dcp.objects(2000))
    yield from folders_of_ranks()


def folders_of_ranks():
    """Ranks with separate metadata, whose objects differ in a number: the rest is compared leaf by leaf."""
    def objects_of(value: Callable[[int], bytes], count: int) -> dict[str, bytes]:
        files = {}
        for rank in range(2):
            leaves = b"}(" + text("rank") + number(rank) + b"".join(text(f"k{i}") + value(i) for i in range(count)) + b"u"
            item = torch_zip(pickled(leaves, 4))
            files[f"__{rank}_0.distcp"] = item
            files[f"__{rank}.metadata"] = dcp_objects(1, f"__{rank}_0.distcp", len(item), False)
        return files

    def numbers(count: int) -> bytes:
        return b"(" + b"".join(b"M" + struct.pack("<H", i) for i in range(count)) + b"\x91"
    yield honest("dcp ranks: 1,000 names of a set of 60,000 numbers", lambda: objects_of(
        lambda i: numbers(60_000) + put(7) if i == 0 else get(7), 1000))
    yield honest("dcp ranks: 1,000 sets of 60 numbers", lambda: objects_of(lambda i: numbers(60), 1000))


# Files of ranks

def ranks():
    yield disproportionate("ranks: 8,000 names of 8,000 shards", lambda: of_ranks.names_of_boxes(8000))
    yield disproportionate("ranks: 4,000 shards at a worker with a name of 400 KB", lambda: of_ranks.boxes_of_a_worker(4000))
    yield disproportionate("ranks: 500 shapes over 8,000 placements", lambda: of_ranks.specs(8000))
    yield disproportionate("ranks: 2,000 names on a mesh of 64,000 ranks", lambda: of_ranks.replicated(2000))
    yield disproportionate("ranks: 2,000 names of a shard in 64,000 pieces", lambda: of_ranks.strided(2000))
    yield honest("ranks: honestly 2,000 names in two shards each", lambda: of_ranks.halves(2000))
    yield honest("ranks: honestly two names in 200 shards each", lambda: of_ranks.ranks(200))


def whole_on_ranks(files: list[bytes]) -> dict[str, bytes]:
    """Files of ranks that each have everything whole."""
    layout = {"schema": "shardctl.layout/1", "mesh": {"r": len(files)}, "rules": []}
    return {"layout.json": json.dumps(layout).encode(), **{f"rank_{rank}.pt": file for rank, file in enumerate(files)}}


def replicas():
    expanded = torch_zip(pickled(b"}" + text("w") + tensor([1 << 31], [0], count=1 << 18) + b"s"), {"data/0": bytes(1 << 20)})

    def linked(folder: Path) -> Path:
        root = files_of(whole_on_ranks([expanded] * 64))(folder)
        for rank in range(1, 64):
            (root / f"rank_{rank}.pt").unlink()
            (root / f"rank_{rank}.pt").hardlink_to(root / "rank_0.pt")
        return root
    yield everywhere("ranks: 8 GiB in 64 links of one file", linked, 4)
    yield everywhere("ranks: honestly 8 GiB in 64 files", files_of(whole_on_ranks([expanded] * 64)), 0)

    def views(names: int, elements: int):
        pickle = pickled(of_ranks.keyed(tensor([elements], [1], i, 1 << 18) for i in range(names)))
        return files_of(whole_on_ranks([torch_zip(pickle, {"data/0": bytes(1 << 20)})] * 2))
    yield everywhere("ranks: 4,000 views of a storage of 1 MiB", lambda folder: views(4000, (1 << 18) - 4000)(folder), 4)
    yield everywhere("ranks: honestly 4,000 views of a storage of 1 MiB", lambda folder: views(4000, 60)(folder), 0)


# torch files

def torch_files():
    empties = pickled(b"](" + b"}" * 18_000_000 + b"e")
    yield everywhere("torch: 18,000,000 dicts in 20 KB of deflate", lazily(lambda: torch_zip(empties, method=zipfile.ZIP_DEFLATED)), 4)
    one = tensor([1], [1], count=1) + put(1)
    many = listed([one, get(1) * 400_000])
    level = listed([one, get(1) * 632]) + put(2)
    yield everywhere("torch: 400,000 names of a tensor in 4 KB", lazily(lambda: torch_file(
        listed([level, get(2) * 632]), bytes(4))), 4)
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
