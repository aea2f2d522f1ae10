#!/usr/bin/env python3
"""The three answers of verify (good, damaged, not read here), and the treatment of unread content by repair."""
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib
from pathlib import Path

from program import write_safetensors

DATA = Path(os.environ["SHARD_DATA"])
HOSTILE = Path(__file__).resolve().parent.parent / "hostile"
sys.path.append(str(HOSTILE))
from build import name, number, pickled, storage, tensor, text, torch_zip, tuple_of  # noqa: E402

CODES_CLASS = "my_project.states.Codes"
CONFIG_CLASS = "my_project.states.Config"
FOREIGN = ["optimizer.exp_avg", "optimizer.exp_avg_sq"]


def shardctl(*words: str, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([os.environ["SHARDCTL"], *words], capture_output=True, text=True)
    if done.returncode != code:
        raise AssertionError(f"{words}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
    return done


def document(*words: str, code: int = 0) -> dict:
    return json.loads(shardctl(*words, "--json", code=code).stdout)


def flip(path: Path, content: bytes) -> None:
    """Changes a byte of the only occurrence of `content`."""
    whole = path.read_bytes()
    at = whole.index(content)
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])


def replace_record(path: Path, end: str) -> None:
    """Changes a byte of the record whose name ends so, and its CRC-32 wherever the zip has it."""
    record = next(each for each in zipfile.ZipFile(path).infolist() if each.filename.endswith(end))
    content = zipfile.ZipFile(path).read(record)
    changed = bytes([content[0] ^ 1]) + content[1:]
    whole = path.read_bytes()
    assert whole.count(content) == 1
    path.chmod(0o644)
    path.write_bytes(whole.replace(content, changed)
                     .replace(struct.pack("<I", zlib.crc32(content)), struct.pack("<I", zlib.crc32(changed))))


def safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    write_safetensors(path, {name: ("U8", [len(data)], data) for name, data in tensors.items()})


def ranks(data: list[bytes]) -> None:
    """Files of ranks that each have the whole float32 tensor "w"."""
    Path("ranks").mkdir()
    layout = {"schema": "shardctl.layout/1", "mesh": {"r": len(data)}, "rules": []}
    Path("ranks/layout.json").write_text(json.dumps(layout))
    body = pickled(b"}" + text("w") + tensor([4], [1], stored=storage(4)) + b"s")
    for rank, each in enumerate(data):
        Path(f"ranks/rank_{rank}.pt").write_bytes(torch_zip(body, {"data/0": each}))


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chdir(folder.name)
        self.addCleanup(os.chdir, "/")


class MixedSaves(InAFolder):
    def test_only_ranks_that_disagree_are_named(self):
        ranks([bytes(16)] * 3)
        for rank, step in enumerate([7, 8, 8]):
            body = pickled(b"}" + text("w") + tensor([4], [1], stored=storage(4)) + b"s"
                           + text("step") + b"K" + bytes([step]) + b"s")
            Path(f"ranks/rank_{rank}.pt").write_bytes(torch_zip(body, {"data/0": bytes(16)}))
        found = [each for each in document("verify", "ranks", code=1)["findings"] if each["kind"] == "mixed_save"]
        self.assertEqual([each["file"] for each in found], ["rank_1.pt"])
        self.assertIn("ranks 0 and 1", found[0]["detail"])


