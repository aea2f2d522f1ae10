"""Common code of the tests of faults: small jobs of every writing verb and format, and the allowed states of a
destination afterwards.

A job is a command line without its destination. `Case` runs it in a separate folder, over nothing or over an older
output with --force, and checks the promise: exit code 0 and the whole output byte for byte, or a different exit
code and an unchanged destination.
"""
import hashlib
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

WORKERS = os.cpu_count() or 1
DATA = Path(__file__).resolve().parent.parent / "data"


@dataclass
class Job:
    name: str
    line: list[str]  # The verb, its source and options.
    to: str = "dst"
    wanted: dict[str, str] = field(default_factory=dict)  # The output of a run without a fault.


def write_safetensors(path: Path, size: int, seed: int = 1) -> None:
    """Three matrices of about `size` bytes together, all bytes random, and one small tensor."""
    chance, rows = random.Random(seed), max(4, size // 3 // 256)
    tensors = {f"w{i}": ("F32", [rows, 64]) for i in range(3)} | {"b": ("BF16", [6])}
    safetensors_files.write(path, tensors, iter(lambda: chance.randbytes(1 << 20), b""))


def snapshot(path: Path) -> dict[str, str] | None:
    """Hashes of all files inside a path, or None if it does not exist."""
    if not path.exists():
        return None
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


class World:
    """The sources and the jobs, made by the program under test in `folder`."""

    def __init__(self, tool: str, folder: Path, size: int = 12 << 10) -> None:
        self.tool, self.folder = os.path.abspath(tool), folder
        self.source = folder / "src"
        self.source.mkdir(parents=True)
        self.counter = 0
        self.swaps_names = True  # The file system can, so that an old destination is never moved aside.
        write_safetensors(self.source / "model.safetensors", size)
        self.has_hdf5 = self.run("convert", "model.safetensors", "-o", "model.h5", code=None).returncode == 0
        self._make_sources()
        self.jobs = self._jobs()
        for job in self.jobs:
            case = Case(self, job)
            done = case.run()
            assert done.returncode == 0, f"{job.name}: {done.stderr}"
            job.wanted = case.output()
            case.remove()

    def run(self, *line: str, code: int | None = 0) -> subprocess.CompletedProcess:
        done = subprocess.run([self.tool, *line, "-q"], cwd=self.source, capture_output=True, text=True)
        assert code is None or done.returncode == code, f"{line}: exit {done.returncode}\n{done.stderr}"
        return done

    def _make_sources(self) -> None:
        self.run("convert", "model.safetensors", "-o", "model.pt")
        for to in "dcp", "dcp-hf", "torch-ranks":
            self.run("split", "model.safetensors", "-o", to, "--to", to, "--ranks", "2")
        self.run("split", "model.safetensors", "-o", "shards", "--shards", "2")
        shutil.copytree(self.source / "dcp", self.source / "no-metadata")
        (self.source / "no-metadata" / ".metadata").unlink()
        shutil.copytree(self.source / "shards", self.source / "no-index")
        next((self.source / "no-index").glob("*.index.json")).unlink()
        shutil.copytree(DATA / "deepspeed" / "stage1", self.source / "zero")
        reference = self.source / "reference"
        reference.mkdir()
        (reference / "config.json").write_text('{"model_type": "llama"}')
        shutil.copy(self.source / "model.safetensors", reference)
        for name in "model.safetensors", "model.pt":
            whole = (self.source / name).read_bytes()
            (self.source / f"cut-{name}").write_bytes(whole[:len(whole) * 3 // 4])

    def _jobs(self) -> list[Job]:
        def job(name: str, *line: str, to: str = "dst") -> Job:
            return Job(name, list(line), to)
        jobs = [
            job("split dcp", "split", "model.safetensors", "--ranks", "2"),
            job("split dcp-hf", "split", "model.pt", "--ranks", "2", "--to", "dcp-hf"),
            job("split torch-ranks", "split", "model.safetensors", "--ranks", "2", "--to", "torch-ranks"),
            job("split safetensors", "split", "model.safetensors", "--shards", "2", "--checksum", "xxh3"),
            job("split torch", "split", "dcp", "--shards", "2", "--to", "torch"),
            job("gather safetensors", "gather", "dcp", to="dst.safetensors"),
            job("gather torch", "gather", "torch-ranks", to="dst.pt"),
            job("gather folder", "gather", "dcp-hf", "--checksum", "sha256"),
            job("reshard dcp", "reshard", "dcp", "--ranks", "3", "--dim", "1"),
            job("reshard torch-ranks", "reshard", "torch-ranks", "--ranks", "3"),
            job("reshard dcp-hf", "reshard", "dcp-hf", "--ranks", "3"),
            job("convert torch", "convert", "model.safetensors", to="dst.pt"),
            job("convert safetensors", "convert", "model.pt", "--checksum", "xxh3", to="dst.safetensors"),
            job("convert dcp", "convert", "torch-ranks", "--to", "dcp", "--cast", "w0=bfloat16"),
            job("reshard deepspeed", "reshard", "zero", "--ranks", "3"),
            job("convert universal", "convert", "zero", "--to", "deepspeed-universal"),
            job("convert megatron-dist", "convert", "model.safetensors", "--to", "megatron-dist"),
            job("export", "export", "model.pt", "--hf-ref", "reference"),
            job("repair dcp", "repair", "no-metadata", "--like", "dcp"),
            job("repair index", "repair", "no-index"),
            job("repair cut safetensors", "repair", "cut-model.safetensors", to="dst.safetensors"),
            job("repair cut torch", "repair", "cut-model.pt", to="dst.pt"),
        ]
        if self.has_hdf5:
            jobs += [job("convert hdf5", "convert", "model.safetensors", to="dst.h5"),
                     job("gather hdf5", "gather", "model.h5", to="dst.safetensors")]
        return jobs


class Case:
    """One folder for one destination. Its name contains no other's, so that cases may run at once."""

    def __init__(self, world: World, job: Job, has_old: bool = False, folder: Path | None = None) -> None:
        world.counter += 1
        self.world, self.job = world, job
        self.folder = (folder or world.folder) / f"case{world.counter}"
        self.folder.mkdir(parents=True)
        self.destination = self.folder / job.to
        self.has_old = has_old
        if has_old:
            self._make_old()
        self.before = self.output()

    def _make_old(self) -> None:
        """Different content of the same kind, a folder or a file, with a manifest if the job writes one."""
        if self.job.to == "dst":
            self.destination.mkdir()
            (self.destination / "old").write_bytes(b"old")
            return
        self.destination.write_bytes(b"old")
        if "--checksum" in self.job.line:
            Path(f"{self.destination}.manifest.json").write_bytes(b"{}")

    def line(self, *options: str) -> list[str]:
        force = ["--force"] if self.has_old else []
        return [self.world.tool, *self.job.line, "-o", str(self.destination), "-j", "1", "-q", *force, *options]

    def run(self, *options: str, under: Iterable[str] = (), **how) -> subprocess.CompletedProcess:
        return subprocess.run([*under, *self.line(*options)], cwd=self.world.source, capture_output=True, text=True, **how)

    def output(self) -> dict[str, str] | None:
        """The content of the destination, with the manifest beside a file."""
        found = snapshot(self.destination)
        manifest = snapshot(Path(f"{self.destination}.manifest.json"))
        return found if manifest is None else (found or {}) | {"manifest": manifest["."]}

    def left(self) -> list[str]:
        return [each.name for each in self.folder.iterdir() if ".shardctl-" in each.name and (self.world.swaps_names or "-old-" not in each.name)]

    def was_moved_aside(self) -> bool:
        """Whether the destination, a folder, is missing, and the old one is beside it."""
        aside = [snapshot(each) for each in self.folder.glob(".*.shardctl-old-*")]
        return not self.world.swaps_names and self.job.to == "dst" and self.output() is None and self.before in aside

    def problem(self, code: int, codes: Iterable[int], may_leave: bool = False) -> str:
        """The violations of a run that ended with `code`; empty if there is none. `codes` are the allowed ones."""
        found = self.output()
        if code not in codes:
            return f"exit {code}, not one of {sorted(codes)}"
        if code == 0 and found != self.job.wanted:
            return "exit 0, and the output is not what it should be"
        if code != 0 and found != self.before:
            return f"exit {code}, and the destination is not what it was"
        if self.left() and not may_leave:
            return f"exit {code}, and {self.left()} stays"
        return ""

    def problem_after_kill(self) -> str:
        """A kill may come between the renames of a file and its manifest: then only one of them exists, never a
        wrong pair."""
        found, wanted, before = self.output(), self.job.wanted, self.before
        allowed = [before, wanted]
        for whole in before, wanted:
            if whole and "manifest" in whole:
                allowed.append({name: each for name, each in whole.items() if name != "manifest"})
        return "" if found in allowed or self.was_moved_aside() else "the destination is neither what it was nor what it should become"

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def run_all(work: Callable[[object], str], items: Iterable[object]) -> Iterator[str]:
    """The problems that `work` returns, in one thread per processor."""
    with ThreadPoolExecutor(WORKERS) as pool:
        yield from filter(None, pool.map(work, items))


def report(problems: list[str], summary: str) -> int:
    """Prints the first problems and a line. \\returns the exit code"""
    for problem in problems[:30]:
        print("FAIL", problem)
    print(summary)
    return 1 if problems else 0
