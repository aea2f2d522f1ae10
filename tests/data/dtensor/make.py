"""Records the placements of operators on torch's DTensors, for tests/shardtorch/dtensor_operators_test.cpp.

    make.py > operators.txt

Each line: an operator of CALLS below, the shapes of its tensors, their placements on a 2 x 2 mesh, and the placements of
the result: "add 4x8 8 : S(0),R R,R : S(0),R", or "refused". Needs one process: the group is a fake one, because
placements do not depend on elements. Recorded with torch 2.11.
"""
import itertools
import random
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

SAMPLED, RECORDED = 20, 8  # Placements of one call's tensors: tried, kept.

UNARY = {
    "relu": torch.relu, "exp": torch.exp, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu,
    "neg": torch.neg, "mul_scalar": lambda x: torch.ops.aten.mul.Scalar(x, 2), "div_scalar": lambda x: torch.ops.aten.div.Scalar(x, 2),
    "add_scalar": lambda x: torch.ops.aten.add.Scalar(x, 1), "pow_scalar": lambda x: torch.pow(x, 2),
    "clone": torch.clone, "detach": torch.detach, "to_float": lambda x: x.to(torch.float32), "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like, "full_like": lambda x: torch.full_like(x, 3), "new_zeros_same": lambda x: x.new_zeros(x.shape),
    "new_ones_other": lambda x: x.new_ones((4, 2)), "mul_in_place": lambda x: torch.ops.aten.mul_.Scalar(x, 2),
    "relu_in_place": torch.relu_, "zero_in_place": torch.zero_,
    "sum": torch.sum, "sum_0": lambda x: x.sum(0), "sum_1_kept": lambda x: x.sum(1, keepdim=True), "mean": torch.mean,
    "mean_0": lambda x: x.mean(0), "mean_1": lambda x: x.mean(-1), "max": torch.max, "min": torch.min,
    "amax_1": lambda x: x.amax(1), "amin_0": lambda x: x.amin(0), "var_1": lambda x: x.var(1), "std": torch.std,
    "logsumexp_1": lambda x: x.logsumexp(1), "cumsum_1": lambda x: x.cumsum(1), "softmax_1": lambda x: x.softmax(1),
    "log_softmax_0": lambda x: x.log_softmax(0), "t": torch.t, "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0), "unsqueeze_0": lambda x: x.unsqueeze(0), "unsqueeze_2": lambda x: x.unsqueeze(-1),
    "select_0": lambda x: x.select(0, 1), "select_1": lambda x: x.select(1, 1), "slice_1": lambda x: x[:, 1:3],
    "slice_all": lambda x: x[0:], "narrow_0": lambda x: x.narrow(0, 1, 2), "split_1": lambda x: x.split(4, 1)[0],
    "chunk_0": lambda x: x.chunk(2, 0)[1], "unbind_0": lambda x: x.unbind(0)[0],
    "expand": lambda x: x.expand(3, *x.shape), "triple": lambda x: torch.cat([x, x, x], 1),
}
VIEWS = {
    "view_flat": lambda x: x.view(-1), "view_8_8": lambda x: x.view(8, 8), "view_4_16": lambda x: x.view(4, 16),
    "view_4_2_2_4": lambda x: x.view(4, 2, 2, 4), "view_2_2_2_8": lambda x: x.view(2, 2, 2, 8), "reshape_8_8": lambda x: x.reshape(8, 8),
    "view_4_1_2_8": lambda x: x.view(4, 1, 2, 8), "flatten_0": lambda x: x.flatten(0, 1), "transpose_last": lambda x: x.transpose(1, 2),
    "permute_last": lambda x: x.permute(2, 0, 1), "sum_of_two": lambda x: x.sum((0, 2)), "mean_of_two": lambda x: x.mean((1, 2)),
    "softmax_2": lambda x: x.softmax(-1), "unsqueeze_1": lambda x: x.unsqueeze(1),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum, "eq": torch.eq,
    "add_in_place": lambda x, y: x.add_(y), "atan2": torch.atan2,
}
# The name of a call, the call, and the shapes of its tensors; "i" follows the shape of a tensor of whole numbers.
CALLS = [(name, call, ["4x8"]) for name, call in UNARY.items()]
CALLS += [(name, UNARY[name], ["5x7"]) for name in ("relu", "add_scalar", "sum_0", "mean", "mean_1", "softmax_1", "clone", "t", "unsqueeze_0",
                                                   "slice_1", "zeros_like")]
