"""Runs the examples of docs/python.md. Environment: SHARDCTL is the program; PYTHONPATH contains the package. Without its
native module or torch, only the examples that run the program."""
import doctest
import importlib.util
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def examples() -> str:
    """The page without the sections that cannot run here."""
    page = (SOURCE / "docs/python.md").read_text()
    is_native = importlib.util.find_spec("shardctl._native") is not None and importlib.util.find_spec("torch") is not None
    if is_native:
        return page
    sections = re.split(r"(?m)^(?=## )", page)
    kept = [section for section in sections if not re.search(r"shardctl\.(open|dcp|load_state_dict)|checkpoint\.read", section)]
    print(f"{len(sections) - len(kept)} sections are skipped: they need shardctl._native and torch")
    return ">>> import shardctl\n\n" + "".join(kept)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE / "tests/data/demo/ckpt", Path(folder) / "checkpoint")
        os.chdir(folder)
        runner = doctest.DocTestRunner()
        found = runner.run(doctest.DocTestParser().get_doctest(examples(), {}, "python.md", "docs/python.md", 0))
        os.chdir("/")
    print(f"{found.attempted} examples, {found.failed} failed")
    return 0 if found.attempted and not found.failed else 1


if __name__ == "__main__":
    sys.exit(main())
