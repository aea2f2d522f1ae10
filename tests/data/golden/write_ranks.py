"""Writes the golden checkpoints that need several ranks: DCP folders and per-rank files.

Usage: write_ranks.py RANK WORLD_SIZE RENDEZVOUS_FILE OUT_JSON, in the folder that receives them, once per rank
"""

import datetime
import itertools
import json
import os
import pathlib
import shutil
import sys
import traceback
import uuid
import warnings

import torch
import torch.distributed as dist

import dcp
import sharding
from golden_values import NEW_DTYPES, available, expect, leaves, map_tensors, model, of_dtype, training
from sharding import Replicate, Shard, StridedShard

warnings.filterwarnings("ignore")


def rows(full, past_the_end=True):
    """Every tensor with dimensions in rows, as ShardedTensor."""
    cut = sharding.chunk_spec_tensor if past_the_end else sharding.rows_tensor
    return map_tensors(full, lambda name, tensor: cut(tensor) if tensor.dim() else tensor)


def placed(full, shape, choose):
    """Every tensor as DTensor on one mesh; choose(tensor) gives the placements."""
    if Shard is None:
        raise NotImplementedError("this torch has no DTensor")
    mesh = sharding.mesh(*shape)

    def change(name, tensor):
        result = sharding.distribute(tensor, mesh, choose(tensor))
        if hasattr(result, "full_tensor") and tensor.dtype in (torch.float32, torch.bfloat16, torch.int64):
            assert torch.equal(result.full_tensor(), tensor), f"{name}: this torch gathers something else"
        return result

    return map_tensors(full, change)


def grid(tensor):
    return [Shard(0), Shard(1) if tensor.dim() > 1 else Replicate()]


def fsdp_tp(tensor):
    if StridedShard is None:
        raise NotImplementedError("this torch has no _StridedShard")
    return [StridedShard(0, split_factor=2), Shard(0)]


def uneven():
    return {
        "five": torch.arange(15, dtype=torch.float32).reshape(5, 3),
        "one": torch.arange(4, dtype=torch.int16).reshape(1, 4),
    }


def uneven_boxes(full):
    """Several shards a rank, of different sizes and in no order of ranks; one rank with none."""
    boxes = {
        "five": [(3, (4, 0), (1, 3)), (0, (0, 0), (2, 3)), (0, (2, 2), (2, 1)), (1, (2, 0), (2, 2))],
        "one": [(1, (0, 3), (1, 1)), (3, (0, 0), (1, 3))],
    }
    return map_tensors(full, lambda name, tensor: sharding.boxes_tensor(tensor, boxes[name]))


