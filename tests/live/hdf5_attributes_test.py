"""HDF5 to HDF5 keeps attributes and datasets of strings as h5py wrote them: types, lengths, shapes and values."""
import shutil
import unittest
from pathlib import Path

import h5py
import numpy
import torch

from support import LiveTest, shardctl, shardctl_json

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "hdf5"
LOST = {"reference", "ragged"}


def attributes_of(item) -> dict:
    """Each attribute with its type and shape as libhdf5 has them, and its value."""
    found = {}
    for name in item.attrs:
        attribute = item.attrs.get_id(name)
        found[name] = (attribute.get_type(), attribute.get_space().get_simple_extent_type(), attribute.shape, item.attrs[name])
    return found


def is_equal(a, b) -> bool:
    return isinstance(b, h5py.Empty) if isinstance(a, h5py.Empty) else numpy.array_equal(a, b) and type(a) is type(b)


class Attributes(LiveTest):
    def check_attributes(self, a, b, lost: set = frozenset()) -> None:
        wanted, found = attributes_of(a), attributes_of(b)
        self.assertEqual(set(wanted) - lost, set(found), a.name)
        for name in set(wanted) - lost:
            self.assertTrue(wanted[name][0].equal(found[name][0]), f"{a.name} {name}: another type")
            self.assertEqual(wanted[name][1:3], found[name][1:3], f"{a.name} {name}")
            self.assertTrue(is_equal(wanted[name][3], found[name][3]), f"{a.name} {name}: {wanted[name][3]}, {found[name][3]}")

    def check_file(self, source: Path, made: Path) -> None:
        with h5py.File(source) as a, h5py.File(made) as b:
            names: list = []
            a.visit(names.append)
            others: list = []
            b.visit(others.append)
            self.assertEqual(names, others)
            self.check_attributes(a, b)
            for name in names:
                self.check_attributes(a[name], b[name], LOST)
                if isinstance(a[name], h5py.Dataset):
                    self.assertEqual(a[name].shape, b[name].shape)
                    self.assertTrue(numpy.array_equal(a[name][()], b[name][()]), name)
                    is_text = h5py.check_string_dtype(a[name].dtype) is not None
                    self.assertTrue(not is_text or a[name].id.get_type().equal(b[name].id.get_type()), name)

    def test_golden_files_keep_theirs(self):
        for version in "h5py37", "h5py316":
            source, made = GOLDEN / f"{version}-attributes.h5", self.dir / f"{version}.h5"
            shardctl("convert", source, "-o", made)
            self.check_file(source, made)
            shardctl("diff", source, made)
            self.assertTrue(any("again.ragged" in each and "again.reference" in each
                                for each in shardctl_json("inspect", source)["warnings"]))
            self.assertFalse(any("not kept" in each for each in shardctl_json("inspect", made)["warnings"]))
            self.assertEqual(shardctl_json("convert", made, "-o", self.dir / "again.h5", "-f")["schema"][:8], "shardctl")
            self.check_file(source, self.dir / "again.h5")

    def test_a_model_of_keras_keeps_the_names_of_its_layers(self):
        source = GOLDEN.parent / "keras" / "legacy.h5"
        shardctl("convert", source, "-o", self.dir / "out.h5")
        self.check_file(source, self.dir / "out.h5")
        with h5py.File(self.dir / "out.h5") as h:
            self.assertEqual(h["model_weights"].attrs["layer_names"].tolist(), ["d1", "d2"])
        shardctl("convert", source, "-o", self.dir / "mid.pt")
        shardctl("convert", self.dir / "mid.pt", "-o", self.dir / "back.h5")
        with h5py.File(self.dir / "back.h5") as h:
            self.assertEqual(h["model_weights"].attrs["layer_names"].tolist(), ["d1", "d2"])

    def test_diff_sees_the_type_of_an_attribute(self):
        for name, value in (("fixed", numpy.bytes_(b"mm")), ("variable", "mm"), ("array", ["mm"]), ("other", "cm")):
            with h5py.File(self.dir / f"{name}.h5", "w") as h:
                h["w"] = numpy.zeros(2)
                h["w"].attrs["unit"] = value
        shardctl("diff", self.dir / "fixed.h5", self.dir / "fixed.h5")
        self.assertIn("object w.unit: 'mm' (ASCII string of 2 bytes, scalar) in A, 'mm' (UTF-8 string of variable length, scalar) in B",
                      shardctl("diff", self.dir / "fixed.h5", self.dir / "variable.h5", code=1))
        shardctl("diff", self.dir / "variable.h5", self.dir / "array.h5", code=1)
        shardctl("diff", self.dir / "variable.h5", self.dir / "other.h5", code=1)
        found = shardctl_json("diff", self.dir / "fixed.h5", self.dir / "variable.h5", code=1)["objects"]
        self.assertEqual(found, [{"name": "w.unit", "a": "mm", "b": "mm", "form_a": "ASCII string of 2 bytes, scalar",
                                  "form_b": "UTF-8 string of variable length, scalar"}])

    def test_what_is_chosen_or_renamed_keeps_its_type(self):
        with h5py.File(self.dir / "in.h5", "w") as h:
            for name in "a", "b":
                h[f"g/{name}"] = numpy.zeros(2, "f4")
                h[f"g/{name}"].attrs["scale"] = numpy.array([1, 2], "f4")
        shardctl("convert", self.dir / "in.h5", "-o", self.dir / "out.h5", "--exclude", "g.b", "--exclude", "g.b.**",
                 "--rename", "g.(.*)=h.\\1")
        with h5py.File(self.dir / "out.h5") as h:
            self.assertEqual((list(h), list(h["h"])), (["h"], ["a"]))
            self.assertEqual(h["h/a"].attrs["scale"].dtype, numpy.dtype("f4"))
        shardctl("convert", self.dir / "in.h5", "-o", self.dir / "part.h5", "--exclude", "g.a.scale.0")
        self.assertEqual([each["name"] for each in shardctl_json("inspect", self.dir / "part.h5")["objects"]],
                         ["g.a.scale.1", "g.b.scale.0", "g.b.scale.1"])

    def test_texts_of_torch_are_str_for_h5py(self):
        torch.save({"w": torch.zeros(2), "name": "Änderung", "empty": "", "w.unit": "mm"}, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "out.h5")
        with h5py.File(self.dir / "out.h5") as h:
            self.assertEqual({name: h.attrs[name] for name in ("name", "empty")}, {"name": "Änderung", "empty": ""})
            self.assertEqual({**h["w"].attrs}, {"unit": "mm"})
        shardctl("convert", self.dir / "out.h5", "-o", self.dir / "back.pt")
        shardctl("diff", self.dir / "in.pt", self.dir / "back.pt")

    def test_arrays_come_back_from_torch(self):
        with h5py.File(self.dir / "in.h5", "w") as h:
            h["g/w"] = numpy.zeros(2)
            for holder in h, h["g"], h["g/w"]:
                holder.attrs["names"], holder.attrs["steps"], holder.attrs["none"] = ["a", "b\u00e9"], numpy.arange(3), numpy.zeros(0)
                holder.attrs["flags"], holder.attrs["rates"] = numpy.array([True, False]), numpy.array([0.5, 2.0])
        shardctl("convert", self.dir / "in.h5", "-o", self.dir / "mid.pt")
        shardctl("convert", self.dir / "mid.pt", "-o", self.dir / "out.h5")
        with h5py.File(self.dir / "in.h5") as a, h5py.File(self.dir / "out.h5") as b:
            for name in "/", "g", "g/w":
                self.check_attributes(a[name], b[name])
        shardctl("diff", self.dir / "in.h5", self.dir / "out.h5")

    def test_lists_of_torch_are_arrays_and_tuples_stay_tuples(self):
        state = {"w": torch.zeros(2), "betas": (0.9, 0.999), "params": [0, 1, 2], "mixed": [1, 2.5], "nested": [[1], [2, 3]],
                 "some": [1, torch.ones(1)], "empty": []}
        torch.save(state, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "out.h5")
        with h5py.File(self.dir / "out.h5") as h:
            self.assertEqual(h.attrs["betas"].tolist(), [0.9, 0.999])
            self.assertEqual(h.attrs["params"].tolist(), [0, 1, 2])
            self.assertEqual(h["nested"].attrs["1"].tolist(), [2, 3])
        shardctl("convert", self.dir / "out.h5", "-o", self.dir / "back.pt")
        back = torch.load(self.dir / "back.pt")
        self.assertEqual({key: back[key] for key in ("betas", "params", "mixed", "nested", "empty")},
                         {key: state[key] for key in ("betas", "params", "mixed", "nested", "empty")})
        self.assertIsInstance(back["betas"], tuple)

    def test_attributes_go_into_the_master_of_several_files(self):
        shutil.copy(GOLDEN / "h5py316-attributes.h5", self.dir / "in.h5")
        shardctl("reshard", self.dir / "in.h5", "-o", self.dir / "parts", "--ranks", 2)
        with h5py.File(self.dir / "in.h5") as a, h5py.File(self.dir / "parts" / "master.h5") as b:
            self.check_attributes(a["w"], b["w"], LOST)
            self.check_attributes(a["layer"], b["layer"])


if __name__ == "__main__":
    unittest.main()
