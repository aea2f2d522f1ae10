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
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import containers
import pickles
import places
import ranks
from case import Case

SECONDS = 5  # Of processor time. Wall time may be longer on a busy machine, but a process that waits is found too.
WAIT_SECONDS = 60
ADDRESS_SPACE = 512 << 20
MESSAGE_BYTES = 16 << 10
OUTPUT_BYTES = 256 << 20

VERBS = {"inspect": ["inspect"], "json": ["inspect", "--json"], "digest": ["digest", "-j", "2"],
         "gather": ["gather", "-j", "2", "-o", "dst/out"], "split": ["split", "-j", "2", "-o", "dst/out"]}


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Ended(NamedTuple):
    code: int | None  # None: it did not.
    seconds: float = 0
    kib: int = 0


class Worst:
    seconds = 0.0, ""
    kib = 0, ""


def run_command(command: list[str], folder: Path) -> Ended:
    """Called in a small process of its own: a child's peak of memory includes that of the process it was forked from."""
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
                                 env={"LC_ALL": "C", "HOME": str(folder)}, preexec_fn=limit)
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid != 0:
                child.returncode = os.waitstatus_to_exitcode(status)
                return Ended(child.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss)
            time.sleep(0.002)
        child.kill()
        child.wait()
        return Ended(None)


def run(runner: Executor, case: Case, verb: str, source: Path, folder: Path, worst: Worst) -> list[str]:
    """What is wrong with how one verb ended."""
    command = [os.environ["SHARDCTL"], *VERBS[verb], str(source), *case.options]
    ended = runner.submit(run_command, command, folder).result()
    if ended.code is None:
        return [f"does not end in {WAIT_SECONDS} s"]
    worst.seconds = max(worst.seconds, (ended.seconds, f"{case.name}, {verb}"))
    worst.kib = max(worst.kib, (ended.kib, f"{case.name}, {verb}"))
    return problems(case, verb, ended.code, ended.seconds, folder)


def problems(case: Case, verb: str, code: int, seconds: float, folder: Path) -> list[str]:
    found = []
    message = (folder / "stderr").read_bytes()
    if code not in case.codes[verb]:
        found.append(f"exit {code}, not {sorted(case.codes[verb])}: {message[:300].decode(errors='replace').strip()}")
    if seconds > SECONDS:
        found.append(f"takes {seconds:.1f} s")
    if len(message) > MESSAGE_BYTES:
        found.append(f"says {len(message)} bytes")
    if code != 0 and not message.startswith(b"shardctl: error: "):
        found.append(f"gives no reason: {message[:300]!r}")
    if code != 0 and any((folder / "dst").iterdir()):
        found.append("leaves something beside the destination")
    if (folder / "pwned").exists():
        found.append("RAN A COMMAND OF THE FILE")
    return found


def try_case(runner: Executor, case: Case, worst: Worst) -> list[str]:
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        source = case.make(folder)
        found = []
        for verb in case.codes:
            shutil.rmtree(folder / "dst", ignore_errors=True)
            (folder / "dst").mkdir()
            found += [f"{case.name}, {verb}: {problem}" for problem in run(runner, case, verb, source, folder, worst)]
        return found
    finally:
        shutil.rmtree(folder)


def main() -> int:
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    worst, found, count, begin = Worst(), [], 0, time.monotonic()
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as runner:
        runner.submit(os.getpid).result()  # Forks it while this process is small.
        for case in itertools.chain(pickles.cases(), containers.cases(), places.cases(), ranks.cases()):
            if wanted not in case.name:
                continue
            count += len(case.codes)
            for problem in try_case(runner, case, worst):
                found.append(problem)
                print("FAIL", problem, flush=True)
    if os.geteuid() == 0:
        print("SKIP unreadable files: root reads them all")
    print(f"{count} runs in {time.monotonic() - begin:.1f} s, {len(found)} problems")
    print("worst time: {:.2f} s ({})".format(*worst.seconds))
    print("worst memory: {:.0f} MiB ({})".format(worst.kib[0] / 1024, worst.kib[1]))
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