class ForeignClasses(InAFolder):
    """A folder of dcp whose optimizer has tensors of a class outside the list, and whose config is such an object."""

    def setUp(self):
        super().setUp()
        shutil.copytree(DATA / "dcp" / "foreign_class", "ckpt")
        self.items = Path("ckpt/__0_0.distcp")
        self.codes = bytes(range(24))  # The values of exp_avg; those of exp_avg_sq are 1 to 24.

    def test_are_no_damage(self):
        found = document("verify", "ckpt")
        self.assertTrue(found["ok"])
        self.assertEqual({key: found["not_read"][key] for key in ("tensors", "objects", "files")},
                         {"tensors": 2, "objects": 1, "files": 0})
        self.assertEqual(found["not_read"]["classes"], [CODES_CLASS, CONFIG_CLASS])
        self.assertEqual({each["severity"] for each in found["findings"]}, {"warning"})
        self.assertTrue(all(each["not_read"] for each in found["findings"]))
        lines = shardctl("verify", "ckpt").stdout.splitlines()
        self.assertIn("good, 2 tensors and 1 object not read", lines[-1])
        self.assertNotIn("warning", lines[-1])

    def test_checksums_of_what_is_not_read_are_compared(self):
        whole = document("verify", "ckpt")["checked"]["crc32"]
        self.assertGreater(whole, 0)
        flip(self.items, self.codes)
        found = document("verify", "ckpt", code=1)
        self.assertEqual([each["kind"] for each in found["findings"] if each["severity"] == "error"], ["crc_mismatch"])
        self.assertEqual(found["not_read"]["tensors"], 2)

    def test_are_copied_as_they_are_by_repair(self):
        result = document("repair", "ckpt", "-o", "rep")
        self.assertEqual(result["lost"], [])
        self.assertIn("3 items were copied as they are", " ".join(result["repaired"]))
        again = document("verify", "rep")
        self.assertEqual(again["not_read"], document("verify", "ckpt")["not_read"])
        self.assertEqual(again["checked"]["crc32"], document("verify", "ckpt")["checked"]["crc32"])
        copied = Path("rep/__0_0.distcp").read_bytes()
        for item in self.whole_items():
            self.assertIn(item, copied)
        self.assertTrue(document("diff", "ckpt", "rep", "--unknown-globals", "opaque",
                                 "--exclude", "optimizer.**", "--exclude", "config")["equal"])

    def whole_items(self) -> list[bytes]:
        """The zips of the file that name the project's classes."""
        whole, items = self.items.read_bytes(), []
        ends = [at + 22 for at in range(len(whole)) if whole.startswith(b"PK\5\6", at)]
        for begin, end in zip([0, *ends], ends):
            if b"my_project" in whole[begin:end]:
                items.append(whole[begin:end])
        self.assertEqual(len(items), 3)
        return items

    def test_that_are_damaged_are_lost_and_the_others_kept(self):
        flip(self.items, self.codes)
        result = document("repair", "ckpt", "-o", "rep")
        self.assertEqual([each["name"] for each in result["lost"]], ["optimizer.exp_avg"])
        self.assertEqual(document("verify", "rep", code=1)["not_read"]["tensors"], 1)

    def test_stay_where_a_readable_tensor_is_lost(self):
        flip(self.items, struct.pack("<24f", *range(24)))
        result = document("repair", "ckpt", "-o", "rep")
        self.assertEqual([each["name"] for each in result["lost"]], ["model.weight"])
        self.assertEqual(document("verify", "rep", code=1)["not_read"]["tensors"], 2)

    def test_are_left_out_only_if_that_is_asked_for(self):
        shardctl("repair", "ckpt", "-o", "rep", "--exclude", "optimizer.**", "--objects", "drop")
        self.assertEqual(document("verify", "rep")["not_read"], {"tensors": 0, "objects": 0, "files": 0, "classes": []})
        refused = shardctl("repair", "ckpt", "-o", "rep.safetensors", "--to", "safetensors", code=8)
        self.assertIn("--exclude optimizer.exp_avg", refused.stderr)

    def test_keep_their_names(self):
        refused = shardctl("repair", "ckpt", "-o", "rep", "--add-prefix", "x.", code=8)
        self.assertIn("under another name", refused.stderr)


