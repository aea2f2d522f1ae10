"""Common code of the tests of export: small safetensors files, a folder for each test, the program.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import os
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

SHARDCTL = os.environ["SHARDCTL"]
DATA = Path(os.environ["SHARD_DATA"])
DCP = DATA / "golden/2.11.0/dcp_plain_r2"


def write(path: Path, tensors: dict[str, list[float]], dtype: str = "F32") -> None:
    header, data = {}, b""
    for name, numbers in tensors.items():
        content = struct.pack(f"<{len(numbers)}f", *numbers) if dtype == "F32" else bytes(len(numbers))
        header[name] = {"dtype": dtype, "shape": [len(numbers)], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def names(path: Path, stem: str = "model") -> list[str]:
    with open(path / f"{stem}.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return sorted(set(header) - {"__metadata__"})


def dtypes(path: Path) -> set[str]:
    with open(path / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {tensor["dtype"] for name, tensor in header.items() if name != "__metadata__"}


class ExportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-export-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)

    def run_it(self, *arguments, code: int = 0) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDCTL_")}
        done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True, cwd=self.dir, env=environment)
        self.assertEqual(done.returncode, code, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done

    def export(self, *arguments, code: int = 0) -> dict:
        return json.loads(self.run_it("export", *arguments, "--json", code=code).stdout)

    def hub(self, config: str = "{}") -> Path:
        (self.dir / "hub").mkdir(exist_ok=True)
        (self.dir / "hub/config.json").write_text(config)
        return self.dir / "hub"
