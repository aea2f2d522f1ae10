"""Seeds of quantized models: quantized_corpus.py CORPUS DATA, with the folder tests/data/quantized as DATA. Standard
library only."""
import json
import struct
import sys
from pathlib import Path

from make_corpus_parts import part, put

LONGEST = 4096  # See scripts/fuzz.
SIZES = {"F32": 4, "F16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1, "I8": 1, "I32": 4, "I64": 8}


def model(config: dict, tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header, end = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    return (part(json.dumps({"quantization_config": config}).encode()) + struct.pack("<Q", len(text)) + text +
            b"".join(content for _, _, content in tensors.values()))


def zeros(dtype: str, *shape: int, byte: int = 0) -> tuple[str, list[int], bytes]:
    count = SIZES[dtype]
    for size in shape:
        count *= size
    return dtype, list(shape), bytes([byte]) * count


def numbers(*values: int) -> tuple[str, list[int], bytes]:
    return "I64", [len(values)], struct.pack(f"<{len(values)}q", *values)


STATE = json.dumps({"quant_type": "nf4", "blocksize": 16, "shape": [4, 16], "nested_blocksize": 4, "nested_offset": 0.5}).encode()
MODELS = {
    "nf4": ({"quant_method": "bitsandbytes"}, {
        "a.weight": zeros("U8", 32, 1), "a.weight.absmax": zeros("U8", 4), "a.weight.quant_map": zeros("F32", 16),
        "a.weight.nested_absmax": zeros("F32", 1), "a.weight.nested_quant_map": zeros("F32", 256),
        "a.weight.quant_state.bitsandbytes__nf4": ("U8", [len(STATE)], STATE)}),
    "scales-of-no-scales": ({}, {"a.weight_packed": zeros("U8", 2, 16), "a.weight_global_scale": zeros("F32", 1)}),
    "int3": ({"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*gate$"],
              "config_groups": {"group_0": {"weights": {"num_bits": 3, "group_size": 8}}}}, {
        "a.weight_packed": zeros("I32", 5, 2, byte=0x5A), "a.weight_scale": zeros("F16", 5, 2, byte=0x30),
        "a.weight_zero_point": zeros("I32", 1, 2, byte=0x33), "a.weight_shape": numbers(5, 16)}),
    "experts": ({"quant_method": "fp8", "weight_block_size": [2, 4]}, {
        "e.w": zeros("F8_E4M3", 2, 3, 6, byte=0x41), "e.w_scale_inv": zeros("F32", 2, 2, 2, byte=0x3F)}),
    "deepseek-v4": ({"quant_method": "fp8"}, {"a.weight": zeros("I8", 2, 32), "a.scale": zeros("F8_E8M0", 2, 2, byte=0x7F)}),
    "nan-exponent": ({}, {"a.weight_packed": zeros("U8", 2, 16), "a.weight_scale": zeros("U8", 2, 1, byte=0xFF)}),
    "group-index": ({"quant_method": "gptq", "bits": 4, "group_size": 16, "checkpoint_format": "gptq_v2"}, {
        "a.qweight": zeros("I32", 4, 8, byte=0x21), "a.qzeros": zeros("I32", 2, 1), "a.scales": zeros("F16", 2, 8, byte=0x3C),
        "a.g_idx": ("I32", [32], struct.pack("<32i", *([1, 0] * 16)))}),
    "stated-shape": ({"bits": 4}, {"a.weight_packed": zeros("I32", 2, 4), "a.weight_scale": zeros("F32", 2, 1),
                                   "a.weight_shape": numbers(2, 1 << 60)}),
    "lone-scale": ({}, {"a.weight_scale_inv": zeros("F32", 1, 1)}),
    "lone-weight": ({}, {"a.weight": zeros("F8_E4M3", 4, 4)}),
}


def main(corpus: Path, data: Path) -> None:
    for folder in sorted(path for path in data.iterdir() if path.is_dir()):
        content = part((folder / "config.json").read_bytes()) + (folder / "model.safetensors").read_bytes()
        if len(content) <= LONGEST:
            put(corpus, "quantized", folder.name, content)
    for name, (config, tensors) in MODELS.items():
        put(corpus, "quantized", name, model(config, tensors))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
