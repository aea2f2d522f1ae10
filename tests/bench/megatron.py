"""Times export of a Megatron-Core checkpoint with stacked layers and cp of its bytes, interleaved in random order
in one run.

  megatron.py SHARDCTL [--size MIB] [--runs N] [--folder DIR]

Creates a Llama of --size MiB of random bfloat16 and writes it as megatron-dist, in DIR (/dev/shm): layers stacked,
queries, keys and values fused by groups, as on 4 tensor-parallel ranks. `x cp` is the ratio of minima over the
runs; cp runs twice, and if the two differ by 10 % no figure is printed. Nothing is flushed to a disk.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from deepspeed import copies, print_beside_cp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402

HIDDEN, INNER, HEADS, GROUPS, VOCAB = 2048, 5632, 16, 4, 32_000
LAYER = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN * GROUPS // HEADS, HIDDEN),
    "self_attn.v_proj": (HIDDEN * GROUPS // HEADS, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
    "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
}
PLACES = {"**.linear_proj.weight": "S(2)", "**.linear_fc2.weight": "S(2)", "**.linear_*.weight": "S(1)", "**word_embeddings.weight": "S(0)",
          "output_layer.weight": "S(0)"}


def make(folder: Path, mebibytes: int) -> None:
    folder.mkdir()
    each = sum(math.prod(shape) for shape in LAYER.values())
    layers = max(1, round((mebibytes * 2**20 / 2 - 2 * VOCAB * HIDDEN) / each))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(layers) for name, shape in LAYER.items()}
    safetensors_files.write(folder / "model.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()},
                            iter(lambda: os.urandom(1 << 24), b""))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS, "num_hidden_layers": layers, "vocab_size": VOCAB}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl", type=Path)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--folder", type=Path, default="/dev/shm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        hub, source, out = Path(folder, "hub"), Path(folder, "core"), Path(folder, "out")
        make(hub, options.size)
        places = [word for glob, place in PLACES.items() for word in ("--place", f"{glob}={place}")]
        core_map = ["megatron:llama", "--hf-ref", hub, "-q"]
        subprocess.run([options.shardctl, "convert", hub, "-o", source, "--to", "megatron-dist", "--mesh", "tp=4", *places, "--to-map", *core_map],
                       check=True)
        export = [options.shardctl, "export", source, "-o", out, "--no-fsync", "--map", *core_map]
        subprocess.run([*export], check=True)
        subprocess.run([options.shardctl, "diff", out, hub, "--equal-nan", "-q"], check=True)
        rows = {**copies(source, out), "export": export}
        print_beside_cp(f"{options.size} MiB", rows, out, options.runs)


if __name__ == "__main__":
    main()
