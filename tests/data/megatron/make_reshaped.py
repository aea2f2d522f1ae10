"""Saves an optimizer's tensors as runs of the ranks' blocks, with the real Megatron-Core up to 0.15: make_reshaped.py OUT.

The runs are what its DistributedOptimizer hands over under fully_sharded_model_space (sharded_param_state_fs_model_space of
megatron/core/optimizer/distrib_optimizer.py), here of made tensors, as the optimizer itself wants a GPU. 4 ranks: 2
tensor-parallel x 2 data-parallel. OUT.safetensors is its truth.

`reshaped_listed` is of core 0.15.3. `reshaped` is of 0.14.0 with torch 2.11, which lost `mcore_data` on the way.
Needs that megatron-core and torch on PYTHONPATH.
"""
import argparse
import queue
import shutil
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.utils.cpp_extension

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from python_ranks import spawn  # noqa: E402

LAYERS, TP, DP = 2, 2, 2
# Name -> (shape of one layer, the dimension that is cut over tensor-parallel ranks or None, whether layers are stacked).
TENSORS = {
    "embedding.word_embeddings.weight": ((8, 3), 0, False),
    "decoder.layers.self_attention.linear_proj.weight": ((5, 6), 1, True),
    "decoder.layers.mlp.linear_fc1.weight": ((12, 5), 0, True),  # Gate and up: two blocks of a rank.
    "decoder.layers.input_layernorm.weight": ((7,), None, True),
    "decoder.final_layernorm.weight": ((7,), None, False),
}
STATES = ("", "optimizer.state.exp_avg.")  # The parameters themselves, and one state of each.


def truth() -> dict[str, torch.Tensor]:
    whole, at = {}, 0
    for state in STATES:
        for name, (shape, _, is_stacked) in TENSORS.items():
            shape = (LAYERS, *shape) if is_stacked else shape
            count = torch.Size(shape).numel()
            whole[state + name] = torch.arange(at, at + count, dtype=torch.float32).reshape(shape)
            at += count
    return whole


def blocks(key: str, whole: torch.Tensor, name: str, tp: int):
    """The ShardedTensors of one tensor-parallel rank, in their own shape."""
    from megatron.core.dist_checkpointing import ShardedTensor

    _, axis, is_stacked = TENSORS[name]
    pieces = 2 if name.endswith("fc1.weight") else 1
    for layer in range(LAYERS if is_stacked else 1):
        tensor = whole[layer] if is_stacked else whole
        layers = [(0, layer, LAYERS)] if is_stacked else []
        for piece in range(pieces if axis is not None else 1):
            number, count = piece * TP + tp, pieces * TP
            data = tensor if axis is None else tensor.chunk(count, axis)[number]
            cut = [] if axis is None else [(axis + len(layers), number, count)]
            yield ShardedTensor.from_rank_offsets(key, data.contiguous(), *layers, *cut, prepend_axis_num=len(layers),
                                                  replica_id=(0, 0 if axis is not None else tp, 0))


def no_compiler(*_, **__):
    """Core 0.15 compiles for a GPU when it is imported, and continues if it cannot."""
    raise ImportError


def save_rank(rank: int, out: str) -> None:
    torch.utils.cpp_extension.load_inline = no_compiler
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies import async_utils, filesystem_async

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.Stream = lambda *_, **__: None
    filesystem_async._process_memory = lambda: 0  # Wants psutil.
    results = queue.Queue()
    filesystem_async._get_write_results_queue = lambda: results  # Core's is a process that would outlive this one.
    filesystem_async.mp = async_utils.mp = SimpleNamespace(get_context=lambda _: SimpleNamespace(
        Queue=queue.Queue, JoinableQueue=queue.Queue, Process=threading.Thread))  # Core forks, which may block for good.
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=TP)
    tp, dp = rank % TP, rank // TP
    state = {}
    for key, whole in truth().items():
        is_state = key.startswith(STATES[1])
        for i, block in enumerate(blocks(key, whole, key.removeprefix(STATES[1]), tp)):
            if not is_state:
                state[f"{key} {i}"] = replace(block, replica_id=(*block.replica_id[:2], dp))
                continue
            count, cut = block.data.numel(), block.data.numel() * 2 // 5 + 1  # Not at the end of a row.
            run = slice(0, cut) if dp == 0 else slice(cut, count)
            state[f"{key} {i}"] = replace(block, data=block.data.flatten()[run], flattened_range=run)
    common = {"args": argparse.Namespace(num_layers=LAYERS), "checkpoint_version": 3.0, "iteration": 3,
              "content_metadata": {"distrib_optim_sharding_type": "fully_sharded_model_space"}}
    if rank == 0:
        Path(out).mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save({**state, **common}, out, validate_access_integrity=False)


if __name__ == "__main__":
    from safetensors.torch import save_file

    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:  # The save records its folder.
        spawn(save_rank, TP * DP, f"{scratch}/reshaped")
        shutil.copytree(f"{scratch}/reshaped", folder)
    save_file(truth(), f"{folder}.safetensors")
