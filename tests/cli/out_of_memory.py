#!/usr/bin/env python3
"""A run with too little memory ends with exit code 6 and a message: verbs under address spaces that grow until they
suffice."""
import os
import resource
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from program import SHARDCTL, write_safetensors

STEP = 8 << 20
ENOUGH = 700 << 20
GATHER = ["gather", "-o", "out", "-f", "--objects", "drop"]
VERBS = [("m.safetensors", ["inspect", "--json"]), ("m.pt", ["inspect"]), ("m.pt", ["digest", "-j", "2"]), ("dcp", ["digest", "-j", "2"]),
         ("m.pt", [*GATHER, "-j", "2"]), ("m.safetensors", [*GATHER, "--local-ranks", "2"]), ("dcp", [*GATHER, "--local-ranks", "2"]),
         ("m.pt", ["convert", "-o", "out", "-f", "--to", "dcp"])]


def write_torch(path: Path) -> None:
    """A deflated record, and objects of some hundred thousand values."""
    def storage_tensor(elements: int) -> bytes:
        storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ" + struct.pack("<i", elements) + b"tQ"
        return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0J" + struct.pack("<i", elements) + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
    body = b"\x80\x02}(X\x01\0\0\0w" + storage_tensor(1 << 18) + b"X\x01\0\0\0o](" + b"K\x01\x85" * 200_000 + b"eu."
    with zipfile.ZipFile(path, "w") as archive:
        for record, data in {"data.pkl": body, "data/0": bytes(1 << 20), "version": b"3\n"}.items():
            archive.writestr("archive/" + record, data, zipfile.ZIP_STORED if record == "data.pkl" else zipfile.ZIP_DEFLATED)


def run(arguments: list[str], limit: int, of: int = resource.RLIMIT_AS) -> subprocess.CompletedProcess:
    def set_limit() -> None:
        resource.setrlimit(of, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return subprocess.run([SHARDCTL, *arguments], capture_output=True, preexec_fn=set_limit, check=False)


def main() -> int:
    problems, runs, seen = [], 0, set()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_safetensors("m.safetensors", {f"layer.{i}": ("F32", [64], bytes(256)) for i in range(4000)})
        write_torch(Path("m.pt"))
        subprocess.run([SHARDCTL, "split", "m.safetensors", "-o", "dcp", "--ranks", "2", "-q"], check=True)
        converted = subprocess.run([SHARDCTL, "convert", "m.safetensors", "-o", "m.h5", "--include", "layer.1*", "-q"], capture_output=True, check=False)
        if converted.returncode == 0:  # The plug-in is installed.
            VERBS.extend([("m.h5", ["inspect"]), ("m.h5", ["convert", "-o", "out.h5", "-f", "-j", "1"])])
        begin = ENOUGH  # Below it the loader cannot map the program.
        while begin > STEP and run(["--version"], begin - STEP).returncode == 0:
            begin -= STEP
        for source, arguments in VERBS:
            words = [arguments[0], source, *arguments[1:]]
            code, limit, crashed = None, begin, False
            while code != 0 and limit < ENOUGH:
                ended = run(words, limit)
                code = ended.returncode
                runs += 1
                seen.add(code)
                if code < 0 and source == "m.h5" and not crashed:
                    # libhdf5's libraries crash in their constructors at limits of some 250 KiB: one step.
                    crashed = True
                elif code not in (0, 6) or (code == 6 and b"error:" not in ended.stderr):
                    problems.append(f"{words} in {limit >> 20} MiB: exit {code}: {ended.stderr[:300]!r}")
                limit += STEP
            if code != 0:
                problems.append(f"{words} never ends well")
        if converted.returncode == 0:
            for limit in range(4 << 20, 40 << 20, 2 << 20):  # The program starts, and then its plug-in and the parser.
                ended = run(["inspect", "m.h5"], limit, resource.RLIMIT_DATA)
                if ended.returncode not in (0, 6):
                    problems.append(f"inspect m.h5 in {limit >> 20} MiB of data: exit {ended.returncode}: {ended.stderr[:300]!r}")
    for problem in problems[:20]:
        print("FAIL", problem)
    print(f"{runs} runs, exit codes {sorted(seen)}")
    return 1 if problems or 6 not in seen else 0


if __name__ == "__main__":
    sys.exit(main())
