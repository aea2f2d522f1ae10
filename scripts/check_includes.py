"""Checks that includes follow the arrows between folders, so that a layer never learns of the one above it.

Checks also that a header whose first comment says "Inside FOLDER only" (or "Inside FOLDER and FOLDER only") is included
from there alone; such headers are not installed. And that only shardtorch uses the standard library's hash tables: their
hash is the same in every process, so that a file's names can be chosen to collide (libshard/core/hash_table.h). Exits 1
and prints each line that is wrong.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = {"libshard/core"}
CATALOG = CORE | {"libshard/catalog"}
CHECKPOINT = CATALOG | {"libshard/io", "libshard/checkpoint"}
USES = {  # A folder may include from itself and from these.
    "libshard/core": set(),
    "libshard/io": CORE,
    "libshard/catalog": CORE,
    "libshard/plan": CATALOG,
    "libshard/checkpoint": CATALOG | {"libshard/io"},
    "libshard/exec": CHECKPOINT | {"libshard/plan", "libshard/device"},
    "libshard/ranks": CORE,
    "libshard/repair": CHECKPOINT | {"libshard/exec"},
    "libshard/compare": CHECKPOINT | {"libshard/exec", "libshard/ranks"},
    "libshard/export": CHECKPOINT,
    "libshard/map": CHECKPOINT,
    "libshard/device": CORE | {"libshard/ranks"},
    "libshard/manifest": CORE | {"libshard/io"},
    "libshard/job": CHECKPOINT | {"libshard/map", "libshard/plan", "libshard/exec", "libshard/device", "libshard/manifest", "libshard/ranks"},
    "libshard/verify": CHECKPOINT | {"libshard/exec", "libshard/manifest", "libshard/plan", "libshard/ranks", "libshard/repair"},
}
LIBSHARD = set(USES)
USES |= {
    "formats/parts/pickle": CATALOG | {"libshard/io"},
    "formats/parts/decoded_view": CORE | {"libshard/io"},
    "formats/parts/zip": CORE | {"libshard/io", "formats/parts/decoded_view"},
    "formats/parts/json": CORE,
    "formats/parts/hf_index": CORE | {"libshard/io", "formats/parts/json"},
    "formats/parts/quantization": CATALOG | {"libshard/io", "formats/parts/json"},
}
PARTS = set(USES) - LIBSHARD
USES |= {
    "formats/safetensors": LIBSHARD | PARTS | {"formats"},
    "formats/dcp_hf": LIBSHARD | PARTS | {"formats", "formats/safetensors"},
    "formats/vllm": LIBSHARD | PARTS | {"formats", "formats/safetensors"},
    "formats/torch": LIBSHARD | PARTS | {"formats"},
    "formats/dcp": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/megatron_dist": LIBSHARD | PARTS | {"formats", "formats/dcp"},
    "formats/torch_ranks": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/deepspeed": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/megatron": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/hdf5": LIBSHARD | PARTS | {"formats", "formats/hdf5/library"},
    "formats/hdf5/library": CORE | {"formats/hdf5"},
    "formats/hdf5/parser": CORE | {"formats/hdf5", "formats/hdf5/library", "formats/parts/decoded_view"},
}
FORMATS = set(USES) - LIBSHARD
USES |= {
    "formats": LIBSHARD | FORMATS,
    "formats/export": LIBSHARD | FORMATS | {"formats"},
    "libshard/ranks/mpi": CORE | {"libshard/ranks"},
    "libshard/device/kernels": CORE | {"libshard/exec"},
    "libshard/device/cuda": CORE | {"libshard/ranks", "libshard/device", "libshard/device/kernels"},
    "shardtorch": CORE,
    "shardtorch/c10d": CORE | {"libshard/ranks"},
    "shardtorch/sharded_tensor": CORE | {"libshard/ranks", "shardtorch", "shardtorch/c10d"},
    "shardtorch/rpc": {"shardtorch", "libshard/ranks", "shardtorch/sharded_tensor"},
    "shardtorch/dtensor": CATALOG | {"shardtorch", "libshard/ranks", "shardtorch/sharded_tensor"},
    "shardtorch/state": LIBSHARD | FORMATS | {"shardtorch", "shardtorch/sharded_tensor", "shardtorch/dtensor"},
    "shardtorch/checkpoint": LIBSHARD | FORMATS | {"formats", "shardtorch", "shardtorch/sharded_tensor", "shardtorch/dtensor",
                                                   "shardtorch/state"},
    "shardtorch/parallel": {"shardtorch", "shardtorch/sharded_tensor", "shardtorch/state", "shardtorch/checkpoint"},
}
BELOW_APP = LIBSHARD | FORMATS | {"formats", "formats/export"}
ROOMS = {  # The rooms of the application, each with the rooms that it may include.
    "text": [],
    "request": [],
    "session": ["text", "request"],
    "arguments": ["text", "request", "session"],
    "source": ["text", "request", "session", "arguments"],
    "target": ["text", "request", "session", "arguments", "source"],
    "render": ["text", "request", "session", "arguments", "source"],
    "html": ["text", "request", "session", "source", "target", "render"],
    "verbs": ["text", "request", "session", "arguments", "source", "target", "render", "html"],
}
USES |= {f"apps/shardctl/{room}": BELOW_APP | {f"apps/shardctl/{each}" for each in below} for room, below in ROOMS.items()}
USES["apps/shardctl"] = BELOW_APP | {f"apps/shardctl/{room}" for room in ROOMS}


def homes_of_private_headers() -> dict[str, list[str]]:
    """Private headers by their paths, with the folders that may include them."""
    homes = {}
    for top in ("libshard", "formats", "shardtorch", "apps"):
        for path in (ROOT / top).rglob("*.h"):
            comment = re.sub(r"\s*\n///?\s*", " ", path.read_text().split("#pragma once")[0])
            if match := re.search(r"Inside (\S+(?:(?:, | and )\S+)*) only", comment):
                homes[str(path.relative_to(ROOT))] = re.split(r", | and ", match[1])
    return homes


def standard_hash_tables() -> list[str]:
    """Where they are used. (shardtorch has some for its own pointers and numbers, and for torch's interfaces.)"""
    return [f"{path.relative_to(ROOT)}:{line}: std::unordered_ tables are not for keys of files; use core/hash_table.h"
            for top in ("libshard", "formats", "apps") for path in sorted((ROOT / top).rglob("*.[ch]*"))
            for line, text in enumerate(path.read_text().splitlines(), 1)
            if re.search(r"\bunordered_\w+\s*[<>]", text.split("//")[0])]


def main() -> int:
    wrong = standard_hash_tables()
    homes = homes_of_private_headers()
    for header, folders in homes.items():
        wrong += [f"{header}: there is no folder {each}" for each in folders if not (ROOT / each).is_dir()]
    for folder, allowed in USES.items():
        for path in sorted((ROOT / folder).glob("*.[ch]*")):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'#include "((.+)/[^/]+)"', text)
                if not match:
                    continue
                at = f"{path.relative_to(ROOT)}:{line}"
                if match[2] != folder and match[2] not in allowed:
                    wrong.append(f"{at}: {folder} may not include {match[2]}")
                inside = homes.get(match[1], [folder])
                if not any(folder == each or folder.startswith(each + "/") for each in inside):
                    wrong.append(f"{at}: {match[1]} is for {' and '.join(inside)} only")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
