"""A name that counts parts is a promise in every format: a missing part is exit 3, two counts are two checkpoints.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from program import SHARDCTL, write_safetensors

DATA = Path(os.environ["SHARD_DATA"])


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)


FORMATS = [name for name in ("safetensors", "hdf5") if name in json.loads(run("version", "--json").stdout)["formats"]]
SUFFIX = {"safetensors": "safetensors", "hdf5": "h5"}


class CountedNames(unittest.TestCase):
    def setUp(self) -> None:
        self.dir = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.dir)
        write_safetensors(self.dir / "m.safetensors", {f"l{i}.w": ("U8", [2], b"xy") for i in range(6)})

    def expect(self, code: int, *arguments) -> subprocess.CompletedProcess:
        done = run(*arguments)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}{done.stderr}")
        return done

    def split(self, to: str, parts: int, name: str) -> Path:
        self.expect(0, "split", self.dir / "m.safetensors", "-o", self.dir / name, "--to", to, "--shards", parts)
        for each in ("master.h5", "model.safetensors.index.json"):
            (self.dir / name / each).unlink(missing_ok=True)
        return self.dir / name

    def test_a_missing_part_is_exit_3(self) -> None:
        for to in FORMATS:
            folder = self.split(to, 3, f"lone {to}")
            missing = f"model-00002-of-00003.{SUFFIX[to]}"
            (folder / missing).unlink()
            for verb in (("inspect",), ("digest",), ("gather", "-o", self.dir / "x.safetensors"), ("convert", "-o", self.dir / "x.pt")):
                self.assertIn(missing, self.expect(3, verb[0], folder, *verb[1:]).stderr)
            done = run("verify", folder)
            self.assertIn(missing, done.stdout + done.stderr)
            self.assertNotEqual(done.returncode, 0)
            (folder / f"model-00003-of-00003.{SUFFIX[to]}").unlink()
            self.assertIn(missing, self.expect(3, "gather", folder, "-o", self.dir / "x.safetensors").stderr)

    def test_parts_that_are_named_are_read_with_a_warning(self) -> None:
        for to in FORMATS:
            part = self.split(to, 3, f"named {to}") / f"model-00001-of-00003.{SUFFIX[to]}"
            self.assertIn("model-00002-of-00003", self.expect(0, "inspect", part).stderr)
            self.assertIn("1 warning", self.expect(0, "verify", part).stdout)
            self.assertEqual(self.expect(0, "inspect", *sorted(part.parent.iterdir())).stderr, "")

    def test_two_counts_are_two_checkpoints(self) -> None:
        for to in FORMATS:
            folder = self.split(to, 3, f"two {to}")
            for each in self.split(to, 2, f"other {to}").iterdir():
                shutil.copy(each, folder)
            for verb in ("inspect", "digest"):
                lines = self.expect(4, verb, folder).stderr
                for count in ("00002", "00003"):
                    pattern = f"model-*-of-{count}.{SUFFIX[to]}"
                    self.assertIn(f"{pattern} (all {int(count)} parts)", lines)
                    self.assertIn(f"shardctl {verb} '{folder}/'{pattern}", lines)
            self.expect(0, "inspect", *sorted(folder.glob("*-of-00002*")))
            (folder / f"model-00002-of-00003.{SUFFIX[to]}").unlink()
            lines = self.expect(4, "inspect", folder).stderr
            self.assertIn(f"2 parts, model-00002-of-00003.{SUFFIX[to]} is missing", lines)
            self.assertLess(lines.index("inspect"), len(lines))

    def test_variants_behind_the_count_are_counted(self) -> None:
        write_safetensors(self.dir / "model-00001-of-00002.fp16.safetensors", {"a": ("U8", [2], b"xy")})
        (self.dir / "m.safetensors").unlink()
        self.assertIn("model-00002-of-00002.fp16.safetensors", self.expect(3, "inspect", self.dir).stderr)

    def test_an_index_of_a_variant_and_files_in_folders_below_are_read(self) -> None:
        (self.dir / "d" / "sub").mkdir(parents=True)
        write_safetensors(self.dir / "d" / "a.safetensors", {"a": ("U8", [2], b"xy")})
        write_safetensors(self.dir / "d" / "sub" / "b.safetensors", {"b": ("U8", [2], b"xy")})
        index = {"weight_map": {"a": "a.safetensors", "b": "sub/b.safetensors"}}
        (self.dir / "d" / "model.safetensors.index.fp16.json").write_text(json.dumps(index))
        self.assertEqual(len(json.loads(self.expect(0, "inspect", self.dir / "d", "--json").stdout)["tensors"]), 2)
        self.expect(0, "gather", self.dir / "d", "-o", self.dir / "x.safetensors")

    @unittest.skipUnless("hdf5" in FORMATS, "this build has no HDF5")
    def test_the_index_of_tensorflow_weights_is_read(self) -> None:
        for source in (DATA / "hdf5" / "tf", *([sorted((DATA / "hdf5" / "tf").glob("*.h5"))])):
            paths = source if isinstance(source, list) else [source]
            found = json.loads(self.expect(0, "inspect", *paths, "--json").stdout)
            self.assertEqual([each["name"] for each in found["tensors"]],
                             ["bert.embeddings.word_embeddings.weight:0", "bert.encoder.layer_._0.attention.self.query.bias:0",
                              "bert.encoder.layer_._0.attention.self.query.kernel:0", "bert.pooler.dense.kernel:0"])
            self.assertTrue(any("layer_names" in each for each in found["warnings"]))
        shutil.copytree(DATA / "hdf5" / "tf", self.dir / "tf")
        (self.dir / "tf" / "tf_model-00002-of-00002.h5").unlink()
        self.assertIn("tf_model-00002-of-00002.h5", self.expect(3, "inspect", self.dir / "tf").stderr)


if __name__ == "__main__":
    unittest.main()
