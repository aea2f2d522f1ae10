"""Writes HDF5 files by the h5py of the running Python, and their expected content: expected.json.

Each case is one file `NAME.h5` (or a folder); `tensors` are dtype, shape and bytes in hex, `objects` plain values.
Usage: hdf5_files.py FOLDER. Needs only numpy and h5py, so that Debian's Python can run it.
"""
import json
import sys
from pathlib import Path

import h5py
import numpy as np

RANDOM = np.random.default_rng(7)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Case:
    """One checkpoint under construction."""

    def __init__(self, path: Path):
        self.path, self.tensors, self.objects = path, {}, {}

    def expect(self, name: str, dtype: str, array: np.ndarray) -> None:
        array = np.asarray(array)
        native = array.astype(array.dtype.newbyteorder("<"))
        self.tensors[name] = {"dtype": dtype, "shape": list(array.shape), "hex": native.tobytes().hex()}

    def put(self, file: h5py.File, path: str, dtype: str, array: np.ndarray, **options) -> None:
        file.create_dataset(path, data=array, **options)
        self.expect(path.strip("/").replace("/", "."), dtype, array)

    def file(self, **options) -> h5py.File:
        return h5py.File(self.path.with_suffix(".h5"), "w", **options)


def noise(shape, dtype) -> np.ndarray:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(RANDOM.bytes(count * dtype.itemsize), dtype=dtype).reshape(shape).copy()


NUMBERS = {"int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1", "uint16": "u2", "uint32": "u4",
           "uint64": "u8", "float16": "f2", "float32": "f4", "float64": "f8", "complex64": "c8", "complex128": "c16"}


@case
def dtypes(made: Case) -> None:
    with made.file() as file:
        for order, word in (("<", "little"), (">", "big")):
            for name, code in NUMBERS.items():
                made.put(file, f"{word}/{name}", name, noise((3, 5), order + code))
        made.put(file, "flag", "bool", RANDOM.integers(0, 2, (4, 3)).astype(bool))
        made.put(file, "scalar", "float32", np.float32(3.5))
        made.put(file, "none", "int32", np.empty((0, 4), "i4"))


@case
def latest(made: Case) -> None:
    """The newest forms of every structure that the library of 1.10 reads."""
    bounds = ("v108", "v110") if h5py.version.hdf5_version_tuple >= (1, 12) else ("latest", "latest")
    with made.file(libver=bounds) as file:
        for name, code in NUMBERS.items():
            made.put(file, f"a/{name}", name, noise((7, 3), code))
        made.put(file, "implicit", "int16", noise((8, 8), "i2"), chunks=(4, 4))
        made.put(file, "one_chunk", "int16", noise((8, 8), "i2"), chunks=(8, 8), compression="gzip")
        made.put(file, "fixed", "int32", noise((40, 9), "i4"), chunks=(3, 4), maxshape=(50, 20), compression="gzip")
        made.put(file, "extensible", "int32", noise((300, 9), "i4"), chunks=(3, 4), maxshape=(None, 20), shuffle=True,
                 compression="gzip")
        made.put(file, "tree", "float32", noise((100, 90), "f4"), chunks=(3, 4), maxshape=(None, None), fletcher32=True)
        for i in range(50):
            made.put(file, f"many/{i:02}", "uint8", noise((i,), "u1"))


@case
def chunked(made: Case) -> None:
    with made.file() as file:
        for label, options in {"plain": {}, "gzip": {"compression": "gzip"}, "shuffle": {"shuffle": True},
                               "both": {"compression": "gzip", "compression_opts": 1, "shuffle": True},
                               "sum": {"fletcher32": True}, "lzf": {"compression": "lzf"},
                               "lzf of all": {"compression": "lzf", "shuffle": True, "fletcher32": True},
                               "all": {"compression": "gzip", "shuffle": True, "fletcher32": True}}.items():
            made.put(file, f"{label}/even", "float32", noise((16, 16), "f4"), chunks=(4, 8), **options)
            made.put(file, f"{label}/edges", "int64", noise((17, 5, 3), "i8"), chunks=(4, 2, 2), **options)
            made.put(file, f"{label}/big_endian", "float64", noise((33,), ">f8"), chunks=(10,), **options)
            made.put(file, f"{label}/larger", "uint16", noise((5,), "u2"), chunks=(64,), maxshape=(None,), **options)
            made.put(file, f"{label}/flag", "bool", RANDOM.integers(0, 2, 100).astype(bool), chunks=(7,), **options)


