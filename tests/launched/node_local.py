"""Ranks that have a folder each write what one process does, file by file; and when one of them fails, none has anything."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import harness as h

LOCAL = ["--local-input", "--local-output"]
SOURCES = {  # Name: how it is made; each file is then given to one rank.
    "dcp": ["split", "model.safetensors", "-o", "dcp", "--to", "dcp", "--ranks", "4"],
    "dcp-hf": ["split", "model.safetensors", "-o", "dcp-hf", "--to", "dcp-hf", "--ranks", "3"],
    "safetensors": ["gather", "model.safetensors", "-o", "safetensors", "--shards", "3"],
    "torch": ["gather", "model.safetensors", "-o", "torch", "--to", "torch", "--shards", "3"],
    "sharded": ["split", "model.safetensors", "-o", "sharded", "--to", "torch-ranks", "--as", "sharded_tensor", "--ranks", "RANKS"],
    "dtensor": ["split", "model.safetensors", "-o", "dtensor", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "RANKS"],
}
WRITES = {  # Source: what is written from it.
    "dcp": ["reshard", "src", "-o", "out", "--ranks", "3"],
    "dcp-hf": ["reshard", "src", "-o", "out", "--mesh", "tp=2", "--place", "**=S(0)"],
    "safetensors": ["split", "src", "-o", "out", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "3"],
    "torch": ["convert", "src", "-o", "out", "--to", "dcp", "--ranks", "2", "--cast", "**.weight=bfloat16"],
    "sharded": ["gather", "src", "-o", "out", "--to", "safetensors", "--shards", "4"],
    "dtensor": ["gather", "src", "-o", "out.pt"],
}


def in_own_folder() -> list[str]:
    """Words that start the program in the folder of its rank."""
    return h.shell(f"cd rank{h.RANK_HERE} && exec")


def rank_of(path: Path, i: int, ranks: int) -> int:
    """Files of ranks (rank0.pt, rank00001.pt, ...) are their ranks', all others go round, the last rank's first."""
    number = re.search(r"rank[^0-9]*([0-9]+)", path.name)
    return int(number[1]) if number and path.suffix == ".pt" else (ranks - 1 - i) % ranks


def spread(work: Path, source: str, ranks: int) -> None:
    """A folder for each rank, with its files of the source."""
    for rank in range(ranks):
        shutil.rmtree(work / f"rank{rank}", ignore_errors=True)
        (work / f"rank{rank}" / "src").mkdir(parents=True)
    for i, path in enumerate(sorted((work / source).iterdir())):
        shutil.copy(path, work / f"rank{rank_of(path, i, ranks)}" / "src")


def make_source(work: Path, source: str, ranks: int) -> None:
    shutil.rmtree(work / source, ignore_errors=True)
    arguments = [str(ranks) if word == "RANKS" else word for word in SOURCES[source]]
    subprocess.run([h.SHARDCTL, *arguments, "-q"], cwd=work, env=h.BASE, check=True)


def join(work: Path, ranks: int, name: str) -> Path:
    """What all ranks wrote, in one place; a file that two ranks wrote is an error."""
    joined = work / "joined"
    shutil.rmtree(joined, ignore_errors=True)
    joined.mkdir()
    for rank in range(ranks):
        written = work / f"rank{rank}" / name
        for path in [written] if written.is_file() else written.iterdir() if written.exists() else []:
            if (joined / path.name).exists():
                raise RuntimeError(f"{path.name} is written by two ranks")
            shutil.copy(path, joined)
    return joined


def expected(work: Path, source: str) -> Path:
    """What one process writes."""
    alone = work / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    alone.mkdir()
    (alone / "src").symlink_to(work / source)
    subprocess.run([h.SHARDCTL, *WRITES[source], "-q"], cwd=alone, env=h.BASE, check=True)
    written = alone / WRITES[source][WRITES[source].index("-o") + 1]
    if written.is_dir():
        return written
    folder = alone / "file"
    folder.mkdir()
    shutil.move(written, folder)
    return folder


def run(work: Path, launch: h.Launch, arguments: list[str], env: dict[str, str] | None = None) -> h.Result:
    return h.Job(launch, [*in_own_folder(), h.SHARDCTL, *arguments], env, work).wait()


def check_same_bytes(checks: h.Checks, work: Path, launch: h.Launch, ranks: int, source: str) -> None:
    make_source(work, source, ranks)
    spread(work, source, ranks)
    name = WRITES[source][WRITES[source].index("-o") + 1]
    result = run(work, launch, [*WRITES[source], *LOCAL])
    what = f"{' '.join(WRITES[source][:1])} of {source}, {launch.name}"
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        checks.that(h.same_tree(expected(work, source), join(work, ranks, name)) == "", f"{what}: the same bytes", result)
        checks.that(result.err.count("wrote") == 1, f"{what}: told once", result)


def check_reading(checks: h.Checks, work: Path, launch: h.Launch, ranks: int) -> None:
    """Verbs that print read what lies elsewhere."""
    make_source(work, "dcp", ranks)
    spread(work, "dcp", ranks)
    for words in (["digest"], ["inspect", "--json"], ["cat", "norm.weight"]):
        verb, rest = words[0], words[1:]
        alone = h.run(h.alone(), [verb, "dcp", *rest], cwd=work)
        result = run(work, launch, [verb, "src", *rest, "--local-input"])
        checks.that(result.code == 0 and result.out == alone.out.replace('"dcp"', '"src"', 1),
                    f"{verb}, {launch.name}: prints what one process does", result)


def is_told(result: h.Result, launch: h.Launch, code: int) -> bool:
    return result.code == (1 if "torchrun" in launch.name else code)


def check_damage(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A shard that is absent, cut short or changed on one rank's disk."""
    make_source(work, "safetensors", 3)
    for what, code in (("absent", 3), ("cut", 4), ("twice", 4)):
        spread(work, "safetensors", 3)
        path = sorted((work / "rank2" / "src").glob("*.safetensors"))[0]
        if what == "absent":
            path.unlink()
        elif what == "cut":
            os.truncate(path, path.stat().st_size // 2)
        else:
            (work / "rank1" / "src" / path.name).write_bytes(path.read_bytes()[:-4])
        result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
        checks.that(is_told(result, launch, code), f"{what} shard, {launch.name}: exit {code}", result)
        checks.that(path.name in result.err, f"{what} shard, {launch.name}: names the file", result)
        ranks = {"absent": (), "cut": ("rank 2",), "twice": ("ranks 1 and 2",)}[what]
        checks.that(all(words in result.err for words in ranks), f"{what} shard, {launch.name}: names the rank", result)
        check_nothing(checks, work, 3, f"{what} shard, {launch.name}", result)


def check_elements(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """An element that changed is found by the rank that holds it, while it reads for others."""
    make_source(work, "sharded", 2)
    spread(work, "sharded", 2)
    path = sorted((work / "rank1" / "src").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
    checks.that(is_told(result, launch, 4), f"changed element, {launch.name}: exit 4", result)
    checks.that("checksum" in result.err and path.name in result.err, f"changed element, {launch.name}: names the file", result)
    checks.that("rank 1" in result.err, f"changed element, {launch.name}: names the rank", result)
    check_nothing(checks, work, 2, f"changed element, {launch.name}", result)


def check_other_rank(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """Files of ranks that lie with other ranks, or are of another number of ranks."""
    make_source(work, "sharded", 2)
    spread(work, "sharded", 2)
    (work / "rank0").rename(work / "rank9"), (work / "rank1").rename(work / "rank0"), (work / "rank9").rename(work / "rank1")
    result = run(work, launch, ["gather", "src", "-o", "out", *LOCAL])
    checks.that(is_told(result, launch, 4) and "expected rank" in result.err, f"swapped ranks, {launch.name}: exit 4", result)


def check_nothing(checks: h.Checks, work: Path, ranks: int, what: str, result: h.Result) -> None:
    there = [rank for rank in range(ranks) if (work / f"rank{rank}" / "out").exists()]
    checks.that(there == [], f"{what}: no rank has an output, but {there}", result)
    for rank in range(ranks):
        left = h.left_overs(work / f"rank{rank}")
        checks.that(left == [], f"{what}: rank {rank} leaves nothing, but {left}", result)


def held(work: Path, launch: h.Launch, phase: str, rank: int, arguments: list[str]) -> tuple[h.Job, int]:
    """A job whose rank waits before a step, and that rank's process id."""
    door = work / "door"
    door.unlink(missing_ok=True)
    env = {"SHARDCTL_TEST_HOLD": f"{phase}:{rank}:{door}"}
    job = h.Job(launch, [*in_own_folder(), h.SHARDCTL, *arguments, "--timeout", "3"], env, work)
    for _ in range(3000):
        if door.exists() and door.read_text():
            return job, int(door.read_text())
        if job.process.poll() is not None:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the rank never came to {phase}: {job.wait(1).err}")


def check_lost(checks: h.Checks, work: Path, launch: h.Launch, phase: str, how: signal.Signals = signal.SIGKILL) -> None:
    """A rank that is killed or stopped before all are prepared: the destination is on every rank as it was."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    for rank in range(3):
        (work / f"rank{rank}" / "out").mkdir()
        (work / f"rank{rank}" / "out" / "old").write_text(str(rank))
    job, pid = held(work, launch, phase, 1, [*WRITES["dcp"], *LOCAL, "--force"])
    begin = time.monotonic()
    os.kill(pid, how)
    result = job.wait(40)
    what = f"{how.name} at {phase}, {launch.name}"
    checks.that(result.code != 0 and time.monotonic() - begin < 20, f"{what}: fails in time", result)
    old = [(work / f"rank{rank}" / "out" / "old").exists() for rank in range(3)]
    checks.that(old == [True] * 3, f"{what}: every rank has what it had, not {old}", result)
    for rank in (0, 2):
        left = [path for path in h.left_overs(work / f"rank{rank}") if "/.out.shardctl-" in path]
        checks.that("mpirun" in launch.name or left == [], f"{what}: rank {rank} leaves nothing, but {left}", result)


def check_plan(checks: h.Checks, work: Path, launch: h.Launch) -> None:
    """A dry run prints sums over ranks, and writes nothing."""
    make_source(work, "dcp", 3)
    spread(work, "dcp", 3)
    result = run(work, launch, [*WRITES["dcp"], *LOCAL, "--dry-run", "--json"])
    alone = json.loads(h.run(h.alone(), ["reshard", "dcp", "-o", "nothing", "--ranks", "3", "-n", "--json"], cwd=work).out)
    if checks.that(result.code == 0, f"dry run, {launch.name}: exit 0", result):
        plan = json.loads(result.out)
        same = ("files", "tensors", "bytes_to_read", "bytes_to_write")
        checks.that({key: plan[key] for key in same} == {key: alone[key] for key in same},
                    f"dry run, {launch.name}: the numbers of one process", result)
    check_nothing(checks, work, 3, f"dry run, {launch.name}", result)


def check_namespaces(checks: h.Checks, work: Path, ranks: int, source: str) -> None:
    """Ranks with a network and mounts of their own: the same path is another folder for each."""
    make_source(work, source, ranks)
    spread(work, source, ranks)
    script = [str(Path(__file__).parent / "in_namespaces.sh"), str(ranks), str(work)]
    result = h.Job(h.Launch(f"{ranks} namespaces", script, []), [h.SHARDCTL, *WRITES[source], *LOCAL], cwd=work).wait()
    if result.code == 77:
        print("SKIPPED: namespaces, which this kernel or user does not have")
        return
    what = f"{source}, {ranks} namespaces"
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        name = WRITES[source][WRITES[source].index("-o") + 1]
        checks.that(h.same_tree(expected(work, source), join(work, ranks, name)) == "", f"{what}: the same bytes", result)


def main() -> None:
    h.require_launchers()
    checks = h.Checks()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        h.make_model(work / "model.safetensors", 24 if h.FULL else 4)
        makers = [lambda n: h.mpirun(n, "mpi"), lambda n: h.mpirun(n, "gloo"), h.torchrun]
        cases = [(make(n), n, source) for make in makers for n in (2, 3, 4) for source in WRITES]
        for launch, ranks, source in cases if h.FULL else cases[::5]:
            check_same_bytes(checks, work, launch, ranks, source)
        for launch in (h.mpirun(3, "mpi"), h.torchrun(3)) if h.FULL else (h.mpirun(3, "mpi"),):
            check_reading(checks, work, launch, 3)
            check_plan(checks, work, launch)
            check_damage(checks, work, launch)
        for launch in (h.mpirun(2, "gloo"), h.torchrun(2)) if h.FULL else (h.torchrun(2),):
            check_elements(checks, work, launch)
            check_other_rank(checks, work, launch)
        for ranks, source in ((2, "sharded"), (4, "dcp")) if h.FULL else ((3, "dcp"),):
            check_namespaces(checks, work, ranks, source)
        phases = ("catalog", "plan", "begin", "copy", "finish", "commit") if h.FULL else ("copy", "commit")
        for phase in phases:
            check_lost(checks, work, h.torchrun(3), phase)
            if h.FULL:
                check_lost(checks, work, h.mpirun(3, "mpi"), phase)
        for launch in (h.mpirun(3, "mpi"), h.mpirun(3, "gloo")):
            check_lost(checks, work, launch, "copy", signal.SIGSTOP)
        h.check_nothing_left(checks, work)
    checks.end()


if __name__ == "__main__":
    main()
