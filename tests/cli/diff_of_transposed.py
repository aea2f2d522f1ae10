"""A diff of tensors whose stored order differs from the reading order ends, for any memory and number of threads.

Each worker has buffers of both sides at once, and must not wait with one for the other.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "hostile"))
from build import dict_of, pickled, tensor, torch_zip  # noqa: E402

SIDE, TENSORS = 700, 6  # Matrices of 2 MB in one storage, each an element after the one before.

values = {f"w{i}": tensor([SIDE, SIDE], [1, SIDE], offset=i, count=SIDE * SIDE + TENSORS) for i in range(TENSORS)}
content = torch_zip(pickled(dict_of(**values)), {"data/0": bytes(4 * (SIDE * SIDE + TENSORS))})
with tempfile.TemporaryDirectory() as folder:
    names = [Path(folder, name) for name in ("a.pt", "b.pt")]
    for name in names:
        name.write_bytes(content)
    for memory in "1MiB", "3MiB", "64MiB":
        command = [os.environ["SHARDCTL"], "diff", *names, "-j", "4", "--max-memory", memory, "-q"]
        done = subprocess.run(command)
        assert done.returncode == 0, f"{memory}: exit {done.returncode}"
