"""Common code of the live tests: running shardctl, building states with odd tensors, comparing content in real
clients.

Environment: SHARDCTL names the program under test.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from python_ranks import spawn  # noqa: E402, F401: for the tests beside this file

SHARDCTL = os.environ.get("SHARDCTL", "shardctl")


def shardctl(*arguments, code: int = 0) -> str:
    """Runs shardctl, expects its exit code, returns stdout."""
    done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != code:
        raise AssertionError(f"shardctl {' '.join(map(str, arguments))}: exit {done.returncode}, not {code}\n{done.stderr}")
    return done.stdout


def shardctl_json(*arguments, code: int = 0) -> dict:
    return json.loads(shardctl(*arguments, "--json", code=code))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
SAFETENSORS_DTYPES = FLOATS + INTEGERS + (torch.bool, torch.complex64)


def noise(shape, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    """Random bytes as a tensor of that dtype (bool: 0 and 1)."""
    generator = torch.Generator().manual_seed(seed)
    shape = tuple(shape)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
    numel = torch.Size(shape).numel()
    raw = torch.randint(0, 256, (numel * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if numel else torch.empty(shape, dtype=dtype)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The row-major elements' bytes, for any dtype (NaN payloads too)."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_same_tensor(test: unittest.TestCase, found: torch.Tensor, wanted: torch.Tensor, name: str, strides: bool = False):
    test.assertEqual(found.dtype, wanted.dtype, name)
    test.assertEqual(tuple(found.shape), tuple(wanted.shape), name)
    if strides:
        test.assertEqual(found.stride(), wanted.stride(), name)
    test.assertEqual(raw_bytes(found), raw_bytes(wanted), name)


def assert_same_tensors(test: unittest.TestCase, found: dict, wanted: dict):
    test.assertEqual(sorted(found), sorted(wanted))
    for name in wanted:
        assert_same_tensor(test, found[name], wanted[name], name)


class LiveTest(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-live-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
