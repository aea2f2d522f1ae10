"""Every writing verb and format on disks that lack what the disks of clusters lack: the output is right, or the exit code
says why not and the destination is unchanged.

    lacking.py SHARDCTL SLOW_DISK [--long]

Source and destination are on that disk. A share of the jobs; all of them with --long.
"""
import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from disk import SKIPPED, SlowDisk, why_not

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "faults"))
from jobs import Case, Job, World  # noqa: E402

FEW = ("split dcp", "gather torch", "convert safetensors")
RIGHT, UNREADABLE, UNWRITABLE = 0, 3, 6


@dataclass(frozen=True)
class Lack:
    name: str
    switches: tuple[str, ...]
    codes: frozenset[int] = frozenset({RIGHT})
    swaps_names: bool = True
    records_times: bool = True  # A manifest records the times of the source, so it may differ.


def lacks(size: int) -> list[Lack]:
    """The disks, for jobs whose output has about `size` bytes."""
    return [
        Lack("nothing", ()),
        Lack("no page cache", ("direct",)),
        Lack("renameat2 has no flags (EINVAL)", ("invalid=rename_flags",), swaps_names=False),
        Lack("renameat2 has no flags (ENOSYS)", ("lacks=rename_flags",), swaps_names=False),
        Lack("nor hard links", ("invalid=rename_flags", "refuses=link"), swaps_names=False),
        Lack("no fallocate", ("lacks=fallocate",)),
        Lack("no fsync of folders (EINVAL)", ("invalid=fsyncdir",)),
        Lack("no fsync of folders (ENOSYS)", ("lacks=fsyncdir",)),
        Lack("no fsync of files (ENOSYS)", ("lacks=fsync",)),
        Lack("no locks (ENOSYS)", ("lacks=flock",)),
        Lack("no locks (EPERM)", ("refuses=flock",)),
        Lack("no size before the bytes", ("lacks=fallocate,truncate",), frozenset({UNWRITABLE})),
        Lack("modes cannot be changed", ("refuses=chmod",), frozenset({RIGHT, UNWRITABLE})),  # Files keep theirs.
        Lack("no modes (EPERM)", ("fixed", "refuses=chmod")),
        Lack("no modes (ENOSYS)", ("fixed", "lacks=chmod")),
        Lack("short reads and writes", ("direct", "short=4096")),
        Lack("times of 2 s", ("coarse=2",), records_times=False),
        Lack("all that s3fs and gcsfuse lack", ("invalid=rename_flags", "refuses=link", "lacks=fallocate,flock,fsyncdir"),
             swaps_names=False),
        Lack("full, said at close", ("direct", f"full={size}"), frozenset({UNWRITABLE})),
        Lack("full, said at close, with a cache", (f"full={size}",), frozenset({UNWRITABLE})),
        Lack("handles go stale at once", ("direct", "stale=1"), frozenset({UNREADABLE})),
        Lack("handles go stale", ("direct", "stale=6"), frozenset({RIGHT, UNREADABLE, UNWRITABLE})),
    ]


def run(lack: Lack, world: World, jobs: list[Job], program: str, folder: Path) -> list[str]:
    problems = []
    for job in jobs:
        if not lack.records_times and "--checksum" in job.line:
            continue
        for has_old in False, True:
            # Each job has its own disk, which is full or stale again.
            with SlowDisk(program, folder, *lack.switches) as disk:
                world.source, world.swaps_names = disk.at / "world/src", lack.swaps_names
                case = Case(world, job, has_old, disk.below / "cases")
                case.folder = disk.at / "cases" / case.folder.name
                case.destination = case.folder / job.to
                done = case.run()
            case.folder = disk.below / "cases" / case.folder.name
            case.destination = case.folder / job.to
            if problem := case.problem(done.returncode, lack.codes):
                problems.append(f"{lack.name}: {job.name}{' over an old one' if has_old else ''}: {problem}\n{done.stderr}")
            case.remove()
    return problems


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("program")
    options.add_argument("--long", action="store_true")
    chosen = options.parse_args()
    if reason := why_not():
        print(f"SKIPPED: no slow disk can be mounted: {reason}")
        return SKIPPED
    size = 64 << 10
    problems = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        world = World(chosen.tool, folder / "below/world", size)
        jobs = world.jobs if chosen.long else [job for job in world.jobs if job.name in FEW]
        for lack in lacks(size // 4):
            problems += run(lack, world, jobs, chosen.program, folder)
    for problem in problems[:30]:
        print("FAIL", problem)
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
