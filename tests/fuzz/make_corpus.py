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

import h5py
import numpy
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save

from make_corpus_parts import part, put


def saved(value, **options) -> bytes:
    out = io.BytesIO()
    torch.save(value, out, **options)
    return out.getvalue()


def pickle_of(value, **options) -> bytes:
    with zipfile.ZipFile(io.BytesIO(saved(value, **options))) as archive:
        return archive.read("archive/data.pkl")


def dcp_folders(folder: Path, w: torch.Tensor) -> None:
    with tempfile.TemporaryDirectory() as tmp:
        dcp.save({"w": w, "o": {"step": 1}}, checkpoint_id=tmp, no_dist=True)
        metadata = Path(tmp, ".metadata").read_bytes()
    put(folder, "dcp_folder", "small", part(metadata) + part(pickle_of(w)) + pickle_of({"step": 1}))


def dcp_hf_shards(folder: Path) -> None:
    def header(offset: int) -> bytes:
        info = {"w": {"saved_offsets": [offset, 0]}, "s": {"saved_offsets": []}}
        metadata = {"DCP_SHARDING_INFO": json.dumps(info), "DCP_VERSION": "1.0", "format": "pt"}
        return json.dumps({"__metadata__": metadata, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                           "s": {"dtype": "F32", "shape": [], "data_offsets": [24, 28]}}).encode()
    put(folder, "dcp_hf", "two", part(header(0)) + header(2).replace(b', "s": {"dtype": "F32", "shape": [], "data_offsets": [24, 28]}', b""))
    put(folder, "dcp_hf", "one", part(header(0)))


def rank_files(folder: Path) -> None:
    """Saves of two ranks, created one after the other with a process group that does nothing."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard as LocalShard, ShardedTensor, ShardedTensorMetadata, TensorProperties
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    sharded, dtensors = [], []
    for rank in range(2):
        torch.distributed.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        boxes = [ShardMetadata([2 * r, 0], [2, 3], f"rank:{r}/cpu") for r in range(2)]
        metadata = ShardedTensorMetadata(boxes, torch.Size([4, 3]), TensorProperties(dtype=torch.float32))
        local = [LocalShard(torch.ones(2, 3), boxes[rank])]
        value = ShardedTensor._init_from_local_shards_and_global_metadata(local, metadata)
        sharded.append(pickle_of({"st": value, "step": 1}))
        mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        value = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)], run_check=False)
        dtensors.append(pickle_of({"dt": value, "plain": torch.ones(2, 3)}))
        torch.distributed.destroy_process_group()
    put(folder, "rank_file", "sharded_tensor", part(sharded[0]) + sharded[1])
    put(folder, "rank_file", "dtensor", part(dtensors[0]) + dtensors[1])


def hdf5_chunks(folder: Path) -> None:
    """Stored bytes of h5py for a chunk, and elements that the target filters itself. See fuzz_hdf5_chunk.cpp."""
    def filters(codes: list) -> bytes:
        return bytes([len(codes), *codes]) + b"\0"
    deflate, fletcher32, lzf = 0, 2, 3
    shuffle = lambda width: 1 + 4 * width
    w = numpy.arange(300, dtype=numpy.float32)
    cases = {"gzip": ([deflate], {"compression": "gzip"}),
             "shuffle_gzip": ([shuffle(4), deflate], {"compression": "gzip", "shuffle": True}),
             "all": ([shuffle(4), deflate, fletcher32], {"compression": "gzip", "shuffle": True, "fletcher32": True}),
             "fletcher32": ([fletcher32], {"fletcher32": True}),
             "lzf": ([lzf], {"compression": "lzf"}),
             "lzf_all": ([shuffle(4), lzf, fletcher32], {"compression": "lzf", "shuffle": True, "fletcher32": True})}
    for name, (codes, options) in cases.items():
        with h5py.File("in-memory.h5", "w", driver="core", backing_store=False) as file:
            dataset = file.create_dataset("w", data=w, chunks=w.shape, **options)
            file.flush()
            _, stored = dataset.id.read_direct_chunk((0,))
        put(folder, "hdf5_chunk", name, b"\0" + filters(codes) + w.nbytes.to_bytes(2, "little") + bytes(stored))
    for changes in range(4):
        for name, codes in {"odd": [fletcher32, shuffle(3), deflate], "twice": [deflate, shuffle(16), deflate],
                            "lzf": [shuffle(4), lzf, fletcher32]}.items():
            put(folder, "hdf5_chunk", f"{name}{changes}", b"\1" + filters(codes) + bytes([changes, 0]) + w.tobytes()[:401])


def main(folder: Path) -> None:
    hdf5_chunks(folder)
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
            put(folder, "torch_pickle", name, b"\0" + archive.read("archive/data.pkl"))
    put(folder, "torch_pickle", "conj", b"\1" + pickle_of({"c": torch.ones(2, dtype=torch.complex64).conj(), "w": w}))
    put(folder, "torch_pickle", "opaque", b"\2" + pickle_of({"n": io.UnsupportedOperation("x"), "w": w}))
    put(folder, "torch_file", "legacy", saved({"w": w, "t": w[1:]}, _use_new_zipfile_serialization=False))
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
    dcp_folders(folder, w)
    dcp_hf_shards(folder)
    rank_files(folder)
    index = {"metadata": {"total_size": 24}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors",
                                                            "b\u00e9": "model-00002-of-00002.safetensors"}}
    put(folder, "index", "two", json.dumps(index).encode())
    put(folder, "index", "bin", b'{"weight_map":{"a":"pytorch_model-00001-of-00001.bin"}}')
    layout = {"schema": "shardctl.layout/1", "name": "x", "mesh": {"dp": 2, "tp": 2}, "files": {"path": "rank-{dp}-{tp}.pt"},
              "rules": [{"id": "a", "match": ".*weight", "shard": [{"axis": "tp", "dim": 0}]}]}
    put(folder, "layout", "two_axes", json.dumps(layout).encode())
    adapter = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": True, "use_dora": False, "bias": "none",
               "rank_pattern": {"q_proj": 7}, "alpha_pattern": {r"layers\.[01]\.q_proj": 3, "o_proj": 9.5}, "layer_replication": None}
    put(folder, "adapter", "patterns", json.dumps(adapter).encode())
    put(folder, "adapter", "other_type", b'{"peft_type": "LOHA", "lora_alpha": 6}')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
