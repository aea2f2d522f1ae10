"""export: trainers' output becomes a folder that transformers loads, with the logits of the trained model.

Real torch (FSDP2, FSDP1, DDP, torch.compile, DCP), transformers' Trainer, accelerate and Lightning create the
states; verl's, torchtitan's and Lightning's FSDP layouts are created by the same calls.
"""
import ast
import json
import logging
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from support import SHARDCTL, LiveTest, assert_same_tensors, shardctl, shardctl_json, spawn
from tiny_models import TRANSFORMERS_4, load, loads_in_version_4, logits, tiny

TRAINERS = Path(sys.prefix) / "trainers"  # scripts/setup installs accelerate and Lightning there.
if TRAINERS.is_dir():
    sys.path.append(str(TRAINERS))
needs_trainers = unittest.skipUnless(TRAINERS.is_dir(), f"{TRAINERS} is not there: run scripts/setup full")


def reference(folder: Path, model) -> Path:
    """The files of a hub's folder besides weights, and one file that must not be copied."""
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "modeling_own.py").write_text("# code\n")
    (folder / "training_log.txt").write_text("no part of a model\n")
    return folder


def sharded(model):
    """FSDP2 over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def stepped(model) -> torch.optim.Optimizer:
    """An optimizer with states, after a step that changes nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def save_trainers_checkpoint(rank, folder, kind):
    """accelerate's form of FSDP with SHARDED_STATE_DICT."""
    model = sharded(tiny(kind))
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
    dcp.save({"optimizer": stepped(model).state_dict()}, checkpoint_id=f"{folder}/optimizer_0")


def save_titans_checkpoint(rank, folder, kind):
    """torchtitan's form: the model's keys at the top, other states beside them."""
    model = sharded(tiny(kind))
    optimizer = stepped(model).state_dict()
    dcp.save(model.state_dict() | {"optimizer": optimizer, "lr_scheduler": {"last_epoch": 3}, "train_state": {"step": torch.tensor(10)},
                                   "dataloader": {"dp_rank_0": b"state"}}, checkpoint_id=folder)


def save_verls_checkpoint(rank, folder, kind):
    model = sharded(tiny(kind))
    ranks = torch.distributed.get_world_size()
    end = f"world_size_{ranks}_rank_{rank}.pt"
    for what, state in (("model", model.state_dict()), ("optim", stepped(model).state_dict()),
                        ("extra_state", {"lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": torch.get_rng_state()}})):
        torch.save(state, f"{folder}/{what}_{end}")


def save_fsdp1(rank, folder, kind):
    """FSDP1's three kinds of state dicts, by accelerate's own function if it is installed."""
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = tiny(kind)
    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({type(model.model.layers[0])}),
                                     device_id=torch.device("cpu"))
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"model": model.state_dict()}, checkpoint_id=f"{folder}/sharded/pytorch_model_fsdp_0")
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = model.state_dict()
        if rank == 0:
            torch.save(state, f"{folder}/full/pytorch_model_fsdp.bin")
            torch.save({"state": {}}, f"{folder}/full/optimizer.bin")
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), f"{folder}/local/pytorch_model_fsdp_rank{rank}.bin")


def save_by_accelerate(rank, folder, kind):
    """accelerate's save_fsdp_model, for FSDP2."""
    from types import SimpleNamespace

    from accelerate import PartialState
    from accelerate.utils.fsdp_utils import save_fsdp_model
    from torch.distributed.fsdp import StateDictType

    PartialState(cpu=True)  # Its log requires one.
    plugin = SimpleNamespace(fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT, state_dict_config=None,
                             optim_state_dict_config=None)
    accelerator = SimpleNamespace(process_index=rank, is_main_process=rank == 0, num_processes=2, wait_for_everyone=lambda: None,
                                  is_fsdp2=True)
    save_fsdp_model(plugin, accelerator, sharded(tiny(kind)), folder)


def save_wrapped(rank, folder, kind):
    """DDP around a compiled model, and compiled layers."""
    model = tiny(kind)
    for i, layer in enumerate(model.model.layers):
        model.model.layers[i] = torch.compile(layer)
    model = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": torch.optim.SGD(model.parameters(), lr=1.0).state_dict(), "step": 7},
                   f"{folder}/last.pt")


