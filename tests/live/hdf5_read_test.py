"""HDF5 files that h5py wrote are read: by the newest h5py and by Debian's, over datatypes, layouts, filters and links."""
import json
import subprocess
import sys
import unittest
from pathlib import Path

import torch

from support import LiveTest, raw_bytes, shardctl, shardctl_json

WRITERS = {"newest": sys.executable, "debian": "/usr/bin/python3"}


def flatten(value, prefix: str = "") -> dict:
    """Leaves of nested dicts by their joined keys; empty dicts are leaves."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    leaves = {}
    for key, inner in value.items():
        leaves |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def flatten_lists(value, prefix: str) -> dict:
    if not isinstance(value, (list, tuple)):
        return {prefix: value}
    return {name: leaf for i, inner in enumerate(value) for name, leaf in flatten_lists(inner, f"{prefix}.{i}").items()}


class Read(LiveTest):
    def check(self, source: Path, wanted: dict) -> None:
        listed = shardctl_json("inspect", source)
        self.assertEqual(listed["format"], "hdf5")
        found = {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in listed["tensors"]}
        self.assertEqual(found, {name: (each["dtype"], each["shape"]) for name, each in wanted["tensors"].items()})
        self.assertEqual({each["name"]: each["value"] if each["type"] != "dict" else {} for each in listed["objects"]},
                         wanted["objects"])
        for threads, memory in ((1, "64MiB"), (3, "1MiB")):
            out = self.dir / f"{source.name}-{threads}.pt"
            shardctl("gather", source, "-o", out, "-j", threads, "--max-memory", memory)
            loaded = {}
            for name, leaf in flatten(torch.load(out)).items():
                loaded |= {name: leaf} if isinstance(leaf, torch.Tensor) else flatten_lists(leaf, name)
            for name, each in wanted["tensors"].items():
                self.assertEqual(raw_bytes(loaded[name]).hex(), each["hex"], f"{source.name}: {name}")
            self.assertEqual(shardctl("digest", "-q", out), shardctl("digest", "-q", source))

    def run_writer(self, label: str) -> None:
        folder = self.dir / label
        try:
            subprocess.run([WRITERS[label], Path(__file__).with_name("hdf5_files.py"), folder], check=True)
        except subprocess.CalledProcessError:
            self.skipTest(f"{WRITERS[label]} has no h5py")
        for name, wanted in json.loads((folder / "expected.json").read_text()).items():
            with self.subTest(name):
                self.check(folder / wanted["source"], wanted)

    def test_files_of_the_newest_h5py(self):
        self.run_writer("newest")

    def test_files_of_debians_h5py(self):
        self.run_writer("debian")

    def test_a_missing_file_of_a_virtual_dataset_is_an_error(self):
        self.run_writer("newest")
        (self.dir / "newest/virtual/part1.h5").unlink()
        error = shardctl_json("gather", self.dir / "newest/virtual", "-o", self.dir / "out.safetensors", code=3)
        self.assertIn("part1.h5", error["message"])


if __name__ == "__main__":
    unittest.main()
