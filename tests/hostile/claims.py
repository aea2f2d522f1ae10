"""Small files that claim much, for verify and repair, which continue after most findings; and files of zip signatures."""
import base64
import gzip
import json
import struct
import sys
from pathlib import Path

from build import pickled, tensor, text, torch_zip
from case import Case, by_verb, file_of, files_of, lazily

sys.path.append(str(Path(__file__).resolve().parent.parent / "growth"))
import of_dcp  # noqa: E402
from of_dcp import chunk, listed, stored_tensor  # noqa: E402

# HDF5 files, zipped: by h5py 3 with libver="latest", each from the line before it.
# create_dataset("w", shape=(1 << 34,), dtype="u1")
FILL_34 = "H4sIAAAAAAACA+v0cHHj5ZLiYubgYICB/1CwnxHCN4CKx1v8++Lv4RLExFDBJISsEAa4mBiAWth4GIAUY/lmmHkeDFQDE2+88wc7AWgBowgDAxMjI9iRLFB5EM3Mw8AowAByAwhwMLACXcXMxQF0MTMjzKVwPTsYhixYeiHtAgCBOCGJvwEAAA=="
# create_dataset("w", shape=(1 << 50,), dtype="u1")
FILL_50 = "H4sIAAAAAAACA+v0cHHj5ZLiYubgYICB/1CwnxHCN4CKx1v8++Lv4RLExFDBJISsEAa4mBiAWth4GIAUY/lmmHkeDFQDE2+88wc7AWgBowgDAxMjI9SRLAwwmpmHgVGAAeQGEOBgYAW6ipmLA+hiZkaYS+F6djAMWVBhECUIAGbfR/W/AQAA"
# the same, and file["small"] = numpy.arange(4, dtype="u1")
FILL_50_AND_SMALL = "H4sIAAAAAAACA+v0cHHj5ZLiYubgYICB/1DAAhUygIrHaep1+Hu4BDExVDAJISuEAS4mBkYGBjYeBiDFWL4Zqo1NAMRnLc5NzMnZzwgVNGEgC/CkXH0OdgLQAkYRBgYmRkaoiSwMMJqZh4ERaCUDRIKDgRXoKmYuDqCLmRlhLoXr2cEwZEGFQZQgelggQgEC8IUFAweq2qEcFnu8JOsZRsEoGAWjYBSQABiZmAEzAEUXBAgAAA=="
# create_virtual_dataset("w", h5py.VirtualLayout(shape=(1 << 50,), dtype="u1"))
VIRTUAL_50 = "H4sIAAAAAAACA+v0cHHj5ZLiYubgYICB/1BwnhHCN4CKt09x1fP3cAliYqhgEkJWCANcTAxALWw8DECKsXwzzDwPBqqBiTfe+YOdoHhKmz0bGTMwMoowMDAxMkIdzcIAo5l5GBgFGEBuAgEOBlagK5m5OfiAcswwl4Ol9jAMafBppXwpANOQxIvPAQAA"
# create_dataset("layers/dense/vars/0", shape=(1 << 50,), dtype="u1")
KERAS_50 = "H4sIAAAAAAACA+v0cHHj5ZLiYubgYICB/1DgwQzhG0DFS632vvX3cAliYqhgEkJWCANcTAyMDAxsggxAii0nsTK1qHgzzFBnBmoA1pKZmcQ4QQDkBNaU1LziVDNGqF4XqriAwWr1o3xinMAPcgJLWWJR8U6YC1yp4wKGvui3lsQ4gQfkBEYDGyaoPg8GqgHL01tqwU4AWsAowsDAxMgI9SULA4xm5mFgBEYEA0SCg4EV6CpmLg6gi5kZYS6F69nBMGRBhUGUIABQ7pwRSAMAAA=="

REFUSED = {"inspect": 4, "verify": {1, 4}, "repair": 4}
BYTES = 16 << 20


def stored(content: str) -> bytes:
    return gzip.decompress(base64.b64decode(content))


