"""Random calls on DTensors, given to C++ (dtensor_cases) and to torch's Python over gloo: placements, local elements and
gradients are the same, except for the differences that docs/dtensor.md lists.

    random_dtensors.py DTENSOR_CASES CASES [SEED]

Four ranks on meshes of one to three axes. Both sides are also compared with the same calls on whole tensors in one
process. Exit code 77: torch is not installed.
"""
import collections
import math
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

try:
    import torch
    import torch._dynamo  # DTensor imports it at first use. Ranks are forks of this process.
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

RANKS = 4
MESHES = ["4", "2x2", "2x2", "1x4", "4x1", "2x1x2"]
VERBOSE = "VERBOSE" in os.environ  # Also prints the differences that the page lists.
TIMEOUT_S = 60
SILENCE_S = 15  # Ranks of torch that write nothing for this long wait for one another.


# --- Cases. A line: MESH : OPERATOR ARGUMENT... [; OPERATOR ARGUMENT...]... : SHAPE PLACEMENTS KIND [: ...] ---
# The first operator takes all tensors, those after it take the result of the one before. KIND is d for doubles, iN for
# whole numbers below N, tN for targets of N classes, some of them ignored.

class Cases:
    """Random ones, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def one(self) -> str:
        self.mesh = self.rng.choice(MESHES)
        families = [self.elementwise, self.binary, self.view, self.view, self.piece, self.reduction, self.softmax, self.linear,
                    self.linear, self.product, self.embedding, self.norm, self.loss, self.loss, self.joined, self.moved, self.moved,
                    self.moved, self.in_place, self.creation]
        call, tensors = self.rng.choice(families)()
        if not call.endswith("_") and not call.startswith(("full_tensor", "to_local")):
            while self.rng.random() < 0.25:
                call += " ; " + self.rng.choice(["relu", "gelu", "neg", "sum all 0", "mean all 0", "mul_scalar 3", "pow_scalar 2",
                                                 "add_scalar 1", "clone", "unsqueeze 0", "tanh", "flatten 0 -1", "redistribute whole"])
        return " : ".join([self.mesh, call, *tensors])

    # Parts of a line.
    def shape(self, least: int = 1, most: int = 3) -> list[int]:
        return [self.rng.choice([1, 2, 3, 4, 4, 5, 6, 8, 8]) for _ in range(self.rng.randint(least, most))]

    def dim(self, shape: list[int]) -> int:
        return self.rng.randrange(-len(shape), len(shape))

    def placements(self, dims: int, may_be_partial: bool = True, may_be_strided: bool = False) -> str:
        axes = self.mesh.count("x") + 1
        operation = self.rng.choice(["sum", "sum", "sum", "sum", "avg", "max", "min"])
        chosen = []
        for _ in range(axes):
            roll = self.rng.random()
            if may_be_partial and roll < 0.15:
                chosen.append(f"P({operation})")
            elif dims == 0 or roll < 0.4:
                chosen.append("R")
            else:
                chosen.append(f"S({self.rng.randrange(dims)})")
        if may_be_strided and axes == 2 and dims > 0 and self.rng.random() < 0.15:
            dim = self.rng.randrange(dims)
            chosen = [f"_S({dim},{self.mesh.split('x')[1]})", f"S({dim})"]
        return "/".join(chosen)

    def tensor(self, shape: list[int], kind: str = "d", strided: bool = False) -> str:
        text = "x".join(map(str, shape)) or "scalar"
        return f"{text} {self.placements(len(shape), kind == 'd', strided)} {kind}"

    # Families of operators.
    def elementwise(self):
        name = self.rng.choice(["relu", "gelu", "tanh", "sigmoid", "silu", "exp", "neg", "abs", "sin", "clone", "contiguous", "to_float",
                                "mul_scalar 3", "add_scalar 2", "div_scalar 4", "pow_scalar 2", "pow_scalar 3"])
        return name, [self.tensor(self.shape(0))]

    def binary(self):
        name = self.rng.choice(["add", "sub", "mul", "div", "maximum", "minimum", "atan2", "where", "eq", "add", "mul"])
        one = self.shape()
        other = [1 if self.rng.random() < 0.2 else n for n in one[self.rng.choice([0, 0, len(one) - 1, len(one)]):]]
        pair = [self.tensor(one), self.tensor(other)]
        return name, pair[::-1] if self.rng.random() < 0.3 else pair

    def view(self):
        shape = self.shape()
        kind = self.rng.choice(["view", "view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "expand"])
        if kind in ("view", "reshape"):
            target, rest = [], math.prod(shape)
            while rest > 1 and self.rng.random() < 0.8:
                part = self.rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
                target.append(part)
                rest //= part
            target.append(rest)
            if self.rng.random() < 0.3:
                target[self.rng.randrange(len(target))] = -1
            return f"{kind} {' '.join(map(str, target))}", [self.tensor(shape)]
        if kind == "flatten":
            begin, end = sorted(self.rng.choices(range(len(shape)), k=2))
            return f"flatten {begin} {end}", [self.tensor(shape)]
        if kind == "transpose":
            return f"transpose {self.dim(shape)} {self.dim(shape)}", [self.tensor(shape)]
        if kind == "permute":
            return f"permute {' '.join(map(str, self.rng.sample(range(len(shape)), len(shape))))}", [self.tensor(shape)]
        if kind == "unsqueeze":
            return f"unsqueeze {self.rng.randrange(-len(shape) - 1, len(shape) + 1)}", [self.tensor(shape)]
        if kind == "squeeze":
            return f"squeeze {self.dim(shape)}", [self.tensor(shape)]
        sizes = [self.rng.choice([1, 3, 4]) if n == 1 else self.rng.choice([n, -1]) for n in shape]
        return f"expand {' '.join(map(str, self.rng.choice([[], [2], [5]]) + sizes))}", [self.tensor(shape)]

    def piece(self):
        shape = self.shape()
        dim = self.dim(shape)
        size = shape[dim]
        kind = self.rng.choice(["select", "slice", "slice", "narrow", "split", "chunk", "unbind"])
        begin = self.rng.randrange(size)
        if kind in ("select", "unbind"):
            return f"{kind} {dim} {begin}", [self.tensor(shape)]
        if kind == "slice":
            return f"slice {dim} {begin} {self.rng.randint(begin, size + 1)} {self.rng.choice([1, 1, 2])}", [self.tensor(shape)]
        if kind == "narrow":
            return f"narrow {dim} {begin} {self.rng.randint(0, size - begin)}", [self.tensor(shape)]
        return f"{kind} {dim} {self.rng.randint(1, size)} 0", [self.tensor(shape)]

    def dims(self, shape: list[int]) -> str:
        return ",".join(map(str, self.rng.sample(range(len(shape)), self.rng.randint(1, len(shape)))))

    def reduction(self):
        shape = self.shape()
        name = self.rng.choice(["sum", "mean", "sum", "mean", "amax", "amin", "var", "std", "max", "min", "prod", "logsumexp", "cumsum"])
        keep = self.rng.randrange(2)
        if name in ("max", "min"):
            return name, [self.tensor(shape)]
        if name in ("prod", "logsumexp", "cumsum"):
            return f"{name} {self.dim(shape)} {keep}", [self.tensor(shape)]
        every = self.rng.random() < 0.3
        return (f"{name} all 0" if every else f"{name} {self.dims(shape)} {keep}"), [self.tensor(shape)]

    def softmax(self):
        shape = self.shape()
        return f"{self.rng.choice(['softmax', 'log_softmax'])} {self.dim(shape)}", [self.tensor(shape)]

    def linear(self):
        shape = self.shape(2, 3)
        out = self.rng.choice([3, 4, 8])
        tensors = [self.tensor(shape), self.tensor([out, shape[-1]])]
        return "linear", tensors + ([self.tensor([out])] if self.rng.random() < 0.5 else [])

    def product(self):
        b, m, k, n = (self.rng.choice([2, 3, 4, 5, 8]) for _ in range(4))
        name, shapes = self.rng.choice([("mm", [[m, k], [k, n]]), ("bmm", [[b, m, k], [b, k, n]]), ("addmm", [[n], [m, k], [k, n]]),
                                        ("addmm", [[m, n], [m, k], [k, n]]), ("baddbmm", [[b, m, n], [b, m, k], [b, k, n]]),
                                        ("matmul", [[b, m, k], [k, n]]), ("matmul", [[b, m, k], [b, k, n]])])
        return name, [self.tensor(each) for each in shapes]

    def embedding(self):
        rows, columns = self.rng.choice([4, 6, 7, 8]), self.rng.choice([2, 4, 5])
        padding = self.rng.choice([-1, -1, 1, rows - 1])
        return f"embedding {padding}", [self.tensor([rows, columns]), self.tensor(self.shape(1, 2), f"i{rows}")]

    def norm(self):
        shape = self.shape(2, 3)
        count = self.rng.choice([1, 1, 2])
        own = shape[-count:]
        name = self.rng.choice(["layer_norm", "layer_norm", "rms_norm"])
        extra = [self.tensor(own)] * (2 if name == "layer_norm" else 1) if self.rng.random() < 0.7 else []
        return f"{name} {count}", [self.tensor(shape), *extra]

    def loss(self):
        rows, classes = self.rng.choice([4, 5, 8]), self.rng.choice([3, 4, 8])
        more = self.rng.choice([[], [], [2]])
        name = self.rng.choice(["cross_entropy", "cross_entropy", "nll_loss"])
        tensors = [self.tensor([rows, classes, *more]), self.tensor([rows, *more], f"{self.rng.choice('it')}{classes}")]
        if self.rng.random() < 0.2:
            tensors.append(f"{classes} {'/'.join(['R'] * (self.mesh.count('x') + 1))} d+")
        return f"{name} {self.rng.choice(['mean', 'sum', 'none'])}", tensors

    def joined(self):
        shape = self.shape()
        return f"{self.rng.choice(['cat', 'cat', 'stack'])} {self.dim(shape)}", [self.tensor(shape) for _ in range(self.rng.randint(2, 3))]

    def moved(self):
        shape = self.shape(0)
        name = self.rng.choice(["redistribute", "redistribute", "redistribute", "full_tensor", "to_local"])
        target = self.placements(len(shape), False, True)
        if name != "redistribute":  # Gradients of a replica may be terms, but of a shard only that shard.
            target = "/".join(self.rng.choice(["R", "P(sum)"]) for _ in target.split("/"))
        tensor = self.tensor(shape, strided=True)
        if name == "to_local":
            own = tensor.split()[1].split("/")
            target = "/".join(g if mine in ("R", "P(sum)") else "R" if mine[0] == "P" else mine
                              for g, mine in zip(target.split("/"), own))
        return f"{name} {target}", [tensor]

    def in_place(self):
        shape = self.shape()
        name = self.rng.choice(["add_", "copy_", "relu_", "zero_", "fill_", "mul_"])
        return name, [self.tensor(shape)] + ([self.tensor(shape)] if name in ("add_", "copy_", "mul_") else [])

    def creation(self):
        name = self.rng.choice(["zeros_like", "ones_like", "full_like", "new_zeros", "new_full"])
        return name, [self.tensor(self.shape())]


# --- Tensors ---

def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def placement(text: str):
    if text.startswith("S("):
        return Shard(int(text[2:-1]))
    if text.startswith("_S("):
        dim, factor = numbers(text[3:-1])
        return _StridedShard(dim, split_factor=factor)
    return Replicate() if text == "R" else Partial(text[2:-1])


def placements_of(text: str) -> tuple:
    return tuple(map(placement, text.split("/")))


def text_of(placements) -> str:
    return "/".join("P(sum)" if "Mask" in type(each).__name__ else str(each).replace(" ", "") for each in placements)


def shape_of(text: str) -> list[int]:
    return [] if text == "scalar" else [int(n) for n in text.split("x")]


def whole_tensor(shape: list[int], kind: str, index: int) -> torch.Tensor:
    order = torch.arange(math.prod(shape)).mul(7).add(3 * index).view(shape)
    if kind[0] == "i":
        return order.remainder(int(kind[1:]))
    if kind[0] == "t":
        classes = int(kind[1:])
        target = order.remainder(classes + 1)
        return torch.where(target == classes, -100, target)
    value = order.remainder(23).sub(11).double().add(0.5).div(8)
    return value.abs() if kind == "d+" else value


def term(part: torch.Tensor, placements: tuple, mesh) -> torch.Tensor:
    """Terms that combine to `part` exactly."""
    for axis, each in enumerate(placements):
        if not isinstance(each, Partial):
            continue
        ranks, own = mesh.size(axis), mesh.get_local_rank(axis)
        weight = 1 - (ranks * (ranks + 1) // 2 - 1) if own == 0 else own + 1
        if each.reduce_op in ("sum", "avg"):
            part = part * weight * (ranks if each.reduce_op == "avg" else 1)
        else:
            part = part + own if each.reduce_op == "min" else part - own
    return part


def make(text: str, index: int, mesh, records: bool) -> tuple[torch.Tensor, DTensor, torch.Tensor]:
    shape, placed, kind = text.split()
    whole, placements = whole_tensor(shape_of(shape), kind, index), placements_of(placed)
    cuts = [Replicate() if isinstance(each, Partial) else each for each in placements]
    part = distribute_tensor(whole, mesh, cuts, src_data_rank=None).to_local()
    leaf = term(part, placements, mesh).clone(memory_format=torch.contiguous_format)
    leaf.requires_grad_(records and kind == "d")
    tensor = DTensor.from_local(leaf, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
    return whole.requires_grad_(records and kind == "d"), tensor, leaf


# --- Calls, on DTensors as on whole tensors ---

def ints(args) -> list[int]:
    return [int(a) for a in args]


def reduced(call):
    def run(x, dims, keep):
        return call(x) if dims == "all" else call(x, numbers(dims), keepdim=keep == "1")
    return run


def norm(x, count, call):
    shape = x[0].shape[-int(count):]
    return call(x[0], shape, *x[1:])


def moved(x, target):
    if not isinstance(x, DTensor):
        return x
    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim if target == "whole" else placements_of(target))


ONE = {name: getattr(torch, name) for name in ("relu", "tanh", "sigmoid", "exp", "neg", "abs", "sin", "clone", "max", "min", "zeros_like", "ones_like")}
ONE |= {
    "gelu": F.gelu, "silu": F.silu, "contiguous": lambda x: x.contiguous(), "to_float": lambda x: x.to(torch.float32),
    "mul_scalar": lambda x, s: torch.ops.aten.mul.Scalar(x, int(s)), "add_scalar": lambda x, s: torch.ops.aten.add.Scalar(x, int(s)),
    "div_scalar": lambda x, s: torch.ops.aten.div.Scalar(x, int(s)), "pow_scalar": lambda x, s: torch.pow(x, int(s)),
    "full_like": lambda x: torch.full_like(x, 3), "new_zeros": lambda x: x.new_zeros(x.shape), "new_full": lambda x: x.new_full((4, 2), 5),
    "view": lambda x, *a: x.view(ints(a)), "reshape": lambda x, *a: x.reshape(ints(a)), "flatten": lambda x, a, b: x.flatten(int(a), int(b)),
    "transpose": lambda x, a, b: x.transpose(int(a), int(b)), "permute": lambda x, *a: x.permute(ints(a)),
    "unsqueeze": lambda x, a: x.unsqueeze(int(a)), "squeeze": lambda x, a: x.squeeze(int(a)), "expand": lambda x, *a: x.expand(ints(a)),
    "select": lambda x, d, i: x.select(int(d), int(i)), "unbind": lambda x, d, i: x.unbind(int(d))[int(i)],
    "slice": lambda x, *a: torch.ops.aten.slice.Tensor(x, *ints(a)), "narrow": lambda x, *a: x.narrow(*ints(a)),
    "split": lambda x, d, n, i: x.split(int(n), int(d))[int(i)], "chunk": lambda x, d, n, i: x.chunk(int(n), int(d))[int(i)],
    "sum": reduced(torch.sum), "mean": reduced(torch.mean), "amax": reduced(torch.amax), "amin": reduced(torch.amin),
    "var": reduced(torch.var), "std": reduced(torch.std), "prod": lambda x, d, k: x.prod(int(d), keepdim=k == "1"),
    "logsumexp": lambda x, d, k: x.logsumexp(int(d), keepdim=k == "1"), "cumsum": lambda x, d, _: x.cumsum(int(d)),
    "softmax": lambda x, d: x.softmax(int(d)), "log_softmax": lambda x, d: x.log_softmax(int(d)),
    "redistribute": moved, "full_tensor": lambda x, g: x.full_tensor(grad_placements=placements_of(g)) if isinstance(x, DTensor) else x,
    "to_local": lambda x, g: x.to_local(grad_placements=placements_of(g)) if isinstance(x, DTensor) else x,
    "relu_": torch.relu_, "zero_": torch.zero_, "fill_": lambda x: x.fill_(3),
}
MANY = {name: (lambda x, call=getattr(torch, name): call(*x)) for name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "eq", "mm", "bmm",
                                                                          "matmul", "addmm", "baddbmm")}
MANY |= {
    "where": lambda x: torch.where(x[0] > x[1], x[0], x[1]), "linear": lambda x: F.linear(*x),
    "embedding": lambda x, p: F.embedding(x[1], x[0], None if p == "-1" else int(p)),
    "layer_norm": lambda x, n: norm(x, n, F.layer_norm), "rms_norm": lambda x, n: norm(x, n, F.rms_norm),
    "cross_entropy": lambda x, r: F.cross_entropy(*x, reduction=r), "nll_loss": lambda x, r: F.nll_loss(*x, reduction=r),
    "cat": lambda x, d: torch.cat(x, int(d)), "stack": lambda x, d: torch.stack(x, int(d)),
    "add_": lambda x: x[0].add_(x[1]), "copy_": lambda x: x[0].copy_(x[1]), "mul_": lambda x: x[0].mul_(x[1]),
}


def run(calls: str, tensors: list):
    value = None
    for index, call in enumerate(calls.split(" ; ")):
        name, *args = call.split()
        value = MANY[name](tensors, *args) if name in MANY else ONE[name](tensors[0] if index == 0 else value, *args)
    return value


def is_of_ranks(line: str) -> bool:
    """Whether ranks use the result in different ways, and so have gradients that one process has not."""
    return "full_tensor" in line or "to_local" in line


def records_gradients(calls: str) -> bool:
    return not calls.split()[0].endswith("_")


# --- Torch's ranks. The results of a case, as words: those of dtensor_cases.cpp ---

def words(tensor: torch.Tensor) -> str:
    return ",".join(repr(float(value)) for value in tensor.detach().double().flatten().tolist()) or "-"


def differentiate(whole: torch.Tensor, factor: int) -> None:
    (whole * whole_tensor(list(whole.shape), "d", 2).to(whole.dtype) * factor).sum().backward()


def answer(line: str, mesh) -> str:
    _, calls, *texts = line.split(" : ")
    made = [make(text, index, mesh, records_gradients(calls)) for index, text in enumerate(texts)]
    try:
        result = run(calls, [tensor for _, tensor, _ in made])
        local = result.to_local() if isinstance(result, DTensor) else result
        placements = text_of(result.placements) if isinstance(result, DTensor) else "-"
        whole = result.full_tensor() if isinstance(result, DTensor) else result
        found = [placements, "x".join(map(str, result.shape)) or "scalar", "-" if "P" in placements else words(local), words(whole)]
    except Exception as error:  # noqa: BLE001: every type is compared
        return f"refused\t{' '.join(str(error).split())[:200]}"
    if not whole.requires_grad:
        return "\t".join(["ok", *found])
    try:
        differentiate(whole, dist.get_rank() + 1 if is_of_ranks(calls) else 1)
    except Exception as error:  # noqa: BLE001
        return "\t".join(["ok", *found, f"refused {' '.join(str(error).split())[:200]}"])
    return "\t".join(["ok", *found, *(words(leaf.grad) if leaf.grad is not None else "none" for *_, leaf in made)])


def expected(line: str) -> list:
    """The shape, elements and gradients of one process."""
    _, calls, *texts = line.split(" : ")
    tensors = [whole_tensor(shape_of(text.split()[0]), text.split()[2], index) for index, text in enumerate(texts)]
    for tensor, text in zip(tensors, texts):
        tensor.requires_grad_(records_gradients(calls) and text.endswith("d"))
    leaves = list(tensors)
    try:
        result = run(calls, tensors)
    except Exception as error:  # noqa: BLE001
        return ["refused", str(error)]
    if result.requires_grad:
        differentiate(result, 1)
    return ["x".join(map(str, result.shape)) or "scalar", words(result), [leaf.grad for leaf in leaves] if result.requires_grad else []]


def meshes_of(lines: list[str]) -> dict:
    """By shape. Their ranks are made in the same order everywhere."""
    return {shape: init_device_mesh("cpu", tuple(shape_of(shape))) for shape in sorted({line.split(" : ")[0] for line in lines})}


def torch_rank(rank: int, store: str, lines: list[str], out: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    meshes = meshes_of(lines)
    with open(out, "w") as file:
        for line in lines:
            file.write(answer(line, meshes[line.split(" : ")[0]]) + "\n")
            file.flush()
    dist.barrier()
    os._exit(0)


def torchs_answers(lines: list[str], folder: Path) -> list[list[str]]:
    """The results of all ranks, by case. If only some ranks fail, the others wait, and new ranks continue after that case."""
    answers: list[list[str]] = []
    fork = multiprocessing.get_context("fork")
    for round_ in range(1 + len(lines) // 20):
        outs = [folder / f"torch-{round_}-{rank}" for rank in range(RANKS)]
        arguments = str(folder / f"store-{round_}"), lines[len(answers):]
        ranks = [fork.Process(target=torch_rank, args=(rank, *arguments, str(outs[rank]))) for rank in range(RANKS)]
        for process in ranks:
            process.start()
        wait_for(ranks, outs)
        found = [out.read_text().splitlines() for out in outs]
        count = min(map(len, found))
        answers += [[of_rank[i] for of_rank in found] for i in range(count)]
        if len(answers) == len(lines):
            return answers
        answers.append(["refused\tby some ranks only, while others wait"] * RANKS)
    raise RuntimeError(f"torch's ranks ended or waited {round_ + 1} times")


def wait_for(ranks: list, outs: list[Path]) -> None:
    """Until they end, or write nothing for a while."""
    size, since = 0, time.monotonic()
    while any(process.is_alive() for process in ranks):
        time.sleep(0.05)
        now = sum(out.stat().st_size for out in outs if out.exists())
        if now != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > SILENCE_S:
            for process in ranks:
                process.kill()
    for process in ranks:
        process.join()


def cpp_answers(program: str, lines: list[str], folder: Path) -> list[list[str]]:
    cases = folder / "cases"
    cases.write_text("".join(line + "\n" for line in lines))
    started = [subprocess.Popen([program, cases, folder / "store", str(rank), str(RANKS)], stdout=open(folder / f"cpp-{rank}", "w"),
                                stderr=subprocess.PIPE, text=True) for rank in range(RANKS)]
    for process in started:
        errors = process.communicate(timeout=TIMEOUT_S + len(lines))[1]
        assert process.returncode == 0, errors
    found = [(folder / f"cpp-{rank}").read_text().splitlines() for rank in range(RANKS)]
    assert all(len(each) == len(lines) for each in found), list(map(len, found))
    return [list(each) for each in zip(*found)]


# --- Comparison ---

def are_close(found: str, wanted: str) -> bool:
    if found == wanted or "-" in (found, wanted) and len(found) + len(wanted) == 1:
        return True
    if any(word in ("-", "none") or word.startswith("refused") for word in (found, wanted)):
        return False
    left, right = ([float(value) for value in text.split(",")] for text in (found, wanted))
    return len(left) == len(right) and all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) or math.isnan(a) and math.isnan(b)
                                           for a, b in zip(left, right))


def differences(ours: list[str], theirs: list[str]) -> str:
    """The first field in which two ranks' answers differ; empty if none does."""
    names = ["status", "placements", "shape", "local elements", "elements"]
    for i in range(max(len(ours), len(theirs))):
        name = names[i] if i < len(names) else f"gradient {i - len(names)}"
        if i >= min(len(ours), len(theirs)):
            return name
        is_text = i < 3
        if ours[i] != theirs[i] if is_text else not are_close(ours[i], theirs[i]):
            return name
    return ""


