"""The maps megatron:* against real GPTModels of Megatron-Core and real models of transformers: both give the same logits.

Layers are Core's own, by one rank and by two tensor-parallel ones. What cannot run without a GPU (Transformer Engine's names of
norms, layers of multi-token prediction) is checked against formulas, in tests/cli/megatron_maps.py.
"""
import json
import sys
import unittest
from pathlib import Path

import torch

MEGATRON = Path(sys.prefix) / "megatron"  # scripts/setup installs it there.
sys.path.append(str(MEGATRON))

import megatron_models  # noqa: E402
from support import LiveTest, shardctl, spawn  # noqa: E402: it finds the next one
import python_ranks  # noqa: E402
from tiny_models import load, logits, tiny  # noqa: E402

python_ranks.PRELOADED += megatron_models.MODULES
KINDS = ("llama", "llama_tied", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")
RANKS = (1, 2)
VOCABULARY = 96


def save_all(rank: int, folder: Path) -> None:
    """Each kind by random weights, and its logits."""
    ranks = torch.distributed.get_world_size()
    for kind in KINDS:
        model = megatron_models.build(folder / f"hub-{kind}")
        megatron_models.randomize(model)
        megatron_models.save(model, folder / f"core-{kind}-{ranks}")
        found = megatron_models.logits(model, VOCABULARY)
        if rank == 0:
            torch.save(found, folder / f"core-{kind}-{ranks}.pt")


def load_all(rank: int, folder: Path) -> None:
    """Logits of what was made of transformers' models."""
    for kind in KINDS:
        model = megatron_models.build(folder / f"hub-{kind}")
        megatron_models.load(model, folder / f"made-{kind}")
        found = megatron_models.logits(model, VOCABULARY)
        if rank == 0:
            torch.save(found, folder / f"made-{kind}-{torch.distributed.get_world_size()}.pt")


def with_other_norms(model):
    """New models have norms of one, which no swap would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.add_(torch.randn(tensor.shape, generator=generator) / 8)
    return model


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
                shardctl("export", self.dir / name, "-o", self.dir / f"{name}-out", "--from", "dcp", "--map",
                         f"megatron:{kind.removesuffix('_tied')}", "--hf-ref", self.dir / f"hub-{kind}")
                self.assert_close(logits(load(self.dir / f"{name}-out")), torch.load(self.dir / f"{name}.pt"), name)

    def test_what_is_made_loads_in_core(self):
        for kind in KINDS:
            made = self.dir / f"made-{kind}"
            local = ["--set", "local_spec=1"] if megatron_models.has_experts(self.dir / f"hub-{kind}") else []
            shardctl("convert", self.dir / f"hub-{kind}", "-o", made, "--to", "dcp", "--to-map",
                     f"megatron:{kind.removesuffix('_tied')}", *local)
            (made / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1,
                                                            "common_backend": "torch", "common_backend_version": 1}))
            torch.save({}, made / "common.pt")
        for ranks in RANKS:
            spawn(load_all, ranks, self.dir)
            for kind, model in self.models.items():
                self.assert_close(torch.load(self.dir / f"made-{kind}-{ranks}.pt"), logits(model), f"{kind} by {ranks} ranks")


if __name__ == "__main__":
    unittest.main()