SAVED = {"fsdp/checkpoint-20": (save_trainers_checkpoint, "llama_tied"), "fsdp1": (save_fsdp1, "llama"),
         "titan/checkpoint/step-10": (save_titans_checkpoint, "qwen3"), "verl/global_step_5/actor": (save_verls_checkpoint, "qwen3"),
         "verl/global_step_5/critic": (save_verls_checkpoint, "qwen3"), "wrapped": (save_wrapped, "llama")}
if TRAINERS.is_dir():
    SAVED["accelerate/checkpoint-3"] = (save_by_accelerate, "qwen3")


def save_all(rank, folder):
    for place, (save, kind) in SAVED.items():
        save(rank, f"{folder}/{place}", kind)


class Export(LiveTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-live-")
        cls.addClassCleanup(folder.cleanup)
        cls.saved = Path(folder.name)
        for place in ("fsdp1/sharded", "fsdp1/full", "fsdp1/local", *SAVED):
            (cls.saved / place).mkdir(parents=True, exist_ok=True)
        spawn(save_all, 2, str(cls.saved))

    def assert_loads(self, folder: Path, model, **options):
        self.assertTrue(torch.equal(logits(load(folder, **options)), logits(model)), folder)

    def test_a_trainers_fsdp_checkpoint_loads_with_the_logits_of_the_model(self):
        model = tiny("llama_tied")
        reference(self.saved / "fsdp/checkpoint-20", model)
        out = self.dir / "out"
        result = shardctl_json("export", self.saved / "fsdp", "-o", out, "--checksum", "xxh3")
        self.assertEqual(sorted(path.name for path in out.iterdir()),
                         ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "modeling_own.py",
                          "shardctl.manifest.json", "tokenizer.json", "tokenizer_config.json"])
        self.assertEqual(result["source"], f"{self.saved}/fsdp/checkpoint-20/pytorch_model_fsdp_0")
        self.assertEqual(result["export"]["container"], "model")
        self.assertEqual(result["export"]["tied"], ["lm_head.weight"])
        self.assert_loads(out, model)
        shardctl("verify", out)

    def test_files_of_all_tokenizers_come_along(self):
        import transformers

        table, modules = re.compile(r"^VOCAB_FILES_NAMES = ({.*?})", re.DOTALL | re.MULTILINE), Path(transformers.__file__).parent / "models"
        tables = [found for path in modules.glob("*/tokenization_*.py") for found in table.findall(path.read_text())]
        names = {name for each in tables for name in ast.literal_eval(each).values()}
        self.assertGreater(len(names), 20)
        hub = reference(self.dir / "hub", tiny("llama"))
        for name in names:
            (hub / name).write_text("{}")
        torch.save(tiny("llama").state_dict(), self.dir / "flat.pt")
        result = shardctl_json("export", self.dir / "flat.pt", "-o", self.dir / "out", "--hf-ref", hub)
        self.assertLessEqual(names, set(result["export"]["copied"]))

    def test_fsdp1_sharded_and_full_load_and_local_is_refused(self):
        model = tiny("llama")
        config = reference(self.dir / "hub", model)
        for kind in ("sharded", "full"):
            shardctl("export", self.saved / "fsdp1" / kind, "-o", self.dir / kind, "--hf-ref", config)
            self.assert_loads(self.dir / kind, model)
        error = shardctl_json("export", self.saved / "fsdp1/local", "-o", self.dir / "x", "--hf-ref", config, code=8)
        self.assertIn("_flat_param", error["message"] + error["tensor"])

    def test_torchtitans_other_states_are_left_out(self):
        model = tiny("qwen3")
        model.save_pretrained(self.dir / "hub")
        result = shardctl_json("export", self.saved / "titan/checkpoint", "-o", self.dir / "out", "--hf-ref", self.dir / "hub")
        self.assertTrue(result["export"]["checked"])
        self.assertGreater(result["export"]["tensors_left_out"], 0)
        self.assert_loads(self.dir / "out", model)

    def test_verls_actor_loads_and_two_models_are_two_lines(self):
        for who in ("actor", "critic"):
            reference(self.saved / "verl/global_step_5" / who / "huggingface", tiny("qwen3"))
        error = shardctl_json("export", self.saved / "verl/global_step_5", "-o", self.dir / "out", code=2)
        for who in ("actor", "critic"):
            self.assertIn(f"global_step_5/{who}/model_world_size_2_rank_*.pt", error["hint"].replace("'", ""))
        result = shardctl_json("export", self.saved / "verl/global_step_5/actor", "-o", self.dir / "out", "--dtype", "bfloat16")
        self.assertEqual(result["export"]["reference"], f"{self.saved}/verl/global_step_5/actor/huggingface")
        wanted = {name: tensor.bfloat16() for name, tensor in tiny("qwen3").state_dict().items()}
        assert_same_tensors(self, load(self.dir / "out", dtype="auto").state_dict(), wanted)

    def test_wrappers_of_ddp_and_compile_are_taken_away(self):
        model = tiny("llama")
        model.save_pretrained(self.dir / "hub")
        result = shardctl_json("export", self.saved / "wrapped/last.pt", "-o", self.dir / "out", "--hf-ref", self.dir / "hub")
        self.assertEqual(result["export"]["renamed"], len(model.state_dict()))
        self.assert_loads(self.dir / "out", model)

    @needs_trainers
    def test_what_accelerate_saves_loads(self):
        reference(self.saved / "accelerate/checkpoint-3", tiny("qwen3"))
        shardctl("export", self.saved / "accelerate/checkpoint-3", "-o", self.dir / "out")
        self.assert_loads(self.dir / "out", tiny("qwen3"))

    @needs_trainers
    def test_a_step_of_the_trainer_loads(self):
        from transformers import Trainer, TrainingArguments

        model = tiny("llama_tied")
        rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(2)]
        Trainer(model=model, args=TrainingArguments(str(self.dir / "run"), max_steps=1, save_steps=1, use_cpu=True, report_to=[],
                                                    disable_tqdm=True, per_device_train_batch_size=2), train_dataset=rows).train()
        shardctl("export", self.dir / "run/checkpoint-1", "-o", self.dir / "out")
        self.assert_loads(self.dir / "out", model.eval())

    @needs_trainers
    def test_lightnings_checkpoint_loads(self):
        import pytorch_lightning as lightning

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.model = tiny("llama")

            def training_step(self, batch, index):
                return self.model(batch, labels=batch).loss

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters())

        module = Module()
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        trainer = lightning.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_progress_bar=False,
                                    enable_model_summary=False, default_root_dir=self.dir, enable_checkpointing=False)
        trainer.fit(module, torch.utils.data.DataLoader([torch.arange(8)] * 2, batch_size=2))
        trainer.save_checkpoint(self.dir / "last.ckpt")
        model = module.model.eval()
        model.save_pretrained(self.dir / "hub")
        shardctl("export", self.dir / "last.ckpt", "-o", self.dir / "out", "--hf-ref", self.dir / "hub")
        self.assert_loads(self.dir / "out", model)

    def test_weights_that_the_loader_does_not_open_stay_behind(self):
        """The form of mistralai's folders: a second copy of the weights under Mistral's own names."""
        model, folder = tiny("llama"), self.dir / "hub"
        model.save_pretrained(folder)
        save_file({f"own.{name}": tensor.clone() for name, tensor in model.state_dict().items()}, folder / "consolidated.safetensors")
        (folder / "params.json").write_text("{}")
        parts = self.dir / "parts"
        model.save_pretrained(parts, max_shard_size="20KB")
        (parts / "consolidated.safetensors").write_bytes((folder / "consolidated.safetensors").read_bytes())
        for source in (folder, parts):
            result = shardctl_json("export", source, "-o", self.dir / f"out-{source.name}")
            self.assertIn("consolidated.safetensors", "".join(result["warnings"]))
            self.assert_loads(self.dir / f"out-{source.name}", model)

    def test_lightnings_sharded_folder_loads(self):
        model = tiny("llama")
        state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        dcp.save({"model": state, "optimizer_0": {"state": {"a": torch.ones(2)}}}, checkpoint_id=self.dir / "x.ckpt", no_dist=True)
        torch.save({"epoch": 1, "global_step": 3}, self.dir / "x.ckpt/meta.pt")
        model.save_pretrained(self.dir / "hub")
        shardctl("export", self.dir / "x.ckpt", "-o", self.dir / "out", "--hf-ref", self.dir / "hub")
        self.assert_loads(self.dir / "out", model)

    def test_composers_and_automodels_folders_load(self):
        model = tiny("llama")
        state = model.state_dict()
        dcp.save({"state": {"model": state, "optimizers": {"AdamW": {"state": {"a": torch.ones(2)}}}}},
                 checkpoint_id=self.dir / "composer/ep1-ba20", no_dist=True)
        for folder, what in (("model", state), ("optim", {f"{name}.exp_avg": tensor for name, tensor in state.items()})):
            dcp.save(what, storage_writer=dcp.HuggingFaceStorageWriter(str(self.dir / "automodel/epoch_0_step_10" / folder)), no_dist=True)
        model.save_pretrained(self.dir / "hub")
        for run in ("composer", "automodel"):
            shardctl("export", self.dir / run, "-o", self.dir / f"{run}-out", "--hf-ref", self.dir / "hub")
            self.assert_loads(self.dir / f"{run}-out", model)

    def test_a_head_that_was_trained_apart_is_refused_where_the_config_ties_it(self):
        model = tiny("llama_tied")
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        state["lm_head.weight"][0, 0] += 1
        torch.save(state, self.dir / "model.pt")
        reference(self.dir / "hub", model)
        error = shardctl_json("export", self.dir / "model.pt", "-o", self.dir / "out", "--hf-ref", self.dir / "hub", code=4)
        self.assertEqual(error["tensor"], "lm_head.weight")
        self.assertFalse((self.dir / "out").exists())

    def test_what_encoders_and_decoders_tie_is_stored_once(self):
        import transformers

        sizes = dict(vocab_size=96, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        heads = dict(encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16,
                     decoder_ffn_dim=16, d_model=16)
        made = {
            transformers.T5ForConditionalGeneration: transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, **sizes),
            transformers.BertForMaskedLM: transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                                                  intermediate_size=16, **sizes),
            transformers.BartForConditionalGeneration: transformers.BartConfig(**heads, **sizes),
            transformers.WhisperForConditionalGeneration: transformers.WhisperConfig(
                num_mel_bins=8, max_source_positions=32, max_target_positions=32, decoder_start_token_id=1, **heads, **sizes),
            transformers.GPT2LMHeadModel: transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=32, **sizes)}
        for kind, config in made.items():
            model, hub, out = kind(config), self.dir / f"hub-{kind.__name__}", self.dir / kind.__name__
            model.save_pretrained(hub)
            config = json.loads((hub / "config.json").read_text())
            config.pop("tie_word_embeddings")  # The form on the hub: a model that ties by default does not record it.
            (hub / "config.json").write_text(json.dumps(config))
            # Lightning's form: an attribute `model` with the model.
            torch.save({"state_dict": {f"model.{name}": each for name, each in model.state_dict().items()}}, self.dir / "a.ckpt")
            result = shardctl_json("export", self.dir / "a.ckpt", "-o", out, "--hf-ref", hub)
            self.assertGreater(len(result["export"]["tied"]), 0, kind)
            loaded, info = kind.from_pretrained(out, output_loading_info=True)
            self.assertFalse(any(info.values()), info)
            assert_same_tensors(self, loaded.state_dict(), model.state_dict())

    def test_names_of_many_families(self):
        """In an outer module, by the reference's names and by only the config; in the names of version 5, which a
        map converts."""
        import transformers

        sizes = dict(vocab_size=96, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
        vision = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8)
        text = sizes | dict(num_key_value_heads=1)
        made = {
            transformers.BertForMaskedLM: sizes, transformers.ModernBertForMaskedLM: sizes | dict(pad_token_id=0),
            transformers.DistilBertForMaskedLM: dict(vocab_size=96, dim=16, n_layers=1, n_heads=2, hidden_dim=24),
            transformers.GPT2LMHeadModel: dict(vocab_size=96, n_embd=16, n_layer=1, n_head=2, n_positions=32),
            transformers.MambaForCausalLM: dict(vocab_size=96, hidden_size=16, num_hidden_layers=1, state_size=4),
            transformers.CLIPModel: dict(text_config=sizes, vision_config=vision, projection_dim=8),
            transformers.GPTNeoXForCausalLM: sizes, transformers.ViTForImageClassification: vision,
            transformers.SwinForImageClassification: dict(image_size=32, patch_size=4, embed_dim=8, depths=[1], num_heads=[2], window_size=4),
            transformers.GraniteMoeForCausalLM: text | dict(num_local_experts=2, num_experts_per_tok=1),
            transformers.PhimoeForCausalLM: text | dict(num_local_experts=2),
            transformers.LlavaForConditionalGeneration: dict(text_config=text | dict(model_type="llama"),
                                                             vision_config=vision | dict(model_type="clip_vision_model"))}
        mapped = set()
        for kind, values in made.items():
            torch.manual_seed(0)
            model, folder = kind(kind.config_class(**values)), self.dir / kind.__name__
            with torch.no_grad():
                for number, tensor in enumerate(model.parameters()):
                    tensor.add_(number * 1e-3)  # None is all zeros or ones, like any other.
            model.save_pretrained(folder / "hub")
            model.config.save_pretrained(folder / "config")
            folder.joinpath("saved").mkdir()
            torch.save({"state_dict": {f"model.{name}": each for name, each in model.state_dict().items()}}, folder / "saved/last.ckpt")
            for reference_folder in ("hub", "config"):
                words = ["export", folder / "saved/last.ckpt", "-o", folder / f"of-{reference_folder}", "--hf-ref", folder / reference_folder]
                done = subprocess.run([SHARDCTL, *map(str, words)], capture_output=True, text=True)
                if done.returncode == 4 and "--map hf-v5" in done.stderr:
                    mapped.add(kind.__name__)
                    done = subprocess.run([SHARDCTL, *map(str, words), "--map", "hf-v5"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, (kind, done.stderr))
                loaded, info = kind.from_pretrained(folder / f"of-{reference_folder}", output_loading_info=True)
                self.assertFalse(any(info.values()), (kind, info))
                assert_same_tensors(self, loaded.state_dict(), model.state_dict())
        self.assertEqual(mapped, {"GPTNeoXForCausalLM", "ViTForImageClassification", "SwinForImageClassification",
                                  "GraniteMoeForCausalLM", "PhimoeForCausalLM", "LlavaForConditionalGeneration"})

    def test_a_snapshot_of_the_hubs_cache_is_source_and_reference(self):
        model, snapshot = tiny("llama_tied"), self.dir / "models--a--b/snapshots/0123"
        model.save_pretrained(self.dir / "parts", max_shard_size="20KB")
        snapshot.mkdir(parents=True)
        (self.dir / "models--a--b/blobs").mkdir()
        for i, path in enumerate(sorted((self.dir / "parts").iterdir())):
            path.rename(self.dir / f"models--a--b/blobs/{i}")
            (snapshot / path.name).symlink_to(f"../../blobs/{i}")
        self.assertTrue((snapshot / "model.safetensors.index.json").exists())
        torch.save(model.state_dict(), self.dir / "flat.pt")
        shardctl("export", snapshot, "-o", self.dir / "a")
        shardctl("export", self.dir / "flat.pt", "-o", self.dir / "b", "--hf-ref", snapshot, "--max-shard-size", "20KB")
        for out in ("a", "b"):
            self.assert_loads(self.dir / out, model)
            self.assertFalse(any(path.is_symlink() for path in (self.dir / out).iterdir()))

    def test_dense_models_load_in_both_versions(self):
        if not TRANSFORMERS_4.is_dir():
            self.skipTest(f"{TRANSFORMERS_4} is not there: run scripts/setup full")
        kinds = ("llama", "llama_tied", "qwen3")
        for kind in kinds:
            torch.save(tiny(kind).state_dict(), self.dir / f"{kind}.pt")
            reference(self.dir / f"hub-{kind}", tiny(kind))
            shardctl("export", self.dir / f"{kind}.pt", "-o", self.dir / kind, "--hf-ref", self.dir / f"hub-{kind}")
            self.assert_loads(self.dir / kind, tiny(kind))
        found = loads_in_version_4({kind: self.dir / kind for kind in kinds}, self.dir / "logits.pt")
        for kind in kinds:
            torch.testing.assert_close(found[kind], logits(tiny(kind)), rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
