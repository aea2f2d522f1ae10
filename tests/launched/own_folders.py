"""Checkpoints with a folder for each rank, jobs that start there, and hosts with such folders."""
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import harness as h

LOCAL = ["--local-input", "--local-output"]
SOURCES = {  # Name: how it is made; each file is then given to one rank.
    "dcp": ["split", "model.safetensors", "-o", "dcp", "--to", "dcp", "--ranks", "4"],
    "dcp-hf": ["split", "model.safetensors", "-o", "dcp-hf", "--to", "dcp-hf", "--ranks", "3"],
    "safetensors": ["gather", "model.safetensors", "-o", "safetensors", "--shards", "3"],
    "padded": ["gather", "model.safetensors", "-o", "padded", "--shards", "3"],
    "torch": ["gather", "model.safetensors", "-o", "torch", "--to", "torch", "--shards", "3"],
    "sharded": ["split", "model.safetensors", "-o", "sharded", "--to", "torch-ranks", "--as", "sharded_tensor", "--ranks", "RANKS"],
    "dtensor": ["split", "model.safetensors", "-o", "dtensor", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "RANKS"],
}
PADS = {"schema": "shardctl.layout/1", "rules": [  # A map that fills padding, of which no rank has a file.
    {"match": r"[^.]*\.weight", "pad": {"dim": 0, "to": "ceil_to(n, 7000)"}}, {"match": ".*"}]}
WRITES = {  # Source: the arguments that write it.
    "dcp": ["reshard", "src", "-o", "out", "--ranks", "3"],
    "dcp-hf": ["reshard", "src", "-o", "out", "--mesh", "tp=2", "--place", "**=S(0)"],
    "safetensors": ["split", "src", "-o", "out", "--to", "torch-ranks", "--as", "dtensor", "--ranks", "3"],
    "padded": ["split", "src", "-o", "out", "--ranks", "3", "--to-map", "../pads.json"],
    "torch": ["convert", "src", "-o", "out", "--to", "dcp", "--ranks", "2", "--cast", "**.weight=bfloat16"],
    "sharded": ["gather", "src", "-o", "out", "--to", "safetensors", "--shards", "4"],
    "dtensor": ["gather", "src", "-o", "out.pt"],
}


def in_own_folder() -> list[str]:
    """Words that start the program in the folder of its rank."""
    return h.shell(f"cd rank{h.RANK_HERE} && exec")


def rank_of(path: Path, i: int, ranks: int) -> int:
    """Files of ranks (rank0.pt, rank00001.pt, ...) are their ranks', all others go round, the last rank's first."""
    number = re.search(r"rank[^0-9]*([0-9]+)", path.name)
    return int(number[1]) if number and path.suffix == ".pt" else (ranks - 1 - i) % ranks


def spread(work: Path, source: str, ranks: int) -> None:
    """A folder for each rank, with its files of the source."""
    for rank in range(ranks):
        shutil.rmtree(work / f"rank{rank}", ignore_errors=True)
        (work / f"rank{rank}" / "src").mkdir(parents=True)
    for i, path in enumerate(sorted((work / source).iterdir())):
        shutil.copy(path, work / f"rank{rank_of(path, i, ranks)}" / "src")


def make_source(work: Path, source: str, ranks: int) -> None:
    (work / "pads.json").write_text(json.dumps(PADS))
    shutil.rmtree(work / source, ignore_errors=True)
    arguments = [str(ranks) if word == "RANKS" else word for word in SOURCES[source]]
    subprocess.run([h.SHARDCTL, *arguments, "-q"], cwd=work, env=h.BASE, check=True)


def join(work: Path, ranks: int, name: str) -> Path:
    """The output of all ranks, in one folder; a file that two ranks wrote is an error."""
    joined = work / "joined"
    shutil.rmtree(joined, ignore_errors=True)
    joined.mkdir()
    for rank in range(ranks):
        written = work / f"rank{rank}" / name
        for path in [written] if written.is_file() else written.iterdir() if written.exists() else []:
            if (joined / path.name).exists():
                raise RuntimeError(f"{path.name} is written by two ranks")
            shutil.copy(path, joined)
    return joined


