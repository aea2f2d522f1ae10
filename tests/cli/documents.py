"""Holds docs/schemas.md and docs/layouts.md against the program: documents.py SOURCE_DIR

- Every field of every JSON document that the program prints has a row in the tables of docs/schemas.md, with its types
  and with when it is present; every row, type and absence is met; every schema that the sources name has a section.
- The table of docs/layouts.md has the keys that the program takes, and no others.
- Every key of maps has a user: a built-in map, or a row of docs/map-documents.md with the framework that needs it.
- Every command of their `console` blocks runs and prints the page's output, see console_blocks.py.

Environment: SHARDCTL is the program, SHARD_LIBRARY libshard.so under its SONAME, SHARD_CUDA_STAND_IN the stand-in for its
plug-in of GPUs.
"""
import json
import os
import re
import shutil
import struct
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from console_blocks import kind, make_folder, run, run_page
from program import write_safetensors

SOURCE = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(SOURCE / "tests/stores"))
import server  # noqa: E402
PAGES = [SOURCE / "docs" / name for name in ("schemas.md", "layouts.md")]
# ---- Fields as the page's tables have them.


def kinds_of(text: str) -> set[str]:
    """'array of strings and integers or null' as {'array', 'array of string', 'array of integer', 'null'}"""
    if not text.startswith("array"):
        return set(re.split(r", | or ", text))
    array, *null = text.split(" or ")
    items = re.split(r", | and ", array.removeprefix("array of ")) if array != "array" else []
    return {"array", *null, *(f"array of {item.removesuffix('s')}" for item in items)}


def tables(page: str) -> dict[str, dict[str, tuple[set[str], bool]]]:
    """By schema and path: the kinds of value, and whether the field is always present. A section may describe several schemas."""
    schemas = defaultdict(dict)
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        named = re.findall(r"`(shardctl\.\w+/\d+)`", section.split("\n")[0])
        rows = re.findall(r"^\| `([\w.\[\]]+)` \| ([^|]+) \| ([^|]+) \|", section, re.MULTILINE)
        for schema in named:
            schemas[schema] |= {path: (kinds_of(kinds), present == "always") for path, kinds, present in rows}
    return dict(schemas)


# ---- Fields as the program prints them.


class Seen:
    """The observed fields of one schema."""

    def __init__(self, rows):
        self.rows = rows
        self.kinds = defaultdict(set)
        self.times = Counter()
        self.parents = Counter()

    def add(self, value: dict, prefix: str = "") -> None:
        self.parents[prefix] += 1
        for key, field in value.items():
            path = prefix + key
            self.times[path] += 1
            self.kinds[path].add(kind(field))
            if isinstance(field, list):
                self.kinds[path] |= {f"array of {kind(item)}" for item in field}
                for item in field:
                    if isinstance(item, dict):
                        self.add(item, path + "[].")
            elif isinstance(field, dict):
                self.add_object(field, path)

    def add_object(self, field: dict, path: str) -> None:
        """An object whose keys the page lists, or one of strings under any keys."""
        if "object of strings" not in self.rows.get(path, [()])[0]:
            self.add(field, path + ".")
        elif {kind(item) for item in field.values()} <= {"string"}:
            self.kinds[path] = {"object of strings"}

    def mistakes(self, schema: str):
        for path in sorted(self.times.keys() | self.rows.keys()):
            where = f"{schema}: {path}"
            if path not in self.rows:
                yield f"{where} is printed, and has no row in the page"
                continue
            said, always = self.rows[path]
            if path not in self.times:
                yield f"{where} has a row in the page, and no document has it"
                continue
            unsaid = self.kinds[path] - said
            unseen = {each for each in said - self.kinds[path] if not each.startswith("array of ")}
            if unsaid:
                yield f"{where} is also {sorted(unsaid)}, the page says {sorted(said)}"
            if unseen:
                yield f"{where} is never {sorted(unseen)}, as the page says"
            parent = re.match(r"(.*[.])?", path)[0]
            is_always = self.times[path] == self.parents[parent]
            if is_always != always:
                yield f"{where} is {'always' if is_always else 'not always'} present, the page says otherwise"


def documents(text: str):
    """The documents that begin a line."""
    for begin in re.finditer(r"^{", text, re.MULTILINE):
        try:
            document, _ = json.JSONDecoder().raw_decode(text, begin.start())
        except json.JSONDecodeError:
            continue
        if str(document.get("schema", "")).startswith("shardctl."):
            yield document


