"""Zips, safetensors headers, indices, dcp metadata and layout documents with false claims or excessive growth."""
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

from build import (dcp_metadata, dcp_objects, entry, name, pickled, safetensors, sparse, tensor, text, torch_file, torch_zip,
                   zstd_zeros)
from case import ALL, READ, by_verb, everywhere, file_of, files_of, lazily


def patched(data: bytes, signature: bytes, at: int, new: bytes, nth: int = 0) -> bytes:
    """Overwrites a field of the zip structure that begins with `signature`."""
    begin = -1
    for _ in range(nth + 1):
        begin = data.index(signature, begin + 1)
    return data[:begin + at] + new + data[begin + at + len(new):]


def named(names: list[str]) -> bytes:
    """A zip of records with these names, as bytes of the names' own length."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for record in names:
            archive.writestr(zipfile.ZipInfo(record.replace("\0", "@")), b"x")
    return out.getvalue().replace(b"@", b"\0")


def overlapping() -> bytes:
    """Two entries of the directory over one record."""
    data = torch_file(tensor([4], [1]))
    return patched(data, b"PK\x01\x02", 42, struct.pack("<I", 0), nth=1)


def claiming(size: int) -> bytes:
    """A deflated tensor of 4 KiB whose directory claims `size` bytes."""
    data = torch_zip(pickled(tensor([size // 4], [1], count=size // 4)), {"data/0": bytes(4096)}, zipfile.ZIP_DEFLATED)
    claim = struct.pack("<I", size)
    return patched(patched(data, b"PK\x01\x02", 24, claim, nth=2), b"PK\x03\x04", 22, claim, nth=2)


def zips():
    zeros = bytes(100_000_000)
    yield everywhere("data.pkl deflated 1:1000", lazily(lambda: torch_zip(zeros, method=zipfile.ZIP_DEFLATED)), 4, verbs=ALL)
    inner = torch_zip(bytes(10_000_000), method=zipfile.ZIP_DEFLATED)
    yield everywhere("a zip in a zip", file_of(torch_zip(inner, method=zipfile.ZIP_DEFLATED)), 4, 8)
    yield everywhere("byteorder deflated 1:1000", lazily(lambda: torch_zip(
        pickled(b"}"), {"byteorder": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)), 4)
    yield by_verb("a tensor of 64 MB zeros, deflated", lazily(lambda: torch_zip(
        pickled(tensor([16_000_000], [1], count=16_000_000)), {"data/0": bytes(64_000_000)}, zipfile.ZIP_DEFLATED)),
        inspect=0, json=0, digest=0, gather=0)
    yield everywhere("4 KiB that claim to be 4 GB", file_of(claiming(4_000_000_000)), 4, verbs=ALL)
    yield everywhere("overlapping records", file_of(overlapping()), 4, verbs=ALL)
    for record in "../x", "archive/../../x", "/etc/x", "archive\\..\\x", "archive/x\0y":
        yield everywhere(f"a record named {record!r}", file_of(named(["archive/data.pkl", record])), 4)
    yield everywhere("a record twice", file_of(named(["archive/data.pkl", "archive/x", "archive/y"]).replace(
        b"archive/y", b"archive/x")), 4)
    yield everywhere("70,000 records", lazily(lambda: torch_zip(pickled(b"}"), {f"x/{i}": b"" for i in range(70_000)})), 0)
    data = torch_file(tensor([4], [1]))
    for title, signature, at, new in [
            ("a directory entry of 2^32-1 bytes without zip64", b"PK\x01\x02", 20, b"\xff" * 8),
            ("a directory entry of 2 GiB", b"PK\x01\x02", 20, struct.pack("<II", 1 << 31, 1 << 31)),
            ("65,535 records in a small directory", b"PK\x05\x06", 8, b"\xff" * 4),
            ("a directory of 4 GiB", b"PK\x05\x06", 12, b"\xfe\xff\xff\xff"),
            ("a directory past the end", b"PK\x05\x06", 16, b"\xfe\xff\xff\xff")]:
        yield everywhere(title, file_of(patched(data, signature, at, new)), 4)
    def huge(folder: Path) -> Path:
        size = 1 << 40
        end = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1 << 30, 1 << 30, size - 98 - 64, 64)
        end += struct.pack("<IIQI", 0x07064B50, 0, size - 98, 1)
        end += struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        sparse(folder / "x.pt", size, b"PK\x03\x04", end)
        return folder / "x.pt"
    yield everywhere("a sparse zip whose directory has 1 TiB", huge, 4)


def texts():
    mega = 1_000_000
    headers = [("100 MB of [", b"[" * 99_999_999), ("brackets in a field", b'{"a":' + b"[" * (50 * mega)),
               ("nested objects", b'{"a":' * mega), ("1e999999", b'{"a":{"dtype":"U8","shape":[1e999999],"data_offsets":[0,0]}}'),
               ("a number of 10^7 digits", b'{"a":{"dtype":"U8","shape":[' + b"9" * (10 * mega) + b']}}'),
               ("an ignored number of 10^7 digits", b'{"a":{"x":' + b"9" * (10 * mega) + b'}}'),
               ("a string without an end", b'{"' + b"a" * (90 * mega)),
               ("escapes", b'{"' + b"\\u0061" * (10 * mega) + b'":1}'),
               ("spaces", b"{" + b" " * (99 * mega)), ("half a surrogate", b'{"\\ud800":1}'),
               ("an overflowing shape", json.dumps({"a": entry([1 << 32, 1 << 32], 0, 0)}).encode()),
               ("offsets of 2^63", b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,9223372036854775808]}}'),
               ("offsets that run backwards", json.dumps({"a": entry([1], 1, 0)}).encode())]
    for title, header in headers:
        yield everywhere("header: " + title, file_of(safetensors(header), "x.safetensors"), 4)
    yield everywhere("header: a metadata text of 90 MB", lazily(lambda: safetensors(
        b'{"__metadata__":{"a":"' + b"a" * (90 * mega) + b'"}}'), "x.safetensors"), 0, verbs=("inspect",))
    prefix = "p" * 20
    yield everywhere("header: 500,000 names of one prefix", lazily(lambda: safetensors(
        ("{" + ",".join(f'"{prefix}{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for i in range(500_000)) + "}")
        .encode()), "x.safetensors"), 0, verbs=("inspect",))
    yield everywhere("header: one name 300,000 times", lazily(lambda: safetensors(
        b"{" + b",".join([b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'] * 300_000) + b"}"), "x.safetensors"), 4)
    for index in ("../x.safetensors", "/etc/passwd", "a/../../x.safetensors", "a\\x.safetensors", "x\0.safetensors", "", "."):
        document = json.dumps({"metadata": {}, "weight_map": {"a": index}}).encode()
        content = {"model.safetensors.index.json": document, "x.safetensors": safetensors({"a": entry([1], 0, 1)}, b"x")}
        yield everywhere(f"an index that places a tensor in {index!r}", files_of(content), 4, verbs=ALL)
    yield everywhere("an index of 500,000 absent files", lazily(lambda: json.dumps({"weight_map": {
        f"t{i}": f"{i}.safetensors" for i in range(500_000)}}).encode(), "model.safetensors.index.json"), 3)
    yield everywhere("an index of brackets", file_of(b'{"weight_map": {"a": "x.safetensors"}, "m": ' + b"[" * mega,
                                                     "model.safetensors.index.json"), 4)


def dcp(metadata: bytes, **files: bytes):
    return files_of({".metadata": metadata, "__0_0.distcp": bytes(4096), **files})


def folders():
    one = ([0], 0, "__0_0.distcp", 0, 100)
    for path in "/etc/passwd", "../x.distcp", "a/../../x.distcp", "a/b.distcp", "", ".", "x\0y":
        yield everywhere(f"dcp: an item in {path!r}", dcp(dcp_metadata([4], [([0], [4])], [([0], 0, path, 0, 100)])), 4, verbs=ALL)
    for title, shape, chunks, place in [
            ("a shape of 2^62 x 2^62", [1 << 62, 1 << 62], [([0, 0], [1 << 62, 1 << 62])], ([0, 0], 0, "__0_0.distcp", 0, 1)),
            ("a chunk that overflows", [4], [([(1 << 63) - 1], [(1 << 63) - 1])], ([(1 << 63) - 1], 0, "__0_0.distcp", 0, 100)),
            ("a negative offset", [4], [([-1], [4])], one), ("an item of 2^63-1 bytes", [4], [([0], [4])],
                                                             ([0], 0, "__0_0.distcp", 1, (1 << 63) - 1)),
            ("an item at 2^62", [4], [([0], [4])], ([0], 0, "__0_0.distcp", 1 << 62, 1 << 62)),
            ("a gap", [1 << 40], [([0], [4])], one)]:
        yield everywhere("dcp: " + title, dcp(dcp_metadata(shape, chunks, [place])), 4, verbs=ALL)
    count = 100_000
    yield everywhere("dcp: 100,000 chunks at one place", lambda folder: dcp(dcp_metadata(
        [4], [([0], [4])] * count, [([0], i, "__0_0.distcp", 0, 1) for i in range(count)]))(folder), 4, verbs=ALL)
    yield everywhere("dcp: 100,000 places without an index", lambda folder: dcp(dcp_metadata(
        [count], [([i], [1]) for i in range(count)],
        [([0], 1 << 40, "__0_0.distcp", 0, 1) for _ in range(count)]))(folder), 4, verbs=ALL)
    yield everywhere("dcp: .metadata names os.system", dcp(pickled(name("os", "system") + text("id") + b"\x85R")), 4, verbs=ALL)
    yield everywhere("dcp: .metadata is cut", dcp(dcp_metadata([4], [([0], [4])], [one])[:200]), 4, verbs=ALL)
    def huge(folder: Path) -> Path:
        made = dcp(b"")(folder)
        sparse(made / ".metadata", 1 << 40, b"\x80\x04")
        return made
    yield everywhere("dcp: a sparse .metadata of 1 TiB", huge, 4)
    yield everywhere("rank metadata alone, naming os.system", files_of({"__0.metadata": pickled(
        name("os", "system") + text("id") + b"\x85R"), "__0_0.distcp": b""}), 4, 8)


def swollen(pickle: bytes, size: int) -> bytes:
    """An item of zstd: a torch zip whose storage is `size` zeros."""
    data = torch_zip(pickle, {"version": b"", "data/0": b""})  # The storage comes last.
    directory = data.index(b"PK\x01\x02")
    crc, block = 0, bytes(1 << 20)
    for begin in range(0, size, len(block)):
        crc = zlib.crc32(block[:size - begin], crc)
    numbers = struct.pack("<III", crc, size, size)
    for signature, at, new, nth in [(b"PK\x03\x04", 14, numbers, 3), (b"PK\x01\x02", 16, numbers, 3),
                                    (b"PK\x05\x06", 16, struct.pack("<I", directory + size), 0)]:
        data = patched(data, signature, at, new, nth)
    return zstd_zeros(data[:directory], size, data[directory:])


def zstd():
    count, giant = 21, 7 << 29  # 3.5 GiB each, from 110 KB.
    item = swollen(pickled(b"}"), giant)
    yield by_verb("dcp: 21 zstd objects of 3.5 GiB", dcp(
        dcp_objects(count, "__0_0.distcp", len(item), True), **{"__0_0.distcp": item * count}), inspect={0, 4}, json=4, digest=4, gather=4)
    length = giant // 4
    item = swollen(pickled(tensor([length], [1], count=length)), giant)
    yield by_verb("dcp: 21 zstd chunks of 3.5 GiB", dcp(
        dcp_metadata([count * length], [([i * length], [length]) for i in range(count)],
                     [([i * length], i, "__0_0.distcp", i * len(item), len(item)) for i in range(count)], zstd=True),
        **{"__0_0.distcp": item * count}), inspect=4, json=4, digest=4, gather=4)
    for title, size, verbs in ("64 MB", 64_000_000, ALL), ("1 GiB", 1 << 30, (*READ, "digest")):
        item = swollen(pickled(tensor([size // 4], [1], count=size // 4)), size)
        yield everywhere(f"dcp: a zstd tensor of {title} zeros", dcp(
            dcp_metadata([size // 4], [([0], [size // 4])], [([0], 0, "__0_0.distcp", 0, len(item))], zstd=True),
            **{"__0_0.distcp": item}), 0, verbs=verbs)


def layouts():
    model = safetensors({"a": entry([4], 0, 4)}, b"abcd")
    def split_with(document: bytes):
        def make(folder: Path) -> Path:
            (folder / "layout.json").write_bytes(document)
            return file_of(model, "x.safetensors")(folder)
        return make
    def document(**keys) -> bytes:
        return json.dumps({"schema": "shardctl.layout/1", "mesh": {"a": 2}, **keys}).encode()
    documents = [("brackets", b"[" * 1_000_000), ("nested objects", b'{"a":' * 1_000_000),
                 ("a mesh of 2^40", document(mesh={"a": 1 << 40})), ("a mesh of 2^200", document(mesh={f"a{i}": 1 << 20 for i in range(10)})),
                 ("a mesh of 1e999999", b'{"schema":"shardctl.layout/1","mesh":{"a":1e999999}}'),
                 ("a regex that repeats", document(rules=[{"match": "((a{1000}){1000}){1000}"}])),
                 ("a regex that does not fit", document(rules=[{"match": ".{1000}" * 2000}])),
                 ("a dimension of 2^63", document(rules=[{"match": ".*", "shard": [{"axis": "a", "dim": (1 << 63)}]}]))]
    for title, content in documents:
        yield split(f"layout: {title}", split_with(content), 2)
    yield split("layout: a regex that nests", split_with(document(rules=[{"match": "(" * 900 + "a" + ")*" * 900}])), 0)
    yield split("layout: a regex that backtracks", split_with(document(rules=[{"match": "(a*)*(a|a)*(a?){30}"}])), 0)
    yield split("layout: 20,000 large regexes", split_with(document(rules=[{"match": f"x{i}.{{900}}"} for i in range(20_000)])), 2)


def split(title: str, make, code: int):
    return by_verb(title, make, split={code}, options=["--layout", "layout.json"])


def cases():
    for group in zips, texts, folders, zstd, layouts:
        yield from group()
