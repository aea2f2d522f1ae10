"""Times `verify` beside sha256sum, b3sum and cp of the same files, and the cost of a manifest, interleaved in one run.

    verify.py --shardctl build/release/apps/shardctl/shardctl [--size MiB] [--runs N] [--b3sum PATH] [--work FOLDER]

Each row is a whole process over files that are hot in the page cache; `x cp` is the ratio of minima over the runs, with cp
of the same files to the same disk. Writing rows run with --no-fsync; the manifest's are held against the row without it, run
right before it: the figure is the median of the ratios of these pairs.
"""
import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402


def write_model(path: Path, mebibytes: int) -> None:
    safetensors_files.write(path, {f"layer.{i}.weight": ("BF16", [mebibytes << 4, 2048]) for i in range(16)},
                            iter(lambda: os.urandom(1 << 20), b""))


def seconds(command: str, cwd: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["bash", "-c", command], cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def prepare(shardctl: str, work: Path, size: int) -> dict[str, str]:
    """The rows: their names and commands."""
    write_model(work / "m.safetensors", size)
    make = [f"{shardctl} convert m.safetensors -o s.pt -q", f"{shardctl} split m.safetensors -o d --ranks 4 -q",
            f"{shardctl} convert m.safetensors -o x.safetensors --checksum xxh3 -q",
            f"{shardctl} convert m.safetensors -o h.safetensors --checksum sha256 -q"]
    for command in make:
        seconds(command, work)
    return {"cp": "cp x.safetensors copy && rm copy", "cp again": "cp x.safetensors copy && rm copy",
            "sha256sum": "sha256sum x.safetensors", "verify torch (CRC-32)": f"{shardctl} verify s.pt",
            "verify dcp (CRC-32)": f"{shardctl} verify d", "verify safetensors (no checksums)": f"{shardctl} verify m.safetensors",
            "verify with manifest xxh3": f"{shardctl} verify x.safetensors",
            "verify with manifest sha256": f"{shardctl} verify h.safetensors"}


def beside_others(rows: dict[str, str], work: Path, runs: int, size: int) -> None:
    taken = {name: [] for name in rows}
    for _ in range(runs):
        for name in random.sample(list(rows), len(rows)):
            taken[name].append(seconds(rows[name], work))
    cp = min(taken["cp"])
    for name, times in taken.items():
        print(f"{name:40} {min(times):7.3f} s  {min(times) / cp:5.2f} x cp  {size / 1024 / min(times):6.2f} GiB/s")


def cost_of_manifest(shardctl: str, work: Path, runs: int) -> None:
    jobs = {"gather to safetensors": "convert d -o o --to safetensors --objects drop", "to torch": "convert d -o o --to torch",
            "reshard dcp 4 to 6": "reshard d -o o --ranks 6"}
    for name, job in jobs.items():
        ratios = {"xxh3": [], "sha256": []}
        for _ in range(runs):
            for checksum, list_of in ratios.items():
                plain = seconds(f"{shardctl} {job} --no-fsync -q", work)
                shutil.rmtree(work / "o")
                with_it = seconds(f"{shardctl} {job} --no-fsync -q --checksum {checksum}", work)
                shutil.rmtree(work / "o")
                list_of.append(with_it / plain)
        print(f"{name:40} xxh3 {statistics.median(ratios['xxh3']):.3f}  sha256 {statistics.median(ratios['sha256']):.3f}"
              "  of the time without a manifest")


def if_changed(shardctl: str, work: Path, runs: int) -> None:
    job = f"{shardctl} convert d -o again --to torch --if-changed -q"
    seconds(job, work)
    print(f"{'--if-changed, unchanged':40} {min(seconds(job, work) for _ in range(runs)) * 1000:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardctl", required=True)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--b3sum")
    parser.add_argument("--work", type=Path)
    options = parser.parse_args()
    shardctl = str(Path(options.shardctl).resolve())
    with tempfile.TemporaryDirectory(dir=options.work) as folder:
        work = Path(folder)
        rows = prepare(shardctl, work, options.size)
        if options.b3sum:
            rows["b3sum"] = f"{options.b3sum} x.safetensors"
        beside_others(rows, work, options.runs, options.size)
        cost_of_manifest(shardctl, work, options.runs)
        if_changed(shardctl, work, options.runs)


main()