class OneOfSeveralFiles(InAFolder):
    def errors(self, source: str, code: int = 1) -> dict[str, set[str]]:
        """Kinds of errors by file."""
        errors: dict[str, set[str]] = {}
        for each in document("verify", source, code=code)["findings"]:
            if each["severity"] == "error":
                errors.setdefault(each["file"], set()).add(each["kind"])
        return errors

    def test_that_is_cut_does_not_leave_the_others_unread(self):
        shutil.copytree(DATA / "dcp" / "four_ranks", "ckpt")
        for each in Path("ckpt").iterdir():
            each.chmod(0o644)
        files = sorted(Path("ckpt").glob("*.distcp"))
        whole = {path: path.read_bytes() for path in files}
        for number, path in enumerate(files):
            other = files[number - 1]
            path.write_bytes(whole[path][:len(whole[path]) // 2])
            at = whole[other].rindex(b"PK\1\2") - 1  # In the last record's descriptor or bytes.
            other.write_bytes(whole[other][:at] + bytes([whole[other][at] ^ 1]) + whole[other][at + 1:])
            self.assertEqual(set(self.errors("ckpt")), {path.name, other.name}, path)
            path.write_bytes(whole[path])
            other.write_bytes(whole[other])
        self.assertEqual(self.errors("ckpt", 0), {})

    def test_of_a_folder_of_safetensors_is_named(self):
        Path("model").mkdir()
        for part in range(1, 4):
            safetensors(Path(f"model/model-{part:05}-of-00003.safetensors"), {f"w{part}": bytes(9)})
        Path("model/model-00002-of-00003.safetensors").write_bytes(b"nonsense and more of it")
        self.assertEqual(set(self.errors("model")), {"model-00002-of-00003.safetensors"})

    def test_of_ranks_is_named(self):
        ranks([bytes(16), bytes(16), bytes(16)])
        Path("ranks/rank_1.pt").write_bytes(b"nonsense and more of it")
        self.assertIn("rank_1.pt", self.errors("ranks"))


class LegacyFile(InAFolder):
    """A legacy torch.save file of three tensors. Each storage is known to begin only by the end of the one before."""

    def setUp(self):
        super().setUp()
        body = b"}"
        for key in "012":
            stored = tuple_of(text("storage"), name("torch", "FloatStorage"), text(key), text("cpu"), number(4), b"N") + b"Q"
            body += text("w" + key) + tensor([4], [1], stored=stored) + b"s"
        machine = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
        pickles = [pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, machine)]
        self.head = b"".join(pickles) + pickled(body) + pickle.dumps(["0", "1", "2"], 2)
        self.stored = [struct.pack("<q4f", 4, *range(begin, begin + 4)) for begin in (1, 5, 9)]

    def lost(self, *stored: bytes) -> list[str]:
        Path("model.pt").write_bytes(self.head + b"".join(stored))
        return [each["name"] for each in document("repair", "model.pt", "-o", "rep.pt", "--force")["lost"]]

    def test_that_is_cut_keeps_the_storages_before(self):
        self.assertEqual(self.lost(*self.stored), [])
        self.assertEqual(self.lost(*self.stored[:2], self.stored[2][:-1]), ["w2"])

    def test_that_lacks_bytes_inside_loses_the_storage_that_they_are_from(self):
        for begin in 8, 12, 20:
            second = self.stored[1][:begin] + self.stored[1][begin + 4:]
            self.assertEqual(self.lost(self.stored[0], second, self.stored[2]), ["w1", "w2"], begin)

    def test_with_a_wrong_count_alone_keeps_the_storages_before(self):
        self.assertEqual(self.lost(*self.stored[:2], struct.pack("<q", 5) + self.stored[2][8:]), ["w2"])


class Beside(InAFolder):
    def test_what_is_not_checked_is_named(self):
        Path("model/onnx").mkdir(parents=True)
        safetensors(Path("model/model.safetensors"), {"w": bytes(9)})
        for name in ("optimizer.pt", "config.json", "onnx/model.onnx"):
            Path("model", name).write_bytes(b"{}")
        self.assertEqual(document("verify", "model")["not_checked"], ["config.json", "onnx/", "optimizer.pt"])
        lines = shardctl("verify", "model").stdout.splitlines()
        self.assertEqual(lines[0], "not checked, beside the checkpoint: 'onnx/', 'optimizer.pt', 'config.json'")
        self.assertIn("good", lines[-1])
        self.assertEqual(document("verify", "model/model.safetensors")["not_checked"], [])


class Headers(InAFolder):
    def test_one_over_the_limit_is_not_called_damage(self):
        with open("long.safetensors", "wb") as file:
            file.write(struct.pack("<Q", 100_000_001) + b"{")
            file.truncate(100_000_100)
        done = shardctl("inspect", "long.safetensors", code=4)
        self.assertIn("the header's length is 100000001 bytes, at most 100000000 are allowed", done.stderr)
        self.assertIn("its own library does not open this file either", done.stderr)
        self.assertIn("as several files", done.stderr)
        Path("other.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"no header")
        self.assertIn("this is not a safetensors file", shardctl("inspect", "other.safetensors", code=4).stderr)


class Manifest(InAFolder):
    def test_that_contradicts_the_bytes_is_a_warning_of_repair(self):
        safetensors(Path("whole.safetensors"), {"a": b"a" * 100, "b": b"b" * 100})
        for made in ("made.safetensors", "made"):
            shardctl("convert", "whole.safetensors", "-o", made, "--to", "safetensors", "--checksum", "xxh3")
            intact = document("repair", made, "-o", "intact.safetensors")
            self.assertNotIn("from the manifest", str(intact["warnings"]))
            file = Path(made) if Path(made).is_file() else next(Path(made).glob("*.safetensors"))
            flip(file, b"b" * 100)
            damaged = document("repair", made, "-o", "damaged.safetensors")
            self.assertIn("block 0 differs from the manifest", str(damaged["warnings"]))
            self.assertEqual(damaged["tensors"], 2)
            os.remove("intact.safetensors")
            os.remove("damaged.safetensors")


class StaleIndex(InAFolder):
    """An index of files that are gone, beside one whole set of parts."""

    def setUp(self):
        super().setUp()
        Path("model").mkdir()
        self.parts = {f"model-{part:05}-of-00002.safetensors": {f"w{part}": bytes([part] * 9)} for part in (1, 2)}
        for name, tensors in self.parts.items():
            safetensors(Path("model", name), tensors)
        self.index({f"w{part}": f"model-{part:05}-of-00004.safetensors" for part in range(1, 5)})

    def index(self, weight_map: dict[str, str]) -> None:
        Path("model/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def test_has_a_hint_that_takes_the_whole_set(self):
        error = shardctl("inspect", "model", code=3).stderr
        hint = next(line for line in error.splitlines() if "hint:" in line)
        self.assertIn("model/model-*-of-00002.safetensors", hint)
        words = hint[hint.index("shardctl"):]
        done = subprocess.run(words.replace("shardctl", os.environ["SHARDCTL"], 1), shell=True, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("w2", done.stdout)

    def test_is_rebuilt_by_repair(self):
        shardctl("verify", "model", code=4)
        result = document("repair", "model", "-o", "rep")
        self.assertEqual(result["lost"], [])
        self.assertIn("model.safetensors.index.json", " ".join(result["repaired"]))
        self.assertEqual(sorted(each["name"] for each in document("inspect", "rep")["tensors"]), ["w1", "w2"])
        shardctl("verify", "rep")

    def test_with_some_of_its_files_or_two_sets_is_not_guessed_from(self):
        safetensors(Path("model/model-00001-of-00004.safetensors"), {"w1": bytes(9)})
        result = document("repair", "model", "-o", "rep")
        self.assertEqual([each["name"] for each in result["lost"] if each["name"]], ["w2", "w3", "w4"])
        Path("model/model-00001-of-00004.safetensors").unlink()
        safetensors(Path("model/model.safetensors"), {"w1": bytes(9)})
        shardctl("repair", "model", "-o", "rep2", code=4)

    def test_of_torch_is_rebuilt_too(self):
        shutil.rmtree("model")
        shutil.copytree(DATA / "torch" / "hf", "model")
        index = Path("model/pytorch_model.bin.index.json")
        for each in Path("model").iterdir():
            each.chmod(0o644)
        stale = json.loads(index.read_text())
        names = sorted(set(stale["weight_map"].values()))
        stale["weight_map"] = {name: f"pytorch_model-{names.index(file) + 1:05}-of-00099.bin" for name, file in stale["weight_map"].items()}
        index.write_text(json.dumps(stale))
        self.assertIn("repair", shardctl("inspect", "model", code=3).stderr)
        self.assertEqual(document("repair", "model", "-o", "rep")["lost"], [])
        self.assertTrue(document("diff", "rep", str(DATA / "torch" / "hf"))["equal"])


class Selections(InAFolder):
    COUNT = 4096

    def setUp(self):
        super().setUp()
        body = b"}"
        for entry, key in [("model.a", "0"), ("model.b", "1"), ("optimizer.b", "1"), ("optimizer.c", "2")]:
            body += text(entry) + tensor([self.COUNT], [1], stored=storage(self.COUNT, key)) + b"s"
        records = {f"data/{key}": self.content(key) for key in range(3)}
        Path("m.pt").write_bytes(torch_zip(pickled(body + text("step") + b"K\x07s"), records))

    def content(self, key: int) -> bytes:
        return bytes([key + 1]) * (4 * self.COUNT)

    def test_leave_out_findings_about_other_names(self):
        flip(Path("m.pt"), self.content(2))
        self.assertEqual([each["tensor"] for each in document("verify", "m.pt", code=1)["findings"]], ["optimizer.c"])
        for words in [["--include", "model.*"], ["--exclude", "optimizer.*"], ["--exclude", "optimizer.c", "--local-ranks", "2"],
                      ["--include", "step"]]:
            found = document("verify", "m.pt", *words)
            self.assertEqual((found["ok"], found["findings"]), (True, []))
        document("verify", "m.pt", "--include", "optimizer.*", code=1)
        self.assertIn("--include 'model.z' matches no tensor", shardctl("verify", "m.pt", "--include", "model.z", code=2).stderr)

    def test_keep_findings_about_bytes_that_a_selected_tensor_shares(self):
        flip(Path("m.pt"), self.content(1))  # The finding names model.b, which optimizer.b repeats.
        for words in [["--exclude", "model.b"], ["--exclude", "optimizer.b"], ["--include", "optimizer.*"]]:
            document("verify", "m.pt", *words, code=1)
        document("verify", "m.pt", "--exclude", "*.b")
        document("verify", "m.pt", "--include", "model.a")

    def test_keep_findings_about_files(self):
        shardctl("convert", "m.pt", "-o", "copy.pt", "--checksum", "xxh3")
        flip(Path("copy.pt"), self.content(2))
        found = document("verify", "copy.pt", "--include", "model.*", code=1)
        self.assertEqual([each["kind"] for each in found["findings"]], ["hash_mismatch"])


class SelectionsOfSafetensors(InAFolder):
    def test_keep_the_finding_that_the_file_is_cut(self):
        """It names only the first tensor that is lost."""
        safetensors(Path("m.safetensors"), {"a": bytes(8), "b": bytes(8), "c": bytes(8)})
        Path("m.safetensors").write_bytes(Path("m.safetensors").read_bytes()[:-12])
        found = document("verify", "m.safetensors", code=1)["findings"]
        self.assertEqual([(each["kind"], each["tensor"]) for each in found], [("truncated", "b")])
        for name in "abc":
            self.assertEqual(document("verify", "m.safetensors", "--include", name, code=1)["findings"], found)


class SelectionsOfSmallTensors(Selections):
    COUNT = 4


class Formats(InAFolder):
    def test_that_repair_cannot_write_have_a_line_with_another_one(self):
        save = str(DATA / "deepspeed" / "stage1")
        hint = shardctl("repair", save, "-o", "rep", code=8).stderr.split("hint: shardctl ")[1]
        self.assertEqual(hint.split(), ["repair", save, "-o", "rep", "--to", "dcp"])
        self.assertEqual(document(*hint.split())["lost"], [])
        self.assertIn("--to dcp", shardctl("average", save, save, "-o", "mean", code=8).stderr)


class Adapters(InAFolder):
    def test_are_merged_into_repaired_weights(self):
        weights = {"a.weight": ("F32", [1, 2], struct.pack("<2f", 1, 2)), "b.weight": ("F32", [2], struct.pack("<2f", 3, 4))}
        write_safetensors(Path("m.safetensors"), weights)
        Path("cut.safetensors").write_bytes(Path("m.safetensors").read_bytes()[:-4])  # Half of b.weight is lost.
        Path("lora").mkdir()
        Path("lora/adapter_config.json").write_text(
            json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["a"]}))
        write_safetensors(Path("lora/adapter_model.safetensors"), {
            "base_model.model.a.lora_A.weight": ("F32", [1, 2], struct.pack("<2f", 1, 1)),
            "base_model.model.a.lora_B.weight": ("F32", [1, 1], struct.pack("<f", 5))})
        result = document("repair", "cut.safetensors", "-o", "rep.safetensors", "--lora", "lora=0.5")
        self.assertEqual([each["name"] for each in result["lost"]], ["b.weight"])
        self.assertEqual(shardctl("cat", "rep.safetensors", "a.weight").stdout.split(), ["6.0", "7.0"])


class Ranks(InAFolder):
    def test_that_hold_different_values_are_a_warning(self):
        ranks([bytes(16), bytes(15) + b"\1"])
        found = document("verify", "ranks")
        self.assertEqual([(each["severity"], each["kind"], each["tensor"]) for each in found["findings"]],
                         [("warning", "replica_mismatch", "w")])

    def test_of_deepspeed_that_hold_different_buffers_are_a_warning(self):
        shutil.copytree(DATA / "deepspeed" / "stage3", "save")
        files = sorted(Path("save").rglob("*model_states.pt"))
        self.assertGreater(len(files), 1)
        self.assertEqual(document("verify", "save")["findings"], [])
        replace_record(files[1], "/data/0")
        found = document("verify", "save")
        self.assertEqual([(each["severity"], each["kind"]) for each in found["findings"]], [("warning", "replica_mismatch")])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
