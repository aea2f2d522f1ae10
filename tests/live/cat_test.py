"""The output of cat, as numpy and torch read it."""
import io
import json
import subprocess
import unittest

import numpy
import torch

from support import COMPLEX, FLOATS, INTEGERS, SHARDCTL, LiveTest, noise

NUMPY_LACKS = {torch.bfloat16: "float32"} | {d: "float32" for d in FLOATS if "float8" in str(d)} | {
    d: "complex64" for d in COMPLEX if d == torch.complex32}


def cat(*arguments) -> bytes:
    return subprocess.run([SHARDCTL, "cat", *map(str, arguments)], check=True, capture_output=True).stdout


def contents(tensor) -> tuple:
    array = tensor.contiguous().numpy() if isinstance(tensor, torch.Tensor) else tensor
    return str(array.dtype), array.shape, numpy.ascontiguousarray(array).tobytes()


class Cat(LiveTest):
    def test_npy_of_every_dtype(self):
        tensors = {str(d): noise((2, 3), d, i) for i, d in enumerate(FLOATS + INTEGERS + COMPLEX + (torch.bool,))}
        torch.save(tensors, self.dir / "dtypes.pt")
        for name, tensor in tensors.items():
            wider = NUMPY_LACKS.get(tensor.dtype)
            cast = ["--cast", f"**={wider}"] if wider else []
            found = numpy.load(io.BytesIO(cat(self.dir / "dtypes.pt", name, "--format", "npy", *cast)))
            wanted = tensor.to(getattr(torch, wider)) if wider else tensor
            numpy.testing.assert_array_equal(found, wanted.numpy(), err_msg=name)
            self.assertEqual(str(found.dtype), str(wanted.numpy().dtype))

    def test_slices_are_numpys(self):
        tensor = noise((6, 5, 4))
        torch.save({"w": tensor, "t": tensor.permute(2, 0, 1)}, self.dir / "w.pt")
        for text in ("0", "-1", "1:3", ":,2", "...,0", "1,...,2:4", "-2:,:3,1:", "4:2", "-100:100", "0,0,0", "...", ":,:,:"):
            for name, whole in (("w", tensor), ("t", tensor.permute(2, 0, 1))):
                found = numpy.load(io.BytesIO(cat(self.dir / "w.pt", f"{name}[{text}]", "--format", "npy")))
                self.assertEqual(contents(found), contents(eval(f"whole[{text}]")), f"{name}[{text}]")

    def test_text_reads_back_as_the_same(self):
        tensors = {"v": noise((7,)), "m": noise((5, 6), torch.float64, 1), "n": noise((2, 3, 4), torch.float32, 2),
                   "i": torch.arange(-6, 6).reshape(3, 4)}
        torch.save(tensors, self.dir / "text.pt")
        for name, tensor in tensors.items():
            found = numpy.loadtxt(io.StringIO(cat(self.dir / "text.pt", name).decode()), dtype=tensor.numpy().dtype)
            self.assertEqual(contents(found.reshape(tensor.shape)), contents(tensor), name)

    def test_json_holds_all_elements(self):
        tensor = noise((3, 4), torch.float64)
        torch.save({"w": tensor}, self.dir / "w.pt")
        document = json.loads(cat(self.dir / "w.pt", "w", "--json"))
        self.assertEqual(document["values"], tensor.flatten().tolist())


if __name__ == "__main__":
    unittest.main()
