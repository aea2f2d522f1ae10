"""Runs shardctl (SHARDCTL) on inputs that are made to hurt: each must end soon, small, with the right exit code.

hostile_test.py [PART OF A NAME]. Prints the worst time and memory. Only Python's standard library.
"""
import itertools
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import collisions
import containers
import pickles
import places
import proportion
import ranks
import views
from case import Case

WORKERS = 2
SECONDS = 5  # Seconds of processor time, because wall time is longer on a busy machine.
WAIT_SECONDS = 60  # Seconds of wall time without any processor time: a process that waits.
MEMORY_BYTES = (512 + 16) << 20  # Resident at the most; 16 MiB are those of a run over a small file.
MESSAGE_BYTES = 16 << 10
OUTPUT_BYTES = 256 << 20

VERBS = {"inspect": ["inspect"], "json": ["inspect", "--json"], "digest": ["digest", "-j", "2"],
         "gather": ["gather", "-j", "2", "-o", "dst/out"], "split": ["split", "-j", "2", "-o", "dst/out"],
         "to_torch": ["convert", "--to", "torch", "-o", "dst/out"], "to_dcp": ["convert", "--to", "dcp", "-o", "dst/out"]}


def limit(address_space: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Ended(NamedTuple):
    code: int | None  # None: it did not.
    seconds: float = 0
    kib: int = 0


class Tally:
    """The remaining cases, and the results of the runs. For several threads."""

    def __init__(self, cases: Iterator[Case]):
        self.lock = threading.Lock()
        self.cases = cases
        self.runs = self.problems = 0
        self.seconds = 0.0, ""
        self.kib = 0, ""

    def take(self) -> Case | None:
        with self.lock:
            return next(self.cases, None)

    def add(self, ended: Ended, what: str, problems: list[str]) -> None:
        with self.lock:
            self.runs += 1
            self.problems += len(problems)
            self.seconds = max(self.seconds, (ended.seconds, what))
            self.kib = max(self.kib, (ended.kib, what))
            for problem in problems:
                print(f"FAIL {what}: {problem}", flush=True)


def processor_ticks(pid: int) -> int:
    """The usage of a child that was not waited for (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def run_command(command: list[str], folder: Path, address_space: int = Case.address_space) -> Ended:
    """Called in a small process of its own: a child's peak of memory includes that of the process it was forked from."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                                 env={"LC_ALL": "C", "HOME": str(folder)}, preexec_fn=lambda: limit(address_space))
        end, ticks = time.monotonic() + WAIT_SECONDS, 0
        while True:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid != 0:
                child.returncode = os.waitstatus_to_exitcode(status)
                return Ended(child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
            if time.monotonic() > end:
                before, ticks = ticks, processor_ticks(child.pid)
                if ticks == before:
                    break
                end += WAIT_SECONDS
            time.sleep(0.002)
        child.kill()
        child.wait()
        return Ended(None)


def problems(case: Case, verb: str, ended: Ended, folder: Path) -> list[str]:
    """The violations of one verb's end."""
    code = ended.code
    if code is None:
        return [f"does not end and does nothing for {WAIT_SECONDS} s"]
    found = []
    message = (folder / "stderr").read_bytes()
    if code not in case.codes[verb]:
        found.append(f"exit {code}, not {sorted(case.codes[verb])}: {message[:300].decode(errors='replace').strip()}")
    if ended.seconds > SECONDS:
        found.append(f"takes {ended.seconds:.1f} s")
    if ended.kib * 1024 > MEMORY_BYTES:
        found.append(f"takes {ended.kib // 1024} MiB")
    if code != 0 and case.says not in message.decode(errors="replace"):
        found.append(f"does not say {case.says!r}: {message[:300]!r}")
    if len(message) > MESSAGE_BYTES:
        found.append(f"says {len(message)} bytes")
    if code != 0 and not message.startswith(b"shardctl: error: "):
        found.append(f"gives no reason: {message[:300]!r}")
    if code != 0 and any((folder / "dst").iterdir()):
        found.append("leaves something beside the destination")
    if (folder / "pwned").exists():
        found.append("RAN A COMMAND OF THE FILE")
    return found


def try_case(runner: Executor, case: Case, tally: Tally) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        source = case.make(folder)
        for verb in case.codes:
            shutil.rmtree(folder / "dst", ignore_errors=True)
            (folder / "dst").mkdir()
            command = [os.environ["SHARDCTL"], *VERBS[verb], str(source), *case.options]
            ended = runner.submit(run_command, command, folder, case.address_space).result()
            tally.add(ended, f"{case.name}, {verb}", problems(case, verb, ended, folder))
    finally:
        shutil.rmtree(folder)


def try_cases(runner: Executor, tally: Tally) -> None:
    while (case := tally.take()) is not None:
        try_case(runner, case, tally)


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    every = itertools.chain(pickles.cases(), containers.cases(), places.cases(), proportion.cases(), ranks.cases(),
                            views.cases(), collisions.cases())
    tally, begin = Tally(case for case in every if wanted in case.name), time.monotonic()
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as runner, ThreadPoolExecutor(WORKERS) as threads:
        for worker in [threads.submit(try_cases, runner, tally) for _ in range(WORKERS)]:
            worker.result()
    if os.geteuid() == 0:
        print("SKIP unreadable files: root reads them all")
    print(f"{tally.runs} runs in {time.monotonic() - begin:.1f} s, {tally.problems} problems")
    print("worst time: {:.2f} s ({})".format(*tally.seconds))
    print("worst memory: {:.0f} MiB ({})".format(tally.kib[0] / 1024, tally.kib[1]))
    return 1 if tally.problems or tally.runs == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
