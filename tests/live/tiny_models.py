"""Tiny random models of transformers, and a loader for folders of weights.

As a program it checks folders with the transformers on the path: tiny_models.py KIND FOLDER ...
"""
import json
import os
import sys
from pathlib import Path

import torch

os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # Before it is imported.
TRANSFORMERS_4 = Path(sys.prefix) / "transformers4"  # scripts/setup installs version 4 there.

SIZES = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64)
MOE = dict(intermediate_size=48, moe_intermediate_size=24, num_experts_per_tok=2)
KINDS = {
    "llama": ("Llama", dict(intermediate_size=48)),
    "llama_tied": ("Llama", dict(intermediate_size=48, tie_word_embeddings=True)),
    "llama3": ("Llama", dict(intermediate_size=48, rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))),
    "gemma": ("Gemma", dict(intermediate_size=48, head_dim=8)),
    "mistral": ("Mistral", dict(intermediate_size=48, head_dim=8)),
    "qwen2": ("Qwen2", dict(intermediate_size=48)),
    "qwen3": ("Qwen3", dict(intermediate_size=48, head_dim=8)),
    "qwen2_moe": ("Qwen2Moe", MOE | dict(num_experts=4, shared_expert_intermediate_size=40)),
    "qwen3_moe": ("Qwen3Moe", MOE | dict(num_experts=4, head_dim=8)),
    "mixtral": ("Mixtral", dict(intermediate_size=24, num_local_experts=4, num_experts_per_tok=2)),
    "deepseek_v3": ("DeepseekV3", MOE | dict(n_routed_experts=4, n_shared_experts=1, n_group=2, topk_group=1, q_lora_rank=16,
                                             kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                                             first_k_dense_replace=1, num_key_value_heads=4)),
}


def tiny(kind: str, seed: int = 0):
    """A random model in float32; equal for equal seeds."""
    import transformers

    family, sizes = KINDS[kind]
    torch.manual_seed(seed)
    config = getattr(transformers, family + "Config")(**(SIZES | sizes))
    model = getattr(transformers, family + "ForCausalLM")(config).eval()
    for name, tensor in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            tensor.normal_(generator=torch.Generator().manual_seed(seed))
    return model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(24).reshape(2, 12) * 3 % 96).logits


def load(folder, **options):
    """The model in a folder, if no key is missing, unexpected or of a different shape."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
    wrong = {key: value for key, value in info.items() if value and key != "error_msgs"}
    if wrong or info.get("error_msgs"):
        raise AssertionError(f"{folder}: {info}")
    return model.eval()


def loads_in_version_4(folders: dict[str, str], output: Path) -> dict[str, torch.Tensor]:
    """Logits by folder of the models that transformers 4 loads."""
    import subprocess

    done = subprocess.run([sys.executable, __file__, str(output), json.dumps({k: str(v) for k, v in folders.items()})],
                          env=os.environ | {"PYTHONPATH": str(TRANSFORMERS_4)}, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])
    return torch.load(output)


if __name__ == "__main__":
    torch.save({name: logits(load(folder, torch_dtype=torch.float32)) for name, folder in json.loads(sys.argv[2]).items()},
               sys.argv[1])
