"""Times fused experts to one tensor per expert and back, in turns with transformers' own conversion.

    experts.py --shardctl build/core/apps/shardctl/shardctl [--mib 1024] [--rounds 3] [--work FOLDER]

The model is a Qwen3-MoE in bfloat16 of 64 experts per layer. Transformers 5 stores the experts of a layer as one
tensor; it splits them in save_pretrained (but not those of a model from a fused file) and fuses them in
from_pretrained. Each contender is a whole process, imports included; its peak of resident memory is the kernel's. A
ratio is that of medians. Before the figures, the outputs of both ways are compared.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from export import timed

LAYER = 64 * 3 * 512 * 1024  # Elements of a layer's experts, nearly all of it.

SPLIT = """
import sys, torch, transformers
from safetensors.torch import load_file
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(sys.argv[1]))
model.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"), assign=True)
model.save_pretrained(sys.argv[2], max_shard_size="100GB")
"""
FUSE = """
import sys, transformers
from pathlib import Path
from safetensors.torch import save_file
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto")
Path(sys.argv[2]).mkdir()
save_file(model.state_dict(), sys.argv[2] + "/model.safetensors")
"""


def make(fused: Path, plain: Path, mib: int) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=4096, hidden_size=1024, intermediate_size=2048, moe_intermediate_size=512, num_experts=64, num_experts_per_tok=8,
        num_hidden_layers=max(1, round(mib * 2**20 / 2 / LAYER)), num_attention_heads=16, num_key_value_heads=4, head_dim=64,
        architectures=["Qwen3MoeForCausalLM"])
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.Qwen3MoeForCausalLM(config)
    fused.mkdir()
    save_file(model.state_dict(), fused / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(fused)
    model.save_pretrained(plain, max_shard_size="100GB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardctl", required=True)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        fused, plain, output = Path(work, "fused"), Path(work, "plain"), Path(work, "out")
        subprocess.run([sys.executable, __file__, "--make", fused, plain, str(options.mib)], check=True)
        map_of = ["--hf-ref", fused, "--max-shard-size", "100GB", "--no-fsync", "-q"]
        ways = {
            "split": {
                "shardctl gather --map hf-v5": [options.shardctl, "gather", fused, "-o", output, "--map", "hf-v5", *map_of],
                "transformers": [sys.executable, "-c", SPLIT, fused, output],
                "cp -r": ["cp", "-r", fused, output],
            },
            "fuse": {
                "shardctl gather --to-map hf-v5": [options.shardctl, "gather", plain, "-o", output, "--to-map", "hf-v5", *map_of],
                "transformers": [sys.executable, "-c", FUSE, plain, output],
                "cp -r": ["cp", "-r", plain, output],
            },
        }
        wanted = {"split": plain, "fuse": fused}
        found = {}
        for what, contenders in ways.items():
            for turn in range(options.rounds):
                for name, command in contenders.items():
                    found.setdefault((what, name), []).append(timed([str(word) for word in command], {"PYTHONWARNINGS": "ignore"}))
                    if turn == 0 and not name.startswith("cp"):
                        subprocess.run([options.shardctl, "diff", output, wanted[what], "-q"], check=True)
                    subprocess.run(["rm", "-r", output], check=True)
                    os.sync()
    print(f"{options.mib} MiB, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':40}{'median s':>10}{'x cp':>8}{'peak MiB':>10}")
    for (what, name), runs in found.items():
        seconds = statistics.median(each for each, _ in runs)
        copied = statistics.median(each for each, _ in found[what, "cp -r"])
        print(f"{what + ': ' + name:40}{seconds:10.2f}{seconds / copied:8.2f}{max(memory for _, memory in runs):10.0f}")


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
