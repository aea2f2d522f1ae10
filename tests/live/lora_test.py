"""--lora: merged weights are those of PEFT's merge_and_unload, at most one rounding apart."""
import json
import sys
import tempfile
import unittest
import warnings
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support import shardctl
from torch import nn
from transformers.pytorch_utils import Conv1D

PEFT = Path(sys.prefix) / "peft"  # scripts/setup installs peft there, and accelerate and psutil for it.
TRAINERS = Path(sys.prefix) / "trainers"
if PEFT.is_dir():
    sys.path += [str(PEFT), str(TRAINERS)]
    from peft import LoraConfig, get_peft_model


class Experts(nn.Module):
    def __init__(self, is_transposed: bool):
        super().__init__()
        self.is_transposed = is_transposed
        hidden, inner = 12, 10
        shapes = ((3, hidden, 2 * inner), (3, inner, hidden)) if is_transposed else ((3, 2 * inner, hidden), (3, hidden, inner))
        self.gate_up_proj, self.down_proj = (nn.Parameter(torch.randn(shape)) for shape in shapes)


class Layer(nn.Module):
    def __init__(self, is_transposed: bool):
        super().__init__()
        self.q_proj, self.o_proj, self.conv = nn.Linear(32, 48), nn.Linear(300, 32, bias=False), Conv1D(20, 32)
        self.experts = Experts(is_transposed)


class Model(nn.Module):
    def __init__(self, is_transposed: bool = False):
        super().__init__()
        self.embed = nn.Embedding(70, 32)
        self.layers = nn.ModuleList(Layer(is_transposed) for _ in range(2))
        self.head = nn.Linear(32, 70, bias=False)

    def forward(self, x):
        return x


