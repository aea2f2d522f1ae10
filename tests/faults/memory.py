"""Large checkpoints in little memory, as root: a sparse model through every verb in a cgroup of 256 MiB, page cache
included.

    memory.py SHARDCTL [--gib N] [--limit MiB] [--ranks N] [--work FOLDER]

Prints for each run its seconds, the largest memory of its processes, and whether the kernel killed one.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
MIB = 1 << 20


class Group:
    """A cgroup with a limit of memory, version 1 or 2."""

    def __init__(self, mebibytes: int) -> None:
        is_old = (V1 / "memory.limit_in_bytes").exists()
        self.path = (V1 if is_old else V2) / f"shardctl-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if is_old else "memory.max")).write_text(str(mebibytes * MIB))
        self.kills = self.path / ("memory.oom_control" if is_old else "memory.events")

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def killed(self) -> int:
        return int(dict(line.split() for line in self.kills.read_text().splitlines())["oom_kill"])

    def remove(self) -> None:
        self.path.rmdir()


def write_sparse(path: Path, gibibytes: int) -> None:
    safetensors_files.write(path, {f"layers.{i}.weight": ("BF16", [16384, 4096]) for i in range(8 * gibibytes)})


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--gib", type=int, default=8)
    options.add_argument("--limit", type=int, default=256)
    options.add_argument("--ranks", type=int, default=64)
    options.add_argument("--work")
    chosen = options.parse_args()
    tool = os.path.abspath(chosen.tool)
    group, problems = Group(chosen.limit), 0
    with tempfile.TemporaryDirectory(dir=chosen.work) as folder:
        work = Path(folder)
        write_sparse(work / "model.safetensors", chosen.gib)

        def run(*line: str) -> None:
            nonlocal problems
            before, start = group.killed(), time.perf_counter()
            process = subprocess.Popen([tool, *line, "-q"], cwd=work, preexec_fn=group.enter, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            error = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            problems += code != 0
            print(f"{' '.join(line)}: exit {code}, {time.perf_counter() - start:.1f} s, at most {usage.ru_maxrss >> 10} MiB held, "
                  f"{group.killed() - before} killed by the kernel", error.strip(), flush=True)

        def remove(name: str) -> None:
            path = work / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

        of_ranks = ["--local-ranks", str(chosen.ranks)]
        run("split", "model.safetensors", "-o", "dcp", "--ranks", "4")
        (work / "model.safetensors").unlink()
        run("gather", "dcp", "-o", "whole.safetensors")
        remove("whole.safetensors")
        run("gather", "dcp", "-o", "whole.safetensors", *of_ranks)
        remove("whole.safetensors")
        run("reshard", "dcp", "-o", "other", "--ranks", "6", "--dim", "1")
        remove("other")
        run("reshard", "dcp", "-o", "other", "--ranks", "6", "--dim", "1", *of_ranks)
        remove("other")
        run("convert", "dcp", "-o", "whole.pt", *of_ranks)
        remove("whole.pt")
        run("convert", "dcp", "-o", "whole.pt", "--checksum", "xxh3")
        remove("dcp")
        run("verify", "whole.pt")
        run("verify", "whole.pt", *of_ranks)
    group.remove()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
