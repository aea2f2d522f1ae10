"""Runs the examples of docs/python.md. Environment: SHARDCTL is the program; PYTHONPATH contains the folder python."""
import doctest
import os
import shutil
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE / "tests/data/demo/ckpt", Path(folder) / "checkpoint")
        os.chdir(folder)
        found = doctest.testfile(str(SOURCE / "docs/python.md"), module_relative=False)
        os.chdir("/")
    print(f"{found.attempted} examples, {found.failed} failed")
    return 0 if found.attempted and not found.failed else 1


if __name__ == "__main__":
    sys.exit(main())
