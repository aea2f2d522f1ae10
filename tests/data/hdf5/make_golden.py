"""Writes the golden HDF5 files of this folder: make_golden.py PREFIX.

Run by Debian's python3 (h5py 3.7, HDF5 1.10) with the prefix h5py37, and by the project's (h5py 3.16, HDF5 2.0) with
h5py316. The .txt beside each contains the parser's reply (tests/hdf5/describe_file prints it).
"""
import pathlib
import sys

import h5py
import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent
A = np.arange(100, dtype="i4").reshape(10, 10)


def file(name: str, **options) -> h5py.File:
    return h5py.File(FOLDER / f"{sys.argv[1]}-{name}.h5", "w", **options)


def types() -> None:
    with file("types") as h:
        for code in "i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 >i4 >f8 >u2 c8 c16 ?".split():
            h.create_dataset("d_" + code.replace(">", "be").replace("?", "bool"), data=np.array([1, 0, 1]).astype(code))
        h["scalar"], h["null"], h["empty"] = np.float32(2.5), h5py.Empty("f4"), np.zeros((0, 3), "f4")
        h["enum"] = np.array([1, 2], dtype=h5py.enum_dtype({"A": 1, "B": 2}, basetype="u2"))
        h["reference"], h["opaque"] = h.ref, np.array([b"12", b"34"], dtype="V2")
        h["compound"] = np.zeros(2, dtype=[("x", "i4"), ("y", "f8", (2,))])
        h.create_dataset("variable", (2,), dtype=h5py.vlen_dtype("i4"))[0] = [1, 2]
        h["named"] = np.dtype("f4")
        bfloat16 = h5py.h5t.IEEE_F32LE.copy()
        bfloat16.set_fields(15, 7, 8, 0, 7)
        bfloat16.set_size(2)
        bfloat16.set_ebias(127)
        h5py.h5d.create(h.id, b"bfloat16", bfloat16, h5py.h5s.create_simple((3,)))


def texts() -> None:
    with file("texts") as h:
        h["variable"], h["fixed"], h["one"] = ["a", "bcd", ""], np.array([b"ab", b"c"], dtype="S4"), "h\u00e9llo"
        h.create_dataset("packed", data=np.array([b"x" * 20] * 50), chunks=(10,), compression="gzip", shuffle=True)
        h.create_dataset("never written", (2,), dtype=h5py.string_dtype())
        h.attrs.update({"s": "text", "a": np.arange(3), "vs": ["x", "yy"], "e": h5py.Empty("i4"), "b": True})
        h.attrs.update({"ref": h.ref, "c": np.complex64(1 + 2j), "f": np.bytes_(b"fixed"), "big": np.zeros(300, ">i2")})


def layouts(name: str, **options) -> None:
    with file(name, **options) as h:
        h["contiguous"] = A
        h.create_dataset("late", (4, 4), "f4")
        h.create_dataset("chunked", data=A, chunks=(4, 4))
        h.create_dataset("one", data=A, chunks=(10, 10))
        h.create_dataset("growing", data=A, chunks=(4, 4), maxshape=(None, 10))
        h.create_dataset("growing both ways", data=A, chunks=(4, 4), maxshape=(None, None))
        sparse = h.create_dataset("sparse", (1 << 40, 1 << 10), "f4", chunks=(16, 16), maxshape=(None, None), fillvalue=7)
        sparse[5, 5], sparse[1 << 39, 3] = 1, 2
        h.create_dataset("shrunk", data=A, chunks=(4, 4), maxshape=(None, 10)).resize((5, 10))
        h.create_dataset("fill", (4,), "f8", fillvalue=1.5)
        early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        early.set_chunk((4, 4))
        early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        h5py.h5d.create(h.id, b"early", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((10, 10)), early)
        h5py.h5d.create(h.id, b"early, may grow", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((10, 10), (20, 20)), early)
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        data = h5py.h5d.create(h.id, b"compact", h5py.h5t.STD_I16LE, h5py.h5s.create_simple((3,)), compact)
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, 2, 3], "i2"))
        many = h.create_group("many")
        for i in range(12):
            many.attrs[f"k{i:02}"] = i
            many[f"d{i}"] = i


def filters(name: str, **options) -> None:
    with file(name, **options) as h:
        h.create_dataset("all", data=A, chunks=(4, 4), compression="gzip", shuffle=True, fletcher32=True)
        h.create_dataset("one", data=A, chunks=(10, 10), compression="gzip")
        noise = np.random.default_rng(1).integers(0, 256, (2, 8), "u1")
        one = h.create_dataset("left out", (2, 8), "u1", chunks=(1, 8), compression="gzip", maxshape=(None, 8))
        one[1] = noise[1]
        one.id.write_direct_chunk((0, 0), noise[0].tobytes(), filter_mask=1)


