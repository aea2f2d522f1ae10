"""Shared by the tests of the native module."""
import os
import signal
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))

import safetensors_files  # noqa: E402
from machine import is_longer  # noqa: E402

DATA = SOURCE / "tests/data"
GOLDEN = DATA / "golden/2.11.0"
CHECKPOINT = DATA / "demo/ckpt"
MIB = 1 << 20
SANITIZED = "SHARD_SANITIZED" in os.environ
SLOWER = 10 if SANITIZED else 1
# The peak memory of a process in KiB. Not ru_maxrss, which a process inherits from the one that started it.
PEAK = "def peak(): return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def saved(self, tensors: dict[str, torch.Tensor], name: str = "x.safetensors") -> Path:
        safetensors.torch.save_file(tensors, self.folder / name)
        return self.folder / name

    def interrupted(self, work: Callable[[], object], seconds: float = 0.1) -> None:
        """Ctrl-C stops the work each time: within 0.1 s of one thread's processor time, however busy the machine is, and
        within that time if it has a processor. With sanitizers, in ten times that."""
        stopped, taken = [], []

        def stop(*_: object) -> None:
            stopped.append(time.process_time())
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, stop)
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            begin = time.monotonic()
            with self.assertRaises(KeyboardInterrupt):
                work()
            taken.append(time.monotonic() - begin - 0.1)
            self.assertFalse(is_longer(time.process_time() - stopped.pop(), 0.1 * SLOWER))
            self.assertFalse(is_longer(taken[-1], SLOWER, time.monotonic), taken)
        self.assertFalse(is_longer(min(taken), seconds * SLOWER), taken)

    def sparse(self, mebibytes: int) -> Path:
        """A safetensors file of zeros that uses no disk."""
        path = self.folder / "sparse.safetensors"
        safetensors_files.write(path, {"w": ("U8", [mebibytes, MIB])})
        return path
