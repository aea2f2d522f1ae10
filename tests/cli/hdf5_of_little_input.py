"""Small HDF5 files that name much take less than 5 s of processor time, children counted.

Environment: SHARDCTL is the program. Skipped if Python has no h5py.
"""
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import h5py
    import numpy
except ModuleNotFoundError:
    print("skipped: no h5py")
    sys.exit(77)

SHARDCTL = os.environ["SHARDCTL"]


def seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class LittleInput(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "x.h5"

    def expect(self, code: int, *arguments) -> str:
        begin = seconds()
        done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertLess(seconds() - begin, 5, arguments)
        return done.stderr

    def test_digest_of_narrow_chunks_that_were_never_written(self) -> None:
        for shape, chunks in (((32768, 32768), (32768, 1)), ((32768, 128, 256), (32768, 1, 1)), ((32768, 32768), (1, 32768))):
            with h5py.File(self.file, "w") as h:
                h.create_dataset("w", shape, "u1", chunks=chunks)
            self.expect(0, "digest", self.file)

    def test_strided_virtual_datasets(self) -> None:
        for blocks, code in ((1 << 11, 0), (1 << 17, 8)):
            with h5py.File(self.file, "w") as h:
                h["x"] = numpy.arange(blocks, dtype="f4")
                h["y"] = -numpy.arange(blocks, dtype="f4")
                layout = h5py.VirtualLayout((2 * blocks,), "f4")
                layout[::2], layout[1::2] = h5py.VirtualSource(h["x"]), h5py.VirtualSource(h["y"])
                h.create_virtual_dataset("both", layout)
            text = self.expect(code, "inspect", self.file)
            self.assertTrue(code == 0 or "'both': opening it takes more processor time" in text, text)


if __name__ == "__main__":
    unittest.main()
