"""Checks that includes follow the arrows between folders, so that a layer never depends on a higher one.

Also checks that a header whose first comment says "Inside FOLDER only" (or "Inside FOLDER and FOLDER only") is
included only from there; such headers are not installed. Also checks that such a header, or one of the program, has two
users or a test of it: declarations for one source belong in that source. Also checks that only the registry includes
the entry of a format (formats/NAME/format.h), so that a new format changes nothing outside its folder. And that only
shardtorch uses the standard library's hash tables: their hash is the same in every process, so a file's names can be
chosen to collide (libshard/core/hash_table.h). And that no two headers define a type of one name in one namespace,
because a program with both would break C++'s one definition rule unnoticed. Exits 1 and prints each wrong line.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORE = {"libshard/core"}
LAYOUTS = CORE | {"libshard/catalog/layouts"}
SELECTION = LAYOUTS | {"libshard/catalog", "libshard/catalog/selection"}
CATALOG = SELECTION | {"libshard/catalog/targets"}
CHECKPOINT = CATALOG | {"libshard/io", "libshard/checkpoint"}
MAP_INDICES = CHECKPOINT | {"libshard/map/documents"}
MAP_PASSES = MAP_INDICES | {"libshard/map/arithmetic", "libshard/map/matching"}
USES = {  # A folder may include from itself and from these.
    "libshard/core": set(),
    "libshard/io": CORE,
    "libshard/catalog/layouts": CORE,
    "libshard/catalog": LAYOUTS,
    "libshard/catalog/selection": LAYOUTS | {"libshard/catalog"},
    "libshard/catalog/targets": SELECTION,
    "libshard/plan": CATALOG,
    "libshard/checkpoint": CATALOG | {"libshard/io"},
    "libshard/exec": CHECKPOINT | {"libshard/plan", "libshard/device"},
    "libshard/ranks": CORE,
    "libshard/repair": CHECKPOINT | {"libshard/exec"},
    "libshard/compare": CHECKPOINT | {"libshard/exec", "libshard/ranks"},
    "libshard/compute": CHECKPOINT | {"libshard/exec"},
    "libshard/export": CHECKPOINT,
    "libshard/map/documents": CHECKPOINT,
    "libshard/map/arithmetic": MAP_INDICES,
    "libshard/map/matching": MAP_INDICES | {"libshard/map/arithmetic"},
    "libshard/map/passes": MAP_PASSES | {"libshard/exec"},
    "libshard/device": CORE | {"libshard/ranks"},
    "libshard/stores": CORE | {"libshard/io", "libshard/ranks"},
    "libshard/manifest": CORE | {"libshard/io"},
    "libshard/job": MAP_PASSES | {"libshard/map/passes", "libshard/plan", "libshard/exec", "libshard/device", "libshard/manifest", "libshard/ranks"},
    "libshard/verify": CHECKPOINT | {"libshard/exec", "libshard/manifest", "libshard/plan", "libshard/ranks", "libshard/repair"},
}
LIBSHARD = set(USES)
USES |= {
    "formats/parts/pickle": CATALOG | {"libshard/io"},
    "formats/parts/decoded_view": CORE | {"libshard/io"},
    "formats/parts/zip": CORE | {"libshard/io", "formats/parts/decoded_view"},
    "formats/parts/json": CORE,
    "formats/parts/hf_index": CORE | {"libshard/io", "libshard/repair", "formats/parts/json"},
    "formats/parts/quantization": CATALOG | {"libshard/io", "formats/parts/json"},
}
PARTS = set(USES) - LIBSHARD
USES |= {
    "formats/dcp_hf": LIBSHARD | PARTS | {"formats", "formats/safetensors"},
    "formats/vllm": LIBSHARD | PARTS | {"formats", "formats/safetensors"},
    "formats/dcp": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/megatron_dist": LIBSHARD | PARTS | {"formats", "formats/dcp"},
    "formats/torch_ranks": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/deepspeed": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/megatron": LIBSHARD | PARTS | {"formats", "formats/torch"},
    "formats/hdf5": LIBSHARD | PARTS | {"formats", "formats/hdf5/library"},
    "formats/hdf5/library": CORE | {"formats/hdf5"},
    "formats/hdf5/parser": CORE | {"formats/hdf5", "formats/hdf5/library", "formats/parts/decoded_view"},
}
for folder in sorted(path.name for path in (ROOT / "formats").iterdir() if path.is_dir()):
    if folder != "parts":  # A format that is not based on another's files needs no row above.
        USES.setdefault(f"formats/{folder}", LIBSHARD | PARTS | {"formats"})
FORMATS = set(USES) - LIBSHARD
USES |= {
    "formats": LIBSHARD | FORMATS,
    "formats/export": LIBSHARD | FORMATS | {"formats"},
    "formats/open": LIBSHARD | FORMATS | {"formats", "formats/export"},
    "libshard/ranks/mpi": CORE | {"libshard/ranks"},
    "libshard/stores/remote": CORE | {"libshard/io", "libshard/ranks", "libshard/stores"},
    "libshard/device/kernels": CORE | {"libshard/exec"},
    "libshard/device/cuda": CORE | {"libshard/ranks", "libshard/device", "libshard/device/kernels"},
    "shardtorch": CORE,
    "shardtorch/c10d": CORE | {"libshard/ranks"},
    "shardtorch/sharded_tensor": CORE | {"libshard/catalog/layouts", "libshard/ranks", "shardtorch", "shardtorch/c10d"},
    "shardtorch/rpc": {"shardtorch", "libshard/ranks", "shardtorch/c10d", "shardtorch/sharded_tensor"},
    "shardtorch/dtensor": CATALOG | {"shardtorch", "libshard/ranks", "shardtorch/sharded_tensor"},
    "shardtorch/state": LIBSHARD | FORMATS | {"shardtorch", "shardtorch/sharded_tensor", "shardtorch/dtensor"},
    "shardtorch/checkpoint": LIBSHARD | FORMATS | {"formats", "shardtorch", "shardtorch/sharded_tensor", "shardtorch/dtensor",
                                                   "shardtorch/state"},
    "shardtorch/parallel": {"libshard/catalog/layouts", "shardtorch", "shardtorch/sharded_tensor", "shardtorch/dtensor",
                            "shardtorch/state", "shardtorch/checkpoint"},
}
BELOW_APP = LIBSHARD | FORMATS | {"formats", "formats/export", "formats/open"}
USES["python/native"] = BELOW_APP | {"apps/shardctl", "apps/shardctl/session"}
ROOMS = {  # The rooms of the application, each with the rooms that it may include.
    "text": [],
    "request": ["text"],
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

STANDARD = {"format.h"}  # Every format's folder has it.
LONGEST = 600  # A header may have one user if the user's source would be longer with the header's source in it.


def homes_of_private_headers() -> dict[str, list[str]]:
    """Private headers by their paths, with the folders that may include them."""
    homes = {}
    for top in ("libshard", "formats", "shardtorch", "apps"):
        for path in (ROOT / top).rglob("*.h"):
            comment = re.sub(r"\s*\n///?\s*", " ", path.read_text().split("#pragma once")[0])
            if match := re.search(r"Inside (\S+(?:(?:, | and )\S+)*) only", comment):
                homes[str(path.relative_to(ROOT))] = re.split(r", | and ", match[1])
    return homes


def lines_of(path: str) -> int:
    return len((ROOT / path).read_text().splitlines()) if (ROOT / path).exists() else 0


def includers() -> tuple[dict[str, set[str]], set[str]]:
    """The files that include each header, without its own source and tests; and the headers that tests include."""
    users, tested = {}, set()
    for top in ("libshard", "formats", "shardtorch", "apps", "tests"):
        for path in (each for each in (ROOT / top).rglob("*") if each.suffix in (".h", ".cpp", ".cu")):
            for header in re.findall(r'^#include "([^"]+/[^"]+)"', path.read_text(), re.MULTILINE):
                if top == "tests":
                    tested.add(header)
                elif path != (ROOT / header).with_suffix(".cpp"):
                    users.setdefault(header, set()).add(str(path.relative_to(ROOT)))
    return users, tested


def headers_of_one_user(private: dict[str, list[str]]) -> list[str]:
    """Private headers that one file includes and no test, and that fit into its source."""
    users, tested = includers()
    found = []
    for header in sorted(set(private) | {each for each in users if each.startswith("apps/")}):
        if len(users.get(header, ())) > 1 or header in tested or pathlib.Path(header).name in STANDARD:
            continue
        source = re.sub(r"\.h$", ".cpp", next(iter(users.get(header, ["nothing"]))))
        if lines_of(header) + lines_of(re.sub(r"\.h$", ".cpp", header)) + lines_of(source) <= LONGEST:
            found.append((header, source))
    return [f"{header}: only {source} includes it, and no test: fold it in" for header, source in found]


def standard_hash_tables() -> list[str]:
    """Lines that use them. (shardtorch has some for its own pointers and numbers, and for torch's interfaces.)"""
    return [f"{path.relative_to(ROOT)}:{line}: std::unordered_ tables are not for keys of files; use core/hash_table.h"
            for top in ("libshard", "formats", "apps") for path in sorted((ROOT / top).rglob("*.[ch]*"))
            for line, text in enumerate(path.read_text().splitlines(), 1)
            if re.search(r"\bunordered_\w+\s*[<>]", text.split("//")[0])]


def types_of_two_headers() -> list[str]:
    homes: dict[tuple[str, str], list[str]] = {}
    for top in ("libshard", "formats", "apps", "shardtorch"):
        for path in sorted((ROOT / top).rglob("*.h")):
            text = path.read_text()
            for namespace in re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE)[:1]:
                for name in re.findall(r"^(?:class|struct|enum class) (\w+)(?![\w<])[^;\n:]*(?::[^:;\n]+)?\{", text, re.MULTILINE):
                    homes.setdefault((namespace, name), []).append(str(path.relative_to(ROOT)))
    return [f"{headers[0]}: {namespace}::{name} is also a type of {headers[1]}; one of them needs another name"
            for (namespace, name), headers in homes.items() if len(headers) > 1]


def main() -> int:
    wrong = standard_hash_tables() + types_of_two_headers()
    homes = homes_of_private_headers()
    wrong += headers_of_one_user(homes)
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
                is_entry = re.fullmatch(r"formats/\w+/format\.h", match[1]) and match[2] != folder
                if is_entry and str(path.relative_to(ROOT)) != "formats/registry.cpp":
                    wrong.append(f"{at}: only the registry knows {match[1]}; ask it by traits (formats/registry.h)")
                inside = homes.get(match[1], [folder])
                if not any(folder == each or folder.startswith(each + "/") for each in inside):
                    wrong.append(f"{at}: {match[1]} is for {' and '.join(inside)} only")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
