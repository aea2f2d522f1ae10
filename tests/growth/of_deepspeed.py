"""Saves of DeepSpeed's engine, and universal checkpoints."""
from pathlib import Path

from build import dict_of, number, size_of, tensor, text, torch_file
from family import Family
from of_dcp import listed

MODEL, OPTIMIZER = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def mapping(items) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items) + b"u"


def model(shapes: bytes, ranks: int) -> bytes:
    config = dict_of(zero_optimization=dict_of(stage=number(2)))
    return torch_file(dict_of(module=b"}", param_shapes=shapes, dp_world_size=number(ranks), ds_config=config))


def optimizer(lengths: list[int], ranks: int) -> bytes:
    groups, first = [], 0
    for length in lengths:
        groups.append(tensor([length], [1], first, sum(lengths)))
        first += length
    base = dict_of(state=b"}", param_groups=b"]")
    zero = dict_of(zero_stage=number(2), partition_count=number(ranks), single_partition_of_fp32_groups=listed(groups),
                   base_optimizer_state=base)
    return torch_file(dict_of(optimizer_state_dict=zero), bytes(4 * sum(lengths)))


def save(folder: Path, groups: list[list[tuple[str, int]]], ranks: int) -> Path:
    """A save of stage 2 whose groups' elements are a multiple of 2 x ranks."""
    shapes = listed([mapping((key, size_of([count])) for key, count in group) for group in groups])
    (folder / "ckpt").mkdir()
    (folder / "ckpt" / MODEL).write_bytes(model(shapes, ranks))
    lengths = [sum(count for _, count in group) // ranks for group in groups]
    for rank in range(ranks):
        (folder / "ckpt" / OPTIMIZER.format(rank)).write_bytes(optimizer(lengths, ranks))
    return folder / "ckpt"


def params(folder: Path, n: int) -> Path:
    return save(folder, [[(f"p{i}", 2) for i in range(n)]], 1)


def groups(folder: Path, n: int) -> Path:
    return save(folder, [[(f"p{i}", 2)] for i in range(n)], 1)


def ranks(folder: Path, n: int) -> Path:
    return save(folder, [[("w", 2 * n)]], n)


def universal(folder: Path, n: int) -> Path:
    root = save(folder, [[(f"p{i}", 1) for i in range(n)]], 1)
    (root / OPTIMIZER.format(0)).unlink()
    (root / "zero").mkdir()
    (root / "zero" / "optimizer_state.pt").write_bytes(torch_file(dict_of(zero_stage=number(2))))
    for i in range(n):
        (root / "zero" / f"p{i}").mkdir()
        held = torch_file(dict_of(cat_dim=number(0), param=tensor([1], [1], 0, 1)), bytes(4))
        (root / "zero" / f"p{i}" / "fp32.pt").write_bytes(held)
    return root


FAMILIES = [
    Family("deepspeed", "parameters", 500, params),
    Family("deepspeed", "groups", 250, groups),
    Family("deepspeed", "ranks", 8, ranks, members=3, most=256),
    Family("deepspeed-universal", "parameters", 25, universal, members=3, most=1024),
]