def randomize(model: nn.Module) -> None:
    """B is zero at first."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter += torch.randn_like(parameter) / 8


def is_near(found: torch.Tensor, wanted: torch.Tensor, base: torch.Tensor) -> bool:
    """One rounding of bfloat16; in float32 as far as the orders of sums differ."""
    apart = (found.double() - wanted.double()).abs()
    if wanted.dtype == torch.float32:
        return apart.max() <= 2e-6 * wanted.abs().max()
    largest = torch.maximum(wanted.abs(), base.abs()).double().clamp(min=1e-30)
    return bool((apart <= torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent - 8)).all())


def save_zero_3(state: dict[str, torch.Tensor], folder: Path, ranks: int = 2) -> None:
    """The save of a PEFT model by DeepSpeed: factors in flat buffers, slices of the frozen base."""
    def piece(tensor: torch.Tensor, rank: int) -> torch.Tensor:
        count = -(-tensor.numel() // ranks)
        padded = torch.nn.functional.pad(tensor.flatten(), (0, count * ranks - tensor.numel()))
        return padded[rank * count:(rank + 1) * count].clone()

    folder.mkdir(parents=True)
    (folder.parent / "latest").write_text(folder.name)
    trained = {name: tensor for name, tensor in state.items() if "lora_" in name}
    frozen = {name: tensor for name, tensor in state.items() if "lora_" not in name}
    for rank in range(ranks):
        flat = [torch.cat([piece(tensor, rank) for tensor in trained.values()])]
        torch.save({"module": {name: torch.empty(0) for name in state}, "buffer_names": [], "shared_params": {},
                    "frozen_param_shapes": {name: tensor.shape for name, tensor in frozen.items()},
                    "frozen_param_fragments": {name: piece(tensor, rank) for name, tensor in frozen.items()},
                    "param_shapes": [{name: tensor.shape for name, tensor in trained.items()}], "dp_world_size": ranks,
                    "mp_world_size": 1, "ds_version": "0.18.2"}, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        moments = {0: {"step": torch.tensor(3.0), "exp_avg": flat[0].clone(), "exp_avg_sq": flat[0].clone()}}
        torch.save({"optimizer_state_dict": {"zero_stage": 3, "partition_count": ranks, "fp32_flat_groups": flat,
                                             "optimizer_state_dict": {"state": moments, "param_groups": [{"lr": 0.1}]}}},
                   folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


@unittest.skipUnless(PEFT.is_dir(), f"{PEFT} is not there: run scripts/setup clients")
class Lora(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-lora-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        torch.manual_seed(0)
        warnings.simplefilter("ignore")

    def train(self, model: nn.Module, name: str = "adapter", **options):
        """Saves the base and an adapter. Returns the base's tensors and PEFT's model."""
        base = {key: tensor.detach().clone().contiguous() for key, tensor in model.state_dict().items()}
        save_file(base, self.dir / "base.safetensors")
        peft = get_peft_model(model, LoraConfig(**options))
        randomize(peft)
        peft.save_pretrained(self.dir / name)
        return base, peft

    def merged(self, *options, source: str = "base.safetensors") -> dict[str, torch.Tensor]:
        shardctl("convert", self.dir / source, "-o", self.dir / "merged.safetensors", "--force", *options)
        return load_file(self.dir / "merged.safetensors")

    def expect(self, model: nn.Module, changed: int, **options) -> None:
        base, peft = self.train(model, **options)
        wanted = dict(peft.merge_and_unload().state_dict())
        for words in ((), ("-j", 1, "--max-memory", "1MiB"), ("--local-ranks", 2)):
            found = self.merged("--lora", self.dir / "adapter", *words)
            self.assertEqual(found.keys(), wanted.keys())
            differing = 0
            for name, tensor in wanted.items():
                self.assertEqual((found[name].dtype, found[name].shape), (tensor.dtype, tensor.shape), name)
                self.assertTrue(is_near(found[name], tensor, base[name]), name)
                differing += not torch.equal(found[name], base[name])
            self.assertEqual(differing, changed)

    def test_linear_layers_and_embeddings(self):
        self.expect(Model(), 5, r=4, lora_alpha=6, target_modules=["q_proj", "o_proj", "embed"])

    def test_bfloat16_is_at_most_one_rounding_apart(self):
        self.expect(Model().bfloat16(), 4, r=16, lora_alpha=32, target_modules=["q_proj", "o_proj"])

    def test_ranks_and_alphas_by_pattern_and_the_other_scale(self):
        self.expect(Model(), 4, r=4, lora_alpha=6, use_rslora=True, rank_pattern={"layers.0.q_proj": 7},
                    alpha_pattern={"layers.1.q_proj": 3, r"layers\\.\\d+\\.q_proj": 5, "o_proj": 9}, target_modules=["q_proj", "o_proj"])

    def test_weights_of_conv1d_are_transposed(self):
        self.expect(Model(), 2, r=4, fan_in_fan_out=True, target_modules=["conv"])

    def test_dora_scales_whole_rows(self):
        self.expect(Model(), 4, r=4, use_dora=True, target_modules=["q_proj", "o_proj"])

    def test_modules_to_save_replace(self):
        model = Model()
        base, peft = self.train(model, r=4, target_modules=["q_proj"], modules_to_save=["head"])
        with torch.no_grad():
            for name, parameter in peft.named_parameters():
                if "modules_to_save" in name:
                    parameter += 1
        peft.save_pretrained(self.dir / "adapter")
        found = self.merged("--lora", self.dir / "adapter")
        self.assertTrue(torch.equal(found["head.weight"], base["head.weight"] + 1))

    def test_one_of_two_tied_parameters_is_refused_by_name(self):
        base, hub = {"model.embed_tokens.weight": torch.randn(8, 4), "model.q_proj.weight": torch.randn(4, 4)}, self.dir / "hub"
        factors = {"model.q_proj.lora_A.weight": torch.randn(2, 4), "model.q_proj.lora_B.weight": torch.randn(4, 2)}
        hub.mkdir()
        (self.dir / "adapter").mkdir()
        save_file(base, hub / "model.safetensors")

        def merge(saved: list[str], config: dict, code: int, task: str = "CAUSAL_LM") -> None:
            (hub / "config.json").write_text(json.dumps(config))
            (self.dir / "adapter/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 1, "task_type": task}))
            tensors = factors | {name: torch.zeros(8, 4) for name in saved}
            save_file({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, self.dir / "adapter/adapter_model.safetensors")
            with self.subTest(saved=saved, config=config, task=task):
                shardctl("convert", hub, "-o", self.dir / "x.safetensors", "--force", "--lora", self.dir / "adapter", code=code)

        embedding, head, tied = "model.embed_tokens.weight", "lm_head.weight", {"tie_word_embeddings": True}
        for saved in ([embedding], [head], [embedding, head]):
            merge(saved, tied, 8)
        merge([embedding], {"model_type": "gemma"}, 8)
        merge([embedding], tied, 0, "FEATURE_EXTRACTION")
        merge([embedding], {"tie_word_embeddings": False}, 0)
        merge([head], {"tie_word_embeddings": False}, 2)

    def test_one_of_two_tied_parameters_that_are_stored_separately(self):
        hub, adapter = self.dir / "hub", self.dir / "adapter"
        hub.mkdir()
        adapter.mkdir()
        weight = torch.randn(8, 4)
        save_file({"model.embed_tokens.weight": weight, "lm_head.weight": weight.clone()}, hub / "model.safetensors")
        head = {"lm_head.lora_A.weight": torch.randn(2, 4), "lm_head.lora_B.weight": torch.randn(8, 2)}
        embedding = {"model.embed_tokens.lora_embedding_A": torch.randn(2, 8), "model.embed_tokens.lora_embedding_B": torch.randn(4, 2)}
        (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 1, "task_type": "CAUSAL_LM"}))
        for factors, is_tied, code in ((head, True, 8), (embedding, True, 8), (head | embedding, True, 8), (head, False, 0)):
            (hub / "config.json").write_text(json.dumps({"tie_word_embeddings": is_tied}))
            save_file({f"base_model.model.{name}": tensor for name, tensor in factors.items()}, adapter / "adapter_model.safetensors")
            with self.subTest(factors=list(factors), is_tied=is_tied):
                shardctl("convert", hub, "-o", self.dir / "x.safetensors", "--force", "--lora", adapter, code=code)

    def test_fused_experts_of_both_orders_and_nestings(self):
        for is_transposed in (False, True):
            for targets in (["experts.gate_up_proj"], ["experts.down_proj", "experts.gate_up_proj"], ["experts.down_proj"]):
                with self.subTest(is_transposed=is_transposed, targets=targets):
                    self.expect(Model(is_transposed), 2 * len(targets), r=3, lora_alpha=5, target_modules=[],
                                target_parameters=targets)

    def test_alphas_of_parameters_follow_their_own_names(self):
        for pattern in ({"gate_up_proj": 12}, {"experts": 12}, {r"experts\..*": 12}, {"layers.1.experts.gate_up_proj": 12}):
            with self.subTest(pattern=pattern):
                self.expect(Model(), 2, r=3, lora_alpha=4, target_modules=[], target_parameters=["experts.gate_up_proj"],
                            alpha_pattern=pattern)
        for pattern in ({"o_proj": 12}, {"o_proj.weight": 12}):
            with self.subTest(pattern=pattern):
                self.expect(Model(), 2, r=3, lora_alpha=4, target_modules=[], target_parameters=["o_proj.weight"], alpha_pattern=pattern)

    def test_several_adapters_with_weights_through_every_format(self):
        base, peft = self.train(Model(), r=4, target_modules=["q_proj"])
        delta = {name: tensor - base[name] for name, tensor in peft.merge_and_unload().state_dict().items()}
        adapter, sharded = self.dir / "adapter", self.dir / "sharded"
        shardctl("split", self.dir / "base.safetensors", "-o", sharded, "--ranks", 3, "-q")
        (self.dir / "as-torch").mkdir()
        shardctl("gather", adapter, "-o", self.dir / "as-torch/adapter_model.bin", "-q")
        (self.dir / "as-torch/adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
        words = ("--lora", adapter, "--lora", f"{self.dir / 'as-torch'}=-0.5")
        for source in ("base.safetensors", "sharded"):
            found = self.merged(*words, source=source)
            for name, tensor in base.items():
                torch.testing.assert_close(found[name], tensor + 0.5 * delta[name], msg=name)
        shardctl("diff", self.dir / "base.safetensors", self.dir / "merged.safetensors", *words)
        shardctl("diff", self.dir / "base.safetensors", self.dir / "merged.safetensors", code=1)
        digest = shardctl("digest", self.dir / "base.safetensors", *words)
        self.assertEqual(digest, shardctl("digest", self.dir / "merged.safetensors"))

    def test_adapters_in_training_checkpoints(self):
        base, peft = self.train(Model(), r=4, target_modules=["q_proj"])
        whole = {name: tensor.contiguous() for name, tensor in peft.state_dict().items()}
        run = self.dir / "run"
        run.mkdir()
        torch.save({"model": whole, "step": 3}, self.dir / "training.pt")
        shardctl("split", self.dir / "training.pt", "-o", run / "dcp", "--ranks", 2, "-q")
        shardctl("split", self.dir / "training.pt", "-o", run / "fsdp", "--to", "torch-ranks", "--ranks", 2, "-q")  # DTensors.
        save_zero_3(whole, run / "deepspeed/global_step3")
        wanted = self.merged("--lora", self.dir / "adapter")
        for kind in ("dcp", "fsdp", "deepspeed"):
            with self.subTest(kind):
                (run / kind / "adapter_config.json").write_bytes((self.dir / "adapter/adapter_config.json").read_bytes())
                found = self.merged("--lora", run / kind)
                self.assertTrue(all(torch.equal(found[name], tensor) for name, tensor in wanted.items()))

    def test_adapters_of_diffusers_and_of_kohyas_scripts(self):
        base, peft = self.train(Model(), r=4, lora_alpha=6, target_modules=["q_proj", "o_proj"])
        wanted = dict(peft.merge_and_unload().state_dict())
        factors = {name.removeprefix("base_model.model."): tensor
                   for name, tensor in load_file(self.dir / "adapter/adapter_model.safetensors").items()}
        modules = {name.partition(".lora_")[0] for name in factors}
        kohya, diffusers = {}, {}
        for name, tensor in factors.items():
            module, _, factor = name.partition(".lora_")
            end = "down" if factor == "A.weight" else "up"
            kohya[f"lora_unet_{module.replace('.', '_')}.lora_{end}.weight"] = tensor
            diffusers[f"unet.{module}.lora.{end}.weight"] = tensor
        alphas = {f"lora_unet_{module.replace('.', '_')}.alpha": torch.tensor(6.0) for module in modules}
        other = {f"lora_te_text_model_q_proj.lora_{end}.weight": torch.zeros(2, 2) for end in ("down", "up")}
        metadata = {"lora_adapter_metadata": json.dumps({"unet.r": 4, "unet.lora_alpha": 6, "text_encoder.lora_alpha": 1})}
        save_file(kohya | alphas | other, self.dir / "kohya.safetensors")
        save_file(diffusers, self.dir / "pytorch_lora_weights.safetensors", metadata=metadata)
        save_file({f"model.diffusion_model.{name}": tensor for name, tensor in base.items()}, self.dir / "single.safetensors")
        for adapter in ("kohya.safetensors", "pytorch_lora_weights.safetensors"):
            for source, prefix in (("base.safetensors", ""), ("single.safetensors", "model.diffusion_model.")):
                with self.subTest(adapter=adapter, source=source):
                    found = self.merged("--lora", self.dir / adapter, source=source)
                    for name, tensor in wanted.items():
                        self.assertTrue(is_near(found[prefix + name], tensor, base[name]), name)
                    self.assertFalse(torch.equal(found[prefix + "layers.0.q_proj.weight"], base["layers.0.q_proj.weight"]))

    def test_refusals(self):
        self.train(Model(), r=4, target_modules=["q_proj"])
        config = json.loads((self.dir / "adapter/adapter_config.json").read_text())
        for key, value in {"peft_type": "LOHA", "use_qalora": True, "use_bdlora": {"nblocks": 2}, "lora_bias": True, "bias": "some",
                           "trainable_token_indices": [1], "alora_invocation_tokens": [1], "layer_replication": [[0, 1]],
                           "velora_config": {"a": 1}, "kasa_config": {"a": 1}, "monteclora_config": {"a": 1},
                           "arrow_config": {"a": 1}, "init_lora_weights": "pissa_niter_4"}.items():
            (self.dir / "adapter/adapter_config.json").write_text(json.dumps(config | {key: value}))
            shardctl("convert", self.dir / "base.safetensors", "-o", self.dir / "x.pt", "--lora", self.dir / "adapter", code=8)
        names = load_file(self.dir / "adapter/adapter_model.safetensors")
        save_file({name.replace("lora_", "hada_"): tensor for name, tensor in names.items()}, self.dir / "adapter/adapter_model.safetensors")
        (self.dir / "adapter/adapter_config.json").write_text(json.dumps(config | {"peft_type": "LOHA"}))
        shardctl("convert", self.dir / "base.safetensors", "-o", self.dir / "x.pt", "--lora", self.dir / "adapter", code=8)
        save_file({name.replace("lora_A.weight", "lokr_w1").replace("lora_B.weight", "lokr_w2"): tensor for name, tensor in names.items()}, self.dir / "lycoris.safetensors")
        shardctl("convert", self.dir / "base.safetensors", "-o", self.dir / "x.pt", "--lora", self.dir / "lycoris.safetensors", code=8)
        save_file(names, self.dir / "adapter/adapter_model.safetensors")
        (self.dir / "adapter/adapter_config.json").unlink()
        shardctl("convert", self.dir / "base.safetensors", "-o", self.dir / "x.pt", "--lora", self.dir / "adapter", code=3)

    def test_modules_without_a_match_and_halves_of_pairs_are_errors(self):
        self.train(Model(), r=4, target_modules=["q_proj"])
        file = self.dir / "adapter/adapter_model.safetensors"
        tensors = load_file(file)
        line = ("convert", self.dir / "base.safetensors", "-o", self.dir / "x.pt", "--lora")
        shardctl("convert", self.dir / "base.safetensors", "-o", self.dir / "adapter", "--force", "--to", "dcp",
                 "--lora", self.dir / "adapter", code=5)
        shardctl(*line, f"{self.dir / 'adapter'}=1.5", "--if-changed")
        shardctl(*line, f"{self.dir / 'adapter'}=1.5", "--if-changed")
        shardctl(*line, f"{self.dir / 'adapter'}=1.25", "--if-changed", code=5)
        shardctl(*line, f"{self.dir / 'adapter'}=inf", "--force", code=2)
        shardctl(*line, self.dir / "base.safetensors", "--force", code=2)
        first = min(tensors)
        save_file({name: tensor for name, tensor in tensors.items() if name != first}, file)
        shardctl(*line, self.dir / "adapter", "--force", code=4)
        save_file({name.replace("q_proj", "z_proj"): tensor for name, tensor in tensors.items()}, file)
        shardctl(*line, self.dir / "adapter", "--force", code=2)


if __name__ == "__main__":
    unittest.main()
