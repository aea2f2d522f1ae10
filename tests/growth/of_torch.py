"""torch.save files: pickles with many repetitions, and storages with little content."""
import random
import struct
import zipfile

from build import name, number, pickled, storage, tensor, text, torch_file, torch_zip, tuple_of
from family import Family, to_file


def listed(items: bytes) -> bytes:
    return b"](" + items + b"e"


def named(count: int, value: bytes) -> bytes:
    """A dict of `count` keys with one value each, which is memoized as 1: the pickle contains it once."""
    return b"}(" + text("0") + value + b"q\x01" + b"".join(text(str(i)) + b"h\x01" for i in range(1, count)) + b"u"


def own_tensors(count: int) -> bytes:
    return b"}(" + b"".join(text(f"layers.{i}") + tensor([1], [1], i, count) for i in range(count)) + b"u"


def own_storages(count: int) -> bytes:
    items = b"".join(text(str(i)) + tensor([1], [1], 0, stored=storage(1, str(i))) for i in range(count))
    return torch_zip(pickled(b"}(" + items + b"u"), {f"data/{i}": bytes(4) for i in range(count)})


def shared_texts(n: int) -> bytes:
    """One text under n/1024 references, in a list that appears 16 times."""
    inner = listed(text("t" * n) + b"q\x01" + b"h\x01" * (n >> 10))
    return torch_file(listed(inner + b"q\x02" + b"h\x02" * 15))


def one_view(shape, strides, count: int, method: int = zipfile.ZIP_STORED) -> bytes:
    """A view of a storage of `count` bytes, all zero."""
    view = tensor(shape, strides, stored=storage(count, kind="ByteStorage"))
    return torch_zip(pickled(b"}" + text("w") + view + b"s"), {"data/0": bytes(count)}, method)


def views(n: int, count: int) -> bytes:
    """n names of the whole of one deflated storage of `count` bytes, as tensors that begin one byte apart."""
    stored = storage(count, kind="ByteStorage")
    items = b"".join(text(str(i)) + tensor([count - n], [1], i, stored=stored) for i in range(n))
    return torch_zip(pickled(b"}(" + items + b"u"), {"data/0": bytes(count)}, zipfile.ZIP_DEFLATED)


def numpy_tensors(n: int) -> bytes:
    """n / 256 tensors over one numpy array of n bytes."""
    dtype = name("numpy", "dtype") + tuple_of(text("u1"), b"\x89", b"\x88") + b"R" + tuple_of(
        b"K\x03", text("|"), b"NNN", b"J\xff\xff\xff\xff", b"J\xff\xff\xff\xff", b"K\x00") + b"b"
    content = name("_codecs", "encode") + tuple_of(text("\0" * n), text("latin1")) + b"R"
    empty = name("numpy.core.multiarray", "_reconstruct") + tuple_of(name("numpy", "ndarray"), tuple_of(b"K\x00"), text("b")) + b"R"
    array = empty + tuple_of(b"K\x01", tuple_of(number(n)), dtype, b"\x89", content) + b"b"
    rebuild = name("torch._utils", "_rebuild_device_tensor_from_numpy")
    made = rebuild + tuple_of(b"h\x05", name("torch", "uint8"), text("cpu"), b"\x89") + b"R"
    return torch_file(listed(array + b"q\x05" + made * (n >> 8)))


def deflated_dicts(n: int) -> bytes:
    """n empty dicts in a pickle of 1:64, for a byte of noise keeps the ratio apart from the file's own size."""
    noise = random.Random(1).randbytes(n >> 6)
    return torch_zip(pickled(listed(b"}" * n + b"B" + struct.pack("<I", len(noise)) + noise), 3), method=zipfile.ZIP_DEFLATED)


def columns(n: int, method: int) -> bytes:
    return one_view([n >> 11, 1024], [2048, 2], n, method)


FAMILIES = [
    Family("torch", "tensors of one storage", 500, to_file("x.pt", lambda n: torch_file(own_tensors(n), bytes(4 * n)))),
    Family("torch", "storages", 250, to_file("x.pt", own_storages)),
    Family("torch", "names of one tensor", 8000, to_file("x.pt", lambda n: torch_file(named(n, tensor([4], [1]))))),
    Family("torch", "names of one long text", 2000, to_file("x.pt", lambda n: torch_file(named(n, text("t" * n))))),
    Family("torch", "empty dicts", 1 << 16, to_file("x.pt", lambda n: torch_file(listed(b"}" * n)))),
    Family("torch", "numbers", 1 << 15, to_file("x.pt", lambda n: torch_file(listed(b"K\x01" * n)))),
    Family("torch", "length of a text", 1 << 16, to_file("x.pt", lambda n: torch_file(listed(text("\x1b" * n))))),
    Family("torch", "length of a key above a tensor", 1 << 16, to_file("x.pt", lambda n: torch_file(
        b"}" + text("k" * n) + tensor([4], [1]) + b"s"))),
    Family("torch", "names below one long key", 1000, to_file("x.pt", lambda n: torch_file(
        b"}" + text("k" * 20 * n) + named(n, tensor([4], [1])) + b"s"))),
    Family("torch", "nesting of lists", 1 << 15, to_file("x.pt", lambda n: torch_file(b"]" * n + b"a" * (n - 1)))),
    Family("torch", "nesting of dicts above a tensor", 1 << 12, to_file("x.pt", lambda n: torch_file(
        (b"}" + text("a")) * n + tensor([4], [1]) + b"s" * n))),
    Family("torch", "references to one list of as many", 1 << 12, to_file("x.pt", lambda n: torch_file(listed(
        listed(b"K\x01" * n) + b"q\x01" + b"h\x01" * n)))),
    Family("torch", "references to one text", 1 << 15, to_file("x.pt", shared_texts)),
    Family("torch", "keys of one dict", 8000, to_file("x.pt", lambda n: torch_file(
        b"}(" + b"".join(number(i << 32) + b"N" for i in range(n)) + b"u"))),
    Family("torch", "every other column", 1 << 18, to_file("x.pt", lambda n: columns(n, zipfile.ZIP_STORED))),
    Family("torch", "every other column, deflated", 1 << 22, to_file("x.pt", lambda n: columns(n, zipfile.ZIP_DEFLATED))),
    Family("torch", "zeros, deflated", 1 << 22, to_file("x.pt", lambda n: one_view([n], [1], n, zipfile.ZIP_DEFLATED))),
    Family("torch", "columns of a transposed tensor", 1 << 18, to_file("x.pt", lambda n: one_view(
        [n >> 9, 512], [1, n >> 9], n))),
    Family("torch", "columns of a transposed tensor, deflated", 1 << 22, to_file("x.pt", lambda n: one_view(
        [n >> 11, 2048], [1, n >> 11], n, zipfile.ZIP_DEFLATED))),
    Family("torch", "rows of an expanded tensor", 1 << 17, to_file("x.pt", lambda n: one_view([n >> 11, n], [0, 1], n))),
    Family("torch", "views of one deflated storage", 32, to_file("x.pt", lambda n: views(n, n << 15)), most=1 << 13),
    Family("torch", "tensors of one numpy array", 1 << 16, to_file("x.pt", numpy_tensors)),
    Family("torch", "empty dicts in a deflated pickle", 1 << 17, to_file("x.pt", deflated_dicts)),
    Family("torch", "records that nobody names", 500, to_file("x.pt", lambda n: torch_zip(
        pickled(b"}"), {f"x/{i}": b"" for i in range(n)}))),
]
