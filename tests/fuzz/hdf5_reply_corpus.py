"""Writes the seeds of fuzz_hdf5_reply: hdf5_reply_corpus.py PARSER FOLDER; PARSER is shard-hdf5-parser.

They are its replies about the golden files in tests/data/hdf5, each kind of entry a few times.
"""
import pathlib
import socket
import struct
import subprocess
import sys

from make_corpus_parts import put

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "data" / "hdf5"
BLOCK = 16 << 10
READ, ENTRY, LAST = 0, 1, 3


def take(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := link.recv(count - len(data))):
        data += more
    return data


def entries(parser: str, content: bytes) -> list[bytes]:
    ours, its = socket.socketpair()
    process = subprocess.Popen([parser, str(len(content)), "10", str(1 << 30)], stdin=its)
    its.close()
    found = []
    while head := take(ours, 8):
        kind, size = struct.unpack("<II", head)
        payload = take(ours, size)
        if kind == READ:
            first, count, _ = struct.unpack("<QII", payload)
            ours.sendall(content[first * BLOCK : (first + count) * BLOCK])
        elif kind == ENTRY:
            found.append(payload)
        elif kind >= LAST:
            break
    process.wait()
    return found


def main() -> None:
    parser, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    for name in "types", "layouts", "filters", "virtual", "links", "texts", "attributes", "lzf-filters":
        for i, payload in enumerate(entries(parser, (GOLDEN / f"h5py37-{name}.h5").read_bytes())[:12]):
            if len(payload) < 2000:
                put(folder, "hdf5_reply", f"{name}-{i}", payload)


main()
