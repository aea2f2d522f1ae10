"""Ranks of real torch over gloo, for tests that compare with it."""
import contextlib
import importlib
import multiprocessing
import os
import sys
import tempfile
import threading
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

torch.set_num_threads(1)  # Forks of a process that has more of them can wait for ever.

# The test imports these before it forks its ranks, because each import takes seconds. Modules that this torch lacks are
# skipped. DTensor imports torch._dynamo at first use.
PRELOADED = ["torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.distributed.checkpoint",
             "torch.distributed._shard.sharded_tensor", "torch._dynamo"]


def spawn(function, ranks: int, *arguments) -> None:
    """Runs function(rank, *arguments) on gloo ranks, each in a process with a formed group.

    They are forks of this process. Its torch has one thread and no group.
    """
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as rendezvous:
        mp.start_processes(_rank, (ranks, f"file://{rendezvous}/store", function, arguments), nprocs=ranks, start_method="fork")


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
    warnings.filterwarnings("ignore", category=FutureWarning)  # ShardedTensor warns at every use.
    torch.seed()  # The test's own seed would be the same on all ranks.
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=ranks)
    function(rank, *arguments)
    _end_rank()


def _end_with_test() -> None:
    """A rank does not outlive a test that is killed."""
    multiprocessing.parent_process().join()
    os._exit(1)
