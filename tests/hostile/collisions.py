"""Keys that collide in hash tables which anyone can foresee, and products of two lists that a file makes long.

The names collide under std::hash of libstdc++ (MurmurHash64A with a fixed seed), the numbers under the multiplicative hashes
that tables of this project once had. Each case has its honest twin: the same sizes without the trick.
"""
import itertools
import json
import random
from collections.abc import Iterable

from build import (FILESYSTEM, METADATA, built, dict_of, entry, name, number, pickled, safetensors, storage, text,
                   torch_file, tuple_of)
from case import Case, by_verb, file_of, files_of, lazily

WORD = (1 << 64) - 1
MURMUR, GOLDEN = 0xC6A4A7935BD1E995, 0x9E3779B97F4A7C15
SEED = 0xC70F6907  # libstdc++'s std::_Hash_bytes.
PRINTABLE = frozenset(range(0x21, 0x7F)) - frozenset(b"\"\\/'")


def mix(word: int) -> int:
    word = word * MURMUR & WORD
    return (word ^ word >> 47) * MURMUR & WORD


def unmix(mixed: int) -> int:
    inverse = pow(MURMUR, -1, 1 << 64)
    word = mixed * inverse & WORD
    return (word ^ word >> 47) * inverse & WORD


def murmur(key: bytes) -> int:
    """std::hash of a key whose length is a multiple of 8."""
    state = SEED ^ len(key) * MURMUR & WORD
    for at in range(0, len(key), 8):
        state = (state ^ mix(int.from_bytes(key[at:at + 8], "little"))) * MURMUR & WORD
    state = (state ^ state >> 47) * MURMUR & WORD
    return state ^ state >> 47


def colliding_names(most: int, segments: int = 3) -> list[str]:
    """Names of 16 bytes per segment. In each segment many pairs of words lead to one state, because the second word
    cancels the first; printable ones are kept. Any choice of pairs is then a name with the same hash."""
    source = random.Random(1)
    letters = sorted(PRINTABLE)
    state, choices = SEED ^ 16 * segments * MURMUR & WORD, []
    per_segment = next(n for n in itertools.count() if n**segments >= most)
    for _ in range(segments):
        pairs: list[str] = []
        target = None  # The required state before its last multiplication.
        while len(pairs) < per_segment:
            first = bytes(source.choices(letters, k=8))
            between = (state ^ mix(int.from_bytes(first, "little"))) * MURMUR & WORD
            if target is None:
                target = between ^ mix(int.from_bytes(bytes(source.choices(letters, k=8)), "little"))
            second = unmix(target ^ between).to_bytes(8, "little")
            if PRINTABLE.issuperset(second):
                pairs.append((first + second).decode())
        choices.append(pairs)
        state = target * MURMUR & WORD
    names = ["".join(parts) for parts in itertools.islice(itertools.product(*choices), most)]
    assert murmur(names[0].encode()) == murmur(names[-1].encode())
    return names


def honest_names(count: int) -> list[str]:
    return [f"model.layers.{i:07}.self_attn.query_key_value.w" for i in range(count)]


def multiplied(state: int, value: int, shift: int) -> int:
    state = (state ^ value) * GOLDEN & WORD
    return state ^ state >> shift


def colliding_pairs(count: int, state: int, shift: int) -> list[tuple[int, int]]:
    """Pairs of numbers below 2^63 that lead a multiplicative hash from `state` to one state."""
    source, pairs = random.Random(2), []
    while len(pairs) < count:
        first = source.getrandbits(62)
        second = multiplied(state, first, shift) ^ 0x5555555555555555
        if second >> 63 == 0:
            pairs.append((first, second))
    return pairs


def honest_pairs(count: int) -> list[tuple[int, int]]:
    source = random.Random(3)
    return [(source.getrandbits(62), source.getrandbits(62)) for _ in range(count)]


class Memo:
    """Values of a pickle that are written once, before the rest."""

    def __init__(self) -> None:
        self.begin = b""
        self.count = 0

    def put(self, value: bytes) -> bytes:
        self.begin += value + b"q" + bytes([self.count]) + b"0"
        self.count += 1
        return b"h" + bytes([self.count - 1])


