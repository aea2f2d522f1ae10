"""JSON documents that people and programs put beside checkpoints, of any length and with any entries.

Each kind makes the command that reads a document whose list, or object, has the given entries.
"""
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bounded import SHARDCTL
from build import dict_of, entry, safetensors, tensor, torch_file

GOOD = safetensors({"a": entry([4], 0, 4), "b": entry([2, 2], 4, 8)}, bytes(8))
SCHEMA = b'"schema":"shardctl.layout/1"'
EMPTY_HASH = "99aa06d3014798d86001c324468d497f"  # XXH3's 128 bits over nothing.


def xxh3(data: bytes, folder: Path) -> str:
    """XXH3's 128 bits, which Python's library lacks: the digest of a tensor of bytes is that of the bytes."""
    path = folder / "hashed.safetensors"
    path.write_bytes(safetensors({"w": entry([len(data)], 0, len(data))}, data))
    done = subprocess.run([SHARDCTL, "digest", "--json", path], capture_output=True, check=True)
    path.unlink()
    return json.loads(done.stdout)["tensors"][0]["digest"]


class Kind(NamedTuple):
    name: str
    make: Callable[[Path, bytes], list[str]]  # Writes the document; \returns words of the command, without the program.
    honest: Callable[[int], bytes]  # One entry of an honest document.
    is_object: bool = False  # The entries are values of one object.


def with_map(folder: Path, rules: bytes) -> list[str]:
    (folder / "map.json").write_bytes(b"{" + SCHEMA + b',"rules":[' + rules + b"]}")
    (folder / "m.safetensors").write_bytes(GOOD)
    return ["map", "check", "map.json", "m.safetensors"]


def with_yaml_map(folder: Path, rules: bytes) -> list[str]:
    words = with_map(folder, rules)
    (folder / "map.json").write_bytes(b"schema: shardctl.layout/1\nrules:\n- " + rules.replace(b"},", b"}\n- ") + b"\n")
    return words


def with_layout(folder: Path, rules: bytes) -> list[str]:
    (folder / "layout.json").write_bytes(b"{" + SCHEMA + b',"mesh":{"tp":2},"rules":[' + rules + b"]}")
    (folder / "m.safetensors").write_bytes(GOOD)
    return ["split", "-n", "--layout", "layout.json", "m.safetensors", "-o", "dst"]


def rank_folder(folder: Path, rules: bytes) -> Path:
    for rank in range(2):
        (folder / f"rank_{rank}.pt").write_bytes(torch_file(dict_of(w=tensor([4], [1]))))
    (folder / "layout.json").write_bytes(b"{" + SCHEMA + b',"mesh":{"tp":2},"rules":[' + rules + b"]}")
    return folder


def with_ranks(folder: Path, rules: bytes) -> list[str]:
    (folder / "ranks").mkdir()
    return ["inspect", str(rank_folder(folder / "ranks", rules))]


def manifest(folder: Path, files: bytes) -> bytes:
    """A manifest of these files, with the sum that makes it one."""
    zero = "0" * 32
    begin = ('{\n "schema": "shardctl.manifest/1", "tool": "x", "algorithm": "xxh3_128", "block_bytes": 4194304,\n'
             ' "format": "safetensors", "layout": {"world_size": null, "tensors": 1, "objects": 0, "chunks": 1, "digest": "'
             f'{zero}"}},\n "options": "{zero}",\n "source": {{"digest": "{zero}", "files": []}},\n "files": [').encode()
    text = begin + files + b"],\n"
    return text + b' "sum": "' + xxh3(text, folder).encode() + b'"\n}\n'


def with_manifest(folder: Path, files: bytes) -> list[str]:
    (folder / "m").mkdir()
    (folder / "m" / "model.safetensors").write_bytes(GOOD)
    (folder / "m" / "shardctl.manifest.json").write_bytes(manifest(folder, files))
    return ["verify", "m"]


def honest_file(number: int) -> bytes:
    return json.dumps({"path": f"file-{number:07}", "bytes": 0, "hash": EMPTY_HASH, "blocks": []}).encode()


