"""A training step beside async_save and beside Python's: async_save.py ASYNC_SAVE_BENCH FOLDER [MIB [ROUNDS]]

FOLDER is on the disk to write to. One rank of each side, which computes with one thread, is alive at once, and the two
take turns. Prints medians over the rounds, with the largest loss of a round.
"""
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

WIDTH, BATCH, STEPS_ALONE = 1024, 256, 25


def python_rank(folder: str, mib: str) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    inputs = torch.rand(BATCH, WIDTH)
    state = model.state_dict() | {f"other{i}": torch.rand(int(mib) // 8, 1 << 18) for i in range(8)}

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(STEPS_ALONE):
            step()
        called = time.perf_counter()
        save = dcp.async_save(state, checkpoint_id=folder)
        returned = last = time.perf_counter()
        steps = 0
        step()
        while not save.done():
            last = time.perf_counter()
            steps += 1
            step()
        save.result()
        print((called - begin) / STEPS_ALONE, (last - returned) / steps, returned - called, last - called, flush=True)


def start(command: list[str]) -> subprocess.Popen:
    return subprocess.Popen(command, env=os.environ | {"PYTHONWARNINGS": "ignore"}, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)


def one_round(rank: subprocess.Popen, folder: Path) -> list[float]:
    os.sync()
    rank.stdin.write("\n")
    rank.stdin.flush()
    seconds = [float(each) for each in rank.stdout.readline().split()]
    shutil.rmtree(folder)
    return seconds


def main(bench: str, folder: str, mib: str = "512", rounds: str = "5") -> None:
    sides = {"here": [bench], "python": [sys.executable, __file__, "--rank"]}
    folders = {side: Path(folder) / f"async_save_{side}" for side in sides}
    ranks = {side: start([*command, str(folders[side]), mib]) for side, command in sides.items()}
    found = {side: [] for side in sides}
    for _ in range(int(rounds) + 1):
        for side in sides:
            found[side].append(one_round(ranks[side], folders[side]))
    print(f"{mib} MiB and the model, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':8}{'alone ms':>10}{'beside ms':>10}{'loss':>8}{'worst':>8}{'call s':>8}{'save s':>8}")
    for side, seconds in found.items():
        seconds = seconds[1:]  # The first round warms up.
        losses = [beside / alone - 1 for alone, beside, _, _ in seconds]
        alone, beside, call, save = (statistics.median(each) for each in zip(*seconds))
        print(f"{side:8}{alone * 1e3:10.1f}{beside * 1e3:10.1f}{statistics.median(losses):8.1%}{max(losses):8.1%}"
              f"{call:8.2f}{save:8.2f}")
    for rank in ranks.values():
        rank.stdin.close()
        rank.wait()


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        python_rank(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