def expected(work: Path, source: str) -> Path:
    """The output of one process."""
    alone = work / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    alone.mkdir()
    (alone / "src").symlink_to(work / source)
    subprocess.run([h.SHARDCTL, *WRITES[source], "-q"], cwd=alone, env=h.BASE, check=True)
    written = alone / WRITES[source][WRITES[source].index("-o") + 1]
    if written.is_dir():
        return written
    folder = alone / "file"
    folder.mkdir()
    shutil.move(written, folder)
    return folder


def run(work: Path, launch: h.Launch, arguments: list[str], env: dict[str, str] | None = None) -> h.Result:
    return h.Job(launch, [*in_own_folder(), h.SHARDCTL, *arguments], env, work).wait()


def held(work: Path, launch: h.Launch, phase: str, rank: int, arguments: list[str], timeout: int = 3) -> tuple[h.Job, int]:
    """A job whose rank waits before a step, and that rank's process id."""
    door = work / "door"
    door.unlink(missing_ok=True)
    env = {"SHARDCTL_TEST_HOLD": f"{phase}:{rank}:{door}"}
    job = h.Job(launch, [*in_own_folder(), h.SHARDCTL, *arguments, "--timeout", str(timeout)], env, work)
    for _ in range(3000):
        if door.exists() and door.read_text():
            return job, int(door.read_text())
        if job.process.poll() is not None:
            break
        time.sleep(0.01)
    raise RuntimeError(f"the rank never came to {phase}: {job.wait(1).err}")


def put_old(work: Path, ranks: int) -> None:
    """An old destination, a folder, on every rank."""
    for rank in range(ranks):
        (work / f"rank{rank}" / "out").mkdir()
        (work / f"rank{rank}" / "out" / "old").write_text(str(rank))


def has_old(work: Path, ranks: int) -> list[bool]:
    return [(work / f"rank{rank}" / "out" / "old").exists() for rank in range(ranks)]


NAMESPACES = str(Path(__file__).parent / "in_namespaces.sh")


def on_hosts(hosts: int) -> dict[str, list[str]]:
    """Words before the program that start it on hosts n01, n02, ... with the lines of docs/ranks.md; each host runs them."""
    slots, at = ",".join(f"n{i + 1:02}:2" for i in range(hosts)), "n01:29400"
    mpirun = f"mpirun -n {2 * hosts} -H {slots} --mca plm_rsh_agent '{NAMESPACES} --ssh'"
    slurm = (f"SLURM_PROCID=$HOST SLURM_NTASKS={hosts} SLURM_STEP_NUM_TASKS={hosts} SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='1(x{hosts})' "
             f"SLURM_STEP_ID=0 SLURM_JOB_ID=77 SLURM_NODEID=$HOST SLURM_STEP_NODELIST='n[01-{hosts:02}]'")
    lines = {
        "by hand": h.shell(f'exec "$@" --backend gloo --rank $HOST --world-size {hosts} --rdzv {at}; :'),
        "mpirun": h.shell(f"[ $HOST != 0 ] || exec {mpirun}"),
        "mpirun, gloo": h.shell(f'[ $HOST != 0 ] || exec {mpirun} "$@" --backend gloo --rdzv {at}; :'),
        "torchrun": [*h.TORCHRUN, "--nnodes", str(hosts), "--rdzv-backend", "c10d", "--rdzv-endpoint", at,
                     "--no-python", "--nproc-per-node", "2"],
        "srun's variables": h.shell(f"{slurm} exec"),
    }
    if unpacked := os.environ.get("SHARD_SLURM"):  # See under_slurm.sh.
        lines["srun"] = [str(Path(__file__).parent / "under_slurm.sh"), unpacked, str(hosts)]
    return lines
