"""Power cuts, by root: the job is killed at a border between system calls, its file system is shut down without a flush of
its log, and mounted again. What stands at the destination is what stood there, or the whole output; after exit 0 the latter.

    power_cut.py SHARDCTL [--long] [--job WORD] [--fs ext4|xfs]

On ext4 and XFS, each on a loop device. The source lies elsewhere. Without --long a few borders of two jobs.
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from calls import Call, inject, traced
from jobs import Case, Job, World
from kills import INVISIBLE, check, was_killed
from mounts import Image, can_mount

SKIPPED = 77  # For ctest.


class Cuts:
    def __init__(self, world: World, image: Image) -> None:
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
        done = case.run(under=inject(call, "signal=KILL"), timeout=120)
        what = f"before {call.name} {call.number} ({call.text[:120]})"
        return self.after(case, options, what, done.returncode) or was_killed(what, done.returncode)

    def cut_at_end(self, job: Job, has_old: bool) -> str:
        case = self.case(job, has_old)
        done = case.run()
        return self.after(case, [], "after the end", done.returncode)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    options.add_argument("--job", default="")
    options.add_argument("--fs", default="")
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
        for kind, mebibytes in ("ext4", 64), ("xfs", 320):
            if chosen.fs not in ("", kind):
                continue
            if shutil.which(f"mkfs.{kind}") is None:
                print(f"without {kind}: no mkfs.{kind}")
                continue
            with Image(kind, Path(folder), mebibytes) as image:
                counts[kind] = 0
                for world, jobs in (small, of_small), (large, of_large if chosen.long else []):
                    cuts = Cuts(world, image)
                    for job in jobs:
                        if chosen.job not in job.name:
                            continue
                        for has_old in False, True:
                            borders = cuts.borders(job, has_old)
                            if not chosen.long:
                                borders = chance.sample(borders, 3)
                            found = [cuts.cut(job, has_old, call, ["--resume"] if number % 2 else []) for number, call in enumerate(borders)]
                            problems += filter(None, [*found, cuts.cut_at_end(job, has_old)])
                            counts[kind] += len(borders) + 1
                        if chosen.long:
                            print(f"{kind}, {job.name}: {counts[kind]} cuts, {len(problems)} problems so far", flush=True)
    for problem in problems[:30]:
        print("FAIL", problem)
    print(f"power cuts: {counts}, {len(problems)} problems (SHARD_SEED={seed})")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