@case
def fills(made: Case) -> None:
    with made.file() as file:
        file.create_dataset("zeros", (6, 5), "f4")
        made.expect("zeros", "float32", np.zeros((6, 5), "f4"))
        file.create_dataset("sevens", (9,), ">i4", fillvalue=7)
        made.expect("sevens", "int32", np.full((9,), 7, "i4"))
        partly = file.create_dataset("partly", (10, 10), "i2", chunks=(4, 4), fillvalue=-3)
        partly[5:7, 5:9] = 1
        made.expect("partly", "int16", partly[...])
        packed = file.create_dataset("packed", (100,), ">f8", chunks=(8,), compression="gzip", fillvalue=0.5)
        packed[40:50] = np.arange(10)
        made.expect("packed", "float64", packed[...])


@case
def lzf_streams(made: Case) -> None:
    with made.file() as file:
        slow = np.repeat(np.arange(40000, dtype="f4"), 5)
        for name, data in {"slow": slow, "zeros": np.zeros(200_000, "f4"), "noise": noise((100_000,), "f4"),
                           "words": np.tile(np.arange(301, dtype="f4"), 700)}.items():
            made.put(file, f"{name}/small", "float32", data, chunks=(1000,), compression="lzf")
            made.put(file, f"{name}/one", "float32", data, chunks=data.shape, compression="lzf", shuffle=True)
        large = np.tile(slow, 8)  # One chunk of more than 4 MiB is not decoded as a whole.
        made.put(file, "large", "float32", large, chunks=large.shape, compression="lzf")
        made.put(file, "large shuffled", "float32", large, chunks=large.shape, compression="lzf", shuffle=True, fletcher32=True)


@case
def custom_floats(made: Case) -> None:
    """bfloat16 and float8 as floats of their own, and bfloat16 as Keras marks it."""
    def custom(bits, exponent, bias):
        kind = h5py.h5t.IEEE_F32LE.copy()
        mantissa = bits - 1 - exponent
        kind.set_fields(bits - 1, mantissa, exponent, 0, mantissa)
        kind.set_precision(bits) if hasattr(kind, "set_precision") else None
        kind.set_size(bits // 8)
        kind.set_ebias(bias)
        return kind

    with made.file() as file:
        for name, dtype, bits, exponent, bias in (("bf16", "bfloat16", 16, 8, 127), ("e4m3", "float8_e4m3fn", 8, 4, 7),
                                                  ("e5m2", "float8_e5m2", 8, 5, 15)):
            data = noise((6, 4), "u2" if bits == 16 else "u1")
            kind = custom(bits, exponent, bias)
            made_set = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(data.shape))
            made_set.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=kind)
            made.tensors[name] = {"dtype": dtype, "shape": [6, 4], "hex": data.tobytes().hex()}
        data = noise((3, 2), "u2")
        keras = file.create_dataset("vars/0", data=data.view("V2"))
        keras.attrs["dtype"] = "bfloat16"
        made.tensors["vars.0"] = {"dtype": "bfloat16", "shape": [3, 2], "hex": data.tobytes().hex()}


@case
def attributes(made: Case) -> None:
    with made.file() as file:
        file.attrs["version"] = "3.1"
        file.attrs["count"] = np.int32(-7)
        file.attrs["big"] = np.uint64(2**64 - 1)
        file.attrs["rate"] = np.float64(0.25)
        file.attrs["flag"] = np.bool_(True)
        file.attrs["empty"] = h5py.Empty("f4")
        file.attrs["fixed"] = np.bytes_(b"fixed text")
        file.attrs["numbers"] = np.arange(3, dtype=">i2")
        file.attrs["words"] = ["a", "ünïcode", ""]
        made.objects |= {"version": "3.1", "count": -7, "big": "18446744073709551615", "rate": 0.25, "flag": True,
                         "empty": None, "fixed": "fixed text", "numbers.0": 0, "numbers.1": 1, "numbers.2": 2,
                         "words.0": "a", "words.1": "ünïcode", "words.2": ""}
        group = file.create_group("layers/dense")
        group.attrs["name"] = "dense_1"
        made.objects["layers.dense.name"] = "dense_1"
        made.put(file, "layers/dense/kernel", "float32", noise((2, 2), "f4"))
        file["layers/dense/kernel"].attrs["unit"] = "mm"
        made.objects["layers.dense.kernel.unit"] = "mm"
        file.create_group("nothing")
        made.objects["nothing"] = {}
        file["title"] = "a text"
        made.objects["title"] = "a text"
        file.create_dataset("texts", data=np.array([b"x", b"yz"], dtype="S4"))
        made.objects |= {"texts.0": "x", "texts.1": "yz"}


