"""Damages checkpoints at random and reads them by every verb: no damage is accepted as correct, and nothing crashes.

    damage.py SHARDCTL DATA [--seconds N] [--flips N] [--case WORD]

DATA is tests/data. Every golden checkpoint of every format, and outputs of ours, are copied and damaged: bits flipped, files cut,
grown and lost, ranges zeroed, copied and exchanged, two files swapped, a file taken from another save. Then each reading verb runs.
Always: an exit code of the table, no signal, no destination after a failure. If only zip records changed, which
have checksums: a verb that ends with exit code 0 has the old values. With a manifest, or Megatron-Core's hashes: verify finds
it. With --flips instead one bit at a time in each case of a table, until N were flipped: verify finds every one.
"""
import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from jobs import write_safetensors

ALLOWED = {"verify": {0, 1, 3, 4, 8}, "diff": {0, 1, 3, 4, 8}}
READ = {0, 3, 4, 8}
STATEMENTS = {"shardctl.manifest.json", "integrity.json"}
QUICK_SECONDS, TIMEOUT = 4.0, 300
MANIFESTS = ["safetensors", "torch", "dcp", "dcp-hf", "torch-ranks", "hdf5"]  # Cases with a plain model.


@dataclass
class Source:
    name: str
    path: Path
    is_stated: bool = False  # A manifest, or similar hashes, cover every byte.

    def files(self) -> list[Path]:
        return [self.path] if self.path.is_file() else sorted(each for each in self.path.rglob("*") if each.is_file())

    def companion(self) -> Path:
        return Path(f"{self.path}.manifest.json")


class Tool:
    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def run(self, *words: object) -> subprocess.CompletedProcess:
        return subprocess.run([self.path, *map(str, words)], capture_output=True, timeout=TIMEOUT, env={**os.environ, "SHARDCTL_THREADS": "1"})

    def must(self, *words: object) -> None:
        done = self.run(*words, "-q")
        if done.returncode != 0:
            raise RuntimeError(f"{words}: exit {done.returncode}\n{done.stderr.decode(errors='replace')}")

    def knows(self, format_name: str) -> bool:
        return format_name in self.run("version").stdout.decode()

    def digests(self, path: Path) -> dict[str, tuple] | None:
        """The identity of each tensor, by name; None if it is unknown."""
        done = self.run("digest", path, "--json")
        if done.returncode != 0:
            return None
        return {each["name"]: (each["dtype"], each["shape"], each["digest"]) for each in json.loads(done.stdout)["tensors"]}


def golden(data: Path) -> list[Source]:
    """The checkpoints of the real clients."""
    found = []
    for pattern in ("golden/*/*", "deepspeed/*", "deepspeed/*/*", "megatron/*", "megatron_legacy/*", "hdf5/*.h5", "dcp/*", "torch/*"):
        for path in sorted(data.glob(pattern)):
            if path.suffix not in (".json", ".py", ".md", ".txt"):
                found.append(Source(str(path.relative_to(data)), path))
    return found


def stated(tool: Tool, data: Path, folder: Path) -> list[Source]:
    """Outputs of ours with a manifest, and one that Megatron-Core's own hashes are of."""
    model = folder / "model.safetensors"
    write_safetensors(model, 12 << 10)
    made = []
    for to in filter(tool.knows, MANIFESTS):
        path = folder / f"stated-{to}"
        tool.must("convert", model, "-o", path, "--to", to, "--checksum", "xxh3")
        made.append(Source(f"manifest of {to}", path, True))
    for to, save in ("deepspeed", "deepspeed/stage2_tied"), ("deepspeed", "deepspeed/stage3"), ("megatron-dist", "megatron/dense_tp2"):
        path = folder / f"stated-{save.replace('/', '-')}"
        tool.must("reshard" if to == "deepspeed" else "convert", data / save, "-o", path, "--to", to, "--checksum", "xxh3",
                  *(["--ranks", "3"] if to == "deepspeed" else []))
        made.append(Source(f"manifest of {save}", path, True))
    single = folder / "stated.safetensors"
    tool.must("convert", model, "-o", single, "--checksum", "sha256")
    made.append(Source("manifest beside a file", single, True))
    made.append(with_integrity(data, folder))
    return made


