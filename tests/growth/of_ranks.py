"""Files that each rank saved for itself with torch.save."""
import json

from build import built, dict_of, name, number, pickled, size_of, storage, tensor, text, torch_file, torch_zip, tuple_of
from family import Family, to_folder
from of_dcp import get, listed, put

PACKAGE = "torch.distributed._shard."
METADATA = PACKAGE + "sharded_tensor.metadata"


def rank_files(*pickles: bytes) -> dict[str, bytes]:
    """One file per rank, with one storage of 16 bytes."""
    return {f"rank_{rank}.pt": torch_file(pickle, bytes(16)) for rank, pickle in enumerate(pickles)}


def numbers(values) -> bytes:
    return listed(map(number, values))


def device() -> bytes:
    return name("torch", "device") + tuple_of(text("cpu")) + b"R"


def layout() -> bytes:
    return name("torch.serialization", "_get_layout") + tuple_of(text("torch.strided")) + b"R"


def slots(module: str, attribute: str, **values: bytes) -> bytes:
    """An object of a class with __slots__."""
    return built(module, attribute, tuple_of(b"N", dict_of(**values)))


def wrapped(module: str, attribute: str, shape, state: bytes) -> bytes:
    """A tensor of a class that wraps others."""
    cls = name(module, attribute)
    whole = tuple_of(cls, name("torch", "float32"), tuple_of(*map(number, shape)),
                     tuple_of(*map(number, [1] * len(shape))), b"K\x00", layout(), device(), b"\x89")
    return name("torch._tensor", "_rebuild_from_type_v2") + tuple_of(
        name("torch._utils", "_rebuild_wrapper_subclass"), cls, whole, state) + b"R"


def remote(rank: int, worker: bytes = b"N") -> bytes:
    known = dict_of(_worker_name=worker, _rank=number(rank) if rank >= 0 else b"N", _device=device())
    return built("torch.distributed.remote_device", "_remote_device", known)


def box(offsets, sizes, placement: bytes) -> bytes:
    return slots(PACKAGE + "metadata", "ShardMetadata", shard_offsets=numbers(offsets), shard_sizes=numbers(sizes),
                 placement=placement)


def sharded(shape, boxes: bytes, local: bytes = b"]", spec: bytes | None = None, world: int = 1) -> bytes:
    """A ShardedTensor as rank 0 has it."""
    properties = built(METADATA, "TensorProperties", tuple_of(
        name("torch", "float32"), layout(), b"\x89", name(METADATA, "MEM_FORMAT_ENCODING") + tuple_of(number(0)) + b"R", b"\x89"))
    known = built(METADATA, "ShardedTensorMetadata", dict_of(
        shards_metadata=boxes + put(90), size=size_of(shape), tensor_properties=properties))
    cls = name(PACKAGE + "sharded_tensor.api", "ShardedTensor")
    nested = name("__builtin__", "getattr") + tuple_of(cls, text("ProcessGroupState")) + b"R"
    group = nested + b")\x81" + dict_of(local_rank=b"K\x00", global_rank=b"K\x00", local_world_size=number(world),
                                       global_world_size=number(world)) + b"b"
    if spec is None:
        spec = built(PACKAGE + "sharding_spec.api", "EnumerableShardingSpec", dict_of(shards=get(90)))
    return wrapped(PACKAGE + "sharded_tensor.api", "ShardedTensor", shape, tuple_of(local, known, group, spec, b"\x89"))


def shared(count: int, value: bytes) -> bytes:
    """`count` names of one node."""
    return b"}(" + text("0") + value + put(91) + b"".join(text(str(i)) + get(91) for i in range(1, count)) + b"u"


def names_of_boxes(n: int) -> dict[str, bytes]:
    boxes = listed(box([i], [1], remote(0)) for i in range(n))
    return rank_files(shared(n, sharded([n], boxes)))


def boxes_of_a_worker(n: int) -> dict[str, bytes]:
    """n boxes on one worker, whose name has 100 n letters."""
    first = box([0], [1], remote(-1, text("w" * 100 * n)) + put(92))
    return rank_files(b"}(" + text("w") + sharded([n], listed([first, *(box([i], [1], get(92)) for i in range(1, n))])) + b"u")


def specs(n: int) -> dict[str, bytes]:
    """n / 16 tensors of one spec of n placements, each in one shard of rank 0."""
    package = PACKAGE + "sharding_spec.chunk_sharding_spec"
    spec = built(package, "ChunkShardingSpec", dict_of(dim=b"K\x00", placements=listed(remote(i) for i in range(n)))) + put(93)
    tensors = []
    for i in range(n >> 4):
        here = box([0], [1 + i], remote(0)) + put(94)
        local = slots(PACKAGE + "sharded_tensor.shard", "Shard", tensor=tensor([1 + i], [0]), metadata=here)
        tensors.append(text(str(i)) + sharded([1 + i], listed([get(94)]), listed([local]), spec if i == 0 else get(93)))
    return rank_files(b"}(" + b"".join(tensors) + b"u")


