"""Fails system calls of the real program one by one, with strace, in every writing verb and format.

    failing_calls.py SHARDCTL [--long] [--job WORD] [--short-io LIBRARY]

After each run: the exit code is 3 for a fault of the source and 6 for one of the output, or it is 0 and the output is
right byte for byte; the destination is as it was or complete; nothing of ours stays beside it but where removing it was
what failed. Without --long a sample of calls (SHARD_SEED) over all jobs. With --short-io each job also runs with that library
preloaded, which does reads and writes in part and interrupts them: exit 0 and the right bytes.
"""
import argparse
import collections
import os
import random
import sys
import tempfile
from pathlib import Path

from calls import Call, inject, traced
from jobs import Case, Job, World, report, run_all

# Possible errors of a call. EINTR only if a signal can interrupt it.
DISK = ["EIO", "ENOSPC"]
ERRORS = {
    "openat": ["EIO", "EMFILE", "EINTR"], "openat2": ["EIO", "EINTR", "ENOSYS"], "newfstatat": ["EIO"], "pread64": ["EIO", "EINTR"],
    "read": ["EIO"], "getdents64": ["EIO"], "lseek": ["EIO"], "fstatfs": ["EIO", "EINTR"], "statfs": ["EIO"],
    "pwrite64": [*DISK, "EDQUOT", "EINTR"], "fallocate": [*DISK, "EINTR", "EOPNOTSUPP"], "ftruncate": ["EIO", "EINTR"], "fsync": ["EIO", "EINTR", "ENOSPC"],
    "mkdirat": [*DISK, "EACCES"], "unlinkat": ["EIO"], "renameat2": ["EIO", "ENOSPC", "ENOSYS"], "fchmod": ["EPERM", "EIO"],
    "flock": ["EIO", "EINTR", "ENOSYS"], "close": ["EIO", "EINTR", "ENOSPC"], "ioctl": ["EIO"], "mmap": ["ENOMEM"]}
READS = {"openat", "openat2", "newfstatat", "pread64", "lseek", "getdents64", "mmap"}
QUICK = 160


def codes(call: Call, error: str, world: World, case_folder: str) -> set[int]:
    """The possible exit codes of a run in which that call fails."""
    if error == "EINTR":
        return {0}
    allowed = {0}
    is_source, is_output = str(world.source) in call.text, case_folder in call.text
    if is_source or not is_output:
        allowed.add(3)
    if is_output or not is_source or error in ("ENOMEM", "EMFILE"):
        allowed.add(6)
    return allowed


def has_to_fail(call: Call, error: str) -> bool:
    """Content that was not written or read cannot have been replaced."""
    if error in ("EINTR", "EOPNOTSUPP", "ENOSYS"):
        return False
    return call.name in ("pwrite64", "fsync", "mkdirat") or (call.name == "fallocate" and error != "EOPNOTSUPP")


class Sweep:
    def __init__(self, world: World, job: Job) -> None:
        self.world, self.job = world, job
        self.seen: collections.Counter[tuple[str, str, int]] = collections.Counter()
        self.has_old = [False, True]

    def calls(self) -> list[tuple[Call, str, bool, str]]:
        every = []
        for has_old in self.has_old:
            case = Case(self.world, self.job, has_old)
            for call in traced(case):
                every += [(call, error, has_old, str(case.folder)) for error in ERRORS.get(call.name, [])]
            case.remove()
        return every

    def is_loss(self, call: Call, case: Case, code: int) -> bool:
        """Repair treats unreadable content as lost: the output records it, or the message reports that no tensor is
        intact."""
        if self.job.line[0] != "repair" or call.name not in READS or str(case.folder) in call.text or case.left():
            return False
        if code == 4:
            return case.output() == case.before
        return code == 0 and self.world.run("verify", str(case.destination), code=None).returncode == 1

    def fail(self, one: tuple[Call, str, bool, str]) -> str:
        call, error, has_old, folder = one
        case = Case(self.world, self.job, has_old)
        log = case.folder / "log"
        done = case.run(under=inject(call, f"error={error}", log))
        met = "(INJECTED)" in log.read_text(errors="replace")
        log.unlink()
        allowed = codes(call, error, self.world, folder) if met else {0}
        if met and has_to_fail(call, error):
            allowed -= {0}
        if call.name == "mmap" and "hdf5" in self.job.name:
            allowed.add(8)  # While the plug-in is loaded.
        # The calls that list removable files may fail too.
        is_removal = call.name in ("unlinkat", "getdents64", "openat", "newfstatat", "flock", "close", "mkdirat", "mmap", "renameat2")
        problem = case.problem(done.returncode, allowed, may_leave=is_removal)
        if problem and self.is_loss(call, case, done.returncode):
            problem = ""
        self.seen[call.name, error, done.returncode] += 1
        case.remove()
        return f"{self.job.name}{' over an old one' if has_old else ''}: {call.name} {call.number} {error} ({call.text[:160]}): {problem}\n{done.stderr}" if problem else ""


def run_short(world: World, job: Job, library: str, seed: int) -> str:
    case = Case(world, job)
    done = case.run(env={**os.environ, "LD_PRELOAD": os.path.abspath(library), "SHORT_IO_SEED": str(seed)})
    problem = case.problem(done.returncode, {0})
    case.remove()
    return f"{job.name}, short reads and writes, SHORT_IO_SEED={seed}: {problem}\n{done.stderr}" if problem else ""


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    options.add_argument("--job", default="")
    options.add_argument("--short-io", default="")
    chosen = options.parse_args()
    seed = int(os.environ.get("SHARD_SEED", 1))
    problems, runs = [], 0
    seen: collections.Counter[tuple[str, str, int]] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        world = World(chosen.tool, Path(folder) / "world")
        jobs = [job for job in world.jobs if chosen.job in job.name]
        for job in jobs:
            sweep = Sweep(world, job)
            if not chosen.long:
                sweep.has_old = [bool(random.Random(f"{seed} {job.name}").getrandbits(1))]
            every = sweep.calls()
            if not chosen.long:
                every = random.Random(f"{seed} {job.name}").sample(every, min(len(every), QUICK // len(jobs)))
            problems += run_all(sweep.fail, every)
            runs += len(every)
            seen += sweep.seen
            if chosen.long:
                print(f"{job.name}: {len(every)} calls failed, {len(problems)} problems so far", *problems[-2:], flush=True)
        if chosen.short_io:
            shorts = [(job, number) for job in jobs for number in range(100 if chosen.long else 2)]
            problems += run_all(lambda each: run_short(world, each[0], chosen.short_io, seed + each[1]), shorts)
            print(f"{len(shorts)} runs with short reads and writes")
    for (name, error), counts in sorted(collections.Counter({(n, e): 0 for n, e, _ in seen}).items()):
        print(f"{name} {error}: " + ", ".join(f"exit {code} {seen[name, error, code]}" for code in sorted({c for n, e, c in seen if (n, e) == (name, error)})))
    return report(problems, f"{runs} calls failed one by one in {len(jobs)} jobs, {len(problems)} problems (SHARD_SEED={seed})")


if __name__ == "__main__":
    sys.exit(main())