def two_blocks(full):
    """A grid of boxes on two ranks, two or three each."""
    result = {}
    for name, tensor in full.items():
        cuts = [[0, (size + 1) // 2, size] for size in tensor.shape]
        parts = itertools.product(*[zip(cut, cut[1:]) for cut in cuts])
        boxes = [(i % 2, [a for a, _ in part], [b - a for a, b in part]) for i, part in enumerate(parts)]
        result[name] = sharding.boxes_tensor(tensor, boxes)
    return result


def differing():
    """State that ranks do not share, which a reader lists once per rank."""
    rank = dist.get_rank()
    own = {"rng": torch.arange(4, dtype=torch.uint8) + 10 * rank, "seen": 100 + rank}
    common = {"same": torch.arange(3), "step": 7, "weight": torch.arange(8, dtype=torch.float32).reshape(4, 2)}
    return own, common


def few_dtypes():
    names = ["bool", "float16", "uint16", "complex128", "float8_e4m3fn", "float4_e2m1fn_x2"]
    return {name: of_dtype(name, rows=3, columns=2) for name in available(names)}


def many_values():
    """Tensors that are whole on one rank."""
    names = available(["bool", "int8", "float64", "complex32", "complex128", *NEW_DTYPES])
    return {**{name: of_dtype(name, 2, 2) for name in names}, "zero_d": torch.tensor(2.5), "empty": torch.zeros(0, 3)}


def model_and_objects():
    return {**model(), "step": 5, "note": "compressed"}


def by_rows(full):
    return placed(full, (dist.get_world_size(),), lambda tensor: [Shard(0)])


def kept_rows(full):
    return rows(full, past_the_end=False)


def same(full):
    return full


NAMES = ["rank_{rank}.pt", "model_world_size_{world}_rank_{rank}.pt", "ckpt-{rank:05}-of-{world:05}.pt"]
STEPS = {  # ranks: name: (format, full value, cut for this rank, options)
    2: {
        "dcp_item_files": ("dcp", model, kept_rows, {"single_file_per_rank": False}),
        "dcp_threads": ("dcp", model, kept_rows, {"single_file_per_rank": True, "thread_count": 2}),
        "dcp_training": ("dcp", training, kept_rows if dcp.FLATTENS else same, {}),
        "dcp_dtensor": ("dcp", model, by_rows, {}),
        "dcp_plain": ("dcp", many_values, same, {}),
        "dcp_dtypes": ("dcp", few_dtypes, by_rows, {}),
        "dcp_blocks": ("dcp", model, two_blocks, {}),
        "dcp_zstd": ("dcp", model_and_objects, by_rows, {"zstd": True}),
        "dcp_local": ("dcp", model, by_rows, {"use_collectives": False}),
        "dcp_hf": ("dcp-hf", model, by_rows, {"hf": {"save_distributed": True}}),
        "dcp_hf_two_files": (
            "dcp-hf",
            model,
            by_rows,
            {
                "hf": {
                    "save_distributed": True,
                    "fqn_to_index_mapping": {"embed.weight": 1, "layer.bias": 2, "layer.weight": 2},
                }
            },
        ),
        "dcp_hf_dtypes": (
            "dcp-hf",
            lambda: {name: of_dtype(name) for name in HF_DTYPES if hasattr(torch, name)},
            by_rows,
            {"hf": {"save_distributed": True}},
        ),
        "dcp_hf_consolidated": (
            "dcp-hf",
            model,
            by_rows,
            {"hf": {"save_distributed": True, "enable_consolidation": True}},
        ),
        "dcp_hf_consolidated_floats": (
            "dcp-hf",
            lambda: {name: tensor for name, tensor in model().items() if tensor.is_floating_point()},
            by_rows,
            {"hf": {"save_distributed": True, "enable_consolidation": True}},
        ),
        "ranks_sharded": ("torch-ranks", model, rows, {"file": NAMES[0]}),
        "ranks_dtensor": ("torch-ranks", model, by_rows, {"file": NAMES[1]}),
        "ranks_training": ("torch-ranks", training, rows, {"file": NAMES[2]}),
        "ranks_columns": (
            "torch-ranks",
            uneven,
            lambda full: map_tensors(full, lambda name, t: sharding.chunk_spec_tensor(t, dim=t.dim() - 1)),
            {"file": NAMES[0]},
        ),
        "ranks_blocks": ("torch-ranks", model, two_blocks, {"file": NAMES[0]}),
        "ranks_reversed": (
            "torch-ranks",
            model,
            lambda full: map_tensors(full, lambda name, tensor: sharding.chunk_spec_tensor(tensor, reverse=True)),
            {"file": "rank{rank}.pt"},
        ),
        "ranks_dtypes": ("torch-ranks", few_dtypes, by_rows, {"file": NAMES[0]}),
        "ranks_strided": (
            "torch-ranks",
            model,
            lambda full: placed(full, (2,), lambda t: fsdp_tp(t)[:1]),
            {"file": NAMES[0]},
        ),
        "ranks_differ": (
            "torch-ranks",
            differing,
            lambda full: {**full[0], **{k: rows(v) if k == "weight" else v for k, v in full[1].items()}},
            {"file": NAMES[0]},
        ),
    },
    4: {
        "dcp_sharded": ("dcp", model, kept_rows, {"single_file_per_rank": True}),
        "ranks_sharded": ("torch-ranks", model, rows, {"file": NAMES[2]}),
        "ranks_dtensor": ("torch-ranks", model, by_rows, {"file": NAMES[1]}),
        "dcp_uneven": ("dcp", uneven, kept_rows, {}),
        "dcp_uneven_dtensor": ("dcp", uneven, by_rows, {}),
        "dcp_boxes": ("dcp", uneven, uneven_boxes, {}),
        "dcp_mesh": ("dcp", model, lambda full: placed(full, (2, 2), grid), {}),
        "dcp_replica": ("dcp", model, lambda full: placed(full, (2, 2), lambda t: [Replicate(), Shard(0)]), {}),
        "dcp_strided": ("dcp", model, lambda full: placed(full, (2, 2), fsdp_tp), {}),
        "dcp_hf": (
            "dcp-hf",
            model,
            lambda full: placed(full, (2, 2), grid),
            {"hf": {"save_distributed": True}},
        ),
        "ranks_uneven": ("torch-ranks", uneven, rows, {"file": NAMES[2]}),
        "ranks_uneven_dtensor": ("torch-ranks", uneven, by_rows, {"file": NAMES[0]}),
        "ranks_boxes": ("torch-ranks", uneven, uneven_boxes, {"file": NAMES[0]}),
        "ranks_mesh": ("torch-ranks", model, lambda full: placed(full, (2, 2), grid), {"file": NAMES[0]}),
        "ranks_replica": (
            "torch-ranks",
            model,
            lambda full: placed(full, (2, 2), lambda t: [Replicate(), Shard(0)]),
            {"file": NAMES[0]},
        ),
        "ranks_strided": ("torch-ranks", model, lambda full: placed(full, (2, 2), fsdp_tp), {"file": NAMES[0]}),
    },
}
HF_DTYPES = (
    """bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2 uint16 uint32
    uint64 complex64""".split()
)


def local_content(value):
    """This rank's tensors with their boxes; equal before saving and after loading."""
    found = []
    for path, leaf in leaves(value):
        if hasattr(leaf, "local_shards"):
            found += [(path, shard.metadata.shard_offsets, expect(shard.tensor)) for shard in leaf.local_shards()]
        elif hasattr(leaf, "to_local"):
            found.append((path, list(leaf.shape), expect(leaf.to_local())))
        else:
            found.append((path, None, expect(leaf)))
    return found


def save_ranks(name, cut, file):
    path = pathlib.Path(name, file.format(rank=dist.get_rank(), world=dist.get_world_size()))
    path.parent.mkdir(exist_ok=True)
    torch.save(cut, str(path))
    try:
        options = {"weights_only": False} if "weights_only" in torch.load.__doc__ else {}
        return local_content(torch.load(str(path), **options)) == local_content(cut) or "other content"
    except Exception as error:
        return dcp.reason(error)


def expectation(full):
    if not isinstance(full, tuple):
        return expect(full)
    owns = [None] * dist.get_world_size()
    dist.all_gather_object(owns, expect(full[0]))
    common = expect(full[1])
    for rank, own in enumerate(owns):
        for kind, entries in own.items():
            common[kind] += [{**entry, "rank": rank} for entry in entries]
    return {kind: sorted(entries, key=lambda e: (e["name"], e.get("rank", 0))) for kind, entries in common.items()}


def write(name, form, make, cut, options):
    """One checkpoint; every rank gets to the end, so that a version that cannot do it loses only this one."""
    failure, loaded, expected = None, False, {}
    try:
        full = make()
        expected = expectation(full)
        mine = cut(full)
        loaded = save_ranks(name, mine, **options) if form == "torch-ranks" else dcp.save(name, full, mine, **options)
    except dcp.FAILURES as error:
        traceback.print_exc()
        failure = dcp.reason(error)
    outcomes = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, (failure, loaded))
    failure = next((outcome[0] for outcome in outcomes if outcome[0]), None)
    if failure and dist.get_rank() == 0:
        shutil.rmtree(name, ignore_errors=True)
    result = {
        "format": form,
        **expected,
        "loaded_by_torch": next((found for _, found in outcomes if found is not True), True),
    }
    if make in (model, model_and_objects):
        result["same_model"] = True
    return failure, result


def main():
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    numbers = itertools.count(1)
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[3]}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    result = {"checkpoints": {}, "not_written": {}}
    for name, step in STEPS[world].items():
        name = f"{name}_r{world}"
        failure, expected = write(name, *step)
        if failure:
            result["not_written"][name] = failure
            continue
        result["checkpoints"][name] = expected
        if name.startswith("dcp_hf_consolidated"):
            result["checkpoints"][name] = {**expected, "format": "safetensors", "group": "dcp-hf"}
            result["checkpoints"][f"{name}/sharded"] = expected
    if rank == 0:
        pathlib.Path(sys.argv[4]).write_text(json.dumps(result))
    dist.barrier()
    os._exit(0)  # taking gloo's threads down ends in std::terminate now and then


if __name__ == "__main__":
    main()