def mesh(ranks: int, rank: int) -> bytes:
    """A mesh of one axis, as one rank has it; its ranks are storage 1."""
    axes = built("torch.distributed._mesh_layout", "_MeshLayout", dict_of(
        shape=tuple_of(number(ranks)), stride=tuple_of(number(1))))
    held = tensor([ranks], [1], stored=storage(ranks, "1", "IntStorage"))
    return built("torch.distributed.device_mesh", "DeviceMesh", dict_of(
        _device_type=text("cpu"), _layout=axes, _rank_map=held, _mesh_dim_names=tuple_of(text("dp")), _rank=number(rank),
        _coordinate_on_dim=tuple_of(number(rank))))


def dtensor(shape, local: bytes, on: bytes, placement: bytes) -> bytes:
    package = "torch.distributed.tensor._dtensor_spec"
    meta = name(package, "TensorMeta") + tuple_of(size_of(shape), tuple_of(number(1)), name("torch", "float32")) + b"\x81"
    spec = built(package, "DTensorSpec", dict_of(mesh=on, placements=tuple_of(placement), tensor_meta=meta))
    return wrapped("torch.distributed.tensor", "DTensor", shape, tuple_of(b"N", dict_of(_local_tensor=local, _spec=spec)))


def placed(kind: str, **state: bytes) -> bytes:
    return built("torch.distributed.tensor.placement_types", kind, dict_of(**state))


def of_mesh(pickle: bytes, ranks: list[int]) -> bytes:
    """A rank's file; storage 0 has 16 bytes, storage 1 the ranks of the mesh."""
    return torch_zip(pickled(pickle), {"data/0": bytes(16), "data/1": b"".join(each.to_bytes(4, "little") for each in ranks)})


def keyed(values) -> bytes:
    return b"}(" + b"".join(text(f"layers.{i}.weight") + value for i, value in enumerate(values)) + b"u"


def halves(n: int) -> dict[str, bytes]:
    """n DTensors cut over two ranks."""
    def pickle(rank: int) -> bytes:
        on = [mesh(2, rank) + put(95)] + [get(95)] * (n - 1)
        return keyed(dtensor([2], tensor([1], [1]), each, placed("Shard", dim=b"K\x00")) for each in on)
    return {f"rank_{rank}.pt": of_mesh(pickle(rank), [0, 1]) for rank in (0, 1)}


def ranks(n: int) -> dict[str, bytes]:
    """Two DTensors cut over n ranks."""
    def pickle(rank: int) -> bytes:
        on = [mesh(n, rank) + put(95), get(95)]
        return keyed(dtensor([n], tensor([1], [1]), each, placed("Shard", dim=b"K\x00")) for each in on)
    return {f"rank_{rank}.pt": of_mesh(pickle(rank), list(range(n))) for rank in range(n)}


def replicated(n: int) -> dict[str, bytes]:
    """n names of DTensors on one mesh of 32 n ranks out of order."""
    on = [mesh(32 * n, 0) + put(95)] + [get(95)] * (n - 1)
    pickle = keyed(dtensor([1], tensor([1], [1]), each, placed("Replicate")) for each in on)
    return {"rank_0.pt": of_mesh(pickle, [0, 2, 1, *range(3, 32 * n)])}


def strided(n: int) -> dict[str, bytes]:
    """n names of one DTensor that is cut with a split factor of 32 n over two ranks."""
    factor = 32 * n
    cut = placed("_StridedShard", dim=b"K\x00", split_factor=number(factor))
    return {f"rank_{rank}.pt": of_mesh(shared(n, dtensor([2 * factor], tensor([factor], [0]), mesh(2, rank), cut)), [0, 1])
            for rank in (0, 1)}


def plain(n: int) -> dict[str, bytes]:
    return rank_files(*[keyed([tensor([1], [1])] * n)] * 2)


def layout_rules(n: int) -> dict[str, bytes]:
    """n names, and a document of n rules, none of which matches."""
    document = {"schema": "shardctl.layout/1", "mesh": {"a": 2},
                "rules": [{"match": f".*absent{i}.*", "shard": [{"axis": "a", "dim": 0}]} for i in range(n)]}
    return {**plain(n), "layout.json": json.dumps(document).encode()}


FAMILIES = [
    Family("torch-ranks", "names", 128, to_folder(halves)),
    Family("torch-ranks", "ranks", 64, to_folder(ranks)),
    Family("torch-ranks", "names of one list of as many boxes", 128, to_folder(names_of_boxes)),
    Family("torch-ranks", "boxes of one worker and its name", 128, to_folder(boxes_of_a_worker)),
    Family("torch-ranks", "tensors of one spec and its placements", 500, to_folder(specs)),
    Family("torch-ranks", "tensors of one mesh and its ranks", 128, to_folder(replicated)),
    Family("torch-ranks", "names of a strided shard and its pieces", 64, to_folder(strided)),
    Family("torch-ranks", "names and rules of a layout", 250, to_folder(layout_rules)),
]
