"""The maps maxtext:* compared with the formulas of MaxText's converters (checkpoint_conversion/utils/param_mapping.py and
llama_or_mistral_ckpt.py), restated here in numpy.

Trees of parameters are equal bit by bit in both directions, and transformers loads the exported folders.
"""
import json
import shutil
import unittest

import h5py
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from support import LiveTest, assert_same_tensors, shardctl
from tiny_models import load, logits, tiny

MAPS = {"llama": "llama", "llama3": "llama", "llama_tied": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen", "qwen3": "qwen",
        "qwen3_moe": "qwen"}
ATTENTION = {"q": "query", "k": "key", "v": "value"}
MLP = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
EXPERTS = {"w1": "wi_0", "w3": "wi_1", "w2": "wo"} | {f"{name}_proj": each for name, each in MLP.items()}


class Converter:
    """Hugging Face's tensors from one layer of MaxText's, and back. Numbers are float32; each is rounded once to `dtype`."""

    def __init__(self, config: dict, dtype: torch.dtype):
        self.config, self.dtype = config, dtype
        self.head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        self.is_llama = MAPS[{"llama": "llama"}.get(config["model_type"], config["model_type"])] == "llama"
        self.has_pairs = config["rope_parameters"]["rope_type"] == "llama3"

    def rounded(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(self.dtype)

    # From Hugging Face.

    def head_kernel(self, weight: np.ndarray, name: str) -> np.ndarray:
        kernel = weight.T.reshape(weight.shape[1], -1, self.head_dim)
        if self.has_pairs and name in "qk":
            first, second = kernel[..., :self.head_dim // 2], kernel[..., self.head_dim // 2:]
            kernel = np.stack([first, second], -1).reshape(kernel.shape)
        return kernel * np.float32(1 / np.sqrt(self.head_dim)) if self.is_llama and name == "q" else kernel

    def layer_of(self, state: dict, layer: int) -> dict:
        """MaxText's arrays of a layer by path; experts are a list."""
        prefix, made = f"model.layers.{layer}.", {}
        for full, weight in state.items():
            if not full.startswith(prefix):
                continue
            *path, kind = full.removeprefix(prefix).split(".")
            if path[-1] in ("input_layernorm", "post_attention_layernorm"):
                made[f"{'pre' if path[-1] == 'input_layernorm' else 'post'}_self_attention_layer_norm", "scale"] = weight
            elif path[-1] == "o_proj":
                made["self_attention", "out", "kernel"] = weight.T.reshape(-1, self.head_dim, weight.shape[0])
            elif path[0] == "self_attn" and path[-1].endswith("_norm"):
                made["self_attention", f"{ATTENTION[path[-1][0]]}_norm", "scale"] = weight
            elif path[0] == "self_attn":
                made["self_attention", ATTENTION[path[-1][0]], "bias" if kind == "bias" else "kernel"] = \
                    weight.reshape(-1, self.head_dim) if kind == "bias" else self.head_kernel(weight, path[-1][0])
            elif "experts" in path:
                made.setdefault((self.block(), EXPERTS[path[-1]]), {})[int(path[-2])] = weight.T
            elif path[-1] == "gate":
                made[self.block(), "gate", "kernel"] = weight.T
            else:
                made["mlp", MLP[path[-1].removesuffix("_proj")], "kernel"] = weight.T
        return {path: np.stack([each[e] for e in sorted(each)]) if isinstance(each, dict) else each for path, each in made.items()}

    def block(self) -> str:
        return "MoeBlock_0" if self.is_llama else "moe_block"

    def to_maxtext(self, state: dict, scanned: bool) -> dict:
        """The tree by path. Scanned layers are stacked along axis 1."""
        state = {name: tensor.float().numpy() for name, tensor in state.items()}
        tree = {("token_embedder", "embedding"): state["model.embed_tokens.weight"],
                ("decoder", "decoder_norm", "scale"): state["model.norm.weight"]}
        if "lm_head.weight" in state:
            tree["decoder", "logits_dense", "kernel"] = state["lm_head.weight"].T
        layers = [self.layer_of(state, layer) for layer in range(self.config["num_hidden_layers"])]
        for path in layers[0]:
            if scanned:
                tree["decoder", "layers", *path] = np.stack([layer[path] for layer in layers], 1)
            else:
                tree |= {("decoder", f"layers_{i}", *path): layer[path] for i, layer in enumerate(layers)}
        return {path: self.rounded(values) for path, values in tree.items()}

    # From MaxText.

    def flat_kernel(self, kernel: np.ndarray, name: str) -> np.ndarray:
        if self.is_llama and name == "q":
            kernel = kernel * np.float32(np.sqrt(self.head_dim))
        if self.has_pairs and name in "qk":
            kernel = np.concatenate([kernel[..., ::2], kernel[..., 1::2]], -1)
        return kernel.reshape(len(kernel), -1).T

    def to_hugging_face(self, state: dict, tree: dict) -> dict:
        """The tensors of `state`, of which only names are used, from a tree."""
        found = {}
        for full in state:
            parts = full.split(".")
            if not full.startswith("model.layers."):
                path = {"model.embed_tokens.weight": ("token_embedder", "embedding"), "model.norm.weight": ("decoder", "decoder_norm", "scale"),
                        "lm_head.weight": ("decoder", "logits_dense", "kernel")}[full]
                values = tree[path].float().numpy()
                found[full] = self.rounded(values.T if parts[0] == "lm_head" else values)
                continue
            layer, module, kind = int(parts[2]), parts[-2], parts[-1]

            def array(*path):
                if ("decoder", "layers", *path) not in tree:
                    return tree["decoder", f"layers_{layer}", *path].float().numpy()
                return tree["decoder", "layers", *path].float().numpy()[:, layer]

            if "experts" in parts:
                values = array(self.block(), EXPERTS[module])[int(parts[-3])].T
            elif module.endswith("layernorm"):
                values = array(("pre" if module.startswith("input") else "post") + "_self_attention_layer_norm", "scale")
            elif module == "o_proj":
                kernel = array("self_attention", "out", "kernel")
                values = kernel.reshape(-1, kernel.shape[-1]).T
            elif parts[3] == "self_attn" and module.endswith("_norm"):
                values = array("self_attention", f"{ATTENTION[module[0]]}_norm", "scale")
            elif parts[3] == "self_attn" and kind == "bias":
                values = array("self_attention", ATTENTION[module[0]], "bias").reshape(-1)
            elif parts[3] == "self_attn":
                values = self.flat_kernel(array("self_attention", ATTENTION[module[0]], "kernel"), module[0])
            elif module == "gate":
                values = array(self.block(), "gate", "kernel").T
            else:
                values = array("mlp", MLP[module.removesuffix("_proj")], "kernel").T
            found[full] = self.rounded(values)
        return found


def named(tree: dict, prefix: str = "params", separator: str = ".") -> dict:
    return {separator.join([*prefix.split("."), *path]): tensor.contiguous() for path, tensor in tree.items()}


def nested(tree: dict, *outer: str) -> dict:
    made: dict = {}
    for path, tensor in tree.items():
        at = made
        for key in (*outer, *path[:-1]):
            at = at.setdefault(key, {})
        at[path[-1]] = tensor
    return made


class MaxTextMaps(LiveTest):
    def hub(self, kind: str, dtype: torch.dtype):
        """The folder of a model with norms that differ from one, its tensors, and the converter."""
        model = tiny(kind)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, tensor in model.named_parameters():
                if "norm" in name or "bias" in name:
                    tensor.add_(torch.randn(tensor.shape, generator=generator) / 8)
        folder = self.dir / f"hub-{kind}-{dtype}"
        model.to(dtype).save_pretrained(folder)
        return folder, load_file(folder / "model.safetensors"), Converter(json.loads((folder / "config.json").read_text()), dtype)

    def assert_model(self, found, wanted: dict, hub):
        """The folder has these tensors, and transformers computes the same with them as with the judge's."""
        assert_same_tensors(self, load_file(found / "model.safetensors"), wanted)
        judge = self.dir / "judge"
        shutil.rmtree(judge, ignore_errors=True)
        judge.mkdir()
        shutil.copy(hub / "config.json", judge)
        save_file({name: tensor.contiguous() for name, tensor in wanted.items()}, judge / "model.safetensors", {"format": "pt"})
        self.assertTrue(torch.equal(logits(load(found, dtype=torch.float32)), logits(load(judge, dtype=torch.float32))))

    def test_trees_become_models_and_models_trees(self):
        for kind, family in MAPS.items():
            for dtype in (torch.float32, torch.bfloat16):
                hub, state, converter = self.hub(kind, dtype)
                for scanned in (True, False):
                    name = f"{kind}-{dtype}-{scanned}"
                    with self.subTest(name):
                        tree = converter.to_maxtext(state, scanned)
                        save_file(named(tree), self.dir / f"{name}.safetensors")
                        words = ["--map", f"maxtext:{family}", "--hf-ref", hub]
                        shardctl("export", self.dir / f"{name}.safetensors", "-o", self.dir / name, *words)
                        self.assert_model(self.dir / name, converter.to_hugging_face(state, tree), hub)
                        shardctl("convert", hub, "-o", self.dir / f"{name}-made.safetensors", "--to-map", f"maxtext:{family}",
                                 "--set", f"per_layer={int(not scanned)}")
                        assert_same_tensors(self, load_file(self.dir / f"{name}-made.safetensors"), named(tree))

    def test_a_model_computes_the_same_from_its_tree(self):
        """Head sizes whose roots are powers of two lose nothing on the way; the others do not lose much."""
        for kind in ("llama", "llama3", "qwen3"):
            hub, state, converter = self.hub(kind, torch.float32)
            save_file(named(converter.to_maxtext(state, True)), self.dir / f"{kind}.safetensors")
            shardctl("export", self.dir / f"{kind}.safetensors", "-o", self.dir / kind, "--map", f"maxtext:{MAPS[kind]}", "--hf-ref", hub)
            torch.testing.assert_close(logits(load(self.dir / kind)), logits(load(hub)), rtol=1e-5, atol=1e-6, msg=kind)

    def test_trees_in_other_files(self):
        """A nested dict of torch.save, a group of HDF5, and names joined by slashes as flax joins them."""
        hub, state, converter = self.hub("qwen3", torch.float32)
        tree = converter.to_maxtext(state, True)
        wanted = converter.to_hugging_face(state, tree)
        torch.save(nested(tree, "params", "params"), self.dir / "tree.pt")
        save_file(named(tree, separator="/"), self.dir / "slashes.safetensors")
        with h5py.File(self.dir / "tree.h5", "w") as file:
            for name, tensor in named(tree, separator="/").items():
                file[name] = tensor.numpy()
        for source in ("tree.pt", "slashes.safetensors", "tree.h5"):
            shardctl("export", self.dir / source, "-o", self.dir / f"{source}-out", "--map", "maxtext:qwen", "--hf-ref", hub)
            self.assert_model(self.dir / f"{source}-out", wanted, hub)
        shardctl("convert", hub, "-o", self.dir / "made.safetensors", "--to-map", "maxtext:qwen", "--set", "s=/", "--set", "prefix=params/params/")
        assert_same_tensors(self, load_file(self.dir / "made.safetensors"), named(tree, "params.params", "/"))

    def test_an_unknown_order_of_rotary_rows_is_refused(self):
        hub, _, _ = self.hub("llama", torch.float32)
        config = json.loads((hub / "config.json").read_text())
        config["rope_parameters"]["rope_type"] = "yarn"
        (hub / "config.json").write_text(json.dumps(config))
        shardctl("convert", hub, "-o", self.dir / "made.safetensors", "--to-map", "maxtext:llama", code=8)

    def test_a_padded_vocabulary(self):
        hub, state, converter = self.hub("qwen2", torch.float32)
        tree = converter.to_maxtext(state, True)
        tree["token_embedder", "embedding"] = torch.cat([tree["token_embedder", "embedding"], torch.zeros(32, 32)])
        tree["decoder", "logits_dense", "kernel"] = torch.cat([tree["decoder", "logits_dense", "kernel"], torch.zeros(32, 32)], 1)
        shardctl("convert", hub, "-o", self.dir / "made.safetensors", "--to-map", "maxtext:qwen", "--set", "vocab_step=128")
        assert_same_tensors(self, load_file(self.dir / "made.safetensors"), named(tree))
        shardctl("diff", self.dir / "made.safetensors", hub, "--map", "maxtext:qwen", "--hf-ref", hub)


if __name__ == "__main__":
    unittest.main()
