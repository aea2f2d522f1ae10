"""Runs of a program within the limits of every hostile input: 5 s of processor time and 512 MiB, child processes included. The
limits of time are those of the machine on which they were set, and longer on one that is slower at that moment."""
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from machine import is_longer  # noqa: E402

SHARDCTL = os.environ["SHARDCTL"]
SECONDS = 5  # Seconds of processor time, because wall time is longer on a busy machine.
MEMORY_BYTES = (512 + 16) << 20  # Resident at the most; 16 MiB are those of a run over a small file.
OUTPUT_BYTES = 256 << 20  # The size of one file: a checkpoint may name more than a test should write.
ADDRESS_SPACE = 8 << 30  # So that a fault does not take the machine with it.
WAIT_SECONDS = 60  # Seconds of wall time without any processor time: a process that waits.
POLL_SECONDS = 0.005
STOPPED_TIMES = 8  # A run is stopped at so many times its limit: machines are that much slower at times.


class Ended(NamedTuple):
    code: int | None  # None: it waits for ever.
    seconds: float = 0
    kib: int = 0  # The program and its children together.


def memory_kib(pid: int) -> int:
    """Resident memory of a process and of its children; 0 when it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return pages * (resource.getpagesize() // 1024) + sum(memory_kib(int(child)) for child in children)


def ticks(pid: int) -> int:
    """Processor time of a process, its threads and the children that it waited for (proc(5), stat)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (OSError, IndexError):
        return 0
    return sum(map(int, fields[11:15])) + sum(ticks(int(child)) for child in children)


def limit(seconds: int, address_space: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_BYTES, OUTPUT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(command: list[str], folder: Path, seconds: float = SECONDS, address_space: int = ADDRESS_SPACE) -> Ended:
    """Runs it in `folder`, with its output in stdout and stderr there. Stops it far above its limit, with its children.

    Called in a small process of its own: a child's peak of memory includes that of the process it was forked from. wait4
    counts the children that the program waited for; those that run at the same time are measured while it runs.
    """
    stopped = int(STOPPED_TIMES * seconds) + 1
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, start_new_session=True,
                                 env={"LC_ALL": "C", "HOME": str(folder / "home")}, preexec_fn=lambda: limit(stopped, address_space))
    peak, end, last = 0, time.monotonic() + WAIT_SECONDS, 0
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid != 0:
            child.returncode = os.waitstatus_to_exitcode(status)
            break
        peak = max(peak, memory_kib(child.pid))
        if ticks(child.pid) > stopped * os.sysconf("SC_CLK_TCK"):
            kill(child)
            return Ended(-signal.SIGXCPU, stopped, peak)
        if time.monotonic() > end:
            last, before_that = ticks(child.pid), last
            if last == before_that:
                kill(child)
                return Ended(None)
            end += WAIT_SECONDS
        time.sleep(POLL_SECONDS)
    # The fork itself has this script's memory, so the figure of wait4 counts only if it is larger.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Ended(child.returncode, used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss if used.ru_maxrss > 2 * own else 0))


def kill(child: subprocess.Popen) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def cost_problems(ended: Ended, factor: float = 1) -> list[str]:
    """The limits that a run exceeds, `factor` times larger ones."""
    found = []
    if is_longer(ended.seconds, SECONDS * factor):
        found.append(f"takes {ended.seconds:.1f} s")
    if ended.kib * 1024 > MEMORY_BYTES * factor:
        found.append(f"takes {ended.kib >> 10} MiB")
    return found
