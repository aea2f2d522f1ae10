"""Ranks of real torch over gloo, for tests that compare with it."""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def spawn(function, ranks: int, *arguments) -> None:
    """Runs function(rank, *arguments) on gloo ranks, each in a process with a formed group."""
    with tempfile.TemporaryDirectory() as rendezvous:
        mp.spawn(_rank, (ranks, f"file://{rendezvous}/store", function, arguments), nprocs=ranks)


def end_rank() -> None:
    """Ends the process of a rank that has done its work, once all have.

    Not through the interpreter's end: a thread of torch that wants the interpreter then aborts the process, now and
    then on a busy machine ("terminate called without an active exception").
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _rank(rank, ranks, rendezvous, function, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    function(rank, *arguments)
    end_rank()
