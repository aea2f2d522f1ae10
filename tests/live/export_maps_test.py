"""Built-in model maps compared with real models and the frameworks' own formulas, restated here in a few lines
each.

transformers 5 creates the models and loads the exported ones; version 4 also loads them if it is installed.
"""
import json
import unittest

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from support import LiveTest, assert_same_tensors, shardctl, shardctl_json
from tiny_models import TRANSFORMERS_4, load, loads_in_version_4, logits, tiny

FUSED = ("qwen3_moe", "mixtral", "deepseek_v3")


def rotary_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Meta's order of a head's rows from Hugging Face's: (even, odd) pairs from halves.

    convert_llama_weights_to_hf.py and torchtitan's state_dict_adapter.py have the inverse: view [heads, hd/2, 2, in], swap
    axes 1 and 2.
    """
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def metas(state: dict, heads: int, kv: int, qkv: str = "") -> dict:
    """A Llama under Meta's names."""
    names = {"model.embed_tokens.weight": "tok_embeddings.weight", "model.norm.weight": "norm.weight", "lm_head.weight": "output.weight"}
    parts = {"self_attn.q_proj": f"attention.{qkv}wq", "self_attn.k_proj": f"attention.{qkv}wk", "self_attn.v_proj": f"attention.{qkv}wv",
             "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
             "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    found = {}
    for name, tensor in state.items():
        for ours, theirs in parts.items():
            if f".{ours}." in name:
                names[name] = name.removeprefix("model.").replace(ours, theirs)
        if ".q_proj" in name or ".k_proj" in name:
            tensor = rotary_pairs(tensor, heads if ".q_proj" in name else kv)
        found[names[name]] = tensor.clone()
    return found


def vllms_rank(state: dict, rank: int, ranks: int, kv: int) -> dict:
    """The tensors of vLLM's rank `rank`: QKVParallelLinear, MergedColumnParallelLinear, RowParallelLinear,
    VocabParallelEmbedding."""
    def part(tensor, dim=0, index=rank, parts=ranks):
        return tensor.chunk(parts, dim)[index]

    found = {}
    for name, tensor in state.items():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            padded = torch.zeros(-(-tensor.shape[0] // 64) * 64, tensor.shape[1])
            padded[: tensor.shape[0]] = tensor
            found[name] = part(padded)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            found[name] = part(tensor, 1)
        elif ".q_proj" in name:
            others = [state[name.replace("q_proj", f"{each}_proj")] for each in "kv"]
            one = rank // (ranks // kv) if ranks > kv else rank
            found[name.replace("q_proj", "qkv_proj")] = torch.cat([part(tensor), *(part(each, 0, one, min(kv, ranks)) for each in others)])
        elif ".gate_proj" in name:
            found[name.replace("gate_proj", "gate_up_proj")] = torch.cat([part(tensor), part(state[name.replace("gate_proj", "up_proj")])])
        elif not any(each in name for each in (".k_proj", ".v_proj", ".up_proj")):
            found[name] = tensor
    return found


def add_names_of_version_4(path) -> None:
    """Version 5 writes the number of experts under one name for all models, which version 4 does not know."""
    config = json.loads(path.read_text())
    experts = config.get("num_local_experts", config.get("num_experts", config.get("n_routed_experts")))
    path.write_text(json.dumps(config | {"num_experts": experts, "n_routed_experts": experts, "num_local_experts": experts}))


class Maps(LiveTest):
    def hub(self, kind: str):
        """A model and its folder from save_pretrained, in version 4's names."""
        model = tiny(kind)
        model.save_pretrained(self.dir / f"hub-{kind}")
        return model, self.dir / f"hub-{kind}"

    def test_fused_experts_load_in_both_versions(self):
        for kind in FUSED:
            model, hub = self.hub(kind)
            dcp.save({"model": model.state_dict()}, checkpoint_id=self.dir / f"{kind}/pytorch_model_fsdp_0", no_dist=True)
            result = shardctl_json("export", self.dir / kind, "-o", self.dir / f"{kind}-out", "--hf-ref", hub, "--map", "hf-v5")
            self.assertTrue(result["export"]["checked"])
            self.assertTrue(torch.equal(logits(load(self.dir / f"{kind}-out")), logits(model)), kind)
            add_names_of_version_4(self.dir / f"{kind}-out/config.json")
        if not TRANSFORMERS_4.is_dir():
            self.skipTest(f"{TRANSFORMERS_4} is not there: run scripts/setup full")
        found = loads_in_version_4({kind: self.dir / f"{kind}-out" for kind in FUSED}, self.dir / "logits.pt")
        for kind in FUSED:
            torch.testing.assert_close(found[kind], logits(tiny(kind)), rtol=1e-4, atol=1e-5, msg=kind)

    def test_a_hub_folder_of_version_4_equals_the_state_of_version_5(self):
        for kind in FUSED:
            model, hub = self.hub(kind)
            torch.save(model.state_dict(), self.dir / f"{kind}.pt")
            shardctl("diff", self.dir / f"{kind}.pt", hub, "--map", "hf-v5", "--hf-ref", hub, "--objects", "drop")
            shardctl("diff", self.dir / f"{kind}.pt", hub, "--objects", "drop", code=1)

    def test_torchtitans_llama_loads(self):
        model, hub = self.hub("llama")
        for qkv in ("", "qkv_linear."):
            step = self.dir / f"titan{qkv}/step-10"
            dcp.save(metas(model.state_dict(), 4, 2, qkv) | {"train_state": {"step": 10}}, checkpoint_id=step, no_dist=True)
            shardctl("export", step, "-o", self.dir / f"out{qkv}", "--map", "torchtitan:llama3", "--hf-ref", hub)
            self.assertTrue(torch.equal(logits(load(self.dir / f"out{qkv}")), logits(model)))

    def test_metas_file_loads(self):
        model, hub = self.hub("llama")
        (self.dir / "meta").mkdir()
        torch.save(metas(model.state_dict(), 4, 2), self.dir / "meta/consolidated.00.pth")
        shardctl("export", self.dir / "meta/consolidated.00.pth", "-o", self.dir / "out", "--map", "llama-pth", "--hf-ref", hub)
        self.assertTrue(torch.equal(logits(load(self.dir / "out")), logits(model)))

    def test_metas_files_of_two_ranks_are_written(self):
        model, hub = self.hub("llama")
        shardctl("split", hub, "-o", self.dir / "meta", "--to", "torch-ranks", "--to-map", "llama-pth", "--ranks", "2")
        rows = ("wq", "wk", "wv", "w1", "w3", "output")
        for rank in range(2):  # llama's model.py: ColumnParallelLinear by rows, RowParallelLinear and the embedding by columns.
            wanted = {name: tensor if "norm" in name else tensor.chunk(2, 0 if any(f"{row}." in name for row in rows) else 1)[rank]
                      for name, tensor in metas(model.state_dict(), 4, 2).items()}
            assert_same_tensors(self, torch.load(self.dir / f"meta/consolidated.0{rank}.pth"), wanted)
        shardctl("export", self.dir / "meta", "-o", self.dir / "out", "--from", "torch-ranks", "--map", "llama-pth", "--hf-ref", hub)
        self.assertTrue(torch.equal(logits(load(self.dir / "out")), logits(model)))

    def test_hub_folders_become_what_frameworks_store(self):
        for kind in FUSED:
            model, hub = self.hub(kind)
            shardctl("convert", hub, "-o", self.dir / f"{kind}.safetensors", "--to-map", "hf-v5", "--hf-ref", hub)
            assert_same_tensors(self, load_file(self.dir / f"{kind}.safetensors"), dict(model.state_dict()))
        model, hub = self.hub("llama")
        for name in ("torchtitan:llama3", "llama-pth"):
            shardctl("convert", hub, "-o", self.dir / "metas.safetensors", "--to-map", name, "--hf-ref", hub, "--force")
            assert_same_tensors(self, load_file(self.dir / "metas.safetensors"), metas(model.state_dict(), 4, 2))

    def test_vllms_ranks_get_what_its_layers_hold(self):
        for kind in ("llama", "qwen3"):
            model, hub = self.hub(kind)
            for ranks in (1, 2, 4):  # With 4 ranks the 2 heads of keys and values appear twice.
                out = self.dir / f"{kind}{ranks}"
                shardctl("split", hub, "-o", out, "--to", "vllm", "--to-map", f"vllm:{kind}", "--ranks", ranks)
                for rank in range(ranks):
                    assert_same_tensors(self, load_file(out / f"model-rank-{rank}-part-0.safetensors"),
                                        vllms_rank(model.state_dict(), rank, ranks, 2))

    def test_gemma_3_with_images_comes_back_from_megatron(self):
        """tests/cli/megatron_maps.py compares the form in between with its formula."""
        import transformers

        torch.manual_seed(0)
        text = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                    intermediate_size=48, sliding_window=8)
        vision = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4)
        config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
        model = transformers.Gemma3ForConditionalGeneration(config).eval()
        model.save_pretrained(self.dir / "hub")
        shardctl("convert", self.dir / "hub", "-o", self.dir / "core", "--to", "dcp", "--ranks", "2", "--to-map", "megatron:gemma3", "--hf-ref",
                 self.dir / "hub")
        for form in ((), ("--set", "vision=")):  # The Hub's names, and those that transformers writes.
            out = self.dir / f"out{len(form)}"
            shardctl("export", self.dir / "core", "-o", out, "--map", "megatron:gemma3", "--hf-ref", self.dir / "hub", *form,
                     *([] if form else ["--no-check"]))
            found, info = transformers.Gemma3ForConditionalGeneration.from_pretrained(out, output_loading_info=True)
            self.assertFalse(info["missing_keys"] or info["unexpected_keys"], info)
            tokens, image = torch.arange(12)[None], torch.randn(1, 3, 16, 16)
            for call in (lambda each: each(tokens).logits, lambda each: each.get_image_features(image).pooler_output):
                with torch.no_grad():
                    self.assertTrue(torch.equal(call(found.eval()), call(model)))


if __name__ == "__main__":
    unittest.main()
