"""The output and comparisons of shardctl (SHARDCTL) are in proportion to its input: objects that repeat themselves,
warnings by the hundred thousand, names of megabytes. Each with an honest counterpart of the same size. Needs only
Python's standard library.

Limits are those of every hostile run (bounded.py), and 16 KiB of messages.
"""
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import bounded
from bounded import SHARDCTL
from build import built, entry, safetensors, tensor, text, torch_file

MESSAGE_BYTES = 16 << 10


class Ended(NamedTuple):
    run: bounded.Ended
    out_bytes: int
    err: str


def run(folder: Path, *arguments: object) -> Ended:
    ended = bounded.run([SHARDCTL, *map(str, arguments)], folder)
    return Ended(ended, (folder / "stdout").stat().st_size, (folder / "stderr").read_text(errors="replace"))


class Checks:
    def __init__(self):
        self.problems = self.runs = 0

    def ended(self, what: str, ended: Ended, code: int, words: str = "", out_bytes: int = 1 << 30) -> None:
        self.runs += 1
        found = bounded.cost_problems(ended.run)
        found += [problem for is_wrong, problem in [
            (ended.run.code != code, f"exit {ended.run.code}, not {code}: {ended.err[:300]}"),
            (len(ended.err) > MESSAGE_BYTES, f"says {len(ended.err)} bytes"),
            (words not in ended.err, f"does not say {words!r}: {ended.err[:300]}"),
            (ended.out_bytes > out_bytes, f"prints {ended.out_bytes} bytes")] if is_wrong]
        self.problems += len(found)
        for problem in found:
            print(f"FAIL {what}: {problem}", flush=True)


def repeated(leaf: bytes, levels: int, width: int) -> bytes:
    """Lists in lists, each level `width` times the one below: width^levels leaves, but levels * width items."""
    value = leaf + b"q\x01"
    for level in range(levels):
        value += bytes([ord("0")]) + b"](" + b"h" + bytes([level + 1]) + (b"h" + bytes([level + 1])) * (width - 1) + b"eq" + bytes([level + 2])
    return value


def object_file(path: Path, value: bytes) -> Path:
    """A Namespace with the value: its lists are not listed one by one."""
    path.write_bytes(torch_file(b"}" + text("o") + built("argparse", "Namespace", b"}" + text("v") + value + b"s") + b"s"))
    return path


def objects(checks: Checks, folder: Path) -> None:
    long_text = text("t" * 100_000)
    for title, leaf in ("texts", long_text), ("numbers", b"K\x01"):
        a = object_file(folder / "a.pt", repeated(leaf, 3, 200))
        b = object_file(folder / "b.pt", repeated(leaf, 3, 200))
        c = object_file(folder / "c.pt", repeated(leaf + b"0K\x02" if title == "numbers" else text("t" * 99_999 + "u"), 3, 200))
        for way in [], ["--json"]:
            ended = run(folder, "cat", a, "o", *way)
            checks.ended(f"cat of 200^3 {title}", ended, 4, "far larger", 1000)
        checks.ended(f"diff of 200^3 equal {title}", run(folder, "diff", a, b), 0)
        checks.ended(f"diff of 200^3 {title} that differ", run(folder, "diff", a, c), 1, "", 10_000)
        checks.ended(f"inspect of 200^3 {title}", run(folder, "inspect", a), 0, "", 10_000)
    honest = object_file(folder / "honest.pt", b"](" + b"".join(text(f"{i:06}" + "t" * 94) for i in range(10_000)) + b"e")
    checks.ended("cat of 10,000 texts", run(folder, "cat", honest, "o"), 0, "", 1_100_000)
    checks.ended("diff of 10,000 texts", run(folder, "diff", honest, honest), 0)


def warnings(checks: Checks, folder: Path) -> None:
    """Objects with tensors as attributes: one warning for all, under any names."""
    count = 20_000
    holder = built("argparse", "Namespace", b"}" + text("w") + tensor((1,), (1,)) + b"s")
    items = b"".join(text(f"object{i}") + (holder + b"q\x05" if i == 0 else b"h\x05") for i in range(count))
    shared = folder / "shared.pt"
    shared.write_bytes(torch_file(b"}(" + items + b"u"))
    checks.ended("objects with tensors inside", run(folder, "inspect", shared), 0, "and 19997 more")
    unused = folder / "dcp"
    shutil.copytree(Path(os.environ["SHARD_DATA"], "dcp", "four_ranks"), unused)
    for i in range(3000):
        (unused / f"__{i + 4}_0.distcp").write_bytes(b"x")
    checks.ended("files without an item", run(folder, "inspect", unused), 0, "and 2997 more")
    many = folder / "hf"
    many.mkdir()
    (many / "a.safetensors").write_bytes(safetensors({"__metadata__": {f"key{i}": "a" for i in range(count)}, "v": entry([1], 0, 1)}, b"x"))
    (many / "b.safetensors").write_bytes(safetensors({"__metadata__": {f"key{i}": "b" for i in range(count)}, "w": entry([1], 0, 1)}, b"x"))
    checks.ended("texts of __metadata__ that differ", run(folder, "inspect", many), 0, "'key0', 'key1'")


def long_names(checks: Checks, folder: Path) -> None:
    long_name = "n" * (4 << 20)
    huge = folder / "x.safetensors"
    huge.write_bytes(safetensors({long_name: {"dtype": "U8", "shape": [2], "data_offsets": [0, 3]}}, b"xyz"))
    checks.ended("a damaged tensor of a long name", run(folder, "inspect", huge), 4, "bytes) ...")
    checks.ended("the same, as JSON", run(folder, "inspect", "--json", huge), 4, "bytes) ...", MESSAGE_BYTES)
    objects_of = folder / "objects.pt"
    objects_of.write_bytes(torch_file(b"}" + text(long_name) + b"K\x01s"))
    checks.ended("an object of a long name that cannot be written",
                 run(folder, "gather", objects_of, "-o", folder / "out.safetensors"), 8, "bytes) ...")
    honest = folder / "honest.safetensors"
    honest.write_bytes(safetensors({long_name: entry([2], 0, 2)}, b"xy"))
    checks.ended("a good tensor of a long name", run(folder, "inspect", honest), 0, "", len(long_name) + 1000)


def main() -> int:
    checks = Checks()
    parts: list[Callable[[Checks, Path], None]] = [objects, warnings, long_names]
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            part(checks, Path(folder))
    print(f"{checks.runs} runs, {checks.problems} problems")
    return 1 if checks.problems or checks.runs < 15 else 0


if __name__ == "__main__":
    sys.exit(main())
