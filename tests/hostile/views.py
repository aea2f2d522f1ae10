"""Views that name more bytes than the files contain, or name them in an order that is costly to read. Each with its
counterpart: the same sizes without the trick."""
import struct
import zipfile

from build import dcp_metadata, name, number, pickled, storage, tensor, text, torch_zip, tuple_of
from case import ALL, READ, Case, files_of, lazily
from containers import swollen

HASHED = (*READ, "digest")


def free(title: str, make, code: int, verbs=ALL, says: str = "") -> Case:
    return Case(title, make, {verb: {code} for verb in verbs}, says=says)


def dcp_item(metadata: bytes, items: list[bytes]):
    return files_of({".metadata": metadata, "__0_0.distcp": b"".join(items)})


def expanded_item(elements: int, stored: int):
    """A dcp checkpoint of one tensor; its item has `stored` floats, which are repeated when they are fewer."""
    strides = [1] if stored == elements else [0]
    item = torch_zip(pickled(tensor([elements], strides, count=stored)), {"data/0": bytes(4 * stored)})
    return dcp_item(dcp_metadata([elements], [([0], [elements])], [([0], 0, "__0_0.distcp", 0, len(item))]), [item])


def deflated(size: int, views: list[bytes]):
    """A torch file of views over one deflated storage of zeros."""
    return lazily(lambda: torch_zip(pickled(b"](" + b"".join(views) + b"e"), {"data/0": bytes(size)}, zipfile.ZIP_DEFLATED))


def bytes_view(shape, strides, size: int) -> bytes:
    return tensor(shape, strides, stored=storage(size, kind="ByteStorage"))


def proportion():
    claim = "tensors claim"
    yield free("dcp: 2^50 floats out of one", expanded_item(1 << 50, 1), 4, says=claim)
    yield free("dcp: 2^29 floats out of one", expanded_item(1 << 29, 1), 4, says=claim)
    yield free("dcp: 2^28 floats out of one, the most that any file may name", expanded_item(1 << 28, 1), 0, verbs=HASHED)
    yield free("dcp: 2^20 floats out of one", expanded_item(1 << 20, 1), 0)
    yield free("dcp: 2^20 floats out of as many", expanded_item(1 << 20, 1 << 20), 0)
    size = 1 << 26
    one = bytes_view([size], [1], size)
    yield free("255 views of one deflated storage", deflated(size, [bytes_view([size - i], [1], size) for i in range(255)]), 4, says=claim)
    yield free("a view of a deflated storage", deflated(size, [one]), 0)
    yield free("100,000 tensors of one numpy array", numpy_tensors(100_000, 250_000, "float32"), 4, says=claim)
    yield free("10 tensors of one numpy array", numpy_tensors(10, 250_000, "float32"), 0)


def numpy_tensors(count: int, elements: int, dtype: str):
    """Tensors of a device without storages, over one float32 array in the pickle."""
    content = bytes(4 * elements)
    kind = name("numpy", "dtype") + tuple_of(text("f4"), b"\x89", b"\x88") + b"R"
    kind += tuple_of(b"K\x03", text("<"), b"N", b"N", b"N", number(-1), number(-1), b"K\x00") + b"b"
    array = name("numpy.core.multiarray", "_reconstruct") + tuple_of(
        name("numpy", "ndarray"), tuple_of(b"K\x00"), b"C\x01b") + b"R"
    array += tuple_of(b"K\x01", tuple_of(number(elements)), kind, b"\x89", b"B" + struct.pack("<I", len(content)) + content) + b"b"
    rest = name("torch", dtype) + text("xla:0") + b"\x89t"
    rebuild = name("torch._utils", "_rebuild_device_tensor_from_numpy")
    first = rebuild + b"q\x01(" + array + b"q\x02" + rest + b"R"
    return lazily(lambda: torch_zip(pickled(b"](" + first + (b"h\x01(h\x02" + rest + b"R") * (count - 1) + b"e", 3)))


def strides():
    size = 1 << 21
    yield free("every second byte, 64 times", deflated(size, [bytes_view([64, size // 2], [0, 2], size)]), 0)
    yield free("every second byte, 1,024 times", deflated(size, [bytes_view([1024, size // 2], [0, 2], size)]), 0, verbs=HASHED)
    yield free("every byte, 512 times", deflated(size, [bytes_view([512, size], [0, 1], size)]), 0, verbs=HASHED)
    size = 1 << 25
    yield free("every second one of 2^25 bytes", deflated(size, [bytes_view([size // 2], [2], size)]), 0)
    yield free("every 5,000th one of 2^25 bytes", deflated(size, [bytes_view([size // 5000], [5000], size)]), 0)
    yield free("2^25 bytes", deflated(size, [bytes_view([size], [1], size)]), 0)
    for side in 8192, 16384:
        size, verbs = side * side, ALL if side == 8192 else ("digest",)
        yield free(f"{side} x {side} deflated bytes, transposed", deflated(size, [bytes_view([side, side], [1, side], size)]), 0, verbs)
        yield free(f"{side} x {side} deflated bytes", deflated(size, [bytes_view([side, side], [side, 1], size)]), 0, verbs)
    yield Case("16384 x 16384 deflated bytes, transposed, within 8 MiB", deflated(size, [bytes_view([side, side], [1, side], size)]),
               {"digest": {0}}, ["--max-memory", "8MiB"])


def windows():
    """Zstd frames that require windows of 128 MiB."""
    count, size = 8, 120 << 20
    item = swollen(pickled(tensor([size // 4], [1], count=size // 4)), size)
    small, wide = b"\x28\xb5\x2f\xfd\x00\x38", b"\x28\xb5\x2f\xfd\x00\x88"
    for title, header, address_space, code in (("128 KiB", small, Case.address_space, 0), ("128 MiB", wide, Case.address_space, 0), ("128 MiB, without memory for one", wide, 120 << 20, 6)):
        items = [header + item.removeprefix(small)] * count
        metadata = dcp_metadata([count * size // 4], [([i * size // 4], [size // 4]) for i in range(count)],
                                [([i * size // 4], i, "__0_0.distcp", i * len(item), len(item)) for i in range(count)], zstd=True)
        yield Case(f"dcp: 8 zstd chunks with windows of {title}", dcp_item(metadata, items), {"digest": {code}}, [],
                   "out of memory", address_space)


def shared_arrays():
    yield free("2,000 bfloat16 tensors of one numpy array", numpy_tensors(2000, 125_000, "bfloat16"), 0, verbs=HASHED)
    yield free("2,000 float32 tensors of one numpy array", numpy_tensors(2000, 125_000, "float32"), 0, verbs=HASHED)


def cases():
    for group in proportion, strides, windows, shared_arrays:
        yield from group()