def part_of(whole: torch.Tensor, line: str, index: int, rank: int) -> torch.Tensor:
    """The part of a tensor of the case on that rank."""
    mesh, _, *texts = line.split(" : ")
    sizes, part = shape_of(mesh), whole
    for axis, each in enumerate(placements_of(texts[index].split()[1])):
        own = rank // math.prod(sizes[axis + 1:]) % sizes[axis]
        pieces = [part]
        if isinstance(each, _StridedShard):
            pieces = chunks(part, each.split_factor, each.dim)
        if isinstance(each, (Shard, _StridedShard)):
            part = torch.cat([chunks(piece, sizes[axis], each.dim)[own] for piece in pieces], each.dim)
    return part


def chunks(tensor: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    """torch.chunk with exactly that number of parts."""
    found = list(tensor.chunk(count, dim))
    return found + [tensor.narrow(dim, 0, 0)] * (count - len(found))


def has_gradients(fields: list[str], line: str, rank: int, reference: list) -> bool:
    """Whether the gradients are those of one process."""
    for index, whole in enumerate(reference[2]):
        if 5 + index >= len(fields) or fields[5 + index].startswith("refused"):
            return False
        wanted = "none" if whole is None else words(part_of(whole, line, index, rank))
        if not are_close(fields[5 + index], wanted):
            return False
    return True


def compare(line: str, ours: list[str], theirs: list[str]) -> tuple[str, str]:
    """The kind of outcome, and what differs."""
    reference = expected(line)
    status = [text.split("\t") for text in ours], [text.split("\t") for text in theirs]
    our_first, their_first = status[0][0], status[1][0]
    if len({each[0] for each in status[0]}) != 1:
        return "C++ differs between ranks", ""
    if our_first[0] == "refused":
        if their_first[0] == "refused" or reference[0] == "refused":
            return "both refuse", ""
        is_right = their_first[2] == reference[0] and are_close(their_first[4], reference[1])
        return ("C++ refuses" if is_right else "C++ refuses, torch is wrong"), our_first[1]
    is_known = reference[0] != "refused" and "to_local" not in line  # A local tensor is not that of one process.
    if is_known:
        for each in status[0]:
            if each[2] != reference[0] or not are_close(each[4], reference[1]):
                return "C++ is wrong", f"{each[2]} {each[4]}, not {reference[0]} {reference[1]}"
    if their_first[0] == "refused":
        return "torch refuses", their_first[1]
    if is_known and not are_close(their_first[4], reference[1]):
        return "torch is wrong", their_first[1]
    for rank in range(RANKS):
        what = differences(status[0][rank], status[1][rank])
        if not what:
            continue
        if what.startswith("gradient") and status[0][rank][5].startswith("refused"):
            return "C++ refuses gradients", status[0][rank][5]
        if what.startswith("gradient") and status[1][rank][5].startswith("refused"):
            return "torch refuses gradients", status[1][rank][5]
        if what.startswith("gradient") and not is_of_ranks(line) and has_gradients(status[0][rank], line, rank, reference):
            return "torch's gradients are wrong", what
        if what == "placements" and re.search(r"\b(stack|cumsum) -", line):  # Torch takes such a dimension as it is.
            return "torch is wrong", what
        return "different", f"rank {rank}, {what}"
    return "same", ""


def is_fault(kind: str, what: str) -> bool:
    """Whether docs/dtensor.md does not list the outcome."""
    if kind == "C++ refuses gradients":  # Maxima, minima and products of a sharded dimension.
        return re.match(r"refused aten::(amax|amin|max|min|prod|maximum|minimum): the gradient of P\(", what) is None
    return kind in ("C++ is wrong", "C++ differs between ranks", "C++ refuses", "different")


def main() -> int:
    program, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    torch.set_num_threads(1)
    maker = Cases(seed)
    lines = [maker.one() for _ in range(count)]
    with tempfile.TemporaryDirectory(prefix="shardctl-dtensor-") as name:
        ours, theirs = cpp_answers(program, lines, Path(name)), torchs_answers(lines, Path(name))
    outcomes: collections.Counter = collections.Counter()
    faults = 0
    for line, our, their in zip(lines, ours, theirs, strict=True):
        kind, what = compare(line, our, their)
        outcomes[kind] += 1
        if is_fault(kind, what):
            faults += 1
            print(f"{kind}: {line}\n  {what}\n  C++:   {our[0][:500]}\n  torch: {their[0][:500]}")
        elif VERBOSE and kind != "same":
            print(f"{kind}: {line}\n  {what}")
    print(f"seed {seed}, {count} cases: " + ", ".join(f"{n} {kind}" for kind, n in outcomes.most_common()))
    return 1 if faults or outcomes["same"] * 10 < count * 7 else 0


if __name__ == "__main__":
    sys.exit(main())
