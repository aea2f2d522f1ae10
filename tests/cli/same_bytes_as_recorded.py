#!/usr/bin/env python3
"""Every verb and format writes the bytes that tests/data/outputs.txt records.

Usage: SHARDCTL=PROGRAM same_bytes_as_recorded.py [--record] [--work FOLDER] [--only TEXT]

  --record       write the record from what PROGRAM does, instead of comparing with it
  --work FOLDER  make FOLDER and keep the outputs in it, a numbered folder per case: compare two programs with `diff -r`
  --only TEXT    only cases that contain TEXT

A line of the record is `SHA256  CASE  FILE`: CASE are the arguments, FILE a file that the case writes, or `stdout`. A case
that does not exit with 0 has a line `exit-CODE  CASE  -`. Paths in CASE start in tests/data, or in `made`, which contains what
the first cases write. Each writing case runs twice, the second time with another number of threads, ranks or bytes of
memory (WAYS), and must do the same. JSON documents are compared by the fields in FIELDS: later versions may add others, and
the words of warnings may change.
Record again only for an intended change, and read the diff of the record. Python's standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import math
import os
import pathlib
import shlex
import struct
import subprocess
import sys
import tempfile

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
RECORD = DATA / "outputs.txt"
WAYS = ("-j 1", "--local-ranks 2", "-j 4", "--local-ranks 3", "--max-memory 1MiB", "--local-ranks 5 -j 1", "--max-memory 1MiB -j 1")
FIELDS = {
    "shardctl.inspect/1": """schema source format format_version world_size tensor_count object_count logical_bytes stored_bytes
        file_count files meshes tensors objects metadata""",
    "shardctl.digest/1": "schema algorithm checkpoint tensors",
    "shardctl.diff/1": "schema equal only_in_a only_in_b dtype shape values objects",
}
FIELDS_OF_VALUES = "name elements differing max_abs max_rel max_ulp first_index".split()  # Fields of shardctl.diff/1.

MESH = "--mesh dp=2,tp=2 --place '**=S(0),S(-1)'"
MADE = (
    "gather demo/ckpt -o made/folder --shards 3 --objects drop",
    "split demo/ckpt -o made/torch-folder --shards 3 --to torch",
    "split demo/ckpt -o made/dcp-hf --ranks 3 --to dcp-hf --objects drop",
    "split demo/ckpt -o made/sharded --ranks 4 --to torch-ranks",
    f"split demo/ckpt -o made/dtensor {MESH} --to torch-ranks",
    f"split demo/ckpt -o made/plain {MESH} --to torch-ranks --as plain",
    "convert made/odd.safetensors -o made/odd-dcp --to dcp",
)
WRITES = (  # Changes of a source. Shardings of elements smaller than a byte, or objects for safetensors, are refusals.
    "gather {} -o new.safetensors --objects drop",
    "gather {} -o new.pt",
    "convert {} -o new --to dcp",
    "split {} -o new --ranks 3",
    f"split {{}} -o new {MESH} --to torch-ranks",
    "split {} -o new --ranks 4 --to torch-ranks --as sharded_tensor",
    "reshard {} -o new --ranks 5 --dim -1 --to torch-ranks",
    "convert {} -o new --to dcp-hf --objects drop",
    "gather {} -o new --to torch --shards 2",
    f"split {{}} -o new {MESH}",
    "split {} -o new --ranks 2 --to torch-ranks --as plain",
    "gather {} -o new --objects drop --max-shard-size 1KB",
    "split {} -o new --shards 2 --to dcp",
    "split {} -o new --ranks 3 --to dcp-hf --objects drop",
    "split {} -o new --ranks 2 --to torch-ranks --as dtensor",
    "convert {} -o new --to torch-ranks",
    "split {} -o new --max-shard-size 1KB --to torch",
    "split {} -o new --shards 3 --objects drop",
    f"reshard {{}} -o new {MESH} --objects drop --to dcp-hf",
    "convert {} -o new.safetensors",
)
THOROUGH = (  # Sources that all of WRITES are done to.
    "demo/ckpt", "made/odd.safetensors", "made/large.safetensors", "golden/2.15.0/plain.pt", "golden/1.13.1/dcp_training_r2",
    "golden/2.15.0/ranks_training_r2", "golden/2.11.0/dcp_hf_dtypes_r2",
)
SOME = """golden/1.13.1/plain_p5.pt golden/2.4.1/legacy.pt golden/2.8.0/conj_neg.pt golden/2.0.1/legacy_conj_neg.pt
    golden/2.15.0/module.pt golden/2.2.2/hub golden/2.15.0/numpy.pt golden/2.15.0/list.pt golden/2.15.0/bare.pt
    golden/2.15.0/legacy_new_dtypes.pt torch/no_byteorder.pt torch/same_object.pt torch/nested.pt torch/hf
    torch/many.pt golden/2.15.0/dcp_dtypes_r2 golden/2.15.0/dcp_plain_r2 golden/2.15.0/dcp_strided_r4 golden/2.15.0/dcp_zstd_r2
    golden/2.15.0/dcp_mesh_r4 golden/2.4.1/dcp_threads_r2 golden/2.0.1/dcp_boxes_r4 dcp/coded golden/2.11.0/dcp_uneven_r4
    golden/2.11.0/dcp_hf_consolidated_floats_r2 golden/2.15.0/dcp_hf_r4 golden/1.13.1/ranks_sharded_r4 golden/2.15.0/ranks_dtypes_r2
    golden/2.15.0/ranks_mesh_r4 golden/2.15.0/ranks_strided_r4 golden/2.8.0/ranks_uneven_dtensor_r4 golden/2.0.1/ranks_uneven_r4
    golden/2.2.2/ranks_replica_r4 golden/2.4.1/ranks_blocks_r2 golden/2.0.1/ranks_boxes_r4 golden/2.15.0/ranks_differ_r2
    made/folder made/torch-folder made/dcp-hf made/sharded made/dtensor made/plain made/odd-dcp made/six-bits.safetensors""".split()
EACH = 4  # WRITES done to each of SOME, in turn
OPTIONS = (
    "gather demo/ckpt -o new.safetensors --include 'model.**' --strip-prefix model.",
    "gather demo/ckpt -o new.pt --exclude 'optimizer.**' --exclude lr --add-prefix a.b.",
    r"gather demo/ckpt -o new.pt --rename 'layers\.(\d+)=h.\1' --rename 'model=m'",
    "gather demo/ckpt -o new.pt --rename '.*=same'",
    "gather demo/ckpt -o new.pt --strip-prefix nothing.",
    "gather demo/ckpt -o new.pt --include 'nothing.**'",
    "gather demo/ckpt -o new.pt --cast '**.exp_avg=bfloat16' --cast 'model.**=float64'",
    "gather demo/ckpt -o new.bin --objects drop",
    "gather demo/ckpt -o new.pth --include step --include lr",
    "gather demo/ckpt -o new.safetensors",
    "gather demo/ckpt -o new.safetensors --ranks 2",
    "gather demo/ckpt -o new --ranks-expected 4 --objects drop",
    "gather demo/ckpt -o new --ranks-expected 3 --objects drop",
    "split demo/ckpt -o new --ranks 3 --cast '**=float8_e4m3fn'",
    "split demo/ckpt -o new --ranks 40 --to torch-ranks",
    "split demo/ckpt -o new --ranks 2 --include model.norm.weight --place '**=S(0)'",
    "split demo/ckpt -o new --mesh tp=3 --place 'model.**.weight=S(1)' --place '**=S(0)' --objects drop",
    "split demo/ckpt -o new --mesh dp=2,tp=2 --place '**.weight=_S(0,2),S(0)'",
    "split demo/ckpt -o new --mesh dp=2,tp=2 --place '**.weight=S(0),R' --to torch-ranks --as sharded_tensor",
    "split demo/ckpt -o new --mesh dp=2,tp=2 --place '**=_S(0,2),S(0)' --to torch-ranks",
    "split demo/ckpt -o new --mesh dp=2,tp=2 --place '**.down.weight=R,S(1)' --place '**=S(0),R' --to torch-ranks",
    "split demo/ckpt -o new --like made/sharded",
    "split demo/ckpt -o new --like golden/2.15.0/dcp_mesh_r4",
    "split demo/ckpt -o new --layout made/plain/layout.json",
    "reshard made/dtensor -o new --layout made/plain/layout.json --as plain",
    "reshard made/sharded -o new --like demo/ckpt",
    "reshard demo/ckpt -o new --ranks 3", "reshard demo/ckpt -o new", "reshard golden/2.15.0/plain.pt -o new --ranks 3",
    "reshard golden/2.15.0/dcp_strided_r4 -o new --ranks 2 --dim 1", "reshard golden/2.15.0/dcp_hf_r4 -o new --ranks 3",
    "reshard golden/2.15.0/ranks_mesh_r4 -o new --ranks 2", "reshard golden/1.13.1/ranks_boxes_r4 -o new --ranks 3",
    "reshard made/plain -o new --ranks 3", "reshard made/dtensor -o new --ranks 3 --as sharded_tensor",
    "split made/six-bits.safetensors -o new --shards 2", "split made/six-bits.safetensors -o new --ranks 2 --to dcp-hf",
    "split made/odd.safetensors -o new --ranks 2 --dim -1 --to dcp-hf", "split made/odd.safetensors -o new --ranks 3 --dim -1",
    "gather made/plain/rank-00000-of-00004.pt -o new.pt",
    "gather made/sharded/rank-00003-of-00004.pt made/sharded/rank-00001-of-00004.pt made/sharded/rank-00000-of-00004.pt "
    "made/sharded/rank-00002-of-00004.pt -o new.pt",
    "gather made/folder -o new.safetensors --include '**.norm.**' --add-prefix x.",
    "convert made/sharded -o new --to torch-ranks --as dtensor",
    "convert made/dtensor -o new --to torch-ranks --as sharded_tensor",
    "split golden/2.15.0/plain.pt -o new --ranks 2 --include 'dtypes.**' --exclude '**.bcomplex*' --exclude '**.complex*' --to dcp-hf",
    "split golden/2.15.0/plain.pt -o new --ranks 2 --include 'tied.**' --to torch-ranks",
    "split golden/2.15.0/plain.pt -o new.pt --shards 2",
    "gather golden/2.15.0/plain.pt -o new.pt --cast 'dtypes.float8*=float32' --cast 'dtypes.complex64=complex128'",
    "gather golden/2.15.0/plain.pt -o new.pt --cast dtypes.int64=float16 --objects drop",
    "gather golden/2.15.0/plain.pt -o new.pt --include 'nested.**' --include 'integer_keys.**' --include 'ordered.**'",
    "gather golden/2.15.0/plain.pt -o new.safetensors --include 'tied.**' --include 'views.**'",
    "gather golden/2.15.0/numpy.pt -o new.pt --objects drop",
    "gather golden/2.15.0/ranks_differ_r2 -o new.pt --objects drop",
    "gather golden/2.15.0/ranks_differ_r2 -o new.pt --exclude rng --exclude seen",
    "split golden/2.15.0/plain.pt -o new --ranks 2 --objects drop --to dcp-hf --exclude '**.*complex*'",
    "split golden/2.15.0/plain.pt -o new --max-shard-size 300 --objects drop --exclude '**.*complex*'",
    "gather torch/sparse.pt -o new.pt", "gather torch/sparse.pt -o new.pt --exclude meta --exclude sparse",
    "gather torch/namespace.pt -o new --to torch --objects drop", "gather torch/namespace.pt -o new.pt",
    "gather torch/script.pt -o new.pt", "gather torch/big_endian.pt -o new.pt", "gather torch/deflated.pt -o new.pt",
    "gather nothing -o new.pt",
)
PRINTS = (
    "cat demo/ckpt model.norm.weight", "cat demo/ckpt 'model.embed.weight[3:5,-2:]'", "cat demo/ckpt step",
    "cat demo/ckpt 'model.embed.weight[7]' --format raw", "cat demo/ckpt optimizer.norm.weight.exp_avg --format npy",
    "cat demo/ckpt model.norm.weight --format npy --cast '**=float32'", "cat demo/ckpt model.norm.weight --json",
    "cat demo/ckpt nothing", "cat made/odd.safetensors f4 --format raw", "cat made/odd.safetensors f8_e5m2",
    "cat golden/2.8.0/conj_neg.pt conj --format raw", "cat golden/2.15.0/plain.pt views.transposed",
    "cat golden/2.15.0/plain.pt dtypes.complex64 --format npy", "cat golden/2.15.0/plain.pt numbers.past_2_53",
    "cat golden/2.15.0/plain.pt dtypes.bool", "cat golden/2.15.0/plain.pt special.nan --json",
    "diff demo/ckpt made/sharded --json", "diff demo/ckpt made/folder --json", "diff demo/ckpt made/odd.safetensors --json",
    "diff golden/2.15.0/plain.pt golden/2.4.1/plain.pt --json", "diff golden/2.15.0/plain.pt golden/2.15.0/plain.pt --json",
    "diff golden/2.15.0/model.pt golden/1.13.1/ranks_sharded_r2 --json",
    "diff golden/2.15.0/dcp_training_r2 golden/2.15.0/ranks_training_r2 --json",
    "diff golden/2.15.0/plain.pt golden/2.15.0/numpy.pt --json --include 'dtypes.*'",
    "diff golden/2.15.0/conj_neg.pt golden/2.15.0/legacy_conj_neg.pt --json --equal-nan",
    "digest demo/ckpt --json --algorithm sha256", "digest demo/ckpt --json --include 'model.**' --strip-prefix model.",
    "inspect demo/ckpt --json --include '**.weight' --rename weight=w", "inspect nothing --json",
)
INSPECTED_VERSIONS = ("1.13.1", "2.4.1", "2.15.0")


BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
        "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64, "F16": 16, "BF16": 16,
        "F32": 32, "F64": 64, "C64": 64}


def write_safetensors(path: pathlib.Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Bytes of a pattern that no two rows share; bools are 0 or 1."""
    header, data = {"__metadata__": {"format": "pt", "note": "odd \u00fc"}}, b""
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        values = bytes((37 * i + i // 251 + 11) % (2 if dtype == "BOOL" else 256) for i in range(size))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_inputs(folder: pathlib.Path) -> None:
    """Inputs that tests/data lacks: every dtype of safetensors, names and shapes at the edges, and tensors of more than one tile."""
    six_bits = {dtype.lower(): (dtype, [8, 4]) for dtype in BITS if dtype.startswith("F6")}
    odd = {dtype.lower(): (dtype, [8, 4]) for dtype in BITS if not dtype.startswith("F6")}
    odd |= {"a/b c.\u00fc": ("I16", [5]), "empty": ("F32", [0, 3]), "scalar": ("F64", []), "x.weight": ("BF16", [17, 6])}
    large = {"b": ("BF16", [1025]), "w.deep": ("BF16", [7, 50, 999]), "w.long": ("U8", [300001, 3]), "w.wide": ("F32", [5, 20011])}
    for name, tensors in (("odd", odd), ("six-bits", six_bits), ("large", large)):
        write_safetensors(folder / f"{name}.safetensors", tensors)


def all_cases() -> list[str]:
    """MADE comes first, because the other cases read its output."""
    writes = [line.format(source) for source in THOROUGH for line in WRITES]
    for i, source in enumerate(SOME):
        writes += [WRITES[(EACH * i + k) % len(WRITES)].format(source) for k in range(EACH)]
    sources = [*THOROUGH, *(source for source in SOME if not source.startswith("golden"))]
    for version in INSPECTED_VERSIONS:
        names = json.loads((DATA / "golden" / version / "expected.json").read_text())["checkpoints"]
        sources += [source for source in (f"golden/{version}/{name}" for name in names) if source not in sources]
    prints = [f"inspect {source} --json" for source in sources]
    prints += [f"digest {source} --json" for source in sources if not source.startswith("golden")]
    return [*MADE, *writes, *OPTIONS, *PRINTS, *prints]


def known_fields(document: bytes) -> bytes:
    """The document's fields that are in FIELDS; numbers keep their text."""
    values = json.loads(document, parse_float=str, parse_int=str)
    fields = FIELDS.get(values["schema"])
    if values["schema"] == "shardctl.diff/1":
        values["values"] = [{key: entry[key] for key in FIELDS_OF_VALUES} for entry in values["values"]]
    return document if fields is None else json.dumps({key: values.get(key) for key in fields.split()}).encode()


class Runner:
    def __init__(self, program: str, work: pathlib.Path):
        self.program = os.path.abspath(program)
        self.work = work
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("SHARDCTL")} | {"LC_ALL": "C"}
        for name in ("demo", "dcp", "golden", "torch"):
            (work / name).symlink_to(DATA / name)
        (work / "made").mkdir()
        write_inputs(work / "made")

    def lines(self, case: str, folder: str, way: str) -> dict[str, str]:
        """File to digest, for one case run in one way; its outputs go into `folder`."""
        arguments = shlex.split(case)
        writes = "-o" in arguments
        (self.work / folder).mkdir(exist_ok=True)
        if writes:
            arguments += ["-q", "--no-fsync"]
            place = arguments.index("-o") + 1
            arguments[place] = f"{folder}/{arguments[place].removeprefix('made/')}"
        done = subprocess.run([self.program, *arguments, *way.split()], cwd=self.work, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        found = {} if done.returncode == 0 else {"-": f"exit-{done.returncode}"}
        if writes:
            output = self.work / arguments[place]
            files = output.rglob("*") if output.is_dir() else [output]
            found |= {str(file.relative_to(self.work / folder)): sha256(file.read_bytes()) for file in files if file.is_file()}
        elif done.returncode in (0, 1):
            found["stdout"] = sha256(known_fields(done.stdout) if "--json" in arguments else done.stdout)
        return found

    def run(self, number: int, case: str) -> tuple[dict[str, str], str]:
        """The lines of a case, and the differences of its other ways."""
        if case in MADE:
            return self.lines(case, "made", ""), ""
        found = self.lines(case, f"{number}", "-j 2")
        if " -o " not in case:
            return found, ""
        way = WAYS[number % len(WAYS)]
        again = self.lines(case, f"{number}.again", way)
        return found, "" if again == found else f"differs with {way}: {first_difference(found, again)}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def first_difference(wanted: dict[str, str], found: dict[str, str]) -> str:
    file = min(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
    return f"{file}: {wanted.get(file, 'absent')[:16]} became {found.get(file, 'absent')[:16]}"


def read_record() -> dict[str, dict[str, str]]:
    record: dict[str, dict[str, str]] = {}
    for line in RECORD.read_text().splitlines():
        value, case, file = line.split("  ")
        record.setdefault(case, {})[file] = value
    return record


def write_record(results: dict[str, dict[str, str]]) -> None:
    lines = [f"{value}  {case}  {file}\n" for case, files in results.items() for file, value in sorted(files.items())]
    RECORD.write_text("".join(lines))
    print(f"{len(results)} cases, {len(lines)} lines, {RECORD.stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    if arguments.record and arguments.only:
        parser.error("--record is for all cases")
    cases = [(number, case) for number, case in enumerate(all_cases()) if arguments.only in case or case in MADE]
    with contextlib.ExitStack() as stack:
        work = arguments.work or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=not arguments.work)
        runner = Runner(os.environ["SHARDCTL"], work.resolve())
        first = [runner.run(number, case) for number, case in cases[: len(MADE)]]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            rest = list(pool.map(lambda item: runner.run(*item), cases[len(MADE) :]))
    results = {case: found for (_, case), (found, _) in zip(cases, first + rest)}
    wrong = [f"{case}: {problem}" for (_, case), (_, problem) in zip(cases, first + rest) if problem]
    if arguments.record:
        write_record(results)
    else:
        record = read_record()
        wrong += [f"{case}: {first_difference(record.get(case, {}), found)}"
                  for case, found in results.items() if record.get(case) != found]
        wrong += [f"{case}: recorded, but no longer run" for case in record if not arguments.only and case not in results]
    print("\n".join(wrong[:20]))
    print(f"{len(results)} cases, {len(wrong)} differ" + (" (the first 20 above)" if len(wrong) > 20 else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