def with_integrity(folder: Path, files: bytes) -> list[str]:
    (folder / "m").mkdir()
    (folder / "m" / "model.safetensors").write_bytes(GOOD)
    (folder / "m" / "integrity.json").write_bytes(b'{"algorithm":"sha256","files":{' + files + b"}}")
    return ["verify", "m"]


def with_keras_index(folder: Path, files: bytes) -> list[str]:
    (folder / "model.weights.json").write_bytes(b'{"metadata":{},"weight_map":{' + files + b"}}")
    return ["inspect", "model.weights.json"]


def with_index(folder: Path, files: bytes) -> list[str]:
    (folder / "model.safetensors.index.json").write_bytes(b'{"metadata":{},"weight_map":{' + files + b"}}")
    (folder / "x.safetensors").write_bytes(GOOD)
    return ["inspect", "model.safetensors.index.json"]


def with_config(folder: Path, values: bytes) -> list[str]:
    (folder / "ref").mkdir()
    (folder / "ref" / "config.json").write_bytes(b'{"num_hidden_layers":2,"many":[' + values + b"]}")
    rules = {"schema": "shardctl.layout/1", "vars": {"layers": {"from": "config.json#/num_hidden_layers"}},
             "index": {"l": {"count": "layers"}}, "rules": [{"logical": "b", "stored": "b"}, {"logical": "a", "stored": "a"}]}
    (folder / "map.json").write_text(json.dumps(rules))
    (folder / "m.safetensors").write_bytes(GOOD)
    return ["map", "check", "map.json", "m.safetensors", "--hf-ref", "ref"]


def with_lost_note(folder: Path, losses: bytes) -> list[str]:
    note = '{"schema":"shardctl.lost/1","count":1,"lost":[' + losses.decode() + "]}"
    header = {"__metadata__": {"shardctl.lost": note}, "a": entry([4], 0, 4)}
    (folder / "m.safetensors").write_bytes(safetensors(header, bytes(4)))
    return ["verify", "m.safetensors"]


def honest_loss(number: int) -> bytes:
    return json.dumps({"what": "tensor", "name": f"w{number}", "dtype": "float32", "shape": [4, 3],
                       "boxes": [{"offsets": [0, 0], "sizes": [2, 3]}], "file": "a.pt", "why": "it is cut"}).encode()


KINDS = [
    Kind("map", with_map, lambda i: b'{"logical":"model.a%d","stored":"b%d"}' % (i, i)),
    Kind("map in YAML", with_yaml_map, lambda i: b'{"logical":"model.a%d","stored":"b%d"}' % (i, i)),
    Kind("layout", with_layout, lambda i: b'{"match":"model\\\\.a%d","shard":[{"axis":"tp","dim":0}]}' % i),
    Kind("layout beside rank files", with_ranks, lambda i: b'{"match":"model\\\\.a%d","shard":[{"axis":"tp","dim":0}]}' % i),
    Kind("manifest", with_manifest, honest_file),
    Kind("integrity.json", with_integrity, lambda i: b'"file%d":"%064d"' % (i, i), True),
    Kind("Keras' index", with_keras_index, lambda i: b'"/layers/dense%d/vars":["a_%05d.h5"]' % (i, i % 9), True),
    Kind("Hugging Face's index", with_index, lambda i: b'"layers.%d.weight":"x.safetensors"' % i, True),
    Kind("config.json", with_config, lambda i: b'{"id":%d,"label":"LABEL_%d"}' % (i, i)),
    Kind("note of what is lost", with_lost_note, honest_loss),
]
ENTRIES = {"{}": lambda i: b"{}", "[]": lambda i: b"[]", "0": lambda i: b"0", '{"match":"a"}': lambda i: b'{"match":"a"}'}


def entries_of(kind: Kind, entry_of: Callable[[int], bytes], size: int) -> bytes:
    """The number that gives `size` bytes."""
    is_named = kind.is_object and entry_of is not kind.honest
    one = (lambda i: b'"k%d":' % i + entry_of(i)) if is_named else entry_of
    count = size // (len(one(1000)) + 1)
    return b",".join(map(one, range(count)))