def with_integrity(data: Path, folder: Path) -> Source:
    """The form of Megatron-Core: the SHA-256 of every file of the iteration."""
    path = folder / "integrity"
    shutil.copytree(data / "megatron" / "dense_tp2" / "iter_0000007", path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    document = {"algorithm": "sha256", "files": {str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}}
    (path / "integrity.json").write_text(json.dumps(document))
    return Source("integrity.json", path, True)


def damaged_range(chance: random.Random, size: int) -> tuple[int, int]:
    begin = chance.randrange(size)
    return begin, min(size - begin, chance.choice([1, 8, 64, 512, 4096, 65536]))


def damage(chance: random.Random, copy: Source, others: list[Source]) -> tuple[str, list[Path], bool]:
    """Changes it. \\returns the change, the changed files, and whether only bytes within files changed."""
    files = [each for each in copy.files() if each.stat().st_size > 0]
    file = chance.choice(files)
    content = bytearray(file.read_bytes())
    kind = chance.choice(["flip", "flip", "cut", "grow", "zeros", "copy", "lose", "swap", "other"])
    if kind in ("lose", "other") and file.name in STATEMENTS:
        kind = "flip"  # No file records that there was one, or its name.
    if kind == "flip":
        for _ in range(chance.choice([1, 1, 1, 2, 16])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del content[chance.randrange(len(content)):]
    elif kind == "grow":
        content += chance.randbytes(chance.choice([1, 100, 5000]))
    elif kind == "zeros":
        begin, count = damaged_range(chance, len(content))
        content[begin:begin + count] = bytes(count)
    elif kind == "copy":
        begin, count = damaged_range(chance, len(content))
        to = chance.randrange(len(content) - count + 1)
        content[to:to + count] = content[begin:begin + count]
    elif kind == "lose":
        file.unlink()
        return f"{file.name} lost", [file], False
    elif kind == "swap":
        other = chance.choice(files)
        content = bytearray(other.read_bytes())
        other.write_bytes(file.read_bytes())
        file.write_bytes(content)
        return f"{file.name} and {other.name} swapped", [file, other], False
    else:
        source = chance.choice(others)
        other = chance.choice([each for each in source.files() if each.name == file.name] or source.files())
        content = bytearray(other.read_bytes())
        file.write_bytes(content)
        return f"{file.name} of {source.name}", [file], False
    file.write_bytes(content)
    return f"{file.name}: {kind}", [file], True


def has_checksums(path: Path) -> bool:
    """Whether every record of it is a zip's with a checksum that was made."""
    try:
        with zipfile.ZipFile(path) as archive:
            return bool(archive.infolist()) and all(each.CRC != 0 or each.file_size == 0 for each in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


class Machine:
    def __init__(self, tool: Tool, folder: Path, sources: list[Source], seed: int) -> None:
        self.tool, self.folder, self.sources, self.seed = tool, folder, sources, seed
        self.whole: dict[str, dict[str, tuple] | None] = {}
        self.runs = 0
        self.codes: dict[tuple[str, int], int] = {}
        self.problems: list[str] = []

    def copy(self, source: Source) -> Source:
        path = self.folder / "copy" / source.path.name
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        shutil.copytree(source.path, path) if source.path.is_dir() else shutil.copy(source.path, path)
        if source.companion().exists():
            shutil.copy(source.companion(), f"{path}.manifest.json")
        return Source(source.name, path, source.is_stated)

    def verbs(self, source: Source, copy: Source, chance: random.Random) -> list[list[object]]:
        names = list((self.whole[source.name] or {"w": ()}).keys())
        out = self.folder / "copy" / "out"
        to = chance.choice(["safetensors", "torch", "dcp"])
        return [["inspect", copy.path, "--json"], ["verify", copy.path, "--json"], ["digest", copy.path, "--json"], ["diff", source.path, copy.path, "--json"],
                ["cat", copy.path, chance.choice(names), "--format", "raw"], ["gather", copy.path, "-o", out, "--to", to, "--objects", "drop", "--json"],
                ["repair", copy.path, "-o", out, "--json"]]

    def round(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        source = chance.choice(self.sources)
        if source.name not in self.whole:
            self.whole[source.name] = self.tool.digests(source.path)
        protected = {path.name: has_checksums(path) for path in source.files()}
        before = {str(path.relative_to(source.path)): path.read_bytes() for path in source.files()}
        copy = self.copy(source)
        what, changed, is_within = damage(chance, copy, self.sources)
        after = {str(path.relative_to(copy.path)): path.read_bytes() for path in copy.files()}
        is_equal = before == after
        is_checked = is_within and all(protected.get(path.name) for path in changed)
        for line in self.verbs(source, copy, chance):
            problem = self.problem(source, copy, line, is_equal, is_checked)
            if problem:
                self.problems.append(f"round {number}, {source.name}, {what}: {' '.join(map(str, line))}: {problem}")
                print("FAIL", self.problems[-1], flush=True)

    def problem(self, source: Source, copy: Source, line: list[object], is_equal: bool, is_checked: bool) -> str:
        verb, out = line[0], self.folder / "copy" / "out"
        try:
            done = self.tool.run(*line)
        except subprocess.TimeoutExpired:
            return f"it takes more than {TIMEOUT} s"
        self.runs += 1
        code = done.returncode
        self.codes[verb, code] = self.codes.get((verb, code), 0) + 1
        try:
            if code not in ALLOWED.get(verb, READ) | ({2} if verb in ("cat", "repair", "gather") else set()):
                return f"exit {code}\n{done.stderr.decode(errors='replace')[:600]}"
            if code != 0 and out.exists():
                return f"exit {code}, and the destination is there"
            if verb == "verify" and code == 0 and copy.is_stated and not is_equal:
                return "it finds nothing"
            if code == 0 and is_checked and verb in ("digest", "gather"):
                return self.wrong_values(source, out if verb == "gather" else copy.path)
            return ""
        finally:
            shutil.rmtree(out, ignore_errors=True) if out.is_dir() else out.unlink(missing_ok=True)

    def wrong_values(self, source: Source, path: Path) -> str:
        found, whole = self.tool.digests(path), self.whole[source.name]
        if found is None or whole is None or found == whole:
            return ""
        wrong = [name for name in whole if name not in found or found[name] != whole[name]]
        return f"exit 0, and {wrong[:3]} are not what they were"

    def flips(self, source: Source, count: int) -> None:
        """One bit after another, each restored."""
        chance, found = random.Random(f"{self.seed} {source.name}"), 0
        copy = self.copy(source)
        files = [each for each in [*copy.files(), copy.companion()] if each.exists()]
        ends, total = [], 0
        for each in files:
            total += each.stat().st_size
            ends.append(total)
        for _ in range(count):
            at = chance.randrange(total)
            i = next(i for i, end in enumerate(ends) if at < end)
            place, bit = at - (ends[i - 1] if i else 0), chance.randrange(8)
            with files[i].open("r+b") as file:
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1 << bit]))
                file.flush()
                code = self.tool.run("verify", copy.path, "-q").returncode
                file.seek(place)
                file.write(bytes([byte]))
            self.runs += 1
            if code in (1, 3, 4, 8):
                found += 1
            else:
                self.problems.append(f"{source.name}: {files[i].name} byte {place} bit {bit}: verify ends with exit {code}")
                print("FAIL", self.problems[-1], flush=True)
        print(f"{source.name}: {found} of {count} flips found", flush=True)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("data", type=Path)
    options.add_argument("--seconds", type=float, default=QUICK_SECONDS)
    options.add_argument("--flips", type=int, default=0)
    options.add_argument("--case", default="")
    options.add_argument("--round", type=int, default=-1)
    chosen = options.parse_args()
    seed = int(os.environ.get("SHARD_SEED", 1))
    tool = Tool(chosen.tool)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with_sums = stated(tool, chosen.data.resolve(), folder)
        if chosen.flips:
            sources = [each for each in with_sums if chosen.case in each.name]
        else:
            sources = [each for each in golden(chosen.data.resolve()) + with_sums if chosen.case in each.name]
        machine = Machine(tool, folder, sources, seed)
        if chosen.flips:
            for source in sources:
                machine.flips(source, chosen.flips)
        elif chosen.round >= 0:
            machine.round(chosen.round)
        else:
            end, number = time.monotonic() + chosen.seconds, 0
            while time.monotonic() < end:
                machine.round(number)
                number += 1
            print(f"{number} damaged copies of {len(sources)} checkpoints")
    for (verb, code), count in sorted(machine.codes.items()):
        print(f"{verb}: exit {code} {count}")
    print(f"{machine.runs} runs, {len(machine.problems)} problems (SHARD_SEED={seed})")
    return 1 if machine.problems else 0


if __name__ == "__main__":
    sys.exit(main())
