"""The maps megatron:* compared with real GPTModels of Megatron-Core and real models of transformers: both give the
same logits.

MEGATRON names the folder of the core beside the clients; scripts/setup installs an older and a newer one. Layers
are Core's own, by one rank and by two tensor-parallel ones. Parts that need a GPU (Transformer Engine's names of
norms, layers of multi-token prediction) are compared with formulas, in tests/cli/megatron_maps.py.
"""
import argparse
import json
import os
import sys
import unittest
from pathlib import Path

import torch

MEGATRON = Path(sys.prefix) / os.environ.get("MEGATRON", "megatron")
sys.path.append(str(MEGATRON))

import megatron_models  # noqa: E402
from support import LiveTest, shardctl, spawn  # noqa: E402: it finds the next one
import python_ranks  # noqa: E402
from tiny_models import load, logits, tiny  # noqa: E402

python_ranks.PRELOADED += megatron_models.MODULES
KINDS = ("llama", "llama_tied", "gemma", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")
SINGLE = ("llama", "qwen2_moe")  # Saved and made once more with singleton_local_shards.
RANKS = (1, 2)
VOCABULARY = 96
METADATA = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}


def save_all(rank: int, folder: Path) -> None:
    """Each kind by random weights, and its logits."""
    ranks = torch.distributed.get_world_size()
    for kind in KINDS:
        model = megatron_models.build(folder / f"hub-{kind}")
        megatron_models.randomize(model)
        megatron_models.save(model, folder / f"core-{kind}-{ranks}")
        if kind in SINGLE:
            megatron_models.save(model, folder / f"single-{kind}-{ranks}", megatron_models.SINGLE)
        found = megatron_models.logits(model, VOCABULARY)
        if rank == 0:
            torch.save(found, folder / f"core-{kind}-{ranks}.pt")


def load_all(rank: int, folder: Path) -> None:
    """Logits of converted transformers models. Saved again it has the same names, shapes and objects."""
    ranks = torch.distributed.get_world_size()
    for kind in KINDS:
        model = megatron_models.build(folder / f"hub-{kind}")
        megatron_models.load(model, folder / f"made-{kind}")
        found = megatron_models.logits(model, VOCABULARY)
        check_saved_again(model, folder, f"made-{kind}")
        for other in [f"made-single-{kind}"] if kind in SINGLE else []:
            megatron_models.randomize(model)
            megatron_models.load(model, folder / other, megatron_models.SINGLE)
            torch.testing.assert_close(megatron_models.logits(model, VOCABULARY), found)
            check_saved_again(model, folder, other, megatron_models.SINGLE)
        if rank == 0:
            torch.save(found, folder / f"made-{kind}-{ranks}.pt")


def check_saved_again(model, folder: Path, name: str, metadata=None) -> None:
    again = folder / f"again-{torch.distributed.get_world_size()}-{name}"
    megatron_models.save(model, again, metadata)
    found, wanted = megatron_models.listing(folder / name), megatron_models.listing(again)
    # Padding of the vocabulary depends on the number of ranks.
    different = {key: (found.get(key), wanted.get(key)) for key in found.keys() | wanted.keys()
                 if (key in found) != (key in wanted) or ("embedding" not in key and "output_layer" not in key and found[key] != wanted[key])}
    assert not different, f"{name}: {different}"


