"""Tensors into memory that exists, through the module shardctl, beside memcpy and the loaders of the formats.

loading.py FOLDER [MIB [RUNS]]: writes the checkpoints into FOLDER, reads them once, and then times all loaders in turns.
PYTHONPATH has the module, SHARDCTL is the program. Prints the median of each, and how many times memcpy's that is.
"""
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import shardctl

THREADS = 2
EXPERTS = 256


def state_of(mib: int) -> dict[str, torch.Tensor]:
    """Layers of 16 MiB in bfloat16, with one small tensor each."""
    state = {}
    for layer in range(mib // 16):
        state[f"layers.{layer}.weight"] = torch.randint(-9999, 9999, (2048, 4096), dtype=torch.int16).view(torch.bfloat16)
        state[f"layers.{layer}.norm"] = torch.ones(4096, dtype=torch.bfloat16)
    return state


def write(folder: Path, mib: int) -> dict[str, torch.Tensor]:
    state = state_of(mib)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    torch.save(state, folder / "model.pt")
    program = shardctl.program()
    for name, ranks in (("dcp", "4"), ("torch-ranks", "8")):
        subprocess.run([program, "split", folder / "model.safetensors", "-o", folder / name, "--to", name, "--ranks", ranks,
                        "--quiet"], check=True)
    experts = torch.randint(0, 255, (EXPERTS, 1024, 1024), dtype=torch.uint8).view(torch.float8_e4m3fn)
    safetensors.torch.save_file({"experts": experts}, folder / "experts.safetensors")
    return state


def memcpy(path: Path, target: numpy.ndarray) -> None:
    """Copies the file out of the page cache with two threads."""
    source = numpy.memmap(path, numpy.uint8, "r")
    half = len(source) // THREADS
    parts = [slice(0, half), slice(half, len(source))]
    threads = [threading.Thread(target=numpy.copyto, args=(target[part], source[part])) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def fill(path: Path, state: dict[str, torch.Tensor]) -> None:
    with shardctl.open(path, threads=THREADS) as found:
        found.read_into(state)


def loaders(folder: Path, state: dict[str, torch.Tensor]) -> dict[str, Callable[[], object]]:
    memory = numpy.zeros((folder / "model.safetensors").stat().st_size, numpy.uint8)
    first = next(iter(state.values()))

    def check(path: Path) -> Callable[[], object]:
        fill(path, state)
        wanted = safetensors.torch.load_file(folder / "model.safetensors")
        assert all(torch.equal(tensor.view(torch.int16), wanted[name].view(torch.int16)) for name, tensor in state.items())
        first.zero_()
        return lambda: fill(path, state)

    def load_file() -> None:
        for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
            state[name].copy_(tensor)

    def load() -> None:
        for name, tensor in torch.load(folder / "model.pt", mmap=True).items():
            state[name].copy_(tensor)

    return {
        "memcpy from the page cache": lambda: memcpy(folder / "model.safetensors", memory),
        "safetensors: shardctl": check(folder / "model.safetensors"),
        "safetensors: load_file, which only maps the file": lambda: safetensors.torch.load_file(folder / "model.safetensors"),
        "safetensors: load_file and copy_": load_file,
        "torch file: shardctl": check(folder / "model.pt"),
        "torch file: load, into new memory": lambda: torch.load(folder / "model.pt"),
        "torch file: load with mmap and copy_": load,
        "4 DCP ranks: shardctl": check(folder / "dcp"),
        "4 DCP ranks: dcp.load": lambda: dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True),
        "4 DCP ranks: dcp.load with shardctl.dcp.Reader": lambda: dcp.load(
            state, storage_reader=shardctl.dcp.Reader(folder / "dcp", threads=THREADS), no_dist=True),
        "8 rank files: shardctl": check(folder / "torch-ranks"),
    }


def one_expert(path: Path) -> str:
    begin = time.perf_counter()
    with shardctl.open(path) as found:
        part = found["experts"][17]
        read = found.read_into([(part, bytearray(part.nbytes))])
    return f"one expert of {EXPERTS}: {read} bytes read, {(time.perf_counter() - begin) * 1000:.1f} ms, {path.stat().st_size} bytes in the file"


def main(folder: str, mib: int = 1024, runs: int = 5) -> None:
    root = Path(folder)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    torch.set_num_threads(THREADS)
    state = write(root, mib)
    timed = loaders(root, state)
    times: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(runs):
        for name, load in timed.items():
            begin = time.perf_counter()
            load()
            times[name].append(time.perf_counter() - begin)
    base = statistics.median(times["memcpy from the page cache"])
    for name, seconds in times.items():
        print(f"{name}: {statistics.median(seconds):.3f} s, {statistics.median(seconds) / base:.2f} of memcpy", flush=True)
    print(one_expert(root / "experts.safetensors"))
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
