"""Checks that includes follow the arrows between folders, so that a layer never learns of the one above it.

Exits 1 and prints each include that goes the wrong way.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
USES = {  # A folder may include from itself and from these.
    "libshard/core": set(),
    "libshard/catalog": {"libshard/core"},
    "libshard/plan": {"libshard/core", "libshard/catalog"},
    "libshard/io": {"libshard/core", "libshard/catalog"},
    "libshard/exec": {"libshard/core", "libshard/catalog", "libshard/plan", "libshard/io"},
    "libshard/dist": {"libshard/core"},
    "libshard/job": {"libshard/core", "libshard/catalog", "libshard/plan", "libshard/io", "libshard/exec", "libshard/dist"},
}
LIBSHARD = set(USES)
USES |= {
    "formats/pickle": {"libshard/core", "libshard/io"},
    "formats/decode": {"libshard/core", "libshard/io"},
    "formats/zip": {"libshard/core", "libshard/io", "formats/decode"},
    "formats/json": {"libshard/core"},
    "formats/hub": {"formats/json", "libshard/core", "libshard/io"},
    "formats/safetensors": LIBSHARD | {"formats", "formats/hub", "formats/json"},
    "formats/dcp_hf": LIBSHARD | {"formats", "formats/hub", "formats/json", "formats/safetensors"},
    "formats/torch": LIBSHARD | {"formats", "formats/decode", "formats/hub", "formats/pickle", "formats/zip"},
    "formats/dcp": LIBSHARD | {"formats", "formats/decode", "formats/pickle", "formats/zip", "formats/torch"},
    "formats/torch_ranks": LIBSHARD | {"formats", "formats/pickle", "formats/zip", "formats/torch"},
}
FORMATS = {folder for folder in USES if folder.startswith("formats/")}
USES |= {
    "libshard/dist/mpi": {"libshard/core", "libshard/dist"},
    "libshard/torch/c10d": {"libshard/core", "libshard/dist"},
}
USES |= {
    "libshard/torch/sharded_tensor": {"libshard/core", "libshard/dist", "libshard/torch/c10d"},
    "libshard/torch/rpc": {"libshard/dist", "libshard/torch/sharded_tensor"},
    "libshard/torch/state": LIBSHARD | FORMATS | {"libshard/torch/sharded_tensor"},
    "libshard/torch/checkpoint": LIBSHARD | FORMATS | {"formats", "libshard/torch/sharded_tensor", "libshard/torch/state"},
}
USES |= {"formats": LIBSHARD | FORMATS, "apps/shardctl": LIBSHARD | FORMATS | {"formats"}}


def main() -> int:
    wrong = 0
    for folder, allowed in USES.items():
        for path in sorted((ROOT / folder).glob("*.[ch]*")):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'#include "(.+)/[^/]+"', text)
                if match and match[1] != folder and match[1] not in allowed:
                    print(f"{path.relative_to(ROOT)}:{line}: {folder} may not include {match[1]}")
                    wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
