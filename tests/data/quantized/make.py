"""Writes the golden folders beside this file: quantized models as their tools store them, a few KB each.

python make.py [FOLDER]. Written with torch 2.11.0, transformers 5.23.0, bitsandbytes 0.50.2, compressed-tensors 0.20.0,
torchao 0.18.0, mlx 0.32.4 and safetensors. The folders in `by_layout` come from no tool: they have the names, dtypes and shapes that
AutoGPTQ, AutoAWQ, ModelOpt, GPT-OSS and DeepSeek give their tensors.
"""
import json
import pathlib
import sys
import tempfile

import torch
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
LAYER = "model.layers.0.mlp.up_proj."
NORM = "model.layers.0.input_layernorm.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
RANDOM = torch.Generator().manual_seed(0)


def noise(*shape):
    return torch.randn(*shape, generator=RANDOM)


def codes(dtype, *shape):
    return torch.randint(torch.iinfo(dtype).min, torch.iinfo(dtype).max, shape, generator=RANDOM, dtype=torch.int64).to(dtype)


def store(name, tensors, quantization, metadata=None, **files):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", **(metadata or {})})
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))


def bitsandbytes():
    """Whole models, which transformers loads."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32,
                         tie_word_embeddings=False, dtype="bfloat16")
    kinds = {"bitsandbytes-nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                                                    bnb_4bit_compute_dtype=torch.bfloat16),
             "bitsandbytes-int8": BitsAndBytesConfig(load_in_8bit=True)}
    with tempfile.TemporaryDirectory() as base:
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(base)
        for name, kind in kinds.items():
            model = LlamaForCausalLM.from_pretrained(base, dtype=torch.bfloat16, device_map="cpu", quantization_config=kind)
            model.save_pretrained(OUT / name)


def compressed_tensors():
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

    weight = noise(32, 64)
    largest = weight.abs().amax(1, keepdim=True)
    by_group = weight.reshape(32, 2, 32).abs().amax(2)
    args = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}
    kinds = {
        "pack-quantized": (QuantizationScheme(targets=["Linear"], weights=args),
                           {"weight_scale": by_group / 7, "weight_zero_point": torch.ones(32, 2, dtype=torch.int8)}),
        "float-quantized": (preset_name_to_scheme("FP8_DYNAMIC", ["Linear"]), {"weight_scale": largest / 448}),
        "nvfp4-pack-quantized": (preset_name_to_scheme("NVFP4", ["Linear"]),
                                 {"weight_scale": (weight.reshape(32, 4, 16).abs().amax(2) * 64).to(torch.float8_e4m3fn).float(),
                                  "weight_global_scale": torch.tensor([384.5]), "input_global_scale": torch.tensor([17.125])}),
    }
    for name, (scheme, scales) in kinds.items():
        stored = BaseCompressor.get_value_from_registry(name).compress({"weight": weight, **scales}, scheme)
        tensors = {LAYER + key: value.contiguous() for key, value in stored.items()}
        store(f"compressed-{name}", {NORM: noise(32).bfloat16(), **tensors}, {"quant_method": "compressed-tensors", "format": name})


def torchao():
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, quantize_

    layer = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32))
    quantize_(layer, Float8WeightOnlyConfig())
    tensors, metadata = flatten_tensor_state_dict(layer.state_dict())
    store("torchao-float8", {name: tensor.contiguous() for name, tensor in tensors.items()}, {"quant_method": "torchao"}, metadata)


def by_layout():
    norm = {NORM: noise(32)}
    int4 = {LAYER + "qzeros": codes(torch.int32, 1, 4), LAYER + "scales": noise(1, 32).abs().half()}
    store("gptq", {**norm, **int4, LAYER + "qweight": codes(torch.int32, 4, 32), LAYER + "g_idx": torch.zeros(32, dtype=torch.int32)},
          {"quant_method": "gptq", "bits": 4, "group_size": 32}, quantize_config={"bits": 4, "group_size": 32})
    store("awq", {**norm, **int4, LAYER + "qweight": codes(torch.int32, 32, 4)},
          {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 32})
    store("modelopt-nvfp4", {**norm, LAYER + "weight": codes(torch.uint8, 32, 8), LAYER + "input_scale": torch.tensor(0.0123456),
                             LAYER + "weight_scale": noise(32, 1).abs().to(torch.float8_e4m3fn),
                             LAYER + "weight_scale_2": torch.tensor(0.00027901)},
          {"quant_method": "modelopt", "quant_algo": "NVFP4"},
          hf_quant_config={"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}})
    experts = "model.layers.0.mlp.experts.gate_up_proj"
    store("gpt-oss-mxfp4", {**norm, experts + "_blocks": codes(torch.uint8, 2, 4, 1, 16), experts + "_bias": noise(2, 4),
                            experts + "_scales": codes(torch.uint8, 2, 4, 1)}, {"quant_method": "mxfp4"})
    gate = {"model.layers.0.mlp.gate.weight": noise(8, 32).bfloat16(), "model.layers.0.mlp.gate.e_score_correction_bias": noise(8) / 100 + 5}
    store("deepseek-fp8", {**gate, NORM: noise(32).bfloat16(), LAYER + "weight": noise(32, 32).to(torch.float8_e4m3fn),
                           LAYER + "weight_scale_inv": noise(1, 1).abs() / 1000},
          {"quant_method": "fp8", "weight_block_size": [128, 128]})


def mlx():
    import mlx.core as mx

    experts = "model.layers.0.mlp.experts.gate_proj."
    weight, expert = (mx.array(noise(*shape).numpy()).astype(mx.float16) for shape in ((32, 64), (2, 8, 64)))
    tensors = {NORM: mx.array(noise(32).numpy()).astype(mx.bfloat16)}
    tensors |= {LAYER + key: part for key, part in zip(("weight", "scales", "biases"), mx.quantize(weight, group_size=32, bits=5))}
    tensors |= {experts + key: part for key, part in zip(("weight", "scales"), mx.quantize(expert, mode="mxfp4"))}
    quantization = {"group_size": 32, "bits": 4, "mode": "mxfp4", LAYER[:-1]: {"group_size": 32, "bits": 5}}
    folder = OUT / "mlx"
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization": quantization, "quantization_config": quantization}))


def mlx_floats():
    """nvfp4, also with a scale for each expert as mlx-lm's `_quantize_experts` stores it, and mxfp8."""
    import mlx.core as mx

    layer = "model.layers.0.mlp."
    gate, up, experts = (mx.array(noise(*shape).numpy()).astype(mx.bfloat16) for shape in ((8, 64), (8, 96), (2, 4, 64)))
    largest = mx.abs(experts).max(axis=(1, 2)).astype(mx.float32)
    each = [mx.quantize(expert, mode="nvfp4", global_scale=one) for expert, one in zip(experts, largest)]
    parts = {"gate_proj": mx.quantize(gate, mode="nvfp4"), "up_proj": mx.quantize(up, mode="mxfp8"),
             "switch_mlp.down_proj": [mx.stack(part) for part in zip(*each)]}
    tensors = {f"{layer}{name}.{key}": part for name, both in parts.items() for key, part in zip(("weight", "scales"), both)}
    tensors[f"{layer}switch_mlp.down_proj.global_scale"] = largest
    nvfp4, mxfp8 = ({"group_size": size, "bits": bits, "mode": mode} for size, bits, mode in ((16, 4, "nvfp4"), (32, 8, "mxfp8")))
    quantization = {**nvfp4, f"{layer}up_proj": mxfp8, f"{layer}switch_mlp.down_proj": {**nvfp4, "global_scale": True}}
    folder = OUT / "mlx-floats"
    folder.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**CONFIG, "quantization": quantization, "quantization_config": quantization}))


for make in (bitsandbytes, compressed_tensors, torchao, by_layout, mlx, mlx_floats):
    make()
