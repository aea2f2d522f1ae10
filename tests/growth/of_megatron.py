"""Saves of Megatron-LM: folders of ranks, whose arguments describe the sharding of a model."""
from pathlib import Path

from build import built, dict_of, number, pickled, tensor, text, torch_zip
from family import Family
from of_dcp import listed

NORM = "decoder.layers.{}.input_layernorm.weight"


def keyed(items) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items) + b"u"


def states(model: bytes, layers: int = 0, ranks: int = 1, experts: int = 0, optimizer: bytes = b"}") -> bytes:
    """A rank's file, with one storage of 16 bytes."""
    args = built("argparse", "Namespace", dict_of(
        num_layers=number(layers), num_experts=number(experts), tensor_model_parallel_size=number(ranks)))
    root = dict_of(args=args, checkpoint_version=number(3), model=model, optimizer=optimizer)
    return torch_zip(pickled(root), {"data/0": bytes(16)})


def save(contents):
    """Makes a folder of ranks; `contents` gives their files by rank and name."""
    def make(folder: Path, n: int) -> Path:
        for rank, files in enumerate(contents(n)):
            there = folder / "ckpt" / f"mp_rank_{rank:02d}"
            there.mkdir(parents=True)
            for name, content in files.items():
                (there / name).write_bytes(content)
        return folder / "ckpt"
    return make


def same(ranks: int, **files: bytes) -> list[dict[str, bytes]]:
    return [{name + ".pt": content for name, content in files.items()}] * ranks


def layers_of_two(n: int):
    """A norm in each of n layers, whole on two ranks."""
    return same(2, model_optim_rng=states(keyed((NORM.format(i), tensor([1], [1])) for i in range(n)), n, 2))


def many_ranks(n: int):
    return same(n, model_optim_rng=states(keyed((NORM.format(i), tensor([1], [1])) for i in range(2)), 2, n))


def packed(n: int):
    """One empty tensor that n experts share; the arguments contain the number."""
    return same(1, model_optim_rng=states(keyed([("decoder.layers.0.mlp.experts.weight1", tensor([0, n], [1, 1]))]), 1, 1, n))


def experts(n: int):
    model = keyed((f"decoder.layers.0.mlp.experts.linear_fc1.weight{i}", tensor([1, 1], [1, 1])) for i in range(n))
    return same(1, model_optim_rng=states(model, 1, 1, n))


def groups(n: int):
    """n groups of an optimizer of torch over n parameters, of which the first has all and the others none."""
    def group(indices) -> bytes:
        return dict_of(wd_mult=b"G" + bytes(8), params=listed(map(number, indices)))
    optimizer = dict_of(param_groups=listed([group(range(n)), *(group([]) for _ in range(n - 1))]),
                        state=keyed([]) if n == 0 else b"}(" + number(0) + b"}u")
    return same(1, model_optim_rng=states(keyed((NORM.format(i), tensor([1], [1])) for i in range(n)), n, 1, 0, optimizer))


def flat(n: int):
    """n parameters of 64 elements each in one buffer of the distributed optimizer."""
    size = 64 * n
    buffer = dict_of(param=tensor([size], [1], count=size), exp_avg=tensor([size], [1], count=size))
    root = b"}(" + number(0) + b"}(" + number(0) + buffer + b"u" + b"u"
    model = keyed((NORM.format(i), tensor([64], [0])) for i in range(n))
    return [{"model_optim_rng.pt": states(model, n), "distrib_optim.pt": torch_zip(pickled(root), {"data/0": bytes(4 * size)})}]


FAMILIES = [
    Family("megatron", "layers on two ranks", 64, save(layers_of_two)),
    Family("megatron", "ranks", 8, save(many_ranks), most=1 << 10),
    Family("megatron", "experts that one tensor packs", 1 << 10, save(packed)),
    Family("megatron", "experts by name", 64, save(experts)),
    Family("megatron", "groups of an optimizer", 32, save(groups)),
    Family("megatron", "parameters in a flat buffer", 32, save(flat)),
]