def hdf5():
    yield by_verb("hdf5: 2^34 fill values in 300 bytes", file_of(stored(FILL_34), "x.h5"), **REFUSED)
    yield by_verb("hdf5: 2^50 fill values in 300 bytes", file_of(stored(FILL_50), "x.h5"), **REFUSED)
    yield by_verb("hdf5: 2^50 fill values beside a small dataset", file_of(stored(FILL_50_AND_SMALL), "x.h5"),
                  inspect=4, verify={1, 4}, repair={0, 4})
    yield by_verb("hdf5: a virtual dataset of 2^50 without mappings", file_of(stored(VIRTUAL_50), "x.h5"), **REFUSED)
    index = json.dumps({"metadata": {}, "weight_map": {"/layers/dense/vars": "model_00000.weights.h5"}}).encode()
    yield by_verb("hdf5: 2^50 fill values in a Keras folder", files_of(
        {"model.weights.json": index, "model_00000.weights.h5": stored(KERAS_50)}), **REFUSED)


def views(*tensors: bytes) -> bytes:
    return torch_zip(pickled(b"}(" + b"".join(text(f"t{i}") + each for i, each in enumerate(tensors)) + b"u"),
                     {"data/0": bytes(16)})


def torch_files():
    expanded, small = tensor([1 << 50], [0]), tensor([4], [1])
    yield by_verb("torch: a tensor of 2^50 in 16 bytes", file_of(views(expanded)), **REFUSED)
    # All losses are named; the rest is written.
    yield by_verb("torch: a tensor of 2^50 and a small one in 16 bytes", file_of(views(expanded, small)),
                  inspect=4, verify=1, repair=0)
    yield by_verb("torch: 4,000 names of 2^26 elements in 16 bytes", file_of(
        views(*[tensor([1 << 26], [0])] * 4000)), inspect=4, verify=1, repair=0)

    def padded(folder: Path) -> Path:
        """A size in proportion to a file with more than the tensor's storage: the output of a repair has less."""
        (folder / "x.pt").write_bytes(torch_zip(pickled(b"}" + text("w") + tensor([1 << 30], [0]) + b"s"),
                                                {"data/0": bytes(16), "extra": bytes(8 << 20)}))
        return folder / "x.pt"
    yield by_verb("torch: a tensor of 4 GiB in 16 bytes of 8 MiB", padded, inspect=0, verify={0, 1}, repair={0, 4})


def dcp_folders():
    count = 1 << 31
    item = of_dcp.item_of(count, 0, 1)
    one = stored_tensor([count], listed([chunk([0], [count])]))
    yield by_verb("dcp: an item of 8 GiB in 1 KB", files_of(of_dcp.folder({"w": one}, [("w", [0], 0, len(item))], data=item)),
                  **REFUSED)
    small = of_dcp.item_of(1)
    both = {"v": stored_tensor([1], listed([chunk([0], [1])])), "w": one}
    places = [("v", [0], 0, len(small)), ("w", [0], len(small), len(item))]
    yield by_verb("dcp: an item of 8 GiB beside a small one", files_of(of_dcp.folder(both, places, data=small + item)),
                  inspect=4, verify=1, repair=0)


def filled(unit: bytes) -> bytes:
    return unit * (BYTES // len(unit))


def header(flags: int, name: bytes, extra: bytes = b"", size: int = 0) -> bytes:
    return struct.pack("<IHHHHHIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, size, size, len(name), len(extra)) + name + extra


def signatures():
    """Files that repair scans for records, because their directory is missing."""
    for name in b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\7\x08", b"PK\6\6", b"PK\6\7":
        yield signature_case(f"{name!r} over and over", lambda name=name: filled(name))
    yield signature_case("signatures with 4 bytes between", lambda: filled(b"PK\3\4" + bytes(4)))
    yield signature_case("signatures with 12 bytes between", lambda: filled(b"PK\3\4" + bytes(6) + b"\1\0" + bytes(4)))
    yield signature_case("headers of deferred sizes", lambda: filled(header(8, b"a/b")))
    yield signature_case("headers with names that lead elsewhere", lambda: filled(header(0, b"../b")))
    yield signature_case("headers that lack their zip64 field", lambda: filled(header(0, b"a", size=0xFFFFFFFF)))
    yield signature_case("headers, each with its end", lambda: filled(header(8, b"a/b") + b"PK\5\6" + bytes(18)))
    yield signature_case("descriptors of nothing", lambda: filled(b"PK\7\x08" + bytes(12)))
    yield signature_case("headers and descriptors", lambda: filled(header(8, b"a/b") + b"PK\7\x08" + bytes(12)))


def signature_case(title: str, content) -> Case:
    return by_verb(f"zip: 16 MB of {title}", lazily(lambda: header(8, b"archive/data.pkl") + content()), repair={0, 4})


def cases():
    for group in hdf5, torch_files, dcp_folders, signatures:
        yield from group()
