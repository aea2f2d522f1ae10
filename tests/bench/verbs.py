"""Times shardctl's verbs beside cp of the same bytes, interleaved in random order in one run.

    verbs.py --shardctl build/release/apps/shardctl/shardctl [--size MiB] [--runs N] [--work FOLDER]

Each row is a whole process. `x cp` is the ratio of minima over the runs; cp stands in every case twice, and when the two
differ by more than 5 % the case is void. Inputs are hot, outputs are removed and the disk is synced outside the timed
region. Rows without `+ fsync` run with --no-fsync and are held against plain cp, the others against cp and sync.
Also printed: peak resident memory, and rchar and wchar over the bytes needed.
"""
import argparse
import json
import os
import random
import shutil
import struct
import subprocess
import time
from pathlib import Path

RANKS = 4


def write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Random bf16 tensors."""
    header, place = {}, 0
    for name, shape in shapes.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(1 << 24)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while place > 0:
            file.write(block[: min(place, len(block))])
            place -= len(block)


def model(size: int) -> dict[str, tuple[int, ...]]:
    width = max(64, round((size / 136) ** 0.5 / 64) * 64)
    layers = {f"layers.{i}.{part}.weight": shape for i in range(5) for part, shape in
              (("qkv", (3 * width, width)), ("out", (width, width)), ("up", (4 * width, width)), ("down", (width, 4 * width)))}
    return {"embed.weight": (4 * width + 3, width), **layers, "head.weight": (4 * width + 3, width), "bias": (7,)}


def inner(size: int, segment: int) -> dict[str, tuple[int, ...]]:
    return {f"w{i}": (size // (4 * RANKS * segment), RANKS * segment // 2) for i in range(4)}


def run(command: str, work: Path) -> dict:
    os.sync()
    usage = work / "usage"
    start = time.perf_counter()
    process = subprocess.Popen(["/usr/bin/time", "-q", "-o", usage, "-f", "%M", "sh", "-c", command],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    wall = time.perf_counter() - start
    io = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    errors = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"{command}: exit {process.returncode}\n{errors.decode()}")
    return {"wall": wall, "rss": int(usage.read_text().split()[-1]) / 1024, "read": int(io["rchar"]), "written": int(io["wchar"])}


def measure(title: str, source: Path, rows: dict[str, str], work: Path, runs: int) -> None:
    need = sum(p.stat().st_size for p in ([source] if source.is_file() else source.rglob("*")) if p.is_file())
    copy = f"cp -r {source} {{out}}/copy"
    rows = {"cp": copy, "cp (A/A)": copy, "cp + fsync": copy + " && sync -d $(find {out}/copy -type f) && sync {out}/copy"} | rows
    samples: dict[str, list[dict]] = {name: [] for name in rows}
    for _ in range(runs):
        for name in random.sample(list(rows), len(rows)):
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            samples[name].append(run(rows[name].format(out=out), work))
            shutil.rmtree(out)
    least = {name: min(s["wall"] for s in each) for name, each in samples.items()}
    control = least["cp (A/A)"] / least["cp"]
    print(f"\n{title}: {need / 1e9:.2f} GB, {runs} runs, A/A {control:.2f}{'' if 0.95 <= control <= 1.05 else ' (VOID)'}\n")
    print("| contender | min s | median s | x cp | RSS MiB | read | written |\n|---|--:|--:|--:|--:|--:|--:|")
    for name, each in samples.items():
        walls = sorted(s["wall"] for s in each)
        base = least["cp + fsync" if "fsync" in name else "cp"]
        print(f"| {name} | {walls[0]:.3f} | {walls[len(walls) // 2]:.3f} | {walls[0] / base:.2f} | {max(s['rss'] for s in each):.0f} "
              f"| {each[0]['read'] / need:.3f} | {each[0]['written'] / need:.3f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardctl", required=True)
    parser.add_argument("--size", type=int, default=1024, help="MiB of tensors (default 1024)")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardctl-verbs"))
    args = parser.parse_args()
    tool, work, size = os.path.abspath(args.shardctl), args.work, args.size << 20
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)

    def make(name: str, shapes: dict, dim: int) -> Path:
        write_safetensors(work / f"{name}.safetensors", shapes)
        subprocess.run([tool, "split", work / f"{name}.safetensors", "-o", work / name, "--ranks", str(RANKS), "--dim", str(dim), "-q"], check=True)
        return work / name

    def both(name: str, command: str) -> dict[str, str]:
        return {f"{name} + fsync": f"{tool} {command} -q", name: f"{tool} {command} -q --no-fsync"}

    rows = make("rows", model(size), 0)
    measure("gather to safetensors", rows, both("gather", f"gather {rows} -o {{out}}/new.safetensors"), work, args.runs)
    measure("gather to torch", rows, both("gather", f"gather {rows} -o {{out}}/new.pt"), work, args.runs)
    measure("reshard 4 to 6 ranks", rows, both("reshard", f"reshard {rows} -o {{out}}/new --ranks 6"), work, args.runs)
    whole = work / "rows.safetensors"
    measure("split into 4 ranks", whole, both("split", f"split {whole} -o {{out}}/new --ranks 4"), work, args.runs)
    measure("split into 5 files", whole, both("split", f"split {whole} -o {{out}}/new --shards 5"), work, args.runs)
    for segment in 256, 2048:
        name = f"inner-{segment}"
        source = make(name, inner(size, segment), 1)
        measure(f"gather of pieces of {segment} B", source, both("gather", f"gather {source} -o {{out}}/new.safetensors"), work, args.runs)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
