"""HDF5 files that shardctl writes are read: by the newest h5py and by Debian's, and by the tools of HDF5."""
import json
import os
import resource
import shutil
import subprocess
import sys
import time
import unittest
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

from support import COMPLEX, FLOATS, INTEGERS, LiveTest, noise, raw_bytes, shardctl, shardctl_json

READERS = {"newest": sys.executable, "debian": "/usr/bin/python3"}
OPAQUE = {torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu}


def tensors_of_every_dtype() -> dict:
    return {str(dtype).removeprefix("torch."): noise((3, 5), dtype, i)
            for i, dtype in enumerate((*FLOATS, *INTEGERS, *COMPLEX, torch.bool))}


class Write(LiveTest):
    def opened(self, path: Path) -> list[dict]:
        """The content of a file according to each h5py, from a different folder."""
        found = []
        for label, python in READERS.items():
            done = subprocess.run([python, Path(__file__).with_name("hdf5_opened.py"), path], capture_output=True,
                                  text=True, cwd="/")
            if "No module named 'h5py'" in done.stderr:
                continue
            self.assertEqual(done.returncode, 0, f"{label}: {done.stderr}")
            found.append(json.loads(done.stdout))
        return found

    def convert(self, state, name: str = "out.h5") -> Path:
        torch.save(state, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / name)
        return self.dir / name

    def check_values(self, found: dict, tensor: torch.Tensor, name: str) -> None:
        """Equal bytes; of floats that numpy lacks equal values, NaN aside."""
        self.assertEqual(found["shape"], list(tensor.shape), name)
        if "unknown" in found:
            return self.assertEqual(tensor.dtype, torch.complex32, name)
        content = bytes.fromhex(found["hex"])
        if tensor.dtype not in (torch.bfloat16, torch.float8_e5m2):
            self.assertEqual(content, raw_bytes(tensor), name)
            return
        values = torch.from_numpy(numpy.frombuffer(content, found["dtype"]).astype("f8")).reshape(tensor.shape)
        self.assertTrue(torch.equal(values.nan_to_num(7), tensor.double().nan_to_num(7)), name)

    def test_every_dtype_has_its_values(self):
        tensors = tensors_of_every_dtype()
        for found in self.opened(self.convert(tensors)):
            for name, tensor in tensors.items():
                self.check_values(found[f"/{name}"], tensor, name)
                if tensor.dtype in OPAQUE:
                    self.assertEqual(found[f"/{name}"]["attributes"], {"dtype": name})
            self.assertEqual(found["/float32"]["dtype"], "<f4")
            self.assertEqual(found["/bool"]["dtype"], "|b1")
            self.assertEqual(found["/complex64"]["dtype"], "<c8")

    def test_names_shapes_and_groups(self):
        state = {"flat.a": noise((2,)), "group": {"w": noise((2, 3)), "deep": {"scalar": noise(()), "none": noise((0, 4))}},
                 "Ünï": noise((1,)), "a/b%": noise((1,)), "..": noise((1,)), "": noise((1,)), "list": [noise((1,))]}
        for found in self.opened(self.convert(state)):
            self.assertEqual({name for name in found if "shape" in found[name]},
                             {"/flat.a", "/group/w", "/group/deep/scalar", "/group/deep/none", "/Ünï", "/a%2Fb%25", "/%2E%2E",
                              "/%", "/list/0"})
            self.check_values(found["/group/deep/scalar"], state["group"]["deep"]["scalar"], "scalar")
            self.assertEqual(found["/group/deep/none"]["shape"], [0, 4])

    def test_aliases_are_hard_links(self):
        shared = noise((4, 4))
        file = self.convert({"b": shared, "a": {"c": shared}, "other": noise((4, 4))})
        for found in self.opened(file):
            self.assertEqual(found["same"], [["/a/c", "/b"]])
        self.assertEqual(shardctl_json("inspect", file)["tensors"][1]["alias_of"], "a.c")

    def test_objects_are_attributes(self):
        group = {"w": noise((2,)), "w.units": "m/s", "lr": 0.5, "step": 3, "on": True, "name": "Änderung", "none": None,
                 "long": "x" * 100_000, "empty": {}}
        for found in self.opened(self.convert({"g": group, "top": -1})):
            self.assertEqual(found["/g"]["attributes"], {"lr": 0.5, "step": 3, "on": True, "name": "Änderung", "none": None,
                                          "long": "x" * 100_000})
            self.assertEqual(found["/g/empty"], {"attributes": {}})
            self.assertEqual(found["/g/w"]["attributes"], {"units": "m/s"})
            self.assertEqual(found["/"]["attributes"]["top"], -1)

    def test_objects_come_back_to_torch(self):
        state = {"b": noise((2,)), "a": [1, (2.5, None), {"x": noise((1,)), 3: "three", True: b"\0\xff"}], "e": [], "d": {},
                 "big": 2**80, "set": {1, 2}, "shardctl.tree": "mine", "a/b": {"": 1, ".": "dot"}, "text": "a\0b",
                 "dtype": torch.bfloat16, "size": torch.Size([2])}
        file = self.convert(state)
        shardctl("convert", file, "-o", self.dir / "back.pt")
        shardctl("diff", self.dir / "in.pt", self.dir / "back.pt")
        shardctl("diff", self.dir / "in.pt", file)
        back = torch.load(self.dir / "back.pt", weights_only=False)
        self.assertEqual(list(back), list(state))
        self.assertEqual(back["a"][1], (2.5, None))
        self.assertEqual(back["a"][2][3], "three")
        for key in ("e", "d", "big", "set", "shardctl.tree", "a/b", "text", "dtype", "size"):
            self.assertEqual(back[key], state[key])
            self.assertEqual(type(back[key]), type(state[key]))

    def test_odd_keys_come_back(self):
        state = {"w": noise((3,)), "w.x": noise((4,)), "w.x.y": "deep", "w.dtype": "mine", "w.a/b": 2, "w.": 3, ".w": 4,
                 "w.shardctl.q": 1, "f8": noise((3,), torch.float8_e5m2fnuz), "f8.dtype": "object", "%": 1, "%00": noise((1,)),
                 "a": {"b.c": 1, "b": {"d": noise((2,))}}, "k" * 100_000: noise((2,)), "big": "z" * 10_000_000,
                 "shardctl.rank": 7, "shardctl.metadata.x": 8, "shardctl.names": noise((2,)), "dims": noise((1,) * 32)}
        state["t"] = state["w.x"]
        state["t.units"] = "m"
        shardctl("convert", self.convert(state), "-o", self.dir / "back.pt")
        self.assertEqual(shardctl("digest", "-q", self.dir / "back.pt"), shardctl("digest", "-q", self.dir / "in.pt"))
        objects = [shardctl_json("inspect", self.dir / f"{name}.pt")["objects"] for name in ("in", "back")]
        self.assertEqual(*objects)

    def test_keys_of_objects_have_a_limit(self):
        torch.save({"k" * 70_000: 1, "w": noise((2,))}, self.dir / "in.pt")
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "out.h5", code=8)
        shardctl("convert", self.dir / "in.pt", "-o", self.dir / "out.h5", "--objects", "drop")

    def test_a_bare_tensor_and_a_bare_object_come_back(self):
        for i, state in enumerate((noise((2,)), 7, {}, [])):
            file = self.convert(state, f"{i}.h5")
            shardctl("convert", file, "-o", self.dir / f"{i}.pt")
            back = torch.load(self.dir / f"{i}.pt")
            self.assertTrue(torch.equal(back, state) if isinstance(state, torch.Tensor) else back == state, state)

    def test_metadata_of_safetensors_comes_back(self):
        save_file({"w": noise((2,))}, self.dir / "in.safetensors", {"author": "me", "a/b": "", "odd": "x\0y"})
        shardctl("convert", self.dir / "in.safetensors", "-o", self.dir / "out.h5")
        shardctl("convert", self.dir / "out.h5", "-o", self.dir / "back.safetensors")
        for name in ("in", "back"):
            metadata = shardctl_json("inspect", self.dir / f"{name}.safetensors")["metadata"]
            self.assertEqual({key: metadata[key] for key in ("author", "a/b", "odd")}, {"author": "me", "a/b": "", "odd": "x\0y"})

    def test_whole_tensors_are_read_through_the_master(self):
        shared = noise((8, 6))
        state = tensors_of_every_dtype() | {"g": {"a/b": shared, "scalar": noise(())}, "tied": shared, "none": noise((0, 2)),
                                            "one": noise((1,)), "step": 5}
        torch.save(state, self.dir / "in.pt")
        wanted = {f"/{name}": each for name, each in state.items() if isinstance(each, torch.Tensor)}
        wanted |= {"/g/a%2Fb": shared, "/g/scalar": state["g"]["scalar"]}
        for i, layout in enumerate((["--ranks", 4], ["--shards", 3], ["--ranks", 2, "--dim", 1],
                                    ["--mesh", "a=2,b=2", "--place", "**=_S(0,2),S(0)"])):
            folder = self.dir / f"made{i}"
            shardctl("split", self.dir / "in.pt", "-o", folder, "--to", "hdf5", *layout)
            moved = self.dir / f"moved{i}"
            folder.rename(moved)  # Names of files are relative.
            for found in self.opened(moved / "master.h5"):
                for path, tensor in wanted.items():
                    self.check_values(found[path], tensor, f"{layout} {path}")
                self.assertIn(["/g/a%2Fb", "/tied"], found["same"])
                self.assertEqual(found["/"]["attributes"]["step"], 5)
            self.assertEqual(shardctl("digest", "-q", moved), shardctl("digest", "-q", self.dir / "in.pt"))

    def test_files_of_ranks_say_whose_they_are(self):
        torch.save({"w": noise((4, 2))}, self.dir / "in.pt")
        shardctl("split", self.dir / "in.pt", "-o", self.dir / "out", "--to", "hdf5", "--ranks", 2)
        for found in self.opened(self.dir / "out/rank-00001-of-00002.h5"):
            self.assertEqual(found["/"]["attributes"], {"shardctl.rank": 1, "shardctl.world_size": 2})
        error = shardctl_json("inspect", self.dir / "out/rank-00001-of-00002.h5", code=8)
        self.assertIn(str(self.dir / "out"), error["hint"])

    def test_the_same_bytes_every_time(self):
        state = tensors_of_every_dtype() | {"g": {str(i): i for i in range(50)}, "list": [noise((3,)), "x" * 70_000]}
        first, second = self.convert(state, "a.h5"), self.convert(state, "b.h5")
        self.assertEqual(first.read_bytes(), second.read_bytes())

    @unittest.skipUnless(shutil.which("h5dump"), "no hdf5-tools")
    def test_the_tools_of_hdf5_accept_it(self):
        state = tensors_of_every_dtype() | {"g": {str(i): i for i in range(50)}, "list": [noise((3,)), "x" * 70_000]}
        files = [self.convert(state)]
        shardctl("split", self.dir / "in.pt", "-o", self.dir / "out", "--to", "hdf5", "--ranks", 2)
        files += sorted((self.dir / "out").iterdir())
        for file in files:
            for tool in (["h5dump"], ["h5dump", "-H"], ["h5stat"], ["h5ls", "-r"], ["h5diff", file]):
                done = subprocess.run([*tool, file], capture_output=True, text=True, errors="replace", cwd=file.parent)
                self.assertEqual((done.returncode, done.stderr), (0, ""), f"{tool[0]} {file.name}")
        self.assertEqual(subprocess.run(["h5diff", files[0], self.dir / "out/master.h5", "/int64"], capture_output=True,
                                        cwd=self.dir / "out").returncode, 0)

    def test_many_tensors_take_linear_time(self):
        seconds = []
        for count in (25_000, 100_000):
            source = self.dir / f"{count}.safetensors"
            save_file({f"layers.{i}.weight": torch.zeros(16) for i in range(count)}, source)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            begin = time.monotonic()
            shardctl("convert", source, "-o", self.dir / f"{count}.h5")
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds.append(after.ru_utime - before.ru_utime)
            print(f"{count} tensors: {time.monotonic() - begin:.2f} s, {seconds[-1]:.2f} s of CPU, "
                  f"{os.path.getsize(self.dir / f'{count}.h5') / count:.0f} bytes each")
        self.assertLess(seconds[1], 8 * seconds[0])  # Linear is 4.


if __name__ == "__main__":
    unittest.main()
