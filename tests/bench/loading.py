"""Tensors into memory that exists, through the module shardctl, beside memcpy and the loaders of the formats.

loading.py FOLDER [MIB [RUNS]]: writes the checkpoints into FOLDER, reads them once, and then times all loaders in turns.
PYTHONPATH has the module, SHARDCTL is the program. Prints the median of each, and how many times memcpy's that is. The
loaders fastsafetensors, runai_model_streamer and deepspeed are timed if Python finds them.
"""
import importlib.util
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
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


def state_of_masters(mib: int) -> dict[str, torch.Tensor]:
    """Tensors of 16 MiB in float32."""
    return {f"layers.{layer}.weight": torch.arange(layer, layer + (4 << 20), dtype=torch.float32).view(1024, 4096)
            for layer in range(mib // 16)}


def write_zero3(state: dict[str, torch.Tensor], folder: Path, ranks: int = 8) -> None:
    """The files of DeepSpeed's ZeRO stage 3 (formats/deepspeed/README.md), with only the masters."""
    folder.mkdir(parents=True)
    model = {"module": OrderedDict(), "buffer_names": [], "shared_params": {}, "dp_world_size": ranks, "mp_world_size": 1,
             "param_shapes": [OrderedDict((name, tensor.shape) for name, tensor in state.items())], "ds_version": "0.18.2"}
    for rank in range(ranks):
        flat = torch.cat([tensor.flatten().chunk(ranks)[rank] for tensor in state.values()])
        optimizer = {"zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": [flat]}
        torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")


def write(folder: Path, mib: int) -> None:
    state = state_of(mib)
    safetensors.torch.save_file(state, folder / "model.safetensors")
    torch.save(state, folder / "model.pt")
    program = shardctl.program()
    for name, ranks in (("dcp", "4"), ("torch-ranks", "8")):
        subprocess.run([program, "split", folder / "model.safetensors", "-o", folder / name, "--to", name, "--ranks", ranks,
                        "--quiet"], check=True)
    write_zero3(state_of_masters(mib), folder / "zero3/global_step1")
    (folder / "zero3/latest").write_text("global_step1")
    (folder / "experts").mkdir()
    experts = torch.randint(0, 100, (EXPERTS, 1024, 1024), dtype=torch.uint8).view(torch.float8_e4m3fn)
    safetensors.torch.save_file({"mlp.experts.up_proj": experts, "mlp.experts.up_proj_scale_inv": torch.rand(EXPERTS, 8, 8)},
                                folder / "experts/model.safetensors")
    config = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
    (folder / "experts/config.json").write_text(json.dumps(config))


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


def fill(path: Path, state: dict[str, torch.Tensor], prefix: str = "") -> None:
    with shardctl.open(path, threads=THREADS) as found:
        found.read_into({prefix + name: tensor for name, tensor in state.items()})


def others(folder: Path) -> dict[str, Callable[[], object]]:
    """The loaders that this Python finds. Each loads into new memory."""
    file = str(folder / "model.safetensors")
    found: dict[str, Callable[[], object]] = {}

    def fast() -> None:
        import fastsafetensors

        loader = fastsafetensors.SafeTensorsFileLoader(fastsafetensors.SingleGroup(), torch.device("cpu"), nogds=True, max_threads=THREADS)
        loader.add_filenames({0: [file]})
        buffer = loader.copy_files_to_device()
        tensors = {name: buffer.get_tensor(name) for name in loader.get_keys()}
        assert tensors
        buffer.close()
        loader.close()

    def runai() -> None:
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_file(file)
            assert dict(streamer.get_tensors())

    def zero() -> None:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        assert get_fp32_state_dict_from_zero_checkpoint(str(folder / "zero3"))

    rows = {"safetensors: fastsafetensors": ("fastsafetensors", fast), "safetensors: runai_model_streamer": ("runai_model_streamer", runai),
            "ZeRO-3 of 8 ranks: zero_to_fp32": ("deepspeed", zero)}
    for name, (package, load) in rows.items():
        if importlib.util.find_spec(package) is None:
            print(f"{name}: not installed")
        else:
            found[name] = load
    return found


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

    masters = state_of_masters(round(memory.size / (16 << 20)) * 16)
    into = {name: torch.zeros_like(tensor) for name, tensor in masters.items()}
    zero3, prefix = folder / "zero3", "model." if "model.layers.0.weight" in shardctl.open(folder / "zero3") else ""
    fill(zero3, into, prefix)
    assert all(torch.equal(into[name], tensor) for name, tensor in masters.items())

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
        "ZeRO-3 of 8 ranks: shardctl": lambda: fill(zero3, into, prefix),
        **others(folder),
    }


def bytes_that_were_read() -> int:
    """By this process, by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def one_expert(folder: Path) -> str:
    """Dequantizes one expert of a stack of float8."""
    with shardctl.open(folder, dequantize="bfloat16", threads=THREADS) as found:
        part = found["mlp.experts.up_proj"][17]
        memory, before, begin = bytearray(part.nbytes), bytes_that_were_read(), time.perf_counter()
        found.read_into([(part, memory)])
        taken, read = time.perf_counter() - begin, bytes_that_were_read() - before
    return f"one expert of {EXPERTS}: {read} bytes read of its {1024 * 1024 + 8 * 8 * 4}, {taken * 1000:.1f} ms"


def names(folder: Path, count: int = 1_000_000) -> str:
    """A process of its own lists the names of a file that has many."""
    header = "{" + ",".join(f'"model.layers.{i}.weight":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}' for i in range(count)) + "}"
    path = folder / "many.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(count))
    script = ("import sys, time, shardctl\nbegin = time.perf_counter(); found = shardctl.open(sys.argv[1])\n"
              "opened = time.perf_counter(); count = len(found.keys())\nlisted = time.perf_counter()\n"
              "peak = int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) >> 10\n"
              "print(f'{count} names: open {opened - begin:.2f} s, keys() {listed - opened:.2f} s, {peak} MiB')")
    return subprocess.run([sys.executable, "-c", script, path], check=True, capture_output=True, text=True).stdout.strip()


def memory_beside(folder: Path) -> str:
    """A process of its own fills memory that it has."""
    script = ("import sys, mmap, shardctl\n"
              "def peak(): return int(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]) >> 10\n"
              "found = shardctl.open(sys.argv[1], threads=2)\n"
              "into = {name: mmap.mmap(-1, handle.nbytes) for name, handle in found.items()}\n"
              "for each in into.values(): each.write(b'x' * len(each))\n"
              "before = peak(); found.read_into(into); print(f'memory beside that of the tensors: {peak() - before} MiB')")
    return subprocess.run([sys.executable, "-c", script, folder / "model.safetensors"], check=True, capture_output=True, text=True).stdout.strip()


def main(folder: str, mib: int = 1024, runs: int = 5) -> None:
    sys.path.remove(str(Path(__file__).parent))  # It has a deepspeed.py.
    root = Path(folder)
    torch.set_num_threads(THREADS)
    if not (root / f"{mib} MiB").exists():  # A later run uses the files again.
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        write(root, mib)
        (root / f"{mib} MiB").touch()
    state = {name: torch.zeros_like(tensor) for name, tensor in state_of(mib).items()}
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
    print(one_expert(root / "experts"), names(root), memory_beside(root), sep="\n")
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
