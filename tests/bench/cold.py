"""Copies of cold files that are larger than the memory, beside cp and dd, in a memory cgroup (version 1).

  cold.py SHARDCTL [--folder DIR] [--size MiB] [--memory MiB] [--kept MiB] [--runs N] [--rows NAME...]

Each run begins with an empty page cache, apart from a file of --kept MiB, which the same cgroup has read twice. The order of the
rows changes in each round. "kept" is the part of that file that is still in the page cache afterwards. Needs root.
"""
import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
from verbs import RANKS, model, write_safetensors  # noqa: E402

CGROUP = Path("/sys/fs/cgroup/memory/shardctl-cold")


def rows(tool: str, whole: Path, parts: Path, out: Path) -> dict[str, tuple[Path, str]]:
    """Row to its source and command line. Those with "fsync" in their names are compared with cp and fsync."""
    sync = f"sync -d $(find {out} -type f) && sync {out}"
    copies = {"cp": f"cp {whole} {out}/copy", "dd": f"dd if={whole} of={out}/copy iflag=direct bs=4M status=none",
              "dd both direct": f"dd if={whole} of={out}/copy iflag=direct oflag=direct bs=4M status=none"}
    ours = {"gather": (parts, f"{tool} gather {parts} -o {out}/new.safetensors -q"),
            "split": (whole, f"{tool} split {whole} -o {out}/new --shards 5 -q")}
    return {**{name: (whole, command) for name, command in copies.items()}, "cp again": (whole, copies["cp"]),
            **{f"{name} + fsync": (whole, f"{command} && {sync}") for name, command in copies.items() if name != "dd both direct"},
            **{name: (source, f"{command} --no-fsync") for name, (source, command) in ours.items()},
            **{f"{name} + fsync": (source, command) for name, (source, command) in ours.items()}}


def in_cgroup(command: str) -> float:
    """Seconds of a command in the cgroup."""
    line = f"echo $$ > {CGROUP}/cgroup.procs && exec sh -c '{command}'"
    begin = time.perf_counter()
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stderr}")
    return time.perf_counter() - begin


def cached(path: Path) -> float:
    """The part of a file that is in the page cache."""
    held = subprocess.run(["fincore", "-b", "-n", "-o", "RES", path], capture_output=True, text=True, check=True).stdout
    return int(held.split()[0]) / path.stat().st_size


def write_kept(path: Path, size: int) -> None:
    with open(path, "wb") as file:
        block = os.urandom(1 << 24)
        for _ in range(size >> 24):
            file.write(block)


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--folder", type=Path, default=Path("/var/tmp/shardctl-cold"))
    options.add_argument("--size", type=int, default=6144)
    options.add_argument("--memory", type=int, default=4096)
    options.add_argument("--kept", type=int, default=1024)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--rows", nargs="+", default=[])
    chosen = options.parse_args()
    tool, folder = os.path.abspath(chosen.tool), chosen.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole, parts, out, kept = folder / "whole.safetensors", folder / "parts", folder / "out", folder / "kept"
    write_safetensors(whole, model(chosen.size << 20))
    subprocess.run([tool, "split", whole, "-o", parts, "--ranks", str(RANKS), "-q"], check=True)
    write_kept(kept, chosen.kept << 20)
    CGROUP.mkdir(exist_ok=True)
    (CGROUP / "memory.limit_in_bytes").write_text(str(chosen.memory << 20))
    all_rows = rows(tool, whole, parts, out)
    commands = {name: row for name, row in all_rows.items() if not chosen.rows or name in chosen.rows}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    left: dict[str, list[float]] = {name: [] for name in commands}
    try:
        for _ in range(chosen.runs):
            for name in random.sample(list(commands), len(commands)):
                out.mkdir()
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("3")
                in_cgroup(f"cat {kept} {kept} > /dev/null")
                taken[name].append(in_cgroup(commands[name][1]))
                left[name].append(cached(kept))
                shutil.rmtree(out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        CGROUP.rmdir()
    print(f"{chosen.size} MiB in {chosen.memory} MiB of memory, {chosen.runs} runs\n\n| row | min s | median s | x cp | MB/s | kept |\n|---|--:|--:|--:|--:|--:|")
    for name, seconds in taken.items():
        base = taken.get("cp + fsync" if "fsync" in name else "cp", seconds)
        print(f"| {name} | {min(seconds):.2f} | {statistics.median(seconds):.2f} | {min(seconds) / min(base):.2f} | "
              f"{(chosen.size << 20) / 1e6 / min(seconds):.0f} | {min(left[name]):.0%} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
