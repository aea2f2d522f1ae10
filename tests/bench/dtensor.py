"""DTensor's full_tensor and redistribute beside Python's, in one run: dtensor.py DTENSOR_BENCH [MIB [RUNS [RANKS]]]

Processes of both sides live at once and take turns; each pair of runs gives a ratio. Prints the medians.
"""
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ["full_tensor-rows", "full_tensor-columns", "rows-columns"]


def python_rank(mib: str, store: str, rank: str, ranks: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    mesh = init_device_mesh("cpu", (int(ranks),))
    size = [4096, int(mib) * 64]  # float32
    for operation in map(str.strip, sys.stdin):
        dim = 1 if operation == "full_tensor-columns" else 0
        part = [extent // int(ranks) if axis == dim else extent for axis, extent in enumerate(size)]
        tensor = DTensor.from_local(torch.ones(part), mesh, [Shard(dim)])
        dist.barrier()
        begin = time.perf_counter()
        result = tensor.redistribute(placements=[Shard(1)]) if operation == "rows-columns" else tensor.full_tensor()
        dist.barrier()
        print(time.perf_counter() - begin, flush=True)
        del result, tensor


class Job:
    """The ranks of one side."""

    def __init__(self, command: list[str], mib: int, ranks: int, store: str):
        self.ranks = [subprocess.Popen([*command, str(mib), store, str(rank), str(ranks)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True) for rank in range(ranks)]

    def seconds(self, operation: str) -> float:
        for rank in self.ranks:
            rank.stdin.write(operation + "\n")
            rank.stdin.flush()
        return max(float(rank.stdout.readline()) for rank in self.ranks)

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
            ratio = statistics.median(mine / other for mine, other in pairs)
            seconds = [statistics.median(times) for times in zip(*pairs)]
            print(f"{operation}: {mib} MiB over {ranks} ranks, {runs} pairs: {ratio:.2f} of Python's time "
                  f"({seconds[0]:.2f} s, {seconds[1]:.2f} s)", flush=True)
        ours.end()
        python.end()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(*sys.argv[2:])
    else:
        main(sys.argv[1], *map(int, sys.argv[2:]))
