"""Calls to the disk of each verb, over checkpoints of 64 ranks: each file is opened once, each folder listed once, no
status is asked again, and tensors are read in long runs.

    calls.py SHARDCTL SLOW_DISK [--table]

--table prints a row for each verb instead of checking the bounds.
"""
import argparse
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from disk import SKIPPED, Call, SlowDisk, why_not

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

RANKS = 64
MIB = 1 << 20
SHAPES = {"ranks": [[2048, 4096]] * 3 + [[4096]] * 4,  # Each rank has 512 KiB of a matrix,
          "files": [[96, 4096]] * RANKS}               # and each file 1.5 MiB.
FORMATS = ("dcp", "torch-ranks", "safetensors")
VERBS = ("inspect", "verify", "gather", "split", "export")
OUTPUTS = {"gather": ["out.safetensors"], "split": ["out", "--ranks", "8", "--to", "dcp"], "export": ["out"]}  # By verb.


def write_model(path: Path, shapes: list[list[int]]) -> None:
    chance = random.Random(1)
    safetensors_files.write(path, {f"layers.{i}.weight": ("F32", shape) for i, shape in enumerate(shapes)},
                            iter(lambda: chance.randbytes(16 * MIB), b""))


class Runs:
    """The verbs, over the formats, on one disk; their outputs are elsewhere."""

    def __init__(self, tool: str, program: str, folder: Path) -> None:
        self.tool, self.program, self.folder, self.below = tool, program, folder, folder / "below"
        self.below.mkdir(parents=True)
        for name, shapes in SHAPES.items():
            write_model(folder / name, shapes)
        config = '{"model_type": "llama"}'
        for name in FORMATS:
            model, cut = ("files", "--shards") if name == "safetensors" else ("ranks", "--ranks")
            subprocess.run([tool, "split", folder / model, "-o", self.below / name, "--to", name, cut, str(RANKS), "-q"], check=True)
            (self.below / name / "config.json").write_text(config)

    def run(self, disk: SlowDisk, name: str, verb: str) -> list[Call]:
        with tempfile.TemporaryDirectory(dir=self.folder) as out:
            line = [self.tool, verb, str(disk.at / name)]
            if verb in OUTPUTS:
                line += ["-o", f"{out}/{OUTPUTS[verb][0]}", *OUTPUTS[verb][1:], "--no-fsync"]
            disk.calls()
            done = subprocess.run(line, capture_output=True, text=True)
            assert done.returncode == 0, f"{line}: exit {done.returncode}: {done.stderr}"
            return disk.calls()


class Counts:
    """The requests of a run to a checkpoint's folder."""

    def __init__(self, calls: list[Call], name: str) -> None:
        mine = [call for call in calls if call.path.startswith(f"/{name}")]
        files = {call.path for call in mine if call.name == "open"}
        def most(kind: str) -> int:
            return max(Counter(call.path for call in mine if call.name == kind).values(), default=0)
        self.opened, self.listed, self.files = most("open"), most("opendir"), len(files)
        self.asked = max(Counter(call.path for call in mine if call.name == "getattr" and call.path in files).values(), default=0)
        reads = [call.bytes for call in mine if call.name == "read"]
        self.reads, self.read, self.long = len(reads), sum(reads), sum(each >= MIB // 2 for each in reads)
        self.sought = sum(call.name == "lseek" for call in mine)
        self.calls = len(mine)

    def row(self) -> str:
        return f"{self.calls} | {self.files} | {self.opened} | {self.listed} | {self.asked} | {self.reads} | {self.read / MIB:.1f}"


def problems(counts: Counts, verb: str) -> list[str]:
    found = []
    def expect(what: str, value: float, most: float) -> None:
        if value > most:
            found.append(f"{what}: {value}, at most {most}")
    expect("opens of one file", counts.opened, 1)
    expect("listings of one folder", counts.listed, 1)
    # The kernel remembers nothing here: a status is two calls, opening and reading three. A file's status is taken at the
    # start and at the end, when changes are detected, and once more by export.
    expect("questions about one file's status", counts.asked, 10 if verb == "export" else 7)
    expect("questions about holes", counts.sought, 0)
    needed = 0 if verb == "inspect" else 96 * MIB
    small = 6 if verb == "verify" else 4  # Reads per file besides those of elements; 80 KiB when it is opened.
    expect("MiB read", counts.read / MIB, 1.06 * needed / MIB + 0.1 * counts.files)
    expect("reads", counts.reads, small * counts.files + needed / (MIB // 2))
    return found


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("program")
    options.add_argument("--table", action="store_true")
    chosen = options.parse_args()
    if reason := why_not():
        print(f"SKIPPED: no slow disk can be mounted: {reason}")
        return SKIPPED
    failed = 0
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        runs = Runs(chosen.tool, chosen.program, folder)
        with SlowDisk(chosen.program, folder, "timeout=0", "direct") as disk:
            for name in FORMATS:
                for verb in VERBS:
                    counts = Counts(runs.run(disk, name, verb), name)
                    if chosen.table:
                        print(f"| {name} | {verb} | {counts.row()} |")
                        continue
                    for problem in problems(counts, verb):
                        print(f"FAIL {verb} of {name}: {problem}")
                        failed += 1
    print(f"{failed} problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