CALLS += [(name, call, ["4x2x8"]) for name, call in VIEWS.items()]
CALLS += [(name, call, ["4x8", other]) for name, call in BINARY.items() for other in ("4x8", "8", "4x1", "scalar")]
CALLS += [("add", torch.add, ["8", "4x8"]), ("mul", torch.mul, ["8", "4x8"]), ("add", torch.add, ["5x7", "7"])]
CALLS += [
    ("squeeze_1", lambda x: x.squeeze(1), ["4x1x8"]), ("squeeze", torch.squeeze, ["4x1x8"]), ("expand_1", lambda x: x.expand(4, 3, 8), ["4x1x8"]),
    ("where", lambda x, y: torch.where(x > y, x, y), ["4x8", "4x8"]), ("masked_fill", lambda x, y: x.masked_fill(y == 1, 3.0), ["4x8", "4x8i"]),
    ("cat_0", lambda x, y: torch.cat([x, y], 0), ["4x8", "4x8"]), ("cat_1", lambda x, y: torch.cat([x, y], 1), ["4x8", "4x8"]),
    ("stack_0", lambda x, y: torch.stack([x, y], 0), ["4x8", "4x8"]),
    ("mm", torch.mm, ["4x8", "8x16"]), ("mm", torch.mm, ["5x7", "7x3"]), ("mm_t", lambda x, y: torch.mm(x, y.t()), ["4x8", "16x8"]),
    ("matmul", torch.matmul, ["4x2x8", "8x16"]), ("matmul", torch.matmul, ["4x2x8", "4x8x2"]), ("bmm", torch.bmm, ["4x2x8", "4x8x2"]),
    ("addmm", torch.addmm, ["16", "4x8", "8x16"]), ("addmm", torch.addmm, ["4x16", "4x8", "8x16"]),
    ("baddbmm", torch.baddbmm, ["4x2x4", "4x2x8", "4x8x4"]),
    ("linear", F.linear, ["4x8", "16x8"]), ("linear", F.linear, ["4x8", "16x8", "16"]), ("linear", F.linear, ["4x2x8", "16x8", "16"]),
    ("linear", F.linear, ["4x2x8", "16x8"]),
    ("embedding", lambda weight, indices: F.embedding(indices, weight), ["8x4", "4x2i"]),
    ("embedding", lambda weight, indices: F.embedding(indices, weight), ["8x4", "4i"]),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (8,), w, b), ["4x2x8", "8", "8"]), ("layer_norm_plain", lambda x: F.layer_norm(x, (8,)), ["4x8"]),
    ("cross_entropy", F.cross_entropy, ["8x4", "8i"]), ("cross_entropy_sum", lambda x, y: F.cross_entropy(x, y, reduction="sum"), ["8x4", "8i"]),
    ("cross_entropy_none", lambda x, y: F.cross_entropy(x, y, reduction="none"), ["8x4", "8i"]),
]


def shape_of(text: str) -> tuple:
    text = text.rstrip("i")
    return () if text == "scalar" else tuple(map(int, text.split("x")))


def placements_of(text: str) -> list:
    """All placements on the mesh of a tensor with that shape."""
    kinds = [Replicate(), *map(Shard, range(len(shape_of(text))))] + ([] if text.endswith("i") else [Partial()])
    mixed = [] if text.endswith("i") else [(Partial("avg"), Replicate()), (Replicate(), Partial("max"))]
    return [*itertools.product(kinds, kinds), *mixed]


def make(text: str, placements: tuple, mesh) -> DTensor:
    shape = shape_of(text)
    local_shape, _ = compute_local_shape_and_global_offset(shape, mesh, placements)
    local = torch.ones(local_shape, dtype=torch.long if text.endswith("i") else torch.float64)
    whole = torch.empty(shape, device="meta")
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def text_of(placements) -> str:
    return ",".join("P(sum)" if "Mask" in type(each).__name__ else str(each) for each in placements)


def main() -> None:
    warnings.simplefilter("ignore")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2))
    for name, call, texts in CALLS:
        cases = list(itertools.product(*map(placements_of, texts)))
        sampled = random.Random(name + " ".join(texts)).sample(cases, min(SAMPLED, len(cases)))
        for placements in sampled[:RECORDED]:
            if name == "div" and any(each.is_partial() for each in placements[1]):
                continue  # Torch keeps terms of a divisor as terms of the quotient, whose elements are then wrong.
            try:
                result = call(*(make(text, each, mesh) for text, each in zip(texts, placements)))
                found = text_of(result.placements)
            except Exception:  # Torch refuses these placements.
                found = "refused"
            print(name, *texts, ":", *map(text_of, placements), ":", found)


if __name__ == "__main__":
    main()
