"""Writes the seeds of fuzz_manifest, fuzz_journal and fuzz_verify: trust_corpus.py SHARDCTL FOLDER."""
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from make_corpus_parts import part, put

DATA = Path(__file__).resolve().parent / "corpus"


def number(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def text(value: str) -> bytes:
    return number(len(value)) + value.encode()


def manifests(tool: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as tmp:
        header = json.dumps({"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        Path(tmp, "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
        for algorithm in "xxh3", "sha256":
            subprocess.run([tool, "split", "m.safetensors", "-o", algorithm, "--ranks", "2", "--checksum", algorithm, "-q"], cwd=tmp, check=True)
            manifest = Path(tmp, algorithm, "shardctl.manifest.json").read_bytes()
            put(folder, "manifest", algorithm, b"\0" + manifest)
            put(folder, "manifest", f"{algorithm}-body", b"\1" + manifest[:manifest.rindex(b',\n "sum"')])
    put(folder, "manifest", "integrity", b"\2" + json.dumps({"algorithm": "sha256", "files": {"a.pt": "0" * 64}}).encode())


def journals(folder: Path) -> None:
    head = text("shardctl.journal/1") + number(2, 64 << 20) + text("0.1.0") + text("torch, 1 files of 100 bytes") + text("ab" * 16)
    head += number(1) + text("m.safetensors") + number(1000, 1_700_000_000_000_000_000) + text("cd" * 16)
    record = number(10, 300, 12345, 0, 2, 0, 0, 100, 7, 1, 100, 200, 9)
    put(folder, "journal", "two", b"\1" + part(head) + record + number(11, 0, 0, 1, 0))
    put(folder, "journal", "strange", b"\1" + part(head) + number(12, 1, 1, 0, 1, 5, 1 << 40, 1, 1))


def checkpoints(folder: Path) -> None:
    for name in "dict", "legacy", "nested":
        for flag in 0, 4:
            put(folder, "verify", f"torch-{name}-{flag}", bytes([flag]) + (DATA / "torch_file" / name).read_bytes())
    for name in "two", "odd":
        put(folder, "verify", f"safetensors-{name}", bytes([1]) + (DATA / "safetensors_header" / name).read_bytes())
    folder_of_dcp = (DATA / "dcp_folder" / "small").read_bytes()
    metadata = int.from_bytes(folder_of_dcp[:2], "little") + 2
    item = int.from_bytes(folder_of_dcp[metadata:metadata + 2], "little")
    put(folder, "verify", "dcp", bytes([2]) + folder_of_dcp[:metadata] + folder_of_dcp[metadata + 2:metadata + 2 + item])


if __name__ == "__main__":
    manifests(sys.argv[1], Path(sys.argv[2]))
    journals(Path(sys.argv[2]))
    checkpoints(Path(sys.argv[2]))
