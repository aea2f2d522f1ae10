"""Times export and the scripts that it replaces, in turns: an FSDP checkpoint of 2 ranks becomes whole weights.

    export.py --shardctl build/core/apps/shardctl/shardctl [--mib 1024] [--rounds 3] [--work FOLDER] [--verl PYTHON]

Contenders: `shardctl export`, with fsync and without; `accelerate merge-weights`; torch's `dcp_to_torch_save` and
`shardctl gather` to one torch file; `cp -r` of the same bytes. With --verl, a Python with verl, the source is
verl's: a Llama in bfloat16 from FSDP2 of 2 ranks, its config and a tokenizer; `verl.model_merger` is then a
contender beside export and cp. Each is a whole process, imports included; its peak of resident memory is the
kernel's. A ratio is that of medians.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINERS = Path(sys.prefix) / "trainers"
TENSORS = 32


def make(folder: str, mib: int) -> None:
    import torch.multiprocessing as mp

    mp.spawn(write, (folder, mib), nprocs=2)


def write(rank: int, folder: str, mib: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    side = int((mib * 2**20 / TENSORS / 2) ** 0.5) // 2 * 2
    torch.manual_seed(0)
    state = {f"model.layers.{i}.w": distribute_tensor(torch.randn(side, side, dtype=torch.bfloat16), mesh, [Shard(0)])
             for i in range(TENSORS)}
    dcp.save({"model": state}, checkpoint_id=f"{folder}/pytorch_model_fsdp_0")
    dist.destroy_process_group()


def make_of_verl(folder: str, mib: int) -> None:
    import torch.multiprocessing as mp

    sys.path.append(str(Path(__file__).resolve().parent.parent / "live"))
    mp.spawn(write_of_verl, (folder, mib), nprocs=2)


def write_of_verl(rank: int, folder: str, mib: int) -> None:
    import json

    import torch
    import torch.distributed as dist
    import transformers
    from tokenizers import Tokenizer, models
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=2)
    layers = max(1, round(mib * 2**20 / 2 / 62_914_560) - 2)  # A layer has this many elements; embedding and head have two more.
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=32_000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers,
                                      num_attention_heads=16, num_key_value_heads=8, architectures=["LlamaForCausalLM"])
    torch.set_default_dtype(torch.bfloat16)
    model = transformers.LlamaForCausalLM(config)
    if rank == 0:
        config.save_pretrained(f"{folder}/huggingface")
        tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1}, unk_token="<s>"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(
            f"{folder}/huggingface")
        Path(folder, "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    torch.save(model.state_dict(), f"{folder}/model_world_size_2_rank_{rank}.pt")
    dist.destroy_process_group()


def timed(command: list, environment: dict) -> tuple[float, float]:
    """Seconds, and MiB of resident memory at most."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.perf_counter() - begin
    if status != 0:
        sys.exit(f"{command} failed: {errors}")
    return taken, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shardctl", required=True)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", default=None)
    parser.add_argument("--verl", default=None)
    options = parser.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        source, output = f"{work}/checkpoint-1", f"{work}/out"
        os.mkdir(source)
        make_it = "--make-of-verl" if options.verl else "--make"
        subprocess.run([python, __file__, make_it, source, str(options.mib)], check=True)
        model = f"{source}/pytorch_model_fsdp_0"
        merge = "from accelerate.commands.accelerate_cli import main; main()"
        contenders = {
            "shardctl export": [options.shardctl, "export", source, "-o", output],
            "shardctl export --no-fsync": [options.shardctl, "export", source, "-o", output, "--no-fsync"],
            "accelerate merge-weights": [python, "-c", merge, "merge-weights", model, output],
            "dcp_to_torch_save": [python, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch", model, output],
            "shardctl gather to torch": [options.shardctl, "gather", model, "-o", f"{output}.pt", "--no-fsync"],
            "cp -r": ["cp", "-r", model, output],
        }
        if options.verl:
            contenders = {name: contenders[name] for name in ("shardctl export", "shardctl export --no-fsync")} | {
                "verl.model_merger": [options.verl, "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir", source,
                                      "--target_dir", output],
                "cp -r": ["cp", "-r", source, output],
            }
        found = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, command in contenders.items():
                found[name].append(timed(command, {"PYTHONPATH": str(TRAINERS), "PYTHONWARNINGS": "ignore"}))
                subprocess.run(["rm", "-r", output, f"{output}.pt"], stderr=subprocess.DEVNULL)
                os.sync()
    print(f"{options.mib} MiB, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    ours = statistics.median(seconds for seconds, _ in found["shardctl export --no-fsync"])
    print(f"{'':28}{'median s':>10}{'ratio':>8}{'peak MiB':>10}")
    for name, runs in found.items():
        seconds = statistics.median(each for each, _ in runs)
        print(f"{name:28}{seconds:10.2f}{seconds / ours:8.2f}{max(memory for _, memory in runs):10.0f}")


if __name__ == "__main__":
    if sys.argv[1] == "--make":
        make(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "--make-of-verl":
        make_of_verl(sys.argv[2], int(sys.argv[3]))
    else:
        main()