def set_attributes(a: h5py.AttributeManager) -> None:
    a["floats"], a["matrix"], a["no rows"] = np.array([1.0, 2.5]), np.arange(6, dtype=">i2").reshape(2, 3), np.zeros((0, 3), "f4")
    a["names"], a["classes"] = ["x", "y\u00e9", ""], np.array([b"cat", b"horse"])
    a["text"], a["bytes"], a["empty text"], a["nothing"] = "mm", b"2.0", "", h5py.Empty("f4")
    a["single"], a["half"], a["byte"], a["step"] = np.float32(0.5), np.float16(2), np.uint8(7), 3
    a["flag"], a["flags"], a["complex"] = True, np.array([True, False]), np.complex64(1 + 2j)
    a.create("color", 1, dtype=h5py.enum_dtype({"RED": 0, "GREEN": 1}, basetype="u2"))
    a["record"] = np.array([(1, 2.5, b"ab")], dtype=[("i", "i4"), ("x", ">f8"), ("s", "S4")])
    a["opaque"], a["dtype"] = np.void(b"\x01\x02"), "mine"
    a.create("vectors", np.arange(4, dtype="f4").reshape(2, 2), shape=(2,), dtype=np.dtype(("f4", (2,))))
    spaces = h5py.h5t.C_S1.copy()
    spaces.set_size(6)
    spaces.set_strpad(h5py.h5t.STR_SPACEPAD)
    padded = h5py.h5a.create(a._id, b"padded", spaces, h5py.h5s.create(h5py.h5s.SCALAR))
    padded.write(np.array(b"ab", "S6"), mtype=spaces)


def attributes() -> None:
    with file("attributes") as h:
        h["w"] = np.zeros((2, 2), "f4")
        h["again"] = h["w"]
        h["labels"], h["codes"] = ["a", "bc"], np.array([b"x", b"yz"])
        h.create_group("empty")
        for holder in h, h.create_group("layer"), h["w"], h["labels"]:
            set_attributes(holder.attrs)
        h["w"].attrs["reference"] = h.ref
        h["w"].attrs.create("ragged", np.array([np.arange(2), np.arange(3)], dtype=object), dtype=h5py.vlen_dtype("i4"))


def lzf() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (20, 20), "u1")
    x = np.arange(400, dtype="f4").reshape(20, 20)
    with file("lzf-filters") as h:
        h.create_dataset("plain", data=x, chunks=(8, 8), compression="lzf")
        h.create_dataset("shuffled", data=x, chunks=(8, 8), compression="lzf", shuffle=True)
        h.create_dataset("all", data=x, chunks=(20, 20), compression="lzf", shuffle=True, fletcher32=True)
        h.create_dataset("noise", data=noise, chunks=(20, 20), compression="lzf")
        h.create_dataset("zeros", data=np.zeros((64, 64)), chunks=(64, 64), compression="lzf")
        h.create_dataset("texts", data=np.array([b"x" * 20] * 50), chunks=(10,), compression="lzf")


def links() -> None:
    with file("links") as h:
        h["g/x"] = 1
        h["g/y"], h["again"] = h["g/x"], h["g"]
        h["soft"], h["soft group"] = h5py.SoftLink("/g/x"), h5py.SoftLink("g")
        h["nowhere"], h["nowhere far"] = h5py.SoftLink("no"), h5py.SoftLink("/no/where")
        h["a.b %"] = 2


def virtual() -> None:
    with file("virtual") as h:
        halves = h5py.VirtualLayout((4, 6), "f4")
        halves[:, :3], halves[:, 3:] = h5py.VirtualSource("a.h5", "/d", (4, 3)), h5py.VirtualSource(".", "b", (4, 3))
        h.create_virtual_dataset("halves", halves, fillvalue=9)
        rows = h5py.VirtualLayout((2, 3), "f4")
        rows[0], rows[1] = h5py.VirtualSource("a.h5", "d", (3,)), h5py.VirtualSource("a.h5", "e", (9, 3))[4]
        h.create_virtual_dataset("rows", rows)
        strided = h5py.VirtualLayout((4, 2), "f4")
        strided[::2] = h5py.VirtualSource("50%%.h5", "d", (8, 2))[1:3]
        h.create_virtual_dataset("strided", strided)


def refused() -> None:
    with file("loop") as h:
        h["g/x"] = 1
        h["g/up"] = h["g"]
    with file("soft-loop") as h:
        h["a"], h["b"] = h5py.SoftLink("b"), h5py.SoftLink("a")
    with file("external-link") as h:
        h["e"] = h5py.ExternalLink("other.h5", "/x")
    with file("external-storage") as h:
        h.create_dataset("e", (4,), "f4", external=[("raw.bin", 0, 16)])
    with file("lzf") as h:
        h.create_dataset("z", data=np.zeros((8, 8)), chunks=(4, 4), compression="lzf")
    with file("scaleoffset") as h:
        h.create_dataset("z", data=np.zeros((8, 8), "i4"), chunks=(4, 4), scaleoffset=3)
    with file("endless") as h:
        endless = h5py.VirtualLayout((4,), "f4", maxshape=(None,))
        source = h5py.VirtualSource("a.h5", "d", (4,), maxshape=(None,))
        endless[: h5py.h5s.UNLIMITED] = source[: h5py.h5s.UNLIMITED]
        h.create_virtual_dataset("v", endless)


types()
texts()
layouts("layouts")
layouts("newest", libver="latest", userblock_size=512)
filters("filters")
filters("newest-filters", libver="latest")
attributes()
lzf()
links()
virtual()
refused()
