"""Common code of the tests of export: small safetensors files, a folder for each test, the program.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import os
import struct
from pathlib import Path

from program import ProgramTest, read_safetensors, write_safetensors

DATA = Path(os.environ["SHARD_DATA"])
DCP = DATA / "golden/2.11.0/dcp_plain_r2"


def write(path: Path, tensors: dict[str, list[float]], dtype: str = "F32") -> None:
    def content(numbers: list[float]) -> bytes:
        return struct.pack(f"<{len(numbers)}f", *numbers) if dtype == "F32" else bytes(len(numbers))

    write_safetensors(path, {name: (dtype, [len(numbers)], content(numbers)) for name, numbers in tensors.items()})


def names(path: Path, stem: str = "model") -> list[str]:
    return sorted(read_safetensors(path / f"{stem}.safetensors"))


def dtypes(path: Path) -> set[str]:
    return {dtype for dtype, _, _ in read_safetensors(path / "model.safetensors").values()}


class ExportTest(ProgramTest):
    def export(self, *arguments, code: int = 0) -> dict:
        return json.loads(self.run_it("export", *arguments, "--json", code=code).stdout)

    def hub(self, config: str = "{}") -> Path:
        (self.dir / "hub").mkdir(exist_ok=True)
        (self.dir / "hub/config.json").write_text(config)
        return self.dir / "hub"
