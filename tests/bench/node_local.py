"""The cost of moving pieces between ranks: two ranks with a folder each compared with two that share one, per
backend, and with a copy in memory of the same bytes; medians of 5 runs that alternate. Environment as in
tests/launched/harness.py.

    node_local.py [GIGABYTES]    (default 1; needs six times that in the folder for temporary files)
"""
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "launched"))
import harness as h  # noqa: E402

RUNS = 5
RESHARD = ["reshard", "src", "-o", "out", "--ranks", "2", "--dim", "1", "--no-fsync", "-vv"]


def timed(launch: h.Launch, folders: list[Path], program: list[str], work: Path) -> tuple[float, str]:
    """Seconds, and the output of the run."""
    for folder in folders:
        shutil.rmtree(folder / "out", ignore_errors=True)
    result = h.Job(launch, program, cwd=work).wait(600)
    if result.code != 0:
        raise SystemExit(result.err)
    return result.seconds, result.err


def bytes_sent(said: str) -> float:
    found = re.search(r"([0-9.]+) ([kMG]?)B between ranks", said)
    return float(found[1]) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]] if found else 0


def spread(numbers: list[float]) -> str:
    return f"{statistics.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def copied(bytes_sent: float) -> float:
    """Seconds to copy this many bytes in memory, 64 MiB at a time."""
    block = bytearray(64 << 20)
    target = bytearray(len(block))
    begin = time.monotonic()
    for _ in range(max(1, round(bytes_sent / len(block)))):
        target[:] = block
    return time.monotonic() - begin


def make_large(path: Path, megabytes: int) -> None:
    """16 tensors of float32 with 256 columns; the same 16 MiB of noise again and again."""
    rows = megabytes * 1024 // 16
    h.safetensors_files.write(path, {f"layers.{i}.weight": ("F32", [rows, 256]) for i in range(16)},
                              itertools.repeat(os.urandom(16 << 20)))


def main() -> None:
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 1
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_large(work / "model.safetensors", round(gigabytes * 1024))
        subprocess.run([h.SHARDCTL, "split", "model.safetensors", "-o", "src", "--ranks", "2", "-q"], cwd=work, env=h.BASE,
                       check=True)
        ranks = [work / "rank0", work / "rank1"]
        for rank, path in enumerate(ranks):
            (path / "src").mkdir(parents=True)
            shutil.copy(work / "src" / f"__{rank}_0.distcp", path / "src")
        shutil.copy(work / "src" / ".metadata", ranks[0] / "src")
        in_own = h.shell(f"cd rank{h.RANK_HERE} && exec")
        print("| backend | shared, s | own folders, s | own / shared | sent | memcpy of that, s | own - shared, of memcpy |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for name, launch in (("mpi", h.mpirun(2, "mpi")), ("gloo", h.mpirun(2, "gloo"))):
            rows = []
            for _ in range(RUNS):  # In turns, so that other load on the machine affects all of them.
                shared, _ = timed(launch, [work], [h.SHARDCTL, *RESHARD], work)
                own, said = timed(launch, ranks, [*in_own, h.SHARDCTL, *RESHARD, "--local-input", "--local-output"], work)
                rows.append((shared, own, copied(bytes_sent(said))))
            columns = [spread(numbers) for numbers in ([row[0] for row in rows], [row[1] for row in rows],
                       [row[1] / row[0] for row in rows], [row[2] for row in rows], [(row[1] - row[0]) / row[2] for row in rows])]
            columns.insert(3, f"{bytes_sent(said) / 1e6:.0f} MB")
            print(f"| {name} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    main()