@case
def links(made: Case) -> None:
    with made.file() as file:
        made.put(file, "a/weight", "float32", noise((4, 4), "f4"))
        file["b/tied"] = file["a/weight"]
        file["soft"] = h5py.SoftLink("/a/weight")
        made.tensors["b.tied"] = made.tensors["soft"] = made.tensors["a.weight"]


@case
def user_block(made: Case) -> None:
    with made.file(userblock_size=1024) as file:
        made.put(file, "w", "float32", noise((9, 3), "f4"))
        made.put(file, "chunks", "int32", noise((9, 3), "i4"), chunks=(2, 2), compression="gzip")


@case
def other_layouts(made: Case) -> None:
    with made.file() as file:
        data = noise((5,), "i4")
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((5,)), plist)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, data)
        made.expect("compact", "int32", data)
        colors = h5py.enum_dtype({"RED": 0, "GREEN": 5}, basetype="i2")
        file.create_dataset("enum", data=np.array([0, 5, 5], "i2"), dtype=colors)
        made.expect("enum", "int16", np.array([0, 5, 5], "i2"))
        pairs = noise((3, 2), "f4")
        file.create_dataset("pairs", (3,), np.dtype(("f4", (2,))))
        file["pairs"][...] = pairs
        made.expect("pairs", "float32", pairs)


@case
def virtual(made: Case) -> None:
    made.path.mkdir()
    whole = noise((12, 6), "f4")
    layout = h5py.VirtualLayout((12, 6), "f4")
    for part in range(3):
        name = f"part{part}.h5"
        with h5py.File(made.path / name, "w") as file:
            options = {"chunks": (3, 4), "compression": "gzip"} if part == 1 else {}
            file.create_dataset("data/x", data=whole[4 * part:4 * part + 4], **options)
        layout[4 * part:4 * part + 4] = h5py.VirtualSource(name, "data/x", (4, 6))
    gaps = h5py.VirtualLayout((6, 6), "f4")
    gaps[1:3, 2:5] = h5py.VirtualSource("part0.h5", "data/x", (4, 6))[1:3, 0:3]
    with_gaps = np.full((6, 6), 9, "f4")
    with_gaps[1:3, 2:5] = whole[1:3, 0:3]
    rows = h5py.VirtualLayout((3, 6), "f4")
    for part in range(3):
        rows[part] = h5py.VirtualSource(f"part{part}.h5", "data/x", (4, 6))[2]
    with h5py.File(made.path / "master.h5", "w", libver="latest" if h5py.version.hdf5_version_tuple < (1, 12) else ("v110", "v110")) as file:
        file.create_virtual_dataset("joined", layout)
        file.create_virtual_dataset("gaps", gaps, fillvalue=9)
        file.create_virtual_dataset("rows", rows)
        file.create_dataset("own", data=whole)
    made.expect("joined", "float32", whole)
    made.expect("gaps", "float32", with_gaps)
    made.expect("rows", "float32", np.stack([whole[4 * part + 2] for part in range(3)]))
    made.expect("own", "float32", whole)


@case
def keras(made: Case) -> None:
    """A folder as Keras spreads it."""
    made.path.mkdir()
    parts = {"m_00000.weights.h5": ["layers/a", "layers/b"], "m_00001.weights.h5": ["layers/b", "layers/c"]}
    weight_map = {}
    for file_name, groups in parts.items():
        with h5py.File(made.path / file_name, "w") as file:
            for group in groups:
                number = len([1 for name in weight_map.get(f"/{group}/vars", [])])
                made.put(file, f"{group}/vars/{number}", "float32", noise((3, 2), "f4"))
                file[group].attrs["name"] = group[-1]
                made.objects[group.replace("/", ".") + ".name"] = group[-1]
                weight_map.setdefault(f"/{group}/vars", []).append(file_name)
    document = {"metadata": {"total_size": 1}, "weight_map": {path: files[0] if len(files) == 1 else files
                                                               for path, files in weight_map.items()}}
    (made.path / "m.weights.json").write_text(json.dumps(document))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, make in CASES.items():
        made = Case(folder / name)
        make(made)
        source = name if made.path.is_dir() else f"{name}.h5"
        expected[name] = {"source": source, "tensors": made.tensors, "objects": made.objects}
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