def with_other_norms(model):
    """New models have norms of one, which no swap would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.add_(torch.randn(tensor.shape, generator=generator) / 8)
    return model


def norms_of(kind: str) -> list[str]:
    """Core's own norms are plain. Hugging Face's Gemma has zero-centred ones, so its map needs this number."""
    return ["--set", "layernorm_1p=0"] if kind == "gemma" else []


ARGUMENTS = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "group_query_attention": True, "num_query_groups": 2,
             "kv_channels": None, "swiglu": True, "apply_layernorm_1p": False, "attention_output_gate": False}


class Arguments(LiveTest):
    """The facts in a checkpoint's own arguments. Nothing of Megatron is needed."""

    def digest(self, code: int = 0, **changed) -> str:
        torch.save({"args": argparse.Namespace(**ARGUMENTS | changed)}, self.dir / "core/common.pt")
        return shardctl("digest", self.dir / "core", "--map", "megatron:llama", "--set", f"vocab={VOCABULARY}", code=code)

    def test_they_say_the_numbers(self):
        model = tiny("llama")
        model.save_pretrained(self.dir / "hub")
        shardctl("convert", self.dir / "hub", "-o", self.dir / "core", "--to", "dcp", "--to-map", "megatron:llama")
        (self.dir / "core/metadata.json").write_text(json.dumps(METADATA))
        wanted = shardctl("digest", self.dir / "hub")
        self.assertEqual(self.digest(), wanted)
        self.assertEqual(self.digest(kv_channels=8), wanted)
        self.digest(group_query_attention=False, code=2)  # Then the numbers of groups and heads are equal.
        self.assertNotEqual(self.digest(apply_layernorm_1p=True), wanted)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "norm" in name:
                    tensor.add_(1)
        model.save_pretrained(self.dir / "more")
        self.assertEqual(self.digest(apply_layernorm_1p=True), shardctl("digest", self.dir / "more"))
        for refused in ({"attention_output_gate": True}, {"swiglu": False}):
            self.digest(**refused, code=8)


@unittest.skipUnless(megatron_models.is_installed(), f"megatron-core is not in {MEGATRON}: run scripts/setup full")
class MegatronMaps(LiveTest):
    def setUp(self):
        super().setUp()
        self.models = {kind: with_other_norms(tiny(kind)) for kind in KINDS}
        for kind, model in self.models.items():
            model.save_pretrained(self.dir / f"hub-{kind}")

    def assert_close(self, found: torch.Tensor, wanted: torch.Tensor, message: str):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, msg=message)

    def test_what_core_saved_loads_in_transformers(self):
        for ranks in RANKS:
            spawn(save_all, ranks, self.dir)
        for kind in KINDS:
            for ranks in RANKS:
                name = f"core-{kind}-{ranks}"
                options = ["--map", f"megatron:{kind.removesuffix('_tied')}", "--hf-ref", self.dir / f"hub-{kind}", *norms_of(kind)]
                shardctl("export", self.dir / name, "-o", self.dir / f"{name}-out", *options)
                if kind in SINGLE:
                    shardctl("export", self.dir / f"single-{kind}-{ranks}", "-o", self.dir / f"{name}-single", *options)
                    shardctl("diff", self.dir / f"{name}-single", self.dir / f"{name}-out")
                self.assert_close(logits(load(self.dir / f"{name}-out")), torch.load(self.dir / f"{name}.pt"), name)

    def test_what_is_made_loads_in_core(self):
        for kind in KINDS:
            self.make(kind, self.dir / f"made-{kind}")
            if kind in SINGLE:
                self.make(kind, self.dir / f"made-single-{kind}", "--set", "singleton=1")
        for ranks in RANKS:
            spawn(load_all, ranks, self.dir)
            for kind, model in self.models.items():
                self.assert_close(torch.load(self.dir / f"made-{kind}-{ranks}.pt"), logits(model), f"{kind} by {ranks} ranks")

    def make(self, kind: str, made: Path, *options):
        local = ["--set", "local_spec=1"] if megatron_models.has_experts(self.dir / f"hub-{kind}") else []
        version = "0.18" if megatron_models.writes_common_file() else "0.19"
        shardctl("convert", self.dir / f"hub-{kind}", "-o", made, "--to", "megatron-dist", "--core-version", version, "--to-map",
                 f"megatron:{kind.removesuffix('_tied')}", *local, *norms_of(kind), *options)


if __name__ == "__main__":
    unittest.main()
