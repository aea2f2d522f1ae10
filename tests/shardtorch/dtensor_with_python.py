"""DTensors between C++ and Python, both ways, with real processes: DCP folders and files of torch.save.

    dtensor_with_python.py DTENSOR_PROGRAM LIBTORCH_VERSION

Exits 77 if torch is missing. The tensors are those of dtensor_program.cpp.
"""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

try:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry
except ImportError:
    ShardOrderEntry = None  # Before torch 2.10.

try:
    from torch.distributed._mesh_layout import _MeshLayout
except ImportError:
    _MeshLayout = None  # The form of torch 2.8.

from python_ranks import spawn

PROGRAM = sys.argv[1]
# The form of a mesh's layout in pickles: torch 2.13 has a different one, and loads no mesh of the older one.
STATES_HAVE_AXES = tuple(map(int, sys.argv[2].split("."))) >= (2, 13)
LOADS_AXES = hasattr(_MeshLayout, "from_sizes_strides")
LOADS_PAIR = _MeshLayout is not None and not LOADS_AXES


def cases() -> dict:
    ranks = dist.get_world_size()
    square = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    line = init_device_mesh("cpu", (ranks,), mesh_dim_names=("all",))
    return {"blocks": ((7, 5), torch.bfloat16, square, (Shard(0), Shard(1))),
            "nested": ((9, 2), torch.int64, square, (Shard(0), Shard(0))),
            "replica": ((4, 6), torch.float32, square, (Replicate(), Shard(1))),
            "whole": ((3, 3), torch.float64, square, (Replicate(), Replicate())),
            "strided": ((8, 3), torch.float32, square, (_StridedShard(0, split_factor=ranks // 2), Shard(0))),
            "scalar": ((), torch.float32, line, (Replicate(),)),
            "few": ((2, 3), torch.int32, line, (Shard(0),)),
            "rows": ((10, 6), torch.float32, line, (Shard(0),))}


def counted(shape, dtype) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


def make_state(filled: bool, tensors: dict) -> dict:
    state = {name: distribute_tensor(counted(shape, dtype) if filled else torch.full(shape, 99).to(dtype), mesh, placements)
             for name, (shape, dtype, mesh, placements) in tensors.items()}
    return {**state, "step": 7 if filled else 0}


def check_state(state: dict, tensors: dict) -> None:
    for name, (shape, dtype, mesh, placements) in tensors.items():
        tensor = state[name]
        assert isinstance(tensor, DTensor) and tensor.placements == placements, (name, tensor)
        assert tensor.device_mesh == mesh, (name, tensor.device_mesh, mesh)
        expected = distribute_tensor(counted(shape, dtype), mesh, placements)
        assert torch.equal(tensor.to_local(), expected.to_local()), (name, tensor)
        if name != "scalar":
            assert tensor.stride() == expected.stride(), name
        assert torch.equal(tensor.full_tensor(), counted(shape, dtype)), name
    assert state["step"] == 7


# --- In Python's ranks ---

def save(_rank: int, folder: str) -> None:
    dcp.save(make_state(True, cases()), checkpoint_id=folder)


def load(_rank: int, folder: str) -> None:
    tensors = cases()
    state = make_state(False, tensors)
    dcp.load(state, checkpoint_id=folder)
    check_state(state, tensors)


def load_in_columns(_rank: int, folder: str) -> None:
    """Into placements that differ from the saved ones."""
    line = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = {name: (shape, dtype, line, (Shard(len(shape) - 1) if shape else Replicate(),))
               for name, (shape, dtype, _, _) in cases().items()}
    state = make_state(False, tensors)
    dcp.load(state, checkpoint_id=folder)
    check_state(state, tensors)


def save_state(rank: int, folder: str) -> None:
    state = make_state(True, cases())
    state["replica"] = torch.nn.Parameter(state["replica"])
    if ShardOrderEntry is not None:  # The same cut in other words.
        spec, local = state["strided"]._spec, state["strided"].to_local()
        order = (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
        ordered = DTensorSpec(spec.mesh, (Shard(0), Shard(0)), spec.tensor_meta, shard_order=order)
        state["strided"] = DTensor(local, ordered, requires_grad=False)
    torch.save(state, f"{folder}/rank-{rank}.pt")


def load_state(rank: int, folder: str) -> None:
    tensors = cases()
    check_state(torch.load(f"{folder}/rank-{rank}.pt", weights_only=False), tensors)


def load_ranks(rank: int, folder: str) -> None:
    tensors = cases()
    state = torch.load(f"{folder}/rank-{rank:05}-of-{dist.get_world_size():05}.pt", weights_only=False)
    for name, (shape, dtype, _, placements) in list(tensors.items()):
        if all(placement.is_replicate() for placement in placements):  # Plain in every file.
            assert type(state[name]) is torch.Tensor and torch.equal(state[name], counted(shape, dtype)), name
            del tensors[name]
    check_state(state, tensors)


def disagree(rank: int) -> None:
    """Ranks whose DTensors differ: Python compares nothing, so elements arrive in the wrong places."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    odd = rank == 1
    whole = counted((4, 4), torch.float32)
    local = whole[:, rank:rank + 1].contiguous() if odd else whole[rank:rank + 1]
    tensor = DTensor.from_local(local, mesh, [Shard(1 if odd else 0)], shape=(4, 4), stride=(4, 1), run_check=False)
    assert not torch.equal(tensor.full_tensor(), whole), "Python found out"


# --- Tests ---

def run_program(verb: str, folder: Path, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as rendezvous:
        started = [subprocess.Popen([PROGRAM, verb, folder, f"{rendezvous}/store", str(rank), str(ranks)],
                                    stderr=subprocess.PIPE, text=True) for rank in range(ranks)]
        ended = [(process.communicate(timeout=600)[1], process.returncode) for process in started]
    for errors, code in ended:
        assert code == 0, f"{verb} by {ranks} ranks: {errors}"


class DTensorsWithPython(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-dtensor-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_python_loads_the_checkpoint_that_cpp_saved(self):
        run_program("save", self.folder / "saved", 4)
        spawn(load, 4, str(self.folder / "saved"))
        spawn(load, 2, str(self.folder / "saved"))
        spawn(load_in_columns, 4, str(self.folder / "saved"))

    def test_cpp_loads_the_checkpoint_that_python_saved(self):
        spawn(save, 4, str(self.folder / "saved"))
        run_program("load", self.folder / "saved", 4)
        run_program("load", self.folder / "saved", 2)

    @unittest.skipUnless(LOADS_AXES if STATES_HAVE_AXES else LOADS_PAIR, "this torch loads no mesh of that LibTorch")
    def test_python_loads_the_states_that_cpp_saved(self):
        run_program("save-state", self.folder, 4)
        spawn(load_state, 4, str(self.folder))

    @unittest.skipUnless(LOADS_PAIR, "this torch loads no mesh of torch 2.11, whose form these files have")
    def test_python_loads_the_files_of_ranks_that_cpp_saved(self):
        run_program("save-ranks", self.folder / "saved", 4)
        spawn(load_ranks, 4, str(self.folder / "saved"))
        run_program("load", self.folder / "saved", 2)

    def test_python_does_not_notice_that_ranks_disagree(self):
        """C++ does, with the same tensors: disagreement_test.cpp, AboutADTensor."""
        spawn(disagree, 4)

    def test_cpp_loads_the_states_that_python_saved(self):
        spawn(save_state, 4, str(self.folder))
        run_program("load-state", self.folder, 4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
