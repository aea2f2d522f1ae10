"""File systems of their own for tests, by root only: tmpfs, ext4 and XFS on a loop device, LazyFS."""
import fcntl
import os
import struct
import subprocess
import time
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
    """The reason why file systems cannot be mounted here; empty if they can."""
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
    """A file system in a file, mounted at `at` during the `with` block."""

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


class LazyFs:
    """LazyFS (github.com/dsrhaslab/lazyfs) over a folder: names survive, and only synced data. Like Image."""

    kind = "lazyfs"
    CONFIG = """[faults]
fifo_path = "{0}/lazyfs-commands"
[cache]
apply_eviction = false
[cache.simple]
custom_size = "64mb"
blocks_per_page = 1
[filesystem]
log_all_operations = false
logfile = "/dev/null"
"""

    def __init__(self, program: str, folder: Path) -> None:
        self.program, self.folder, self.at, self.below = program, folder, folder / "lazyfs-mount", folder / "lazyfs-root"

    def mount(self) -> None:
        line = [self.program, self.at, "--config-path", self.folder / "lazyfs.toml", "-o", "modules=subdir", "-o", f"subdir={self.below}", "-f"]
        self.process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not os.path.ismount(self.at):
            assert self.process.poll() is None, f"{line} ended"
            time.sleep(0.005)

    def unmount(self) -> None:
        """With all that was not forced."""
        self.process.kill()
        self.process.wait()
        run("umount", "-l", self.at)

    def cut_power(self) -> None:
        self.unmount()
        self.mount()

    def force(self) -> None:
        for path in self.at.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def __enter__(self) -> "LazyFs":
        for each in self.at, self.below:
            each.mkdir(parents=True)
        (self.folder / "lazyfs.toml").write_text(self.CONFIG.format(self.folder))
        self.mount()
        probe = self.at / "probe"
        probe.write_bytes(b"not forced")
        self.cut_power()
        assert probe.read_bytes() == b"", "LazyFS kept what was not forced"
        probe.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
