#!/usr/bin/env python3
"""Makes the golden dcp checkpoints of rarer ways to save, with the real client: torch 2.11 with zstandard, 2 gloo ranks.

    python make_special.py [OUT]

own_metadata/  use_collectives=False: metadata of each rank. Cut, replicated and plain tensors; tensors and objects that
               are equal on both ranks, that differ, and that only one rank has; the same inside tuples.
zstd/          one process, every item through the transform stream.zstd/1; tensors inside tuples too.
coded/         one process; elements that are not plain: conjugated and negated as torch leaves them, and items that were
               rewritten with deflated records and as a big-endian machine has them.
"""
import io
import os
import pickle
import shutil
import sys
import uuid
import warnings
import zipfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

RANKS = 2
warnings.simplefilter("ignore")


def state(rank: int) -> dict:
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = torch.arange(15, dtype=torch.float32).reshape(5, 3)
    part = rows.chunk(RANKS)[rank].clone()
    return {
        "rows": DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=rows.shape, stride=rows.stride()),
        "replicated": DTensor.from_local(torch.arange(4), mesh, [Replicate()], run_check=False),
        "plain": torch.tensor([1.5, 2.5]),
        "rng": torch.arange(3, dtype=torch.uint8) + 10 * rank,
        f"of_rank_{rank}": torch.tensor([rank]),
        "step": 7,
        "seen": 100 + rank,
        "mixed": (rank, "same", [1, rank]),
        "pair": (torch.tensor([1, 2]), torch.tensor([rank]), "text"),
    }


def save(rank: int) -> None:
    numbers = iter(range(1, 100))
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    dcp.save(state(rank), storage_writer=dcp.FileSystemWriter("own_metadata"), use_collectives=False)
    dist.destroy_process_group()


def save_zstd() -> None:
    uuid.uuid4 = lambda: uuid.UUID(int=1)
    zeros = torch.zeros(300, 200)
    zeros[299, 199] = 1
    content = {"zeros": zeros, "small": torch.arange(5, dtype=torch.int16), "step": 7, "text": "zstd" * 1000,
               "pair": (torch.tensor([3.0, 4.0]), zeros[0])}
    dcp.save(content, storage_writer=dcp.FileSystemWriter("zstd", _extensions=[ZStandard()]), no_dist=True)


def rewritten(item: bytes, compression: int, is_big: bool) -> bytes:
    """The same zip, its records compressed, or its elements of 4 bytes swapped."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(item)) as old, zipfile.ZipFile(out, "w", compression) as new:
        for name in old.namelist():
            content = old.read(name)
            if is_big and name.endswith("/byteorder"):
                content = b"big"
            if is_big and "/data/" in name:
                content = b"".join(content[i : i + 4][::-1] for i in range(0, len(content), 4))
            new.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


def save_coded() -> None:
    uuid.uuid4 = lambda: uuid.UUID(int=1)
    complex_numbers = torch.tensor([1 + 2j, 3 - 4j])
    content = {"conj": complex_numbers.conj(), "neg": complex_numbers.conj().imag, "deflated": torch.arange(100.0),
               "big": torch.arange(6.0).reshape(2, 3), "object": (torch.arange(3.0), "text")}
    assert content["conj"].is_conj() and content["neg"].is_neg()
    dcp.save(content, storage_writer=dcp.FileSystemWriter("coded"), no_dist=True)
    with open("coded/.metadata", "rb") as file:
        metadata = pickle.load(file)
    with open("coded/__0_0.distcp", "rb") as file:
        old = file.read()
    with open("coded/__0_0.distcp", "wb") as file:
        for index, info in metadata.storage_data.items():
            item = old[info.offset : info.offset + info.length]
            if index.fqn in ("deflated", "object"):
                item = rewritten(item, zipfile.ZIP_DEFLATED, False)
            if index.fqn == "big":
                item = rewritten(item, zipfile.ZIP_STORED, True)
            info.offset, info.length = file.tell(), len(item)
            file.write(item)
    with open("coded/.metadata", "wb") as file:
        pickle.dump(metadata, file)


def main() -> None:
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__)))
    for folder in ("own_metadata", "zstd", "coded"):
        shutil.rmtree(folder, ignore_errors=True)
    mp.spawn(save, nprocs=RANKS)
    save_zstd()
    save_coded()


if __name__ == "__main__":
    main()
