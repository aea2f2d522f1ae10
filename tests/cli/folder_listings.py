"""A verb lists each folder of a checkpoint once, and opens a model map once: on NFS and in object stores each is a round
trip.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
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
END = re.compile(r"getdents64\(\d+<([^>]*)>.*\) += 0$")  # A listing is complete when nothing is left to read.
OPENED = re.compile(r"openat.*\) += \d+<([^>]*)>$")
VERBS = {
    "inspect": ["inspect", "source"],
    "verify": ["verify", "source"],
    "digest": ["digest", "source"],
    "gather": ["gather", "source", "-o", "out.safetensors", "--objects", "drop"],
    "convert": ["convert", "source", "-o", "out", "--to", "dcp", "--objects", "drop"],
    "split": ["split", "source", "-o", "ranks", "--ranks", "2", "--objects", "drop"],
}


class Listings(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)

    def count(self, call: str, done: re.Pattern, *words: str) -> dict[str, int]:
        """How often a run made a system call on each path below the test's folder."""
        log = self.dir / "trace"
        run = subprocess.run(["strace", "-f", "-y", "-e", f"trace={call}", "-o", log, SHARDCTL, *words], cwd=self.dir,
                             capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, f"{words}: {run.stderr}")
        counts: dict[str, int] = {}
        for line in log.read_text().splitlines():
            found = done.search(line)
            if found and pathlib.Path(found[1]).is_relative_to(self.dir):
                path = str(pathlib.Path(found[1]).relative_to(self.dir))
                counts[path] = counts.get(path, 0) + 1
        return counts

    def listings(self, *words: str) -> dict[str, int]:
        """How often the run listed each folder of the source."""
        counts = self.count("getdents64", END, *words)
        self.assertIn("source", counts, f"{words}: the folder was not listed")
        return {path: count for path, count in counts.items() if pathlib.Path(path).is_relative_to("source")}

    def check(self, most: int, *words: str):
        for folder, count in self.listings(*words).items():
            self.assertLessEqual(count, most, f"{' '.join(words)} lists {folder} {count} times")

    def check_verbs(self, folder: pathlib.Path, verbs=tuple(VERBS)):
        shutil.copytree(folder, self.dir / "source")
        for verb in verbs:
            self.check(1, *VERBS[verb])


class EveryFormat(Listings):
    def test_dcp(self):
        self.check_verbs(GOLDEN / "dcp_training_r2")
        self.check(1, "gather", "source", "-o", "all.pt")
        self.check(1, "diff", "source", "all.pt")
        self.check(1, "repair", "source", "-o", "repaired")

    def test_dcp_hf(self):
        self.check_verbs(GOLDEN / "dcp_hf_r4")

    def test_torch_ranks(self):
        self.check_verbs(GOLDEN / "ranks_dtensor_r4")

    def test_torch_with_an_index(self):
        self.check_verbs(GOLDEN / "hub")

    def test_safetensors_with_an_index(self):
        subprocess.run([SHARDCTL, "convert", GOLDEN / "model.pt", "-o", self.dir / "made", "--to", "safetensors", "--shards", "2",
                        "--objects", "drop", "-q"], check=True)
        self.check_verbs(self.dir / "made")

    def test_deepspeed(self):
        self.check_verbs(DATA / "deepspeed/stage1", ("inspect", "verify", "gather"))

    def test_deepspeed_universal(self):
        self.check_verbs(DATA / "deepspeed/universal_of_stage1", ("inspect", "verify", "gather"))

    def test_megatron(self):
        self.check_verbs(DATA / "megatron/dense", ("inspect", "verify", "gather"))


class Export(Listings):
    def test_lists_the_source_at_most_twice(self):
        for folder in (GOLDEN / "dcp_training_r2", GOLDEN / "hub"):
            shutil.rmtree(self.dir / "source", ignore_errors=True)
            shutil.copytree(folder, self.dir / "source")
            self.check(2, "export", "source", "-o", f"exported_{folder.name}")

    def test_takes_a_model_of_a_trainers_folder(self):
        (self.dir / "source").mkdir()
        shutil.copytree(GOLDEN / "hub", self.dir / "source/checkpoint-10")
        (self.dir / "source/checkpoint-10/config.json").write_text("{}")
        self.check(2, "export", "source", "-o", "exported")


class MapDocuments(Listings):
    """Each rank opens a map once, however many parts of the run need it."""

    def opens(self, times: int, *words: str, maps=("map.json",)):
        counts = self.count("openat", OPENED, *words)
        self.assertEqual({name: counts.get(name, 0) for name in maps}, dict.fromkeys(maps, times), " ".join(words))

    def test_of_one_file(self):
        for name in ("map.json", "other.json"):
            (self.dir / name).write_text(json.dumps({"schema": "shardctl.layout/1", "rules": [{"match": ".*"}]}))
        source = str(GOLDEN / "model.pt")
        drop = ["--objects", "drop"]
        self.opens(1, "inspect", source, "--map", "map.json")
        self.opens(1, "digest", source, "--map", "map.json", *drop)
        self.opens(1, "diff", source, source, "--map", "map.json")
        gather = ["gather", source, "-o", "a.safetensors", "--map", "map.json", "--if-changed", *drop]
        self.opens(1, *gather)
        self.opens(1, *gather)
        self.opens(1, "convert", source, "-o", "b.safetensors", "--map", "map.json", "--to-map", "other.json", *drop,
                   maps=("map.json", "other.json"))

    def test_of_ranks(self):
        (self.dir / "map.json").write_text(json.dumps({
            "schema": "shardctl.layout/1", "mesh": {"tp": "ranks"}, "files": {"path": "part{tp}.pt"}, "rules": [{"match": ".*"}]}))
        split = ["split", str(GOLDEN / "model.pt"), "--to", "torch-ranks", "--to-map", "map.json", "--ranks", "2", "--objects", "drop"]
        self.opens(1, *split, "-o", "one")
        self.opens(2, *split, "-o", "two", "--local-ranks", "2")
        self.opens(1, "gather", "two", "-o", "whole.safetensors", "--map", "map.json")
        self.opens(2, "gather", "two", "-o", "again.safetensors", "--map", "map.json", "--local-ranks", "2")


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