# ---- Inputs.


def write_inputs(work: Path) -> None:
    """Two files that differ in every way, and a checkpoint of which a file is cut short."""
    nan, infinity = float("nan"), float("inf")
    write_safetensors(work / "a.safetensors", {
        "bits": ("F4", [4], b"\1\2"),
        "bool": ("BOOL", [2], b"\0\1"),
        "complex": ("C64", [1], struct.pack("<2f", 1, 2)),
        "dtype": ("I32", [1], bytes(4)),
        "int": ("I64", [1], b"\1" * 8),
        "real": ("F32", [3], struct.pack("<3f", 1, nan, infinity)),
        "shape": ("F32", [2], bytes(8)),
    }, {"note": "text"})
    write_safetensors(work / "b.safetensors", {
        "bits": ("F4", [4], b"\1\3"),
        "bool": ("BOOL", [2], b"\0\0"),
        "complex": ("C64", [1], struct.pack("<2f", 1, 3)),
        "dtype": ("F32", [1], bytes(4)),
        "int": ("I64", [1], b"\2" * 8),
        "real": ("F32", [3], struct.pack("<3f", nan, 1, infinity)),
        "shape": ("F32", [4], bytes(16)),
    }, {})
    (work / "map.json").write_text(json.dumps({
        "schema": "shardctl.layout/1", "strict": {"unused_rule": "warn"},
        "rules": [{"id": "turned", "logical": "y", "stored": "real"}, {"id": "unused", "logical": "z", "stored": "no"}]}))
    shutil.copytree(work / "data/demo/ckpt", work / "cut")
    os.truncate(work / "cut/__2_0.distcp", 9000)
    (work / "hub").mkdir()
    (work / "hub/config.json").write_text('{"tie_word_embeddings": true}')
    one = {"lm_head.weight": ("F32", [1], bytes(4)), "model.embed_tokens.weight": ("F32", [1], bytes(4))}
    write_safetensors(work / "hub/model.safetensors", one, {})
    write_safetensors(work / "trained.safetensors", {f"module.{name}": tensor for name, tensor in one.items()}, {})
    (work / "two").mkdir()
    shutil.copy(work / "a.safetensors", work / "two/model-00001-of-00002.safetensors")
    shutil.copy(work / "a.safetensors", work / "mended.safetensors")
    with open(work / "mended.safetensors", "ab") as file:
        file.write(b"more")


# Their documents together have every field, with every kind of value, present and absent.
CORPUS = """
inspect a.safetensors
inspect data/demo/ckpt
inspect data/torch/nested.pt
inspect data/torch/same_object.pt
inspect data/torch/conj.pt
inspect data/quantized/awq
inspect data/dcp/four_ranks
inspect data/golden/2.11.0/ranks_differ_r2
inspect data/golden/2.11.0/ranks_mesh_r4
diff a.safetensors b.safetensors
diff a.safetensors data/torch/nested.pt
diff data/torch/nested.pt a.safetensors
diff data/torch/nested.pt data/dcp/four_ranks
diff data/demo/ckpt data/demo/ckpt
convert data/hdf5/h5py316-attributes.h5 -o attributes.pt
convert attributes.pt -o attributes.h5
diff data/hdf5/h5py316-attributes.h5 attributes.h5
verify data/demo/ckpt
verify data/demo/ckpt --ranks-expected 2
verify cut
verify data/dcp/foreign_class
verify data/quantized/awq --dequantize
gather data/quantized/awq -o plain.safetensors --dequantize
verify plain.safetensors --against data/quantized/awq
verify hub
gather a.safetensors -o made.safetensors --if-changed
gather a.safetensors -o made.safetensors --if-changed
split a.safetensors -o made --ranks 2 --checksum sha256
split a.safetensors -o local --ranks 2 --local-ranks 2 --local-output --checksum xxh3
cat a.safetensors real
cat a.safetensors bool
cat a.safetensors int
cat a.safetensors complex
cat data/torch/nested.pt step
cat data/torch/nested.pt rate
cat data/torch/nested.pt flag
cat data/torch/nested.pt name
cat data/torch/nested.pt nothing
cat data/torch/nested.pt size
digest data/demo/ckpt
gather data/golden/2.11.0/dcp_hf_r2 -o plan.safetensors --dry-run
repair cut -o plan --dry-run
repair cut -o repaired
repair two -o other
repair two -o plan --dry-run
repair data/demo/ckpt -o fewer --ranks-expected 6
repair data/demo/ckpt -o plan --ranks-expected 6 --dry-run
repair mended.safetensors -o whole.safetensors
repair mended.safetensors -o plan.safetensors --dry-run
export trained.safetensors -o exported --hf-ref hub
export trained.safetensors -o plan --hf-ref hub --dry-run
export data/golden/2.11.0/dcp_training_r2 -o training
export data/golden/2.11.0/dcp_training_r2 -o plan --dry-run
export a.safetensors -o no --hf-ref hub
gather data/golden/2.11.0/dcp_hf_r2 -o result.safetensors --progress json
diff a.safetensors b.safetensors --include dtype --progress json
diff a.safetensors b.safetensors --local-ranks 2 -v --progress json
map list
map check map.json a.safetensors
version
--version
help
help split
digest --help --all
completion bash
env
env --rank 1 --world-size 2 --rdzv host:29400
--bogus
inspect absent
inspect data/torch/script.pt
cat data/demo/ckpt absent
gather data/demo/ckpt -o no.safetensors
digest cut --local-ranks 2
split a.safetensors -o no --mesh dp=2 --place 'real=R,R'
""".split("\n")[1:-1]

