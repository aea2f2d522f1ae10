"""Ranks of real torch over gloo, for tests that compare with it."""
import multiprocessing
import os
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# One server imports these and forks the ranks, because each import takes seconds. Modules that this torch lacks are
# skipped. DTensor imports torch._dynamo at first use.
PRELOADED = ["torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.distributed.checkpoint",
             "torch.distributed._shard.sharded_tensor", "torch._dynamo"]


def spawn(function, ranks: int, *arguments) -> None:
    """Runs function(rank, *arguments) on gloo ranks, each in a process with a formed group."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryDirectory() as rendezvous:
        mp.start_processes(_rank, (ranks, f"file://{rendezvous}/store", function, arguments), nprocs=ranks,
                           start_method="forkserver")


def _end_rank() -> None:
    """Ends the process of a rank that has finished, once all have.

    It does not use the interpreter's end: a thread of torch that needs the interpreter then aborts the process,
    sometimes, on a busy machine ("terminate called without an active exception").
    """
    dist.barrier()
    dist.destroy_process_group()
    for child in multiprocessing.active_children():  # Managers of a library's queues, which would outlive the rank.
        child.terminate()
        child.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _rank(rank, ranks, rendezvous, function, arguments):
    threading.Thread(target=_end_with_test, daemon=True).start()
    torch.seed()  # The server's own seed would be the same on all ranks.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    function(rank, *arguments)
    _end_rank()


def _end_with_test() -> None:
    """A rank does not outlive a test that is killed."""
    multiprocessing.parent_process().join()
    os._exit(1)
