"""Other tools for the work of dequantize.py: arithmetic_peers.py FORM SOURCE OUT, where SOURCE is that benchmark's file.

fp8, nvfp4, mxfp4, int4: convert_checkpoint of compressed-tensors. lora: merge_and_unload of PEFT, with the adapter beside SOURCE.
average: the mean of SOURCE and itself by torch, one tensor at a time. OUT is one safetensors file.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import safetensors
import safetensors.torch
import torch

PRESETS = {"nvfp4": "NVFP4A16", "mxfp4": "MXFP4A16", "int4": "W4A16"}


def dequantize(form: str, source: Path, out: Path) -> None:
    from compressed_tensors.entrypoints.convert import convert_checkpoint
    from compressed_tensors.entrypoints.convert.converters.ct_dequantizer import CompressedTensorsDequantizer
    from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer
    from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme, preset_name_to_scheme

    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        model, result = Path(folder) / "model", Path(folder) / "result"
        model.mkdir()
        os.link(source, model / "model.safetensors")
        config: dict = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        if form == "int4":
            scheme = QuantizationScheme(targets=["re:.*"], weights={"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32})
        elif form != "fp8":
            scheme = preset_name_to_scheme(PRESETS[form], ["re:.*"])
        if form != "fp8":
            kind = "pack-quantized" if form == "int4" else f"{form}-pack-quantized"
            config = QuantizationConfig(config_groups={"group_0": scheme}, format=kind).to_dict()
        (model / "config.json").write_text(json.dumps({"quantization_config": json.loads(json.dumps(config, default=str))}))
        converter = FP8BlockDequantizer.from_pretrained(model) if form == "fp8" else CompressedTensorsDequantizer(model)
        convert_checkpoint(model, result, converter)
        (result / "model.safetensors").rename(out)


def merge(source: Path, out: Path) -> None:
    from peft import PeftModel

    state = safetensors.torch.load_file(source)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList()
    with torch.device("meta"):
        model.layers.extend(torch.nn.Linear(*reversed(weight.shape), bias=False) for weight in state.values())
    model.load_state_dict(state, assign=True)
    model.config = {"model_type": "custom"}
    merged = PeftModel.from_pretrained(model, str(source.parent / "adapter")).merge_and_unload()
    safetensors.torch.save_file(merged.state_dict(), out)


def average(source: Path, out: Path) -> None:
    with safetensors.safe_open(source, "pt") as first, safetensors.safe_open(source, "pt") as second:
        means = {name: ((first.get_tensor(name).float() + second.get_tensor(name)) / 2).bfloat16() for name in first.keys()}
    safetensors.torch.save_file(means, out)


def main() -> None:
    form, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if form == "lora":
        merge(source, out)
    elif form == "average":
        average(source, out)
    else:
        dequantize(form, source, out)


if __name__ == "__main__":
    main()
