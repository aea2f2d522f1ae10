"""File systems of their own for tests, by root only: tmpfs, and ext4 and XFS on a loop device."""
import fcntl
import os
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

GOING_DOWN, NO_LOG_FLUSH = 0x8004587D, 2  # _IOR('X', 125, __u32), of ext4 and XFS.
MIB = 1 << 20


def run(*words: object, code: int | None = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([str(each) for each in words], capture_output=True, text=True)
    assert code is None or done.returncode == code, f"{words}: exit {done.returncode}: {done.stderr}"
    return done


def can_mount() -> str:
    """Why file systems cannot be mounted here; empty where they can."""
    if os.geteuid() != 0:
        return "not root"
    if not os.path.exists("/dev/loop-control"):
        return "no loop devices"
    done = run("unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt", code=None)
    return done.stderr.strip()


@contextmanager
def mounted(at: Path, *words: object) -> Iterator[Path]:
    at.mkdir(parents=True, exist_ok=True)
    run("mount", *words, at)
    try:
        yield at
    finally:
        run("umount", "-l", at)


class Image:
    """A file system in a file, mounted at `at` while `with` goes on."""

    def __init__(self, kind: str, folder: Path, mebibytes: int, *options: str) -> None:
        self.kind, self.at, self.file = kind, folder / f"{kind}-mount", folder / f"{kind}.img"
        self.options = options
        self.at.mkdir(parents=True)
        with self.file.open("wb") as file:
            file.truncate(mebibytes * MIB)
        run(*{"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}[kind], self.file)

    def can_mount(self) -> bool:
        """Whether the kernel knows the options; then it is not mounted."""
        done = run("mount", "-o", ",".join(["loop", *self.options]), self.file, self.at, code=None)
        if done.returncode == 0:
            self.unmount()
        return done.returncode == 0

    def mount(self) -> None:
        run("mount", "-o", ",".join(["loop", *self.options]), self.file, self.at)

    def unmount(self) -> None:
        run("umount", self.at)

    def cut_power(self) -> None:
        """Loses all that was not forced to disk, and comes back."""
        folder = os.open(self.at, os.O_RDONLY)
        fcntl.ioctl(folder, GOING_DOWN, struct.pack("I", NO_LOG_FLUSH))
        os.close(folder)
        self.unmount()
        self.mount()

    def force(self) -> None:
        folder = os.open(self.at, os.O_RDONLY)
        subprocess.run(["sync", "-f", str(self.at)], check=True)
        os.close(folder)

    def __enter__(self) -> "Image":
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
