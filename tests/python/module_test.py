"""The Python module over the real program. Environment: SHARDCTL is the program; PYTHONPATH contains the folder
python."""
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import typing
import unittest
from pathlib import Path
from unittest import mock

import shardctl
from shardctl import _documents, _errors, _extension, _reading

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))

import safetensors_files  # noqa: E402

CHECKPOINT = SOURCE / "tests/data/demo/ckpt"
STATE, BIG_ENDIAN = SOURCE / "tests/data/torch/state.pt", SOURCE / "tests/data/torch/big_endian.pt"
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m"


def write_safetensors(path: Path, names: typing.Sequence[str], elements: int = 1) -> None:
    safetensors_files.write(path, {name: ("U8", [elements]) for name in names})


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def set_variable(self, name: str, value: str) -> None:
        before = os.environ.get(name)
        self.addCleanup(lambda: os.environ.pop(name, None) if before is None else os.environ.update({name: before}))
        os.environ[name] = value

    def use_script(self, text: str) -> None:
        """A shell script in place of the program."""
        script = self.folder / "stand-in"
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        self.set_variable("SHARDCTL", str(script))


class Missing(Case):
    """An installation without the native module, such as this package in the folder of its sources."""

    def test_the_kind_of_python_is_named(self) -> None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        for flags, kind in (("", f"Python {version}"), ("t", f"free-threaded Python {version}")):
            hidden = mock.patch.dict(sys.modules, {"shardctl._native": None})
            with hidden, mock.patch.object(sys, "abiflags", flags), self.assertRaises(shardctl.Unsupported) as refused:
                _extension.native.__wrapped__()
            self.assertIn(f"has no native module for {kind}:", refused.exception.message)

    def test_the_names_need_no_torch(self) -> None:
        code = ("import inspect, pydoc, sys; sys.modules['torch'] = None; import shardctl; "
                "print('load_state_dict' in pydoc.render_doc(shardctl), len(inspect.getmembers(shardctl)) > 50); "
                "from shardctl import *")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual((ended.stdout, ended.stderr), ("True True\n", ""))


