"""Shards of several ranks with false claims: files of torch 1.13 to 2.15 (tests/data/golden) with one number
changed, dcp-hf headers."""
import json
import os
import re
import struct
import zipfile
from pathlib import Path

from build import entry, safetensors, torch_zip
from case import everywhere, files_of

HUGE = b"\x8a\x08" + struct.pack("<q", 1 << 62)  # LONG1.
MINUS = b"J\xff\xff\xff\xff"
MEMO = rb"(?:q.|r.{4})"


def records(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def changed(folder: str, pattern: bytes, new: bytes):
    """The files of a golden folder; in each pickle the first match of `pattern` keeps its group 1, followed by
    `new`."""
    source = Path(os.environ["SHARD_DATA"], "golden", folder)
    contents = {}
    for file in sorted(source.glob("*.pt")):
        held = records(file)
        pickle, count = re.subn(pattern, lambda match: match.group(1) + new, held.pop("data.pkl"), count=1, flags=re.DOTALL)
        if count == 0:
            raise ValueError(f"{file} holds no {pattern!r}")
        contents[file.name] = torch_zip(pickle, {name: data for name, data in held.items() if name.startswith("data/")})
    return files_of(contents)


def rank_files():
    sharded, dtensor = "2.11.0/ranks_sharded_r2", "2.11.0/ranks_dtensor_r2"
    def after(key: bytes) -> bytes:
        return b"(" + re.escape(key) + MEMO + rb")K."
    for key in b"global_world_size", b"global_rank", b"local_rank", b"local_world_size":
        for title, new in ("2^62", HUGE), ("-1", MINUS):
            yield everywhere(f"ranks: {key.decode()} of {title}", changed(sharded, after(key), new), 3, 4, 8)
    first_number = rb"(?:\]" + MEMO + rb"\()K."
    for key in b"shard_offsets", b"shard_sizes":
        for title, new in ("2^62", HUGE), ("-1", MINUS):
            yield everywhere(f"ranks: {key.decode()} of {title}",
                             changed(sharded, b"(" + re.escape(key) + MEMO + rb"\]" + MEMO + rb"\()K.", new), 4)
    for title, new in ("2^62", HUGE), ("-1", MINUS):
        yield everywhere(f"ranks: a mesh of {title}", changed(dtensor, rb"(_MeshLayout\n.{0,40}?shape" + MEMO + rb"\(?)K.", new), 3, 4, 8)
        yield everywhere(f"ranks: a placement along {title}", changed(dtensor, rb"(Shard\n.{0,30}?dim" + MEMO + rb")K.", new), 4, 8)


def shard(info, shape=(2,), name: str = "w") -> bytes:
    size = 1
    for n in shape:
        size *= n
    text = info if isinstance(info, str) else json.dumps(info)
    header = {"__metadata__": {"DCP_SHARDING_INFO": text, "DCP_VERSION": "1.0", "format": "pt"}, name: entry(shape, 0, size)}
    return safetensors(header, bytes(size))


def dcp_hf():
    def folder(*shards: bytes):
        return files_of({f"shard-{i + 1:05}-model-00001-of-00001.safetensors": data for i, data in enumerate(shards)})
    at = lambda offset: {"w": {"saved_offsets": offset}}
    for title, second in [("2^62", at([1 << 62])), ("2^63", at([1 << 63])), ("2^200", at([1 << 200])), ("1e999", '{"w":{"saved_offsets":[1e999]}}'),
                          ("-1", at([-1])), ("text", at(["2"])), ("two dimensions", at([2, 0])), ("nothing", {"w": {}}),
                          ("a list", []), ("no JSON", "{"), ("brackets", "[" * 1_000_000), ("objects", '{"w":' * 1_000_000),
                          ("another tensor's", {"v": {"saved_offsets": [2]}}), ("an overlap", at([1])), ("a gap", at([1 << 40]))]:
        yield everywhere(f"dcp-hf: an offset of {title}", folder(shard(at([0])), shard(second)), 4, 8)
    many = {f"w{i}": {"saved_offsets": [i]} for i in range(200_000)}
    yield everywhere("dcp-hf: 200,000 offsets of absent tensors", folder(shard({**many, **at([0])})), 0, 4, 8)


def cases():
    yield from rank_files()
    yield from dcp_hf()