# Documents that the commands above leave in files.
MANIFESTS = ["made.safetensors.manifest.json", "made/shardctl.manifest.json", "local/shardctl.manifest.json"]


# Machines for `env`, by the report of the fake plug-in of GPUs; one has no plug-in.
MACHINES = ["STAND_IN_GPUS=2", "STAND_IN_GPUS=0 STAND_IN_DRIVER=0", None]


def describe_machine(variables: str | None, work: Path) -> str:
    libraries = Path(tempfile.mkdtemp(dir=work))
    shutil.copy(os.environ["SHARD_LIBRARY"], libraries)  # The name that programs load.
    if variables is not None:
        shutil.copy(os.environ["SHARD_CUDA_STAND_IN"], libraries / "libshard_cuda.so")
    return run(f"LD_LIBRARY_PATH={libraries} {variables or ''} shardctl env --json", work).stdout


def list_uploads(work: Path) -> str:
    """The uploads that a killed run left in an object store."""
    root = work / "store"
    (root / "s3/bucket").mkdir(parents=True)
    (root / "uploads/one").mkdir(parents=True)
    (root / "uploads/one/00001").write_bytes(b"part")
    with server.Server(root) as served:
        served.uploads["one"] = {"bucket": "bucket", "key": "out/a", "run": "killed"}
        variables = f"AWS_ENDPOINT_URL={served.url} AWS_ACCESS_KEY_ID={server.KEY_ID} AWS_SECRET_ACCESS_KEY={server.SECRET}"
        done = run(f"{variables} shardctl repair s3://bucket/out --uploads --json", work)
    return done.stdout + done.stderr


# ---- The page's tables, compared with the printed documents.


def wrong_fields(printed: list[str]):
    schemas = tables(PAGES[0].read_text())
    seen = {schema: Seen(rows) for schema, rows in schemas.items()}
    for text in printed:
        for document in documents(text):
            if document["schema"] in seen:
                seen[document["schema"]].add(document)
    for schema, each in seen.items():
        yield from each.mistakes(schema)
    sources = "".join(path.read_text() for path in (SOURCE / "apps/shardctl").rglob("*.cpp"))
    for schema in sorted(set(re.findall(r"shardctl\.\w+/\d+", sources)) - schemas.keys() - {"shardctl.layout/1"}):
        yield f"docs/schemas.md has no section on {schema}"


def wrong_kinds():
    listed = re.search(r"`kind` is one of\n(.*?)\nKinds may be added", PAGES[0].read_text(), re.DOTALL)[1]
    said = set(re.findall(r"`(\w+)`", listed))
    sources = "".join((SOURCE / "libshard/core" / name).read_text() for name in ("error.cpp", "finding_kind.cpp"))
    known = set(re.findall(r"\"([a-z]+(?:_[a-z]+)*)\"", sources))
    for name in sorted(said ^ known):
        yield f"docs/schemas.md {'names the kind' if name in said else 'does not name the kind'} {name}"


def taken_keys(document: dict, work: Path) -> list[str]:
    """The known keys in the refusal of a layout document with an unknown key."""
    (work / "layout.json").write_text(json.dumps({"schema": "shardctl.layout/1", "mesh": {"dp": 2}, **document}))
    done = run("shardctl inspect a.safetensors --layout layout.json --json", work)
    return sorted(json.loads(done.stdout)["expected"].split(", "))