class Documents(Case):
    def test_inspect_gives_tensors_chunks_and_objects(self) -> None:
        found = shardctl.inspect(CHECKPOINT, include=["model.norm.weight", "step"])
        self.assertEqual((found.format, found.world_size, found.tensor_count), ("dcp", 4, 1))
        tensor = found.tensors[0]
        self.assertEqual((tensor.name, tensor.dtype, tensor.shape, tensor.elements), ("model.norm.weight", "bfloat16", (16,), 16))
        self.assertEqual(tensor.path, ("model", "norm.weight"))
        self.assertEqual(tensor.chunks[2].offsets, (8,))
        self.assertEqual(tensor.chunks[2].file, "__2_0.distcp")
        self.assertEqual([(each.name, each.value) for each in found.objects], [("step", 1000)])

    def test_one_glob_or_option_is_not_its_characters(self) -> None:
        self.assertEqual([each.name for each in shardctl.inspect(CHECKPOINT, include="step").objects], ["step"])
        self.assertEqual(shardctl.inspect(CHECKPOINT, exclude="**", options="--quiet").tensors, ())
        self.assertTrue(shardctl.verify(CHECKPOINT, options="--quiet"))

    def test_numbers_of_subclasses_are_numbers(self) -> None:
        class Scalar(float):  # Like numpy.float64.
            __str__ = float.__repr__

            def __repr__(self) -> str:
                return f"Scalar({self})"

        self.assertTrue(shardctl.diff(CHECKPOINT, CHECKPOINT, atol=Scalar(0.5)).equal)

    def test_placements_and_meshes_are_read(self) -> None:
        found = shardctl.inspect(SOURCE / "tests/data/golden/2.11.0/ranks_differ_r2")
        weight = found.tensors[-1]
        self.assertEqual((weight.placements, weight.mesh, weight.rank), (("S(0)",), 0, None))
        self.assertEqual(found.meshes, (shardctl.Mesh((shardctl.Axis(None, 2),), (0, 1)),))
        self.assertEqual([each.rank for each in found.tensors if each.name == "rng"], [0, 1])

    def test_digest_is_that_of_the_command_line(self) -> None:
        found = shardctl.digest(CHECKPOINT, algorithm="sha256")
        self.assertEqual(found.checkpoint, "feaa6f4178ff273e382c188936490d2c0480697ff06932c8ebb6fb1063be750a")
        self.assertEqual(len(found.tensors), 8)

    def test_diff_says_how_far_values_are_apart(self) -> None:
        found = shardctl.diff(STATE, BIG_ENDIAN, include=["scalar"])
        self.assertFalse(found.equal)
        value = found.values[0]
        self.assertEqual((value.name, value.max_abs, value.max_rel, value.first_index), ("scalar", 2.5, float("inf"), ()))
        self.assertTrue(shardctl.diff(STATE, BIG_ENDIAN, include=["scalar"], atol=2.5).equal)
        self.assertEqual(len(shardctl.diff(STATE, BIG_ENDIAN, max_diffs=1).values), 1)

    def test_an_object_that_one_side_lacks_differs_from_one_that_is_none(self) -> None:
        shardctl.run("gather", CHECKPOINT, "-o", self.folder / "m.safetensors", "--objects", "drop")
        step = shardctl.diff(CHECKPOINT, self.folder / "m.safetensors").objects[-1]
        self.assertEqual((step.name, step.a, step.in_a, step.in_b), ("step", 1000, True, False))

    def test_verify_returns_what_is_wrong(self) -> None:
        self.assertTrue(shardctl.verify(CHECKPOINT))
        (self.folder / "cut.pt").write_bytes(STATE.read_bytes()[:-100])
        found = shardctl.verify(self.folder / "cut.pt")
        self.assertFalse(found)
        self.assertEqual(found.findings[0].severity, "error")

    def test_writing_verbs_return_results_and_plans(self) -> None:
        output = self.folder / "m.safetensors"
        plan = shardctl.run("gather", CHECKPOINT, "-o", output, "--objects", "drop", dry_run=True)
        self.assertFalse(output.exists())
        result = shardctl.run("gather", CHECKPOINT, "-o", output, "--objects", "drop")
        self.assertIsInstance(plan, shardctl.Plan)
        self.assertEqual(plan.files, result.files)
        self.assertEqual(result.files[0].bytes, output.stat().st_size)

    def test_what_a_repair_lost_and_an_export_renamed_are_read(self) -> None:
        broken = self.folder / "cut.safetensors"
        write_safetensors(broken, ["a", "b"], 8)
        os.truncate(broken, broken.stat().st_size - 4)
        result = shardctl.run("repair", broken, "-o", self.folder / "saved.safetensors")
        self.assertEqual([(each.what, each.name, each.shape) for each in result.lost], [("tensor", "b", (8,))])
        write_safetensors(self.folder / "trained.safetensors", ["module.w"])
        plan = shardctl.run("export", self.folder / "trained.safetensors", "-o", self.folder / "out", dry_run=True)
        assert plan.export is not None
        self.assertEqual(plan.export.renames, (shardctl.Rename("module.w", "w"),))

    def test_other_documents_are_kept_as_json(self) -> None:
        self.assertEqual(shardctl.run("cat", CHECKPOINT, "step").json["value"], 1000)

    def test_unknown_fields_are_ignored_and_kept(self) -> None:
        found = shardctl.digest(CHECKPOINT).json
        grown = _reading.document({**found, "new": 1, "tensors": [{**found["tensors"][0], "new": 2}]})
        assert isinstance(grown, shardctl.Digest)
        self.assertEqual(grown.tensors[0].name, found["tensors"][0]["name"])
        self.assertEqual((grown.json["new"], grown.json["tensors"][0]["new"]), (1, 2))

    def test_integers_beyond_doubles_and_nan_are_python_values(self) -> None:
        self.use_script('echo \'{"schema": "shardctl.diff/1", "equal": false, "only_in_a": [], "only_in_b": [], "dtype": [], '
                        '"shape": [], "values": [{"name": "w", "elements": 1, "differing": 1, "max_abs": "nan", "max_rel": null, '
                        '"max_ulp": null, "first_index": [0]}], "objects": []}\'; exit 1')
        value = shardctl.diff("a", "b").values[0]
        self.assertEqual((str(value.max_abs), value.max_rel), ("nan", None))
        item = _reading._reader(shardctl.Object)
        assert item is not None
        self.assertEqual(item({"name": "n", "type": "int", "value": "9007199254740993"}).value, 9007199254740993)
        self.assertEqual(item({"name": "n", "type": "float", "value": "-inf"}).value, float("-inf"))

    def test_documents_and_their_parts_are_public_names(self) -> None:
        parts = {name for name, found in vars(_documents).items()
                 if getattr(found, "__module__", "") == _documents.__name__ and isinstance(found, type) and name[0] != "_"}
        self.assertLessEqual(parts, {*shardctl.__all__})
        for name in shardctl.__all__:
            self.assertEqual(getattr(shardctl, name).__name__, name)

    def test_every_field_of_the_schemas_is_an_attribute(self) -> None:
        page = (SOURCE / "docs/schemas.md").read_text()
        for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
            schema = re.match(r"`(shardctl\.\w+/\d+)`", section)
            if not schema or schema[1] not in _reading._SCHEMAS:
                continue
            for path in re.findall(r"^\| `([\w.\[\]]+)` \|[^|\n]+\|[^|\n]+\|", section, re.MULTILINE):
                with self.subTest(schema=schema[1], field=path):
                    self.assertTrue(has_attribute(_reading._SCHEMAS[schema[1]], path.split(".")))


