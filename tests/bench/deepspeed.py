"""Times gather of DeepSpeed saves and cp of their bytes, interleaved in random order in one run. Needs torch.

  deepspeed.py SHARDCTL [--size MIB] [--ranks N] [--runs N] [--folder DIR] [--deepspeed-python PYTHON]

Creates a save of stage 2 and one of stage 3 by formula (formats/deepspeed/README.md), --size MiB of float32 masters
without states, in DIR (/dev/shm). `x cp` is the ratio of minima over the runs; cp runs twice, and if the two differ
by 10 % no figure is printed. Nothing is flushed to a disk. A PYTHON with deepspeed also runs its own zero_to_fp32.
"""

import argparse
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

LAYER = {"qkv.weight": (3072, 1024), "out.weight": (1024, 1024), "up.weight": (4096, 1024), "down.weight": (1024, 4096), "norm.weight": (1024,)}


def shapes_of(mebibytes: int) -> OrderedDict:
    shapes, left, layer = OrderedDict(), mebibytes << 20, 0
    while left > 0:
        for name, shape in LAYER.items():
            shapes[f"layers.{layer}.{name}"] = shape
            left -= 4 * math.prod(shape)
        layer += 1
    return shapes


def save(folder: Path, stage: int, shapes: OrderedDict, ranks: int) -> None:
    import torch  # Only here: the children of the main process count its memory too.

    folder.mkdir()
    shapes = OrderedDict((name, torch.Size(shape)) for name, shape in shapes.items())
    elements = sum(shape.numel() for shape in shapes.values())
    padded = -(-elements // (2 * ranks)) * 2 * ranks
    length = padded // ranks if stage < 3 else sum(-(-shape.numel() // ranks) for shape in shapes.values())
    model = {"module": OrderedDict(), "buffer_names": [], "param_shapes": [shapes], "shared_params": {},
             "dp_world_size": ranks, "mp_world_size": 1, "ds_version": "0.18.2"}
    for rank in range(ranks):
        flat = torch.rand(length)
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        state = {"zero_stage": stage, "partition_count": ranks, key: [flat]}
        torch.save({"optimizer_state_dict": state}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        model["module"] = OrderedDict((name, torch.empty(0)) for name in shapes)
        torch.save(model, folder / "mp_rank_00_model_states.pt")


def timed(command: list, out: Path) -> tuple[float, int]:
    subprocess.run(["rm", "-rf", out], check=True)
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - before
    if status != 0:
        sys.exit(f"failed: {command}")
    return seconds, usage.ru_maxrss // 1024


def copies(source: Path, out: Path) -> dict[str, list]:
    return {"cp": ["cp", "-r", source, out], "cp (A/A)": ["cp", "-r", source, out]}


def print_beside_cp(title: str, rows: dict[str, list], out: Path, runs: int) -> None:
    """Runs the commands in random order, `runs` times each, and prints the minima beside that of "cp"."""
    samples = {name: [] for name in rows}
    for _ in range(runs):
        for name in random.sample(list(rows), len(rows)):
            samples[name].append(timed(rows[name], out))
    least = min(seconds for seconds, _ in samples["cp"])
    print(f"{title}, {runs} runs, load {os.getloadavg()[0]:.1f}")
    print("| row | min s | x cp | MiB |\n|---|--:|--:|--:|")
    for name, taken in samples.items():
        seconds = min(each for each, _ in taken)
        print(f"| {name} | {seconds:.3f} | {seconds / least:.2f} | {max(size for _, size in taken)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl", type=Path)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--folder", type=Path, default="/dev/shm")
    parser.add_argument("--deepspeed-python", type=Path)
    options = parser.parse_args()
    shapes = shapes_of(options.size)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work = Path(folder)
        for stage in (2, 3):
            source, out = work / f"stage{stage}", work / "out"
            maker = multiprocessing.Process(target=save, args=(source, stage, shapes, options.ranks))
            maker.start()
            maker.join()
            rows = {**copies(source, out),
                    "gather": [options.shardctl, "gather", source, "-o", out, "--to", "safetensors", "--objects", "drop", "--no-fsync", "-q"]}
            if options.deepspeed_python:
                (work / "latest").write_text(source.name)
                rows["zero_to_fp32"] = [options.deepspeed_python, "-m", "deepspeed.utils.zero_to_fp32", work, out, "--safe_serialization"]
            print_beside_cp(f"stage {stage}, {options.size} MiB, {options.ranks} ranks", rows, out, options.runs)
            subprocess.run(["rm", "-rf", source, out], check=True)


if __name__ == "__main__":
    main()