def wrong_layout_keys(work: Path):
    levels = {"": {"no": 0}, "files.": {"files": {"no": 0}}, "rules[].": {"rules": [{"no": 0}]},
              "rules[].shard[].": {"rules": [{"match": "w", "shard": [{"no": 0}]}]}}
    rows = re.findall(r"^\| `([\w.\[\]]+)` \| [^|]+ \| (?:yes|no) \|", PAGES[1].read_text(), re.MULTILINE)
    for level, document in levels.items():
        said = sorted(row.removeprefix(level) for row in rows if re.fullmatch(re.escape(level) + r"\w+", row))
        taken = taken_keys(document, work)
        if said != taken:
            yield f"docs/layouts.md names the keys '{level}' {said}, the program takes {taken}"


# A map document with an unknown key at each level; `*` is any name.
MAP_LEVELS = {
    "": {"no": 0}, "vars.*": {"vars": {"a": {"no": 0}}}, "files": {"mesh": {"a": 1}, "files": {"path": "a", "no": 0}},
    "index.*": {"index": {"l": {"no": 0}}}, "states": {"rules": [], "states": [{"no": 0}]},
    "refuse": {"rules": [], "refuse": [{"no": 0}]}, "strict": {"rules": [], "strict": {"no": 0}},
    "flatten": {"rules": [], "flatten": {"no": 0}}, "rules": {"rules": [{"no": 0}]},
    **{f"rules.{key}": {"mesh": {"a": 1}, "rules": [{"logical": "a", "stored": "a", key: value}]}
       for key, value in (("concat", {"no": 0}), ("shard", [{"no": 0}]), ("pad", {"no": 0}), ("stack", [{"no": 0}]), ("block", {"no": 0}))},
}


def keys_in(value, path: str, named=("vars", "index", "mesh", "types")) -> set[str]:
    """The paths of all keys in a map document, as MAP_LEVELS has them."""
    if isinstance(value, list):
        return set().union(*(keys_in(item, path) for item in value))
    if not isinstance(value, dict):
        return set()
    if path in named:
        return set().union(*(keys_in(item, f"{path}.*") for item in value.values()))
    paths = {f"{path}.{key}".lstrip("."): item for key, item in value.items()}
    return set(paths) | set().union(*(keys_in(item, key) for key, item in paths.items()))


def wrong_map_keys(work: Path):
    taken = set()
    for level, document in MAP_LEVELS.items():
        (work / "map.json").write_text(json.dumps({"schema": "shardctl.layout/1", **document}))
        done = run("shardctl map show map.json --json", work)
        taken |= {f"{level}.{key}".lstrip(".") for key in json.loads(done.stdout)["expected"].split(", ")}
    built_in = set().union(*(keys_in(json.loads(path.read_text()), "") for path in (SOURCE / "maps").glob("*.json")))
    page = (SOURCE / "docs/map-documents.md").read_text()
    table = page.split("## Who needs a key")[1].split("\n## ")[0]
    needed = {key for row in re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE) for key in re.findall(r"`([^`]+)`", row)}
    for key in sorted(taken - built_in - needed):
        yield f"no built-in map has the key {key}, and docs/map-documents.md names nobody who needs it"
    for key in sorted(needed & built_in):
        yield f"docs/map-documents.md says who needs {key}, which a built-in map has"
    for key in sorted(needed - taken):
        yield f"docs/map-documents.md names the key {key}, which the program does not take"


def main() -> int:
    mistakes, printed = [], []
    for path in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            mistakes += run_page(path, make_folder(Path(folder), SOURCE), printed)
    with tempfile.TemporaryDirectory() as folder:
        work = make_folder(Path(folder), SOURCE)
        write_inputs(work)
        for arguments in CORPUS:
            done = run(f"shardctl {arguments} --json", work)
            printed.append(done.stdout + done.stderr)
        printed += [describe_machine(machine, work) for machine in MACHINES]
        printed.append(list_uploads(work))
        printed += [(work / name).read_text() for name in MANIFESTS]
        mistakes += [*wrong_layout_keys(work), *wrong_map_keys(work)]
    mistakes += [*wrong_fields(printed), *wrong_kinds()]
    for mistake in mistakes:
        print(mistake)
    return 1 if mistakes else 0


sys.exit(main())
