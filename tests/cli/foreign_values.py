"""Values that are neither plain tensors nor plain data, from outside: classes outside the list, tensor subclasses, subclasses
of built-in types, tensors in pieces. The files of tests/data/foreign were written by the real clients.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import os
import shlex
import struct
import unittest
import zipfile
from pathlib import Path

from program import ProgramTest

FOREIGN = Path(os.environ["SHARD_DATA"]) / "foreign"
OPAQUE = ["--unknown-globals", "opaque"]


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def tensor(key: int) -> bytes:
    """Two floats of a storage."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(str(key)) + text("cpu") + b"K\x02tQ"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"


def array_of(element: bytes) -> bytes:
    """An array of objects: the element and None."""
    empty = (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85c_codecs\nencode\n(" + text("b") + text("latin1")
             + b"tRtR")
    dtype = b"cnumpy\ndtype\n(" + text("O8") + b"\x89\x88tR(K\x03" + text("|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K?tb"
    return empty + b"(K\x01K\x02\x85" + dtype + b"\x89](" + element + b"Netb"


# Values of classes on the list around an element that no name reaches.
HOLDERS = {
    "deque": lambda element: b"ccollections\ndeque\n)R(" + element + b"e",
    "namespace": lambda element: b"cargparse\nNamespace\n)\x81}" + text("t") + element + b"sb",
    "slice": lambda element: b"c__builtin__\nslice\n(" + element + b"NNtR",
    "array": array_of,
}


class ForeignValues(ProgramTest):
    def torch_file(self, name: str, value: bytes) -> str:
        files = {"data.pkl": b"\x80\x02" + value + b".", "byteorder": b"little", "data/0": bytes(8), "data/1": bytes(8), "version": b"3\n"}
        with zipfile.ZipFile(self.dir / name, "w") as file:
            for path, content in files.items():
                file.writestr("archive/" + path, content)
        return name

    def names(self, path, *options) -> list[str]:
        return [tensor["name"] for tensor in self.json("inspect", path, *options)["tensors"]]

    def objects(self, path, *options) -> dict:
        return {each["name"]: each for each in self.json("inspect", path, *options)["objects"]}

    # Opaque values with tensors.

    def test_a_dict_with_tensors_and_an_attribute_is_an_object_that_holds_tensors(self):
        self.assertEqual(self.names(FOREIGN / "labelled.pt", *OPAQUE), ["model.b", "model.w"])
        result = self.json("convert", FOREIGN / "labelled.pt", "-o", "m.safetensors", "--objects", "drop", *OPAQUE)
        self.assertIn("skipped 1 object with tensors: 'batch'", " ".join(result["warnings"]))

    def test_what_holds_tensors_is_dropped_with_a_warning(self):
        for file in "projector.pt", "galore.pt":
            result = self.json("convert", FOREIGN / file, "-o", f"{file}.safetensors", "--objects", "drop", *OPAQUE)
            self.assertIn("skipped 1 object with tensors", " ".join(result["warnings"]))
            self.assertIn("projector", " ".join(result["warnings"]))
        plain = self.json("convert", FOREIGN / "config.pt", "-o", "config.safetensors", "--objects", "drop", *OPAQUE)
        self.assertNotIn("hold", " ".join(plain["warnings"]))

    def test_what_holds_tensors_inside_the_model_is_never_left_out(self):
        for line in (["export", FOREIGN / "in_model.pt", "-o", "out"],
                     ["gather", FOREIGN / "in_model.pt", "-o", "out.safetensors", "--objects", "drop", *OPAQUE]):
            error = self.json(*line, code=8)
            self.assertEqual(error["tensor"], "model.extra")
            self.assertIn("contains tensors", error["message"])
            self.assertIn("--exclude model.extra", error["hint"])
            self.run_hint(error["hint"])

    def test_no_digest_leaves_tensors_out(self):
        error = self.json("digest", FOREIGN / "projector.pt", *OPAQUE, code=8)
        self.assertIn("--exclude optimizer.state.0.projector", error["hint"])
        self.json("diff", FOREIGN / "projector.pt", FOREIGN / "projector.pt", "--objects", "drop", *OPAQUE, code=8)
        self.run_hint(error["hint"])
        self.json("digest", FOREIGN / "config.pt", *OPAQUE)

    def test_what_gets_its_tensors_late_counts_too(self):
        error = self.json("digest", FOREIGN / "knot.pt", *OPAQUE, code=8)
        self.assertIn("--exclude late", error["hint"])
        self.assertIn("--exclude inner", error["hint"])

    # Tensors without names in values of classes that are on the list.

    def test_tensors_without_names_are_never_compared_or_hashed_unseen(self):
        for kind, holder in HOLDERS.items():
            file = self.torch_file(f"{kind}.pt", b"}(" + text("w") + tensor(0) + text("x") + holder(tensor(1)) + b"u")
            error = self.json("digest", file, code=8)
            self.assertEqual(error["tensor"], "x")
            self.assertIn("'x' contains tensors, which cannot be hashed", error["message"])
            self.assertIn("--exclude x", error["hint"])
            self.run_hint(error["hint"])
            for more in [], ["--objects", "drop"]:
                error = self.json("diff", file, file, *more, code=8)
                self.assertIn("'x' contains tensors, which cannot be compared", error["message"])
            self.run_hint(error["hint"])

    def test_tensors_without_names_are_dropped_with_a_warning_and_never_from_the_model(self):
        for kind, holder in HOLDERS.items():
            model = text("w") + tensor(0)
            beside = self.torch_file(f"{kind}.pt", b"}(" + text("model") + b"}" + model + b"s" + text("x") + holder(tensor(1)) + b"u")
            for verb in ["gather", beside, "-o", f"{kind}.safetensors", "--objects", "drop"], ["export", beside, "-o", kind]:
                self.assertIn("skipped 1 object with tensors: 'x'", " ".join(self.json(*verb)["warnings"]))
            inside = self.torch_file(f"in_{kind}.pt", b"}" + text("model") + b"}(" + model + text("x") + holder(tensor(1)) + b"us")
            for verb in (["gather", inside, "-o", f"in_{kind}.safetensors", "--objects", "drop"],
                         ["export", inside, "-o", f"in_{kind}"]):
                error = self.json(*verb, code=8)
                self.assertIn("'model.x' contains tensors, which cannot be written", error["message"])
                self.run_hint(error["hint"])

    def test_a_value_that_several_names_share_counts_for_each(self):
        shared = HOLDERS["deque"](tensor(1)) + b"q\x05"
        file = self.torch_file("shared.pt", b"}(" + text("a") + HOLDERS["slice"](shared) + text("model") + b"}(" + text("w") + tensor(0)
                               + text("x") + HOLDERS["slice"](b"h\x05") + b"uu")
        error = self.json("gather", file, "-o", "m.safetensors", "--objects", "drop", code=8)
        self.assertEqual(error["tensor"], "model.x")

    def test_a_listed_tensor_in_another_value_is_not_lost(self):
        for kind, holder in HOLDERS.items():
            file = self.torch_file(f"{kind}.pt", b"}(" + text("w") + tensor(0) + b"q\x05" + text("x") + holder(b"h\x05") + b"u")
            self.json("digest", file)
            self.json("diff", file, file)
            self.json("gather", file, "-o", f"{kind}.safetensors", "--objects", "drop")

    def test_ranks_with_different_tensors_inside_an_object_keep_one_each(self):
        document = {"schema": "shardctl.layout/1", "mesh": {"dp": 2}, "files": {"path": "rank{rank}.pt"}, "rules": []}
        (self.dir / "ranks.json").write_text(json.dumps(document))
        (self.dir / "ranks").mkdir()
        for rank in range(2):
            self.torch_file(f"ranks/rank{rank}.pt", b"}(" + text("w") + tensor(0) + text("n") + b"K\x07" + text("x")
                            + HOLDERS["deque"](tensor(1)) + b"u")
        listed = self.json("inspect", "ranks", "--layout", "ranks.json")["objects"]
        self.assertEqual([(each["name"], each.get("rank")) for each in listed], [("n", None), ("x", 0), ("x", 1)])

    def test_export_needs_no_option_for_objects_that_it_drops(self):
        self.json("export", FOREIGN / "config.pt", "-o", "config")
        result = self.json("export", FOREIGN / "galore.pt", "-o", "galore")
        self.assertIn("skipped 1 object with tensors", " ".join(result["warnings"]))
        self.assertEqual(self.names("galore"), ["bias", "weight"])

    def test_a_class_elsewhere_in_the_file_matters_not(self):
        self.json("gather", FOREIGN / "galore.pt", "-o", "m.safetensors", "--include", "model.**")
        error = self.json("gather", FOREIGN / "config.pt", "-o", "c.pt", code=4)
        self.assertEqual(error["kind"], "forbidden_global")
        self.assertIn("trainer.state.SwapState", error["message"])
        self.json("gather", FOREIGN / "config.pt", "-o", "c.pt", "--exclude", "config", "--exclude", "unit")
        self.json("inspect", FOREIGN / "config.pt", code=4)

    # Torch's own containers, and subclasses of built-in types.

    def test_a_saved_module_gets_a_hint(self):
        module = b"cmy.project\nNet\n)\x81}" + text("_parameters") + b"}" + text("w") + tensor(0) + b"ssb"
        source = self.torch_file("module.pt", b"}" + text("model") + module + b"s")
        self.assertEqual(self.json("inspect", source, code=4)["hint"],
                         "if it is a torch.nn.Module, save its state_dict() in Python, where the class exists, or "
                         "add --unknown-globals opaque to read everything else")

    def test_a_saved_module_is_no_model_even_without_the_objects_beside_it(self):
        module = b"cmy.project\nNet\n)\x81}" + text("_parameters") + b"}" + text("w") + tensor(0) + b"ssb"
        optimizer = text("optimizer") + b"}" + text("momentum") + tensor(1) + b"s"
        for name, pickled in ("whole", module), ("last", b"}(" + text("model") + module + optimizer + b"u"):
            source = self.torch_file(f"{name}.pt", pickled)
            for more in [], ["--objects", "drop"]:
                error = self.json("export", source, "-o", "out", *more, code=8)
                self.assertEqual(error["hint"], "if it is a torch.nn.Module, save its state_dict() in Python, where the class exists")

    def test_a_dict_with_a_class_as_a_key_is_refused_with_the_key(self):
        callbacks = text("callbacks") + b"}clightning.callbacks\nCheckpoint\nK\x01s"
        source = self.torch_file("keys.pt", b"}(" + text("w") + tensor(0) + callbacks + b"u")
        error = self.json("gather", source, "-o", "out.pt", *OPAQUE, code=8)
        self.assertEqual(error["message"], "cannot write a dict with the key lightning.callbacks.Checkpoint")
        exclude = shlex.split(error["hint"])[-2:]
        self.assertEqual(exclude, ["--exclude", "**lightning.callbacks.Checkpoint**"])
        self.json("gather", source, "-o", "out.pt", *exclude, *OPAQUE)
        self.assertEqual(self.names("out.pt"), ["w"])

    def test_subclasses_of_built_in_types_are_data(self):
        objects = self.objects(FOREIGN / "containers.pt", *OPAQUE)
        self.assertEqual(objects["version"]["value"][:3], "2.1")
        self.assertEqual(objects["version"]["type"], "str")
        self.assertEqual((objects["text"]["value"], objects["number"]["value"], objects["items.0"]["value"]), ("t", 5, 1))
        self.assertEqual((objects["ordered.z"]["value"], objects["pair.1"]["value"]), (1, 2))
        self.assertEqual(objects["ellipsis"]["type"], "ellipsis")
        self.assertEqual(objects["labelled"]["summary"], "trainer.state.Labelled")
        self.assertEqual(self.names(FOREIGN / "containers.pt", *OPAQUE),
                         ["items.1", "list.0", "list.1", "pair.0", "parameters.a", "parameters.b", "table.a.w"])
        self.json("gather", FOREIGN / "containers.pt", "-o", "c.pt", "--exclude", "labelled")
        self.json("diff", FOREIGN / "containers.pt", "c.pt", "--exclude", "labelled")

    # Tensor subclasses.

    def test_a_wrapper_around_one_tensor_is_that_tensor(self):
        self.json("diff", FOREIGN / "float8.pt", FOREIGN / "truth.pt", "--strip-prefix", "model.", "--objects", "drop")
        self.json("export", FOREIGN / "float8.pt", "-o", "hf")
        for source in "float8_dcp", "float8_ranks":
            self.json("diff", FOREIGN / source, FOREIGN / "truth.pt")
            self.assertEqual(len(self.names(FOREIGN / source)), 4)
        self.json("reshard", FOREIGN / "float8_dcp", "-o", "three", "--ranks", "3")
        self.json("diff", "three", FOREIGN / "truth.pt")

    def test_other_subclasses_are_refused_by_name(self):
        for line in (["export", FOREIGN / "int8.pt", "-o", "hf"],
                     ["gather", FOREIGN / "int8.pt", "-o", "a.safetensors", "--objects", "drop", *OPAQUE],
                     ["gather", FOREIGN / "int8_dcp", "-o", "b.safetensors"]):
            error = self.json(*line, code=8)
            self.assertIn("tensor subclass", error["message"])
            self.assertIn("torchao.quantization.Int8Tensor", error["message"])
            self.assertIn("--exclude model.0.weight", error["hint"])
            self.run_hint(error["hint"])
        self.assertEqual(self.objects(FOREIGN / "int8.pt")["model.0.weight"]["type"], "torch.Tensor (subclass)")

    def test_verify_counts_a_subclass_once(self):
        result = self.json("verify", FOREIGN / "int8.pt")
        self.assertEqual([finding["kind"] for finding in result["findings"]], ["forbidden_global"])
        self.assertEqual(result["not_read"]["classes"], ["tensor subclass, torchao.quantization.Int8Tensor"])

    def test_a_document_lists_what_the_text_lists(self):
        listed = {tensor["name"]: tensor for tensor in self.json("inspect", FOREIGN / "int8_dcp")["tensors"]}
        self.assertIn("model.0.weight", listed)
        self.assertIsNone(listed["model.0.weight"]["chunks"][0]["byte_offset"])
        self.assertIsNotNone(listed["model.1.weight"]["chunks"][0]["byte_offset"])

    # Objects that are separate items.

    def test_other_objects_are_read_although_one_is_not(self):
        out = self.run_it("inspect", FOREIGN / "objects")
        self.assertIn("state.steps.step\tint\t7", out.stdout)
        self.assertIn("'state.swap'", out.stderr)
        self.assertNotIn("tensor 'state.swap'", out.stderr)
        self.assertEqual(self.objects(FOREIGN / "objects")["state.steps.step"]["value"], 7)
        excluded = ["--exclude", "state.swap", "--exclude", "state.unit", "--exclude", "state.held"]
        self.json("gather", FOREIGN / "objects", "-o", "c.pt", *excluded)
        error = self.json("gather", FOREIGN / "objects", "-o", "d.pt", code=4)
        self.assertTrue(error["message"].startswith("object 'state."), error)

    # Files of ranks.

    def test_pieces_with_places_make_a_tensor(self):
        self.json("gather", FOREIGN / "placed", "-o", "whole.pt")
        self.run_it("convert", "whole.pt", "-o", "w.safetensors", "--include", "w")
        elements = (self.dir / "w.safetensors").read_bytes()[-96:]
        self.assertEqual(struct.unpack("<24f", elements), tuple(i / 8 for i in range(24)))
        tensors = {tensor["name"]: tensor["shape"] for tensor in self.json("inspect", "whole.pt")["tensors"]}
        self.assertEqual(tensors, {"norm": [4], "w": [8, 3]})
        self.json("gather", FOREIGN / "placed/model_rank_0.pt", FOREIGN / "placed/nothing.pt", "-o", "x.pt", code=3)

    def test_files_of_ranks_that_hold_nothing_cut_need_no_layout(self):
        document = self.json("inspect", *sorted((FOREIGN / "own").iterdir()))
        ranks = sorted(tensor["rank"] for tensor in document["tensors"] if tensor["name"] == "rng.cpu")
        self.assertEqual(ranks, [0, 1])
        objects = {each["name"]: each for each in document["objects"]}
        self.assertEqual(objects["scheduler.last_epoch"]["value"], 3)
        self.assertEqual(objects["dp_rank_1.seen"]["rank"], 1)

    def test_a_save_that_failed_half_way_is_called_so(self):
        error = self.run_it("inspect", FOREIGN / "cut_save.pt", code=4).stderr
        self.assertIn("failed halfway", error)


if __name__ == "__main__":
    unittest.main()
