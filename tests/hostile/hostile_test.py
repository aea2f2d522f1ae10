"""Runs shardctl (SHARDCTL) on inputs that are made to hurt: each must end soon, small, with the right exit code.

hostile_test.py [PART OF A NAME]. Prints the worst time and memory. Only Python's standard library.
"""
import itertools
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import collisions
import containers
import pickles
import places
import proportion
import ranks
import views
from bounded import SHARDCTL, WAIT_SECONDS, Ended, cost_problems, run
from case import Case

WORKERS = 2
MESSAGE_BYTES = 16 << 10

VERBS = {"inspect": ["inspect"], "json": ["inspect", "--json"], "digest": ["digest", "-j", "2"],
         "gather": ["gather", "-j", "2", "-o", "dst/out"], "split": ["split", "-j", "2", "-o", "dst/out"],
         "to_torch": ["convert", "--to", "torch", "-o", "dst/out"], "to_dcp": ["convert", "--to", "dcp", "-o", "dst/out"]}


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


def problems(case: Case, verb: str, ended: Ended, folder: Path) -> list[str]:
    """The violations of one verb's end."""
    code = ended.code
    if code is None:
        return [f"does not end and does nothing for {WAIT_SECONDS} s"]
    found = []
    message = (folder / "stderr").read_bytes()
    if code not in case.codes[verb]:
        found.append(f"exit {code}, not {sorted(case.codes[verb])}: {message[:300].decode(errors='replace').strip()}")
    found += cost_problems(ended)
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
            command = [SHARDCTL, *VERBS[verb], str(source), *case.options]
            ended = runner.submit(run, command, folder, address_space=case.address_space).result()
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
