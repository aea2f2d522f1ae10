"""Times state_bench and torch.distributed, in turns: the same state on the same number of ranks, over Gloo.

    state.py --bench build/dev/tests/bench/state_bench [--mib 1024] [--ranks 4] [--rounds 3] [--runs 2] [--work
  FOLDER]

Operations: save and load (checkpoint::save and load; dcp.save and dcp.load of ShardedTensors), load under a
different sharding, gather of all tensors to rank 0, reshard from rows to columns. Both fsync their output, except
in save_unsynced, which replaces it. A time is the slowest rank's, between barriers, without the start of processes
and imports. A round is a job of each, of --runs runs; the ratio is that of medians over all runs, and the last
column the largest ratio of a round's.
"""
import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ("save", "save_unsynced", "load", "load_columns", "gather", "reshard")
TENSORS = 16


def python_rank(folder: str, mib: int, runs: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    side = int((mib * 2**20 / TENSORS / 4) ** 0.5)

    def spec(dim):
        return ChunkShardingSpec(dim, [f"rank:{each}/cpu" for each in range(ranks)])

    def make(dim):
        return {f"w{i}": sharded_tensor.rand(spec(dim), side, side) for i in range(TENSORS)}

    def timed(name, body):
        dist.barrier()
        begin = time.perf_counter()
        body()
        taken = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        if rank == 0:
            print(name, f"{taken.item():.4f}", flush=True)

    def gather(state):
        for tensor in state.values():
            tensor.gather(0, torch.empty(side, side) if rank == 0 else None)

    def reshard(state):
        for tensor in state.values():
            tensor.reshard(spec(1))

    for _ in range(runs):
        rows, columns = make(0), make(1)
        timed("save", lambda: dcp.save(rows, checkpoint_id=folder))
        timed("save_unsynced", lambda: dcp.save(rows, storage_writer=dcp.FileSystemWriter(folder, sync_files=False)))
        timed("load", lambda: dcp.load(rows, checkpoint_id=folder))
        timed("load_columns", lambda: dcp.load(columns, checkpoint_id=folder))
        timed("gather", lambda: gather(rows))
        timed("reshard", lambda: reshard(rows))
        if rank == 0:
            shutil.rmtree(folder)
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def job(command: list, ranks: int) -> dict:
    """Seconds by operation, of all runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                     "PYTHONWARNINGS": "ignore"}
        started.append(subprocess.Popen(command, env=os.environ | variables, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE))
    ended = [(*process.communicate(), process.returncode) for process in started]
    for output, errors, code in ended:
        if code != 0:
            sys.exit(f"{command} failed: {output}{errors}")
    seconds = {name: [] for name in OPERATIONS}
    for line in ended[0][0].splitlines():
        name, taken = line.split()
        seconds[name].append(float(taken))
    os.sync()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--work", default=None)
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        arguments = [str(options.mib), str(options.runs)]
        for _ in range(options.rounds):
            ours = job([options.bench, f"{work}/ours", *arguments], options.ranks)
            python = job([sys.executable, __file__, "--rank", f"{work}/python", *arguments], options.ranks)
            rounds.append((ours, python))
    print(f"{options.mib} MiB, {options.ranks} ranks, load {os.getloadavg()[0]:.1f}: medians in s")
    print(f"{'':14}{'here':>8}{'python':>8}{'ratio':>8}{'worst':>8}")
    for name in OPERATIONS:
        ours = statistics.median(each for one, _ in rounds for each in one[name])
        python = statistics.median(each for _, other in rounds for each in other[name])
        worst = max(statistics.median(one[name]) / statistics.median(other[name]) for one, other in rounds)
        print(f"{name:14}{ours:8.3f}{python:8.3f}{ours / python:8.2f}{worst:8.2f}")


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
