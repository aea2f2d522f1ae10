"""DTensor's full_tensor and redistribute, and ShardedTensor's reshard, beside Python's: dtensor.py DTENSOR_BENCH [MIB [RUNS [RANKS]]]

Processes of both sides live at once and take turns; each pair of runs gives a ratio. Prints the medians, of the time
and of the processor's time of all ranks, which other programs disturb less.
"""
import functools
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ["full_tensor-rows", "full_tensor-columns", "rows-columns", "reshard"]


def python_rank(mib: str, store: str, rank: str, ranks: str) -> None:
    import warnings

    import torch
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    mesh = init_device_mesh("cpu", (int(ranks),))
    size = [4096, int(mib) * 64]  # float32

    def dtensor(dim: int) -> DTensor:
        part = [extent // int(ranks) if axis == dim else extent for axis, extent in enumerate(size)]
        return DTensor.from_local(torch.ones(part), mesh, [Shard(dim)])

    def chunks(dim: int) -> ChunkShardingSpec:
        return ChunkShardingSpec(dim, [f"rank:{each}/cpu" for each in range(int(ranks))])

    def operation(name: str):
        """Prepares the operation, and returns the function to time."""
        if name == "reshard":
            return functools.partial(sharded_tensor.ones(chunks(0), *size).reshard, chunks(1))
        if name == "rows-columns":
            return functools.partial(dtensor(0).redistribute, placements=[Shard(1)])
        return dtensor(1 if name == "full_tensor-columns" else 0).full_tensor

    for name in map(str.strip, sys.stdin):
        timed = operation(name)
        dist.barrier()
        begin, worked = time.perf_counter(), time.process_time()
        result = timed()
        dist.barrier()
        print(time.perf_counter() - begin, time.process_time() - worked, flush=True)
        del result, timed


class Job:
    """The ranks of one side."""

    def __init__(self, command: list[str], mib: int, ranks: int, store: str):
        self.ranks = [subprocess.Popen([*command, str(mib), store, str(rank), str(ranks)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True) for rank in range(ranks)]

    def seconds(self, operation: str) -> tuple[float, float]:
        """The slowest rank's time, and the processor's of all."""
        for rank in self.ranks:
            rank.stdin.write(operation + "\n")
            rank.stdin.flush()
        times, worked = zip(*(map(float, rank.stdout.readline().split()) for rank in self.ranks))
        return max(times), sum(worked)

    def end(self) -> None:
        for rank in self.ranks:
            rank.stdin.close()
            rank.wait()


def main(bench: str, mib: int = 1024, runs: int = 5, ranks: int = 4) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours = Job([bench], mib, ranks, f"{folder}/ours")
        python = Job([sys.executable, __file__, "--rank"], mib, ranks, f"{folder}/python")
        for operation in OPERATIONS:
            pairs = [(ours.seconds(operation), python.seconds(operation)) for _ in range(runs + 1)][1:]
            shown = []
            for what in range(2):
                ratio = statistics.median(mine[what] / other[what] for mine, other in pairs)
                mine, other = (statistics.median(side[what] for side in sides) for sides in zip(*pairs))
                shown.append(f"{ratio:.2f} ({mine:.2f} s, {other:.2f} s)")
            print(f"{operation}: {mib} MiB over {ranks} ranks, {runs} pairs: {shown[0]} of Python's time, "
                  f"{shown[1]} of the processor's", flush=True)
        ours.end()
        python.end()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(*sys.argv[2:])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
