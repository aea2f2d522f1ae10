"""The slow disk of the tests: a folder, seen through the program slow_disk (slow_disk.cpp lists its switches)."""
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SKIPPED = 77
PAGE = 4096


@dataclass(frozen=True)
class Call:
    name: str
    bytes: int
    path: str  # From the mount's root on, with a slash in front.


def why_not() -> str:
    """The reason why no such disk can be mounted here; empty if one can."""
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    return "" if os.geteuid() == 0 else "not root"


class SlowDisk:
    """`below` is the folder as it is, `at` the same with the switches, during the `with` block."""

    def __init__(self, program: str, folder: Path, *switches: str) -> None:
        self.program, self.switches = program, switches
        self.below, self.at, self.log = folder / "below", folder / "slow", folder / "calls"
        for each in self.below, self.at:
            each.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "SlowDisk":
        line = [self.program, self.at, self.below, self.log, *self.switches]
        self.process = subprocess.Popen([str(word) for word in line], stderr=subprocess.PIPE, text=True)
        while not os.path.ismount(self.at):
            assert self.process.poll() is None, f"{line}: {self.process.stderr.read()}"
            time.sleep(0.005)
        self.log.write_text("")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.at], check=True)
        self.process.wait()
        self.process.stderr.close()

    def calls(self) -> list[Call]:
        """The calls since the last question."""
        lines = self.log.read_text().splitlines()
        os.truncate(self.log, 0)
        return [Call(name, int(count), path) for name, count, path in (line.split(" ", 2) for line in lines)]

    def forget(self) -> None:
        """Empties the page cache of the files of this disk."""
        for path in self.below.rglob("*"):
            if path.is_file():
                with (self.at / path.relative_to(self.below)).open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
