"""Kills shardctl: at every border between its system calls, and at random moments.

    kills.py SHARDCTL [--long] [--random N] [--job WORD]

After a kill the destination is unchanged or complete. Then a plain run, or one with --resume, writes the right bytes and
leaves nothing of ours beside them. Without --long a sample of borders (SHARD_SEED) and a few random kills.
"""
import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from calls import Call, inject, traced
from jobs import Case, Job, World, report, run_all

# A kill before one of these leaves the same as a kill before the next call.
INVISIBLE = {"brk", "mmap", "munmap", "mprotect", "futex", "madvise", "getrandom", "newfstatat", "pread64", "lseek", "clone3", "rseq",
             "set_robust_list", "rt_sigprocmask", "rt_sigaction", "rt_sigtimedwait", "rt_sigreturn", "sched_getaffinity", "exit_group", "exit",
             "prlimit64", "read", "recvfrom", "poll", "getdents64", "fstatfs", "tgkill", "gettid", "getpid"}
JOURNALED = 10 << 20  # Larger than the threshold for a journal.


def check(case: Case, options: list[str], what: str, code: int) -> str:
    """The violations after a kill, or after the run that follows."""
    prefix = f"{case.job.name}{' over an old one' if case.has_old else ''}, {what}"
    problem = case.problem_after_kill()
    if code == 0 and case.output() != case.job.wanted:
        problem = "exit 0, and the output is not what it should be"
    if problem:
        return f"{prefix}: {problem}"
    options = options if case.output() == case.before or case.has_old else [*options, "--force"]
    done = case.run(*options)
    if done.returncode != 0 or case.output() != case.job.wanted or case.left():
        return f"{prefix}, then {options}: exit {done.returncode}, left {case.left()}\n{done.stderr}"
    return ""


def was_killed(what: str, code: int) -> str:
    return "" if code == -signal.SIGKILL else f"{what}: exit {code}, so it was not"


class Borders:
    """Every border of a job, over nothing and over an old output, each followed by a plain run and by a resuming one."""

    def __init__(self, world: World, job: Job) -> None:
        self.world, self.job = world, job

    def all(self) -> list[tuple[Call, bool, list[str]]]:
        every = []
        for has_old in False, True:
            case = Case(self.world, self.job, has_old)
            calls = [call for call in traced(case, "--resume") if call.name not in INVISIBLE]
            every += [(call, has_old, options) for call in calls for options in ([], ["--resume"])]
            case.remove()
        return every

    def kill(self, one: tuple[Call, bool, list[str]]) -> str:
        call, has_old, options = one
        case = Case(self.world, self.job, has_old)
        done = case.run("--resume", under=inject(call, "signal=KILL"))
        what = f"killed before {call.name} {call.number} ({call.text[:120]})"
        problem = check(case, options, what, done.returncode) or was_killed(what, done.returncode)
        case.remove()
        return problem


def kill_at_random(world: World, job: Job, seed: int, seconds: float) -> str:
    """One job, killed up to three times with --resume or without, then left to end."""
    chance = random.Random(seed)
    case = Case(world, job, chance.random() < 0.5)
    may_leave = False  # The state after a kill, or after an interrupted run with --resume.
    for _ in range(chance.randint(1, 3)):
        options = chance.choice(([], ["--resume"])) + chance.choice(([], ["--local-ranks", "2"]) if job.line[0] != "repair" else ([],))
        process = subprocess.Popen([*case.line(*options)], cwd=world.source, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(chance.random() * seconds * 1.3)
        how = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        process.send_signal(how)
        _, said = process.communicate()
        code = process.returncode
        kill_at_random.kills += code == -signal.SIGKILL
        # A signal before the start of main ends the process in the default way.
        may_leave = may_leave or how == signal.SIGKILL or "--resume" in options
        if how != signal.SIGKILL and (code not in (0, 128 + how, -how) or (case.left() and not may_leave)):
            return f"{job.name}: {how.name} at random (seed {seed}): exit {code}, left {case.left()}: {said}"
        if case.problem_after_kill() or case.output() == job.wanted:
            break
    problem = check(case, chance.choice(([], ["--resume"])), f"killed at random (seed {seed})", code)
    case.remove()
    return problem


kill_at_random.kills = 0


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    options.add_argument("--random", type=int)
    options.add_argument("--job", default="")
    chosen = options.parse_args()
    seed = int(os.environ.get("SHARD_SEED", time.time_ns() % 10**9))
    wanted_kills = chosen.random if chosen.random is not None else 1000 if chosen.long else 10
    problems, borders = [], 0
    with tempfile.TemporaryDirectory() as folder:
        small, large = World(chosen.tool, Path(folder) / "small"), World(chosen.tool, Path(folder) / "large", JOURNALED)
        journaled = [job for job in large.jobs if job.name in ("convert torch", "split dcp", "gather folder", "repair cut safetensors", "convert safetensors")]
        for world, jobs in (small, small.jobs), (large, journaled):
            for job in jobs:
                if chosen.job not in job.name:
                    continue
                each = Borders(world, job)
                every = each.all()
                if not chosen.long:
                    every = random.Random(f"{seed} {job.name}").sample(every, 1)
                problems += run_all(each.kill, every)
                borders += len(every)
                if chosen.long:
                    print(f"{job.name}: killed at {len(every)} borders, {len(problems)} problems so far", flush=True)
        start = time.perf_counter()
        case = Case(large, journaled[0])
        case.run()
        case.remove()
        seconds = time.perf_counter() - start
        for number in range(10 * wanted_kills):
            if kill_at_random.kills >= wanted_kills:
                break
            problem = kill_at_random(large, random.Random(number).choice(large.jobs), seed + number, seconds)
            problems += [problem] if problem else []
    return report(problems, f"killed at {borders} borders and {kill_at_random.kills} times at random, {len(problems)} problems (SHARD_SEED={seed})")


if __name__ == "__main__":
    sys.exit(main())
