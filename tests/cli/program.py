"""Common code of the tests of the program: safetensors files without any library, a folder for each test, runs of shardctl.

Environment: SHARDCTL is the program.
"""
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

SHARDCTL = os.path.abspath(os.environ["SHARDCTL"])
Tensors = dict[str, tuple[str, list[int], bytes]]  # By name: dtype, shape and elements.


def write_safetensors(path: Path | str, tensors: Tensors, metadata: dict[str, str] | None = None) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors_files.write(path, {name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()},
                            (content for _, _, content in tensors.values()), metadata)
    return path


def read_safetensors(path: Path | str) -> Tensors:
    content = Path(path).read_bytes()
    data = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:data])
    header.pop("__metadata__", None)
    return {name: (each["dtype"], each["shape"], content[data + each["data_offsets"][0]:data + each["data_offsets"][1]])
            for name, each in header.items()}


class ProgramTest(unittest.TestCase):
    """Each test has a folder, in which the program runs without settings of the environment."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="shardctl-test-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def run_it(self, *words, code: int = 0, folder: str = ".") -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDCTL_")}
        done = subprocess.run([SHARDCTL, *map(str, words)], capture_output=True, text=True, cwd=self.dir / folder, env=environment)
        self.assertEqual(done.returncode, code, f"{words}\n{done.stdout}\n{done.stderr}")
        return done

    def json(self, *words, code: int = 0) -> dict:
        return json.loads(self.run_it(*words, "--json", code=code).stdout)

    def run_hint(self, hint: str) -> None:
        """The command in the hint runs."""
        words = shlex.split(hint)
        self.assertEqual(words[0], "shardctl", hint)
        self.run_it(*words[1:])
