"""States of 4 ranks with FSDP2 and tensor parallelism, by load_state_dict, save and DCP, with the real torch. Environment:
as for native_test.py."""
import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, FullyShardedDataParallel, StateDictType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel
from torch.distributed.tensor.placement_types import _StridedShard

import shardctl
from shardctl._ranks import call_of
from state_case import Case, model, same

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
from python_ranks import PRELOADED  # noqa: E402: it finds the module there


def in_rank(rank: int, world: int, port: int, work: Callable, arguments: tuple, failures: object) -> None:
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        work(*arguments)
    except BaseException:
        failures.put(f"rank {rank}: {traceback.format_exc()}")
    dist.destroy_process_group()


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def sharded(seed: int, kind: str) -> torch.nn.Module:
    """The model under FSDP2 over 4 ranks, or over 2 ranks times tensor parallelism over 2."""
    built = model(seed)
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (4,))
    else:
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(built, both["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = both["dp"]
    for layer in built:
        fully_shard(layer, mesh=mesh)
    return fully_shard(built, mesh=mesh)


def check_rank(path: str, kind: str, through_dcp: bool) -> None:
    wanted = model(1).state_dict()
    filled = sharded(2, kind)
    if through_dcp:
        state = get_model_state_dict(filled)
        dcp.load(state, storage_reader=shardctl.dcp.Reader(path))
    else:
        shardctl.load_state_dict(path, filled)
    found = filled.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        assert torch.equal(full(tensor), wanted[name]), name
    if not through_dcp:
        check_assign(path, kind, wanted)


def check_assign(path: str, kind: str, wanted: dict) -> None:
    filled = sharded(3, kind)
    shardctl.load_state_dict(path, filled, assign=True)
    for name, tensor in filled.state_dict().items():
        assert torch.equal(full(tensor), wanted[name]), name


def check_tied(path: str) -> None:
    with torch.device("meta"):
        filled = torch.nn.Sequential(torch.nn.Embedding(8, 3), torch.nn.Linear(3, 8, bias=False))
        filled[1].weight = filled[0].weight
    fully_shard(filled, mesh=init_device_mesh("cpu", (4,)))
    shardctl.load_state_dict(path, filled, assign=True)
    assert filled[0].weight is filled[1].weight
    assert torch.equal(filled[1].weight.full_tensor(), torch.arange(24.).reshape(8, 3))


def check_fsdp1(path: str) -> None:
    """The state dict of FSDP1 has copies of the parameters."""
    wanted = model(1).state_dict()
    for kind in (StateDictType.SHARDED_STATE_DICT, StateDictType.FULL_STATE_DICT):
        filled = FullyShardedDataParallel(model(2), device_id=torch.device("cpu"), use_orig_params=True)
        FullyShardedDataParallel.set_state_dict_type(filled, kind)
        shardctl.load_state_dict(path, filled)
        with FullyShardedDataParallel.summon_full_params(filled):
            for name, parameter in filled.module.named_parameters():
                assert torch.equal(parameter, wanted[name]), (kind, name)


def check_bytes(path: str) -> None:
    """Each rank reads only its own pieces."""
    state = {"w": dist.tensor.distribute_tensor(torch.zeros(64, 1024), init_device_mesh("cpu", (4,)), [dist.tensor.Shard(0)])}
    with shardctl.open(path) as found:
        counted = []
        read = found.read_into
        found.read_into = lambda *given, **more: counted.append(read(*given, **more))  # type: ignore[method-assign]
        shardctl.load_state_dict(found, state)
    assert counted == [16 * 1024 * 4], counted


def check_loaded(path: str, kind: str) -> None:
    """torch's own reader loads a checkpoint of dcp into a module that is sharded in the same way."""
    filled = sharded(2, kind)
    state = {"model": get_model_state_dict(filled), "step": 0, "deep": [{"x": torch.zeros(2)}], "plain": torch.zeros(6)}
    dcp.load(state, checkpoint_id=path)
    for name, tensor in state["model"].items():
        assert torch.equal(full(tensor), model(1).state_dict()[name]), name
    assert state["step"] == 7 and state["deep"][0]["x"].sum() == 2 and torch.equal(state["plain"], torch.arange(6.)), state


def check_save(folder: str, kind: str) -> None:
    """All ranks save one checkpoint of their pieces, in formats of pieces and of whole tensors, also through DCP."""
    tensors = sharded(1, kind).state_dict()
    state = {"model": tensors, "step": 7, "deep": [{"x": torch.ones(2)}], "plain": torch.arange(6.)}
    shardctl.save(state, f"{folder}/{kind}", to="dcp", manifest=True)
    check_loaded(f"{folder}/{kind}", kind)
    dcp.save(state, storage_writer=shardctl.dcp.Writer(f"{folder}/{kind}-writer"))
    check_loaded(f"{folder}/{kind}-writer", kind)
    dcp.save(state, storage_writer=shardctl.dcp.Writer(f"{folder}/{kind}-writer.pt"))
    shardctl.save(tensors, f"{folder}/{kind}.safetensors")
    shardctl.save(state, f"{folder}/{kind}.pt")
    if kind == "fsdp":  # With "tp", some tensors are on a part of the mesh, so files of ranks would repeat pieces.
        shardctl.save(tensors, f"{folder}/{kind}-ranks", to="torch-ranks")
    shardctl.save(state, f"{folder}/{kind}-like", like=f"{folder}/{kind}")


def check_sharded_tensor(folder: str) -> None:
    """Rank 3 has no shard."""
    rank = dist.get_rank()
    metadata = sharded_tensor.ShardMetadata([2 * rank, 0], [2, 3], f"rank:{rank}/cpu")
    shards = [sharded_tensor.Shard(torch.full((2, 3), float(rank)), metadata)] if rank < 3 else []
    tensor = sharded_tensor.init_from_local_shards(shards, 6, 3)
    shardctl.save({"w": tensor}, f"{folder}/shards.safetensors")


def check_strided(folder: str) -> None:
    """A rank may have several boxes of a DTensor."""
    rank = dist.get_rank()
    wanted = torch.arange(16.)
    own = torch.cat([wanted[2 * rank:2 * rank + 2], wanted[8 + 2 * rank:8 + 2 * rank + 2]])
    placements = [_StridedShard(0, split_factor=2)]
    mesh = init_device_mesh("cpu", (4,))
    whole = {"shape": (16,), "stride": (1,)}
    shardctl.save({"w": DTensor.from_local(own, mesh, placements, run_check=False, **whole)}, f"{folder}/strided.safetensors")
    assert torch.equal(safetensors.torch.load_file(f"{folder}/strided.safetensors")["w"], wanted)
    filled = DTensor.from_local(torch.zeros(4), mesh, placements, run_check=False, **whole)
    shardctl.load_state_dict(f"{folder}/strided.safetensors", {"w": filled})
    assert torch.equal(filled.to_local(), own), filled.to_local()


def check_refusals(folder: str) -> None:
    """The failure of one rank ends the call on all of them, and no rank waits."""
    mesh, rank = init_device_mesh("cpu", (4,)), dist.get_rank()
    tensor = dist.tensor.distribute_tensor(torch.zeros(8), mesh, [dist.tensor.Shard(0)])
    endless: dict = {}
    endless["self"] = endless
    for attempt, destination, kind in (
        (endless, "none.pt", shardctl.Usage),
        ({"w": tensor, "wrong": torch.zeros(1, device="meta") if rank == 2 else 0}, "none.pt",
         shardctl.Usage if rank == 2 else shardctl.Communication),
        ({"w": tensor}, "fsdp.safetensors", shardctl.Exists),
        ({"w": tensor, "other": torch.zeros(1 + rank % 2)}, "none.pt", shardctl.Usage),
        ({"w": tensor}, f"none{rank}.pt", shardctl.Usage),
    ):
        try:
            shardctl.save(attempt, f"{folder}/{destination}")
        except kind:
            continue
        raise AssertionError(f"{attempt} was saved")
    try:
        shardctl.save({"w": tensor}, f"{folder}/none.pt", collective=False)
    except shardctl.Usage as error:
        assert error.tensor == "w" and error.hint is not None, error
    else:
        raise AssertionError("one rank saved a DTensor")
    shardctl.save({"w": torch.full((2,), float(rank))}, f"{folder}/own{rank}.safetensors")
    shardctl.save({f"w{rank}": torch.full((2,), float(rank))}, f"{folder}/all.safetensors", collective=True)


def check_bad_variable(folder: str) -> None:
    """A variable that one rank cannot use ends the call on all of them."""
    is_wrong = dist.get_rank() == 2
    for text in ("none", "0"):
        with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": text if is_wrong else "4"}):
            try:
                shardctl.save({"w": torch.ones(2)}, f"{folder}/none.pt", collective=True)
            except (shardctl.Usage if is_wrong else shardctl.Communication) as error:
                assert "LOCAL_WORLD_SIZE" in str(error), error
            else:
                raise AssertionError(f"it was saved with LOCAL_WORLD_SIZE={text}")
    with mock.patch.dict(os.environ, {"LOCAL_WORLD_SIZE": ""}):
        shardctl.save({"w": torch.ones(2)}, f"{folder}/variable.pt", collective=True)


def is_saved_in_spite_of_ctrl_c(state: dict, path: str) -> bool:
    """The same answer on every rank. A busy machine may deliver the signal when the file is complete."""
    rank, saved = dist.get_rank(), [False]
    stop = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    try:
        if rank == 2:
            stop.start()
        shardctl.save(state, path, manifest=True)
        saved = [True]
        if rank == 2:
            stop.join()
            time.sleep(10)
    except (KeyboardInterrupt,) if rank == 2 else (shardctl.Interrupted, shardctl.Communication):
        pass  # Communication: it came before the files were begun.
    dist.broadcast_object_list(saved, 0)
    assert saved[0] == Path(path).exists()
    return saved[0]


def check_stopped(folder: str) -> None:
    """Ctrl-C on one rank, and the end of one, end the call on all of them; the destination is unchanged."""
    mesh, rank = init_device_mesh("cpu", (4,)), dist.get_rank()
    state = {"w": dist.tensor.distribute_tensor(torch.zeros(256, 1 << 20, dtype=torch.uint8), mesh, [dist.tensor.Shard(0)])}
    if all(is_saved_in_spite_of_ctrl_c(state, f"{folder}/stopped{attempt}.pt") for attempt in range(5)):
        raise AssertionError("it was saved in spite of Ctrl-C")
    dist.barrier()
    check_late_rank(f"{folder}/late.safetensors", state)
    if rank == 3:
        time.sleep(0.05)
        os._exit(0)
    try:
        shardctl.save(state, f"{folder}/none.pt", manifest=True)
    except shardctl.Communication:
        return
    raise AssertionError("it was saved without rank 3")


def check_late_rank(path: str, state: dict) -> None:
    """A call does not inherit the short timeout of an interrupted one."""
    if dist.get_rank() == 1:
        time.sleep(0.6)
    shardctl.save(state, path)


def check_lost_connections(folder: str) -> None:
    """A rank that gives up waiting closes its connections. The next call connects all ranks again, though some may not have
    noticed."""
    rank = dist.get_rank()
    rank = dist.get_rank()
    for late in (0, 1, 3):
        with contextlib.suppress(shardctl.Communication), call_of(dist.group.WORLD) as ranks:
            if rank == 2:
                ranks.set_timeout(0.05)
            if rank == late:
                time.sleep(0.3)
            ranks.agree(None)
            assert rank != 2, "it did not give up"
        shardctl.save({f"w{rank}": torch.ones(2)}, f"{folder}/{late}.safetensors", collective=True)


def check_all(path: str, large: str, tied: str, folder: str) -> None:
    check_rank(path, "fsdp", False)
    check_rank(path, "tp", False)
    check_rank(path, "fsdp", True)
    check_tied(tied)
    check_fsdp1(path)
    check_bytes(large)
    check_save(folder, "fsdp")
    check_save(folder, "tp")
    check_sharded_tensor(folder)
    check_strided(folder)
    check_refusals(folder)
    check_bad_variable(folder)
    check_lost_connections(folder)
    check_stopped(folder)


class Ranks(Case):
    def test_each_of_four_ranks_loads_and_saves_its_own_pieces(self) -> None:
        """FSDP2 and tensor parallelism, by load_state_dict and save, and through DCP."""
        tied = torch.arange(24.).reshape(8, 3)
        paths = [str(path) for path in (self.saved(model(1).state_dict()),
                                        self.saved({"w": torch.randn(64, 1024)}, "large.safetensors"),
                                        self.saved({"0.weight": tied, "1.weight": tied}, "tied.pt"))]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        failures = context.SimpleQueue()
        saved = self.folder / "saved"
        saved.mkdir()
        torch.multiprocessing.start_processes(in_rank, (4, port, check_all, (*paths, str(saved)), failures), nprocs=4,
                                              start_method="forkserver")
        self.assertTrue(failures.empty(), failures.empty() or failures.get())
        for kind in ("fsdp", "tp"):
            self.check_saved(saved, kind)
        self.assertTrue(torch.equal(safetensors.torch.load_file(saved / "shards.safetensors")["w"],
                                    torch.arange(3.).repeat_interleave(2)[:, None].expand(6, 3)))
        self.assertEqual({name: tensor[0] for name, tensor in safetensors.torch.load_file(saved / "all.safetensors").items()},
                         {f"w{rank}": rank for rank in range(4)})
        self.assertEqual([path.name for path in saved.iterdir() if path.name.startswith((".", "none"))], [])

    def check_saved(self, saved: Path, kind: str) -> None:
        wanted = model(1).state_dict()
        self.assertTrue(same(safetensors.torch.load_file(saved / f"{kind}.safetensors"), wanted))
        self.assertTrue(shardctl.verify(saved / kind))
        for name in (f"{kind}.pt", f"{kind}-writer.pt"):
            loaded = torch.load(saved / name, weights_only=True)
            self.assertTrue(same(loaded["model"], wanted), name)
            self.assertEqual((loaded["step"], loaded["deep"][0]["x"].tolist()), (7, [1, 1]))
        ranks = [(f"{kind}-ranks", "")] if kind == "fsdp" else []
        for name, prefix in ((kind, "model."), (f"{kind}-writer", "model."), (f"{kind}-like", "model."), *ranks):
            filled = model(2)
            shardctl.load_state_dict(saved / name, filled, prefix=prefix)
            self.assertTrue(same(filled.state_dict(), wanted), name)
        weights = [shardctl.open(saved / name)["model.0.weight"] for name in (kind, f"{kind}-like")]
        self.assertEqual([len(weight.chunks) for weight in weights], [4, 4])


if __name__ == "__main__":
    unittest.main()