def small(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else number(value)


class DcpPickle:
    """The parts of a .metadata in few bytes."""

    def __init__(self) -> None:
        memo = self.memo = Memo()
        layout = name("torch.serialization", "_get_layout") + tuple_of(text("torch.strided")) + b"R"
        encoding = name(METADATA, "_MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R"
        self.properties = memo.put(built(METADATA, "TensorProperties",
                                         tuple_of(name("torch", "uint8"), layout, b"\x89", encoding, b"\x89")))
        self.classes = {each: memo.put(name(module, each)) for module, each in [
            (METADATA, "TensorStorageMetadata"), (METADATA, "ChunkStorageMetadata"), (METADATA, "MetadataIndex"),
            (FILESYSTEM, "_StorageInfo"), ("torch", "Size")]}
        self.keys = {each: memo.put(text(each)) for each in [
            "properties", "size", "chunks", "offsets", "sizes", "fqn", "offset", "index", "relative_path", "length"]}
        self.file = memo.put(text("__0_0.distcp"))

    def size(self, numbers: Iterable[int]) -> bytes:
        return self.classes["Size"] + b"((" + b"".join(map(small, numbers)) + b"ttR"

    def built(self, class_name: str, **attributes: bytes) -> bytes:
        state = b"".join(self.keys[key] + value for key, value in attributes.items())
        return self.classes[class_name] + b")\x81}(" + state + b"ub"

    def chunk(self, offsets: Iterable[int], sizes: bytes) -> bytes:
        return self.built("ChunkStorageMetadata", offsets=self.size(offsets), sizes=sizes)

    def tensor(self, size: bytes, chunks: bytes) -> bytes:
        return self.built("TensorStorageMetadata", properties=self.properties, size=size, chunks=b"](" + chunks + b"e")

    def place(self, tensor: bytes, offsets: bytes, begin: int, length: int) -> bytes:
        return (self.built("MetadataIndex", fqn=tensor, offset=offsets, index=b"N") +
                self.built("_StorageInfo", relative_path=self.file, offset=number(begin), length=number(length)))

    def folder(self, tensors: bytes, places: bytes):
        metadata = dict_of(state_dict_metadata=b"}(" + tensors + b"u", planner_data=b"N",
                           storage_data=b"}(" + places + b"u")
        pickle = pickled(self.memo.begin + built(METADATA, "Metadata", metadata))
        return files_of({".metadata": pickle, "__0_0.distcp": bytes(1 << 20)})


def dcp_of_names(names: list[str]):
    def make(folder):
        dcp = DcpPickle()
        zero = dcp.memo.put(dcp.size([0]))
        tensor = dcp.memo.put(dcp.tensor(zero, dcp.chunk([0], zero)))
        texts = [text(each) for each in names]
        places = b"".join(dcp.place(each, zero, i, 1) for i, each in enumerate(texts))
        return dcp.folder(b"".join(each + tensor for each in texts), places)(folder)
    return make


def dcp_of_corners(corners: list[tuple[int, int]]):
    """Chunks without elements may begin anywhere."""
    def make(folder):
        dcp = DcpPickle()
        nothing, w = dcp.memo.put(dcp.size([0, 0])), dcp.memo.put(text("w"))
        offsets = [dcp.size(each) for each in corners]
        chunks = b"".join(dcp.built("ChunkStorageMetadata", offsets=each, sizes=nothing) for each in offsets)
        places = b"".join(dcp.place(w, each, i, 1) for i, each in enumerate(offsets))
        return dcp.folder(w + dcp.tensor(nothing, chunks), places)(folder)
    return make


def dcp_of_boxes(shape: list[int], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]):
    def make(folder):
        dcp = DcpPickle()
        w = dcp.memo.put(text("w"))
        chunks = b"".join(dcp.chunk(at, dcp.size(size)) for at, size in boxes)
        places = b"".join(dcp.place(w, dcp.size(at), i * 8, 8) for i, (at, _) in enumerate(boxes))
        return dcp.folder(w + dcp.tensor(dcp.size(shape), chunks), places)(folder)
    return make


def dcp_of_attributes(attributes: int, replicas: int):
    """One chunk with more attributes than it needs, listed many times."""
    def make(folder):
        dcp = DcpPickle()
        four, w = dcp.memo.put(dcp.size([4])), dcp.memo.put(text("w"))
        junk = b"".join(text(f"j{i}") + b"N" for i in range(attributes))
        state = dcp.keys["offsets"] + dcp.size([0]) + dcp.keys["sizes"] + four + junk
        chunk = dcp.memo.put(dcp.classes["ChunkStorageMetadata"] + b")\x81}(" + state + b"ub")
        return dcp.folder(w + dcp.tensor(four, chunk * replicas), dcp.place(w, dcp.size([0]), 0, 100))(folder)
    return make


def dcp_hf_of_names(names: list[str]):
    info = json.dumps({each: {"saved_offsets": [0]} for each in names})
    header = {"__metadata__": {"DCP_SHARDING_INFO": info, "DCP_VERSION": "1.0", "format": "pt"},
              **{each: entry([0], 0, 0) for each in names}}
    return files_of({"shard-00001-model-00001-of-00001.safetensors": safetensors(header)})


def safetensors_of_names(names: list[str]):
    return file_of(safetensors({each: entry([0], 0, 0) for each in names}), "x.safetensors")


def index_of_files(names: list[str]):
    index = {"weight_map": {f"w{i}": each for i, each in enumerate(names)}}
    return files_of({"model.safetensors.index.json": json.dumps(index).encode()})


def torch_of_tensors(tensors: Iterable[tuple[str, tuple[int, ...], tuple[int, ...]]]) -> bytes:
    """A torch file of views of one storage: names, shapes, strides."""
    memo = Memo()
    rebuild, stored = memo.put(name("torch._utils", "_rebuild_tensor_v2")), memo.put(storage(4))
    hooks = memo.put(name("collections", "OrderedDict") + b")R")
    def rebuilt(shape, strides):
        sizes, steps = (b"(" + b"".join(map(small, numbers)) + b"t" for numbers in (shape, strides))
        return rebuild + b"(" + stored + b"K\x00" + sizes + steps + b"\x89" + hooks + b"tR"
    items = b"".join(text(title) + rebuilt(shape, strides) for title, shape, strides in tensors)
    return torch_file(memo.begin + b"}(" + items + b"u")


def torch_of_strides(pairs: list[tuple[int, int]]):
    """Strides of dimensions of size 1 may be any numbers."""
    return lazily(lambda: torch_of_tensors((f"{i:x}", (1, 1), pair) for i, pair in enumerate(pairs)))


def view_state() -> int:
    """The old hash of views, before the strides: storage 0, first element 0, float32, shape [1, 1]."""
    state = 0
    for value in 0, 11, 1, 1:
        state = multiplied(state, value, 32)
    return state


def ranks_of_rules(tensors: int, rules: list[str]):
    """Plain slices of two ranks, and the document with their sharding."""
    names = [f"layers.{i}.weight" for i in range(tensors)]
    file = torch_of_tensors((each, (2,), (1,)) for each in names)
    layout = {"schema": "shardctl.layout/1", "mesh": {"tp": 2},
              "rules": [{"match": each, "shard": [{"axis": "tp", "dim": 0}]} for each in rules]}
    return files_of({"rank-00000-of-00002.pt": file, "rank-00001-of-00002.pt": file,
                     "layout.json": json.dumps(layout).encode()})


def refused(title: str, make, code: int, says: str) -> Case:
    return Case(title, make, {"inspect": {code}}, says=says)


def names_that_collide():
    for title, names in ("that collide", colliding_names(64_000)), ("that do not collide", honest_names(64_000)):
        yield by_verb(f"64,000 dcp names {title}", dcp_of_names(names), inspect=0)
        yield by_verb(f"64,000 dcp-hf names {title}", dcp_hf_of_names(names), inspect=0)
        yield by_verb(f"64,000 safetensors names {title}", safetensors_of_names(names), inspect=0, to_torch=0, to_dcp=0)
        yield refused(f"64,000 files of an index with names {title}", index_of_files(names), 3, "the index names")


def numbers_that_collide():
    for title, pairs in ("that collide", colliding_pairs(60_000, 0, 29)), ("that do not collide", honest_pairs(60_000)):
        yield by_verb(f"60,000 dcp chunks with offsets {title}", dcp_of_corners(pairs), inspect=0)
    for title, pairs in (("that collide", colliding_pairs(60_000, view_state(), 32)),
                         ("that do not collide", honest_pairs(60_000))):
        yield by_verb(f"60,000 tensors with strides {title}", torch_of_strides(pairs), inspect=0)


def products():
    yield refused("40,000 replicas of a dcp chunk with 100,000 attributes", dcp_of_attributes(100_000, 40_000), 4,
                  "it has 100002 attributes")
    yield by_verb("40,000 replicas of a dcp chunk with 200 attributes", dcp_of_attributes(200, 40_000), inspect=0)
    corners = list(itertools.product((0, 1), repeat=12))
    yield refused("4096 dcp chunks that overlap along 12 dimensions",
                  dcp_of_boxes([9] * 12, [(at, (2,) * 12) for at in corners]), 8, "no straight cut separates 4096 of them")
    yield refused("4096 dcp chunks that overlap along 6 of 12 dimensions",
                  dcp_of_boxes([3] * 6 + [2] * 6, [(at, (2,) * 6 + (1,) * 6) for at in corners]), 4, "overlap at element")
    yield by_verb("4096 dcp chunks in a grid of 12 dimensions",
                  dcp_of_boxes([2] * 12, [(at, (1,) * 12) for at in corners]), inspect=0)
    yield by_verb("8000 patterns of a layout for 8000 names",
                  ranks_of_rules(8000, [rf"x{i}\.[0-9]+\.bias" for i in range(7999)] + [r"layers\..*"]), inspect=0)
    yield by_verb("500 patterns of a layout for 20,000 names",
                  ranks_of_rules(20_000, [rf"x{i}\.[0-9]+\.bias" for i in range(499)] + [r"layers\..*"]), inspect=0)
    yield by_verb("20,000 names in the rules of a layout for 20,000 names",
                  ranks_of_rules(20_000, [rf"layers\.{i}\.weight" for i in range(20_000)]), inspect=0)


def cases():
    yield from names_that_collide()
    yield from numbers_that_collide()
    yield from products()
