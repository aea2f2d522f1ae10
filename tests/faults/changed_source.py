"""Changes the source while a verb reads it: exit code 4 and an unchanged destination, for any change at any time.

    changed_source.py SHARDCTL [--long]

strace stops the program before a call; then a file of the source is changed, and the program continues.
"""
import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from calls import Call, inject, traced
from jobs import Case, Job, World, report, run_all, snapshot


def rewrite(file: Path) -> None:
    with file.open("r+b") as each:
        each.seek(file.stat().st_size // 2)
        byte = each.read(1)
        each.seek(-1, os.SEEK_CUR)
        each.write(bytes([byte[0] ^ 1]))


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 3)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def grow(file: Path) -> None:
    with file.open("ab") as each:
        each.write(b"more")


def replace(file: Path) -> None:
    """By a file of the same size, modified at the same time."""
    other = file.with_name("other")
    shutil.copy2(file, other)
    os.replace(other, file)


def remove(file: Path) -> None:
    file.unlink()


CHANGES: list[Callable[[Path], None]] = [rewrite, cut, empty, grow, replace, remove]
READING = [["digest"], ["verify"], ["diff", "model.safetensors"], ["cat", "w1", "--format", "raw"]]


def run_changed(case: Case, line: list[str], where: Path, call: Call, change: Callable[[], None]) -> tuple[int, str]:
    """Runs a command, with a change while it is stopped before that call. \returns its exit code, -1 if it did not
    stop."""
    log = case.folder / "log"
    process = subprocess.Popen([*inject(call, "signal=STOP", log), *line], cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (log.exists() and "stopped by SIGSTOP" in log.read_text(errors="replace")):
        time.sleep(0.002)
    is_stopped = process.poll() is None
    if is_stopped:
        change()
        child = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        os.kill(int(child), signal.SIGCONT)
    error = process.communicate(timeout=60)[1]
    log.unlink(missing_ok=True)
    return process.returncode if is_stopped else -1, error


class Changes:
    def __init__(self, world: World, chance: random.Random, is_long: bool) -> None:
        self.world, self.chance, self.is_long = world, chance, is_long

    def own_source(self, name: str, folder: Path) -> Path:
        copy = folder / name
        source = self.world.source / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, copy)
        return copy

    def moments(self, job: Job) -> list[Call]:
        """Before the first write and the last, the last read, and the first sync, which comes when all is written."""
        case = Case(self.world, job)
        source = str(self.world.source / job.line[1])
        calls = traced(case)
        case.remove()
        reads = [call for call in calls if call.name == "pread64" and source in call.text]
        writes = [call for call in calls if call.name == "pwrite64"]
        syncs = [call for call in calls if call.name == "fsync"]
        found = [reads[-1], writes[0], writes[-1], syncs[0]]
        return found if self.is_long else [self.chance.choice(found)]

    def of_job(self, one: tuple[Job, Call, Callable[[Path], None], int]) -> str:
        job, call, change, number = one
        case = Case(self.world, job, has_old=bool(number % 2))
        source = self.own_source(job.line[1], case.folder)
        files = [source] if source.is_file() else sorted(each for each in source.rglob("*") if each.is_file())
        file = files[number % len(files)]
        before = case.before
        line = [word if word != job.line[1] else str(source) for word in case.line()]
        code, error = run_changed(case, line, self.world.source, call, lambda: change(file))
        found, left = case.output(), case.left()
        case.remove()
        if code == 4 and found == before and not left:
            return ""
        return f"{job.name}: {change.__name__} of {file.name} before {call.name} {call.number}: exit {code}, as before: {found == before}, left {left}\n{error}"

    def of_reader(self, one: tuple[list[str], str, Callable[[Path], None]]) -> str:
        verb, name, change = one
        case = Case(self.world, self.world.jobs[0])
        source = self.own_source(name, case.folder)
        line = [self.world.tool, verb[0], str(source), *verb[1:], "-q", "-j", "1"]
        log = case.folder / "log"
        subprocess.run(["strace", "-f", "-y", "-s", "0", "-o", log, "-e", "trace=pread64", *line], cwd=self.world.source, stdout=subprocess.DEVNULL)
        reads = sum("pread64(" in each for each in log.read_text().splitlines())
        log.unlink()
        file = source if source.is_file() else max(source.rglob("*.distcp"), key=lambda each: each.stat().st_size)
        code, error = run_changed(case, line, self.world.source, Call("pread64", reads, ""), lambda: change(file))
        case.remove()
        return "" if code == 4 else f"{' '.join(verb)} of {name}: {change.__name__}: exit {code}\n{error}"


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    chosen = options.parse_args()
    seed = int(os.environ.get("SHARD_SEED", 1))
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        world = World(chosen.tool, Path(folder) / "world", 1 << 20)
        changes = Changes(world, chance, chosen.long)
        before = snapshot(world.source)
        runs = []
        for job in world.jobs:
            for call in changes.moments(job):
                for change in CHANGES if chosen.long else [chance.choice(CHANGES)]:
                    runs.append((job, call, change, len(runs)))
        problems = list(run_all(changes.of_job, runs))
        reading = [(verb, name, change) for verb in READING for name in ("model.safetensors", "model.pt", "dcp") for change in CHANGES]
        if not chosen.long:
            reading = chance.sample(reading, 8)
        problems += run_all(changes.of_reader, reading)
        assert snapshot(world.source) == before
    return report(problems, f"{len(runs)} sources changed while they were copied, {len(reading)} while they were read, {len(problems)} problems (SHARD_SEED={seed})")


if __name__ == "__main__":
    sys.exit(main())