def has_attribute(kind: typing.Any, path: list[str]) -> bool:
    name = path[0].replace("[]", "")
    hints = typing.get_type_hints(kind)
    hint = hints.get(name, hints.get(name + "_"))
    if hint is None or len(path) == 1:
        return hint is not None
    arguments = [each for each in typing.get_args(hint) if each is not Ellipsis and each is not type(None)]
    return has_attribute(arguments[0] if arguments else hint, path[1:])


class Errors(Case):
    def test_the_class_says_the_exit_code(self) -> None:
        classes = {2: "Usage", 3: "NotFound", 4: "Corruption", 5: "Exists", 6: "Resource", 7: "Communication",
                   8: "Unsupported", 70: "Internal", 130: "Interrupted", 143: "Interrupted", 1: "ShardctlError"}
        for code, name in classes.items():
            self.assertIs(type(_errors.error(_errors.failure("v", code, "k", "m"))), getattr(shardctl, name))
        for found, text in ((3, "m (expected 4, found 3)"), (None, "m (expected 4)")):
            self.assertEqual(str(_errors.error(_errors.failure("v", 2, "k", "m", expected=4, found=found))), text)

    def test_real_failures_have_their_facts(self) -> None:
        with self.assertRaises(shardctl.NotFound) as absent:
            shardctl.inspect(self.folder / "none")
        self.assertEqual((absent.exception.code, absent.exception.kind, absent.exception.verb), (3, "not_found", "inspect"))
        self.assertIn("no such file", absent.exception.stderr)
        with self.assertRaises(shardctl.Usage) as unknown:
            shardctl.run("inspec")
        self.assertEqual(str(unknown.exception), "unknown verb 'inspec'\nhint: did you mean 'inspect'?")
        (self.folder / "cut.safetensors").write_bytes(b"\xff" * 20)
        with self.assertRaises(shardctl.Corruption):
            shardctl.digest(self.folder / "cut.safetensors", options=["--from=safetensors"])
        with self.assertRaises(shardctl.Exists):
            shardctl.run("gather", STATE, "-o", self.folder)
        with self.assertRaises(shardctl.Unsupported) as objects:
            shardctl.run("gather", CHECKPOINT, "-o", self.folder / "m.safetensors")
        self.assertIn("--objects drop", objects.exception.hint or "")

    def test_a_document_that_was_begun_before_the_error_is_no_obstacle(self) -> None:
        self.use_script('echo \'{"schema": "shardctl.cat/1", "values": [1, 2\'; echo \'{"schema": "shardctl.error/1", '
                        '"verb": "cat", "code": 4, "kind": "truncated", "message": "cut"}\'; exit 4')
        with self.assertRaises(shardctl.Corruption) as cut:
            shardctl.run("cat", "x", "y")
        self.assertEqual(cut.exception.kind, "truncated")

    def test_a_program_that_is_killed_or_says_nothing_is_an_error(self) -> None:
        self.use_script("kill -9 $$")
        with self.assertRaises(shardctl.ShardctlError) as killed:
            shardctl.inspect("x")
        self.assertEqual((killed.exception.code, killed.exception.kind), (137, "killed"))
        self.use_script("echo why >&2; exit 5")
        with self.assertRaises(shardctl.Exists) as silent:
            shardctl.inspect("x")
        self.assertEqual(silent.exception.stderr, "why\n")
        with self.assertRaises(shardctl.ShardctlError):
            self.set_variable("SHARDCTL", "/bin/true")
            shardctl.run("help")

    def test_errors_can_be_pickled_and_their_texts_are_safe_to_print(self) -> None:
        hostile = self.folder / HOSTILE.replace("/", "")
        with self.assertRaises(shardctl.NotFound) as absent:
            shardctl.inspect(hostile)
        again = pickle.loads(pickle.dumps(absent.exception))
        self.assertEqual((again.code, again.file), (3, str(hostile)))
        self.assertNotIn("\x1b", str(again))
        self.assertNotIn("\u202e", str(again))

    def test_a_program_that_is_absent_is_named(self) -> None:
        self.set_variable("SHARDCTL", str(self.folder / "none"))
        with self.assertRaisesRegex(shardctl.ProgramNotFound, "none': no such program\nhint: let SHARDCTL"):
            shardctl.inspect("x")
        ended = subprocess.run([sys.executable, "-m", "shardctl", "version"], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 3)
        self.assertIn("shardctl: error: cannot run", ended.stderr)


