"""Power cuts, as root: the job is killed at a border between system calls, its file system is shut down without a
flush of its log, and mounted again. The destination is then unchanged, or the whole output; after exit code 0 the
latter.

    power_cut.py SHARDCTL [--long] [--job WORD] [--fs ext4|xfs|lazyfs] [--lazyfs PROGRAM]

On ext4 and XFS, each on a loop device, and on LazyFS if its program is named. The source is elsewhere. Without
--long a few borders of two jobs.
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Iterator

from calls import Call, inject, traced
from jobs import Case, Job, World, report
from kills import INVISIBLE, check, was_killed
from mounts import Image, LazyFs, can_mount

SKIPPED = 77  # For ctest.
REFUSED_BY_LAZYFS = "cannot set the size: No such file"  # Now and then, of a file that was just made: the job ends with exit 6.


class Cuts:
    def __init__(self, world: World, image: Image | LazyFs) -> None:
        self.world, self.image = world, image

    def case(self, job: Job, has_old: bool) -> Case:
        case = Case(self.world, job, has_old, self.image.at)
        self.image.force()
        return case

    def borders(self, job: Job, has_old: bool) -> list[Call]:
        case = self.case(job, has_old)
        calls = [call for call in traced(case) if call.name not in INVISIBLE and str(case.folder) in call.text]
        case.remove()
        return calls

    def after(self, case: Case, options: list[str], what: str, code: int) -> str:
        self.image.cut_power()
        problem = check(case, options, f"{self.image.kind}, power cut {what}", code)
        case.remove()
        return problem

    def cut(self, job: Job, has_old: bool, call: Call, options: list[str]) -> str:
        case = self.case(job, has_old)
        done = case.run(under=inject(call, "signal=KILL"))
        what = f"before {call.name} {call.number} ({call.text[:120]})"
        return self.after(case, options, what, done.returncode) or was_killed(what + done.stderr, done.returncode)

    def cut_at_end(self, job: Job, has_old: bool) -> str:
        case = self.case(job, has_old)
        done = case.run()
        return self.after(case, [], "after the end", done.returncode)


def file_systems(folder: Path, wanted: str, lazyfs: str) -> Iterator[Image | LazyFs]:
    for kind, mebibytes in ("ext4", 64), ("xfs", 320):
        if wanted not in ("", kind):
            continue
        if shutil.which(f"mkfs.{kind}") is None:
            print(f"without {kind}: no mkfs.{kind}")
            continue
        yield Image(kind, folder, mebibytes)
    if lazyfs and wanted in ("", "lazyfs"):
        yield LazyFs(lazyfs, folder)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    options.add_argument("--job", default="")
    options.add_argument("--fs", default="")
    options.add_argument("--lazyfs", default="")
    chosen = options.parse_args()
    if reason := can_mount():
        print(f"skipped: cannot mount file systems: {reason}")
        return SKIPPED
    seed = int(os.environ.get("SHARD_SEED", 1))
    chance = random.Random(seed)
    problems, counts = [], {}
    with tempfile.TemporaryDirectory() as folder:
        small, large = World(chosen.tool, Path(folder) / "small"), World(chosen.tool, Path(folder) / "large", 9 << 20)
        of_large = [job for job in large.jobs if job.name in ("convert torch", "gather folder")]
        of_small = [job for job in small.jobs if chosen.long or job.name in ("split safetensors", "convert safetensors")]
        for image in file_systems(Path(folder), chosen.fs, chosen.lazyfs):
            with image:
                kind = image.kind
                counts[kind] = 0
                for world, jobs in (small, of_small), (large, of_large if chosen.long else []):
                    cuts = Cuts(world, image)
                    world.swaps_names = kind != "lazyfs"
                    for job in jobs:
                        if chosen.job not in job.name:
                            continue
                        for has_old in False, True:
                            borders = cuts.borders(job, has_old)
                            if not chosen.long:
                                borders = chance.sample(borders, 3)
                            found = [cuts.cut(job, has_old, call, ["--resume"] if number % 2 else []) for number, call in enumerate(borders)]
                            found.append(cuts.cut_at_end(job, has_old))
                            if kind == "lazyfs":
                                found = [each for each in found if REFUSED_BY_LAZYFS not in each]
                            problems += filter(None, found)
                            counts[kind] += len(found)
                        if chosen.long:
                            print(f"{kind}, {job.name}: {counts[kind]} cuts, {len(problems)} problems so far", flush=True)
    return report(problems, f"power cuts: {counts}, {len(problems)} problems (SHARD_SEED={seed})")


if __name__ == "__main__":
    sys.exit(main())
