"""Times --dequantize, --lora and average beside cp of the bytes that they write, interleaved in random order. Needs numpy.

  dequantize.py SHARDCTL [--size MIB] [--runs N] [--folder DIR] [--peers PYTHON] [FORM...]

Creates a file of random codes or weights for each form, --size MiB in bfloat16, in DIR (/dev/shm). lora: a bfloat16 model and an
adapter of rank 16 for all its weights; average: the mean of two such models. `x cp` is the ratio of minima of
wall time over the runs, `cpu x cp` that of processor time, which a busy machine changes less. cp runs twice. Nothing is
flushed to a disk. --peers: the tools of arithmetic_peers.py too, in this Python (PYTHONPATH has the packages); the seconds in
which it imports them count.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

ROWS, COLUMNS = 4096, 4096
DTYPES = {"BF16": np.uint16, "F8_E4M3": np.uint8, "U8": np.uint8, "I32": np.int32, "F32": np.float32, "F16": np.float16}


def module(form: str, name: str) -> dict[str, tuple[str, tuple]]:
    """Dtypes and shapes of a module of ROWS x COLUMNS."""
    m, n = ROWS, COLUMNS
    parts = {"fp8": {"weight": ("F8_E4M3", (m, n)), "weight_scale_inv": ("F32", (m // 128, n // 128))},
             "nvfp4": {"weight_packed": ("U8", (m, n // 2)), "weight_scale": ("F8_E4M3", (m, n // 16)), "weight_global_scale": ("F32", (1,))},
             "mxfp4": {"weight_packed": ("U8", (m, n // 2)), "weight_scale": ("U8", (m, n // 32))},
             "lora": {"weight": ("BF16", (m, n))}, "average": {"weight": ("BF16", (m, n))},
             "int4": {"weight_packed": ("I32", (m, n // 8)), "weight_scale": ("F32", (m, n // 32))},
             "awq": {"qweight": ("I32", (n, m // 8)), "qzeros": ("I32", (n // 128, m // 8)), "scales": ("F16", (n // 128, m))},
             "gptq": {"qweight": ("I32", (n // 8, m)), "qzeros": ("I32", (n // 128, m // 8)), "scales": ("F16", (n // 128, m))}}
    return {f"{name}.{key}": part for key, part in parts[form].items()}


def save(path: Path, form: str, mebibytes: int) -> None:
    tensors = {}
    for i in range(max(1, (mebibytes << 20) // (2 * ROWS * COLUMNS))):
        tensors |= module(form, f"layers.{i}")
        if form == "int4":
            tensors[f"layers.{i}.weight_shape"] = ("I32", (2,))
    generator = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(safetensors_files.head(tensors))
        for name, (dtype, shape) in tensors.items():
            if name.endswith("weight_shape"):
                file.write(np.array([ROWS, COLUMNS], np.int32).tobytes())
            elif dtype in ("F32", "F16"):
                file.write(generator.random(shape, np.float32).astype(DTYPES[dtype]).tobytes())
            elif dtype == "BF16":  # Like weights, without subnormal numbers, which take far more time than others.
                file.write((generator.standard_normal(shape, np.float32) / 50).view(np.uint32).__rshift__(16).astype(np.uint16).tobytes())
            else:  # No code is NaN, and no exponent.
                file.write((generator.integers(0, 127, int(np.prod(shape)) * np.dtype(DTYPES[dtype]).itemsize, np.uint8)).tobytes())
    config = {"bits": 4, "num_bits": 4, "group_size": 32} if form == "int4" else {"weight_block_size": [128, 128]} if form == "fp8" else {}
    (path.parent / "config.json").write_text(json.dumps({"quantization_config": config}))


def save_adapter(folder: Path, layers: int) -> None:
    generator = np.random.default_rng(1)
    tensors = {f"base_model.model.layers.{i}.lora_{part}.weight": ("F32", shape) for i in range(layers)
               for part, shape in (("A", (16, COLUMNS)), ("B", (ROWS, 16)))}
    folder.mkdir()
    safetensors_files.write(folder / "adapter_model.safetensors", tensors,
                            (generator.standard_normal(shape, np.float32).tobytes() for _, shape in tensors.values()))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": r"layers\.\d+"}))


def command_of(form: str, shardctl: str, source: Path, size: int) -> list:
    if form == "average":
        return [shardctl, "average", source, source, "--no-fsync", "--quiet", "-o"]
    if form != "lora":
        return [shardctl, "convert", source, "--dequantize", "--no-fsync", "--quiet", "-o"]
    adapter = source.parent / "adapter"
    save_adapter(adapter, max(1, (size << 20) // (2 * ROWS * COLUMNS)))
    return [shardctl, "convert", source, "--lora", adapter, "--no-fsync", "--quiet", "-o"]


def timed(command: list, out: Path) -> tuple[float, float, int]:
    subprocess.run(["rm", "-rf", out], check=True)
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"failed: {command}")
    return time.monotonic() - before, usage.ru_utime + usage.ru_stime, usage.ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shardctl")
    parser.add_argument("forms", nargs="*", default=["fp8", "nvfp4", "mxfp4", "int4", "awq", "gptq", "lora", "average"])
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--peers", metavar="PYTHON")
    options = parser.parse_args()
    print("| form | s | x cp | cpu s | cpu x cp | MiB |\n|---|--:|--:|--:|--:|--:|")
    for form in options.forms:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            source, plain, out = (Path(folder) / each for each in ("source.safetensors", "plain.safetensors", "out.safetensors"))
            save(source, form, options.size)
            convert = command_of(form, options.shardctl, source, options.size)
            timed([*convert, plain], plain)
            rows = {form: [*convert, out], "cp": ["cp", plain, out], "cp (A/A)": ["cp", plain, out]}
            if options.peers:
                rows |= {"peer": [options.peers, Path(__file__).with_name("arithmetic_peers.py"), form, source, out]}
            samples = {name: [] for name in rows}
            for _ in range(options.runs):
                for name in random.sample(list(rows), len(rows)):
                    samples[name].append(timed(rows[name], out))
            least = {name: [min(values) for values in zip(*found)] for name, found in samples.items()}
            for name, (wall, cpu, memory) in least.items():
                print(f"| {name} | {wall:.3f} | {wall / least['cp'][0]:.2f} | {cpu:.3f} | {cpu / least['cp'][1]:.2f} | {memory} |", flush=True)


if __name__ == "__main__":
    main()
