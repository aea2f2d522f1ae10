"""Makes the seed corpus with the real clients: make_corpus.py FOLDER. Run with the Python of scripts/setup full."""
import argparse
import collections
import io
import json
import pickle
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save


def put(folder: Path, target: str, name: str, data: bytes) -> None:
    (folder / target).mkdir(parents=True, exist_ok=True)
    (folder / target / name).write_bytes(data)


def saved(value, **options) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def main(folder: Path) -> None:
    w = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    put(folder, "safetensors_header", "two", save({"w": w, "b": torch.ones(3, dtype=torch.bfloat16)}, {"format": "pt"}))
    put(folder, "safetensors_header", "odd", save({"": torch.tensor(1.0), "ü\"": torch.empty(0, 4, dtype=torch.int8)}))
    state = collections.OrderedDict(w=w, tied=w, t=w.t(), step=3)
    values = {"dict": state, "parameter": torch.nn.Parameter(w), "module": torch.nn.Linear(2, 2).state_dict(),
              "nested": {"a": [1, (2.5, None), {"b": w}], 3: True, "n": argparse.Namespace(x=1)},
              "float8": w.to(torch.float8_e4m3fn), "sparse": torch.eye(2).to_sparse()}
    for name, value in values.items():
        data = saved(value)
        put(folder, "torch_file", name, data)
        put(folder, "zip", name, data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            put(folder, "pickle", name, archive.read("archive/data.pkl"))
    deflated = io.BytesIO()
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/x", b"x" * 1000)
    put(folder, "zip", "deflated", deflated.getvalue())
    plain = {"a": [1, -2, 2**40, 2**80, 1.5, "é", b"\x00", None, True, {1, 2}, frozenset([3]), (1, 2, 3, 4)], "c": 1j}
    for protocol in 2, 3, 4, 5:
        put(folder, "pickle", f"plain{protocol}", pickle.dumps(plain, protocol))
    with tempfile.TemporaryDirectory() as tmp:
        dcp.save({"w": w, "o": {"step": 1}, "l": [w]}, checkpoint_id=tmp, no_dist=True)
        put(folder, "dcp_metadata", "small", Path(tmp, ".metadata").read_bytes())
        put(folder, "pickle", "metadata", Path(tmp, ".metadata").read_bytes())
    layout = {"schema": "shardctl.layout/1", "name": "x", "mesh": {"dp": 2, "tp": 2}, "files": {"path": "rank-{dp}-{tp}.pt"},
              "rules": [{"id": "a", "match": ".*weight", "shard": [{"axis": "tp", "dim": 0}]}]}
    put(folder, "layout", "two_axes", json.dumps(layout).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