class Runs(Case):
    def test_progress_is_called_with_the_bytes(self) -> None:
        seen: list[shardctl.Progress] = []
        shardctl.verify(CHECKPOINT, progress=seen.append)
        self.assertEqual((seen[-1].what, seen[-1].bytes_total), ("verify", 70532))

    def test_a_progress_that_raises_stops_the_program_and_leaves_the_output(self) -> None:
        if os.environ.get("SHARD_TEST_HOOKS") != "1":
            self.skipTest("the program was built without SHARD_TEST_HOOKS")
        target, door = self.folder / "target", self.folder / "door"
        target.mkdir()
        (target / "m.safetensors").write_text("old")

        def refuse(_: shardctl.Progress) -> None:
            threading.Timer(0.3, os.remove, [door]).start()  # The held run continues, and sees that it was stopped.
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            shardctl.run("gather", CHECKPOINT, "-o", target / "m.safetensors", "--objects", "drop", "--force",
                         progress=refuse, env={"SHARDCTL_TEST_HOLD": f"copy:0:{door}"})
        self.assertEqual([each.name for each in target.iterdir()], ["m.safetensors"])
        self.assertEqual((target / "m.safetensors").read_text(), "old")

    def test_launcher_variables_are_for_the_job_around_it(self) -> None:
        env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        for name, value in env.items():
            self.set_variable(name, value)
        self.assertEqual(shardctl.digest(STATE).algorithm, "xxh3_128")

    def test_names_that_look_like_options_are_names(self) -> None:
        write_safetensors(self.folder / "--json", ["w"])
        here = os.getcwd()
        self.addCleanup(os.chdir, here)
        os.chdir(self.folder)
        self.assertEqual(shardctl.inspect("--json").tensors[0].name, "w")

    def test_much_output_on_both_streams_is_read(self) -> None:
        names = [f"layer.{i}.weight" for i in range(20000)]
        write_safetensors(self.folder / "many.safetensors", names)
        self.assertEqual(len(shardctl.inspect(self.folder / "many.safetensors", options=["-vv"]).tensors), 20000)

    def test_python_dash_m_is_the_program(self) -> None:
        ended = subprocess.run([sys.executable, "-m", "shardctl", "inspect", str(self.folder / "none"), "--json"],
                               capture_output=True, text=True)
        self.assertEqual((ended.returncode, json.loads(ended.stdout)["kind"]), (3, "not_found"))
        self.assertEqual(ended.stderr.count("\n"), 1)

    def test_python_dash_m_becomes_the_program(self) -> None:
        self.use_script("echo $$ $SHARDCTL $1")
        child = subprocess.Popen([sys.executable, "-m", "shardctl", "version"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.communicate()[0], f"{child.pid} version\n")


class Html(Case):
    def test_hostile_names_are_text(self) -> None:
        write_safetensors(self.folder / "hostile.safetensors", [HOSTILE])
        found = shardctl.inspect(self.folder / "hostile.safetensors")
        self.assertEqual(found.tensors[0].name, HOSTILE)
        page = found._repr_html_()
        self.assertIn("&lt;script&gt;alert(1)&lt;/script&gt;\\u202e\\x1b[31m", page)
        for each in ("<script", "\u202e", "\x1b"):
            self.assertNotIn(each, page)

    def test_long_lists_are_cut_and_say_so(self) -> None:
        write_safetensors(self.folder / "many.safetensors", [f"w{i}" for i in range(150)])
        page = shardctl.inspect(self.folder / "many.safetensors")._repr_html_()
        self.assertIn("<p>50 more</p>", page)
        self.assertIn("150 tensors, 150 elements", page)

    def test_what_a_checkpoint_holds_is_in_the_page(self) -> None:
        page = shardctl.inspect(CHECKPOINT)._repr_html_()
        for text in ("model.embed.weight", "[50, 16]", "1.60 kB", "4 chunks", "dcp, 4 ranks", "<td style='text-align:left'>1000"):
            self.assertIn(text, page)


if __name__ == "__main__":
    unittest.main()
