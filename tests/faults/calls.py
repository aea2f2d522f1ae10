"""The system calls of a run, as strace numbers them: each thread counts its own calls of a name. With -j 1 the main thread
makes all of interest; equal numbers of other threads belong to no call after the loader's."""
import re
from dataclasses import dataclass
from pathlib import Path

from jobs import Case

CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")
BEGIN = "rt_sigaction(SIGPIPE"  # The first call of main; the loader is done.
LOADED = re.compile(r"\.so\b")   # But for plug-ins.


@dataclass(frozen=True)
class Call:
    name: str
    number: int  # The number of this call by name, from 1, in the main thread.
    text: str    # Its arguments and result, descriptors with their paths.


def traced(case: Case, *options: str) -> list[Call]:
    """The program's own calls, in order, in a run that succeeds."""
    log = case.folder / "log"
    done = case.run(*options, under=["strace", "-f", "-y", "-s", "0", "-o", str(log)])
    assert done.returncode == 0, f"{case.job.name}: exit {done.returncode}\n{done.stderr}"
    calls: list[Call] = []
    counts: dict[str, int] = {}
    main, has_begun = "", False
    for line in log.read_text(errors="replace").splitlines():
        has_begun = has_begun or BEGIN in line
        found = CALL.match(line)
        if found is None or "resumed>" in line:
            continue
        thread, name, text = found.groups()
        main = main or thread
        if thread != main:
            continue
        counts[name] = counts.get(name, 0) + 1
        if has_begun and not LOADED.search(text):
            calls.append(Call(name, counts[name], text))
    log.unlink()
    return calls


def inject(call: Call, what: str, log: Path | str = "/dev/null") -> list[str]:
    """The command with which that call gets `what`: "error=EIO"; "signal=KILL", which comes before the call is
    done."""
    faster = [] if what.startswith("signal") else ["--seccomp-bpf"]  # With it strace 6.1 injects no signals.
    return ["strace", "-f", *faster, "-qq", "-o", str(log), "-e", f"trace={call.name}",
            "-e", f"inject={call.name}:{what}:when={call.number}"]
