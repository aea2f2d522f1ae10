"""A verb lists the folder of a checkpoint once: on NFS and in object stores each listing is a round trip.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SHARDCTL = os.environ["SHARDCTL"]
DATA = pathlib.Path(os.environ["SHARD_DATA"])
GOLDEN = DATA / "golden/2.11.0"
END = re.compile(r"getdents64\(\d+<([^>]*)>.* = 0$")  # A listing is complete when nothing is left to read.

FOLDERS = {  # A folder of each kind that a format reads.
    "dcp": GOLDEN / "dcp",
    "torch-ranks": GOLDEN / "ranks_dtensor_r2",
    "dcp-hf": DATA / "golden/2.15.0/dcp_hf",
}
READING = [["inspect"], ["verify"], ["digest"], ["cat", "--limit", "1"]]
WRITING = [["gather", "-o", "OUT.safetensors"], ["convert", "--to", "dcp", "-o", "OUT"], ["reshard", "--ranks", "2", "-o", "OUT"]]


class Listings(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)

    def listings(self, *words: str) -> dict[str, int]:
        """How often the run listed each folder below its own."""
        log = self.dir / "trace"
        done = subprocess.run(["strace", "-f", "-y", "-e", "trace=getdents64", "-o", log, SHARDCTL, *words], cwd=self.dir,
                              capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        counts: dict[str, int] = {}
        for line in log.read_text().splitlines():
            found = END.search(line)
            if found and (path := pathlib.Path(found[1])).is_relative_to(self.dir):
                name = str(path.relative_to(self.dir))
                counts[name] = counts.get(name, 0) + 1
        return counts

    def check(self, most: int, *words: str):
        counts = self.listings(*words)
        of_source = {name: count for name, count in counts.items() if name.split("/")[0] == "source"}
        self.assertIn("source", of_source, f"{words}: nothing was listed")
        for name, count in of_source.items():
            self.assertLessEqual(count, most, f"{words} lists {name} {count} times")


def copy_of(test: Listings, folder: pathlib.Path):
    shutil.copytree(folder, test.dir / "source")


class EveryVerb(Listings):
    def run_all(self, folder: pathlib.Path):
        copy_of(self, folder)
        for verb, *options in READING:
            self.check(1, verb, "source", *options)
        for number, (verb, *options) in enumerate(WRITING):
            self.check(1, verb, "source", *(word.replace("OUT", f"out{number}") for word in options))
        self.check(1, "diff", "source", "out0.safetensors")

    def test_dcp(self):
        self.run_all(FOLDERS["dcp"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
