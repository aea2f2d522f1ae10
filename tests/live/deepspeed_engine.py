"""Loads saves from shardctl into DeepSpeed's own engine. By hand: Python needs deepspeed.

  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu python3 deepspeed_engine.py SHARDCTL [--case NAME]... [--ranks N] [--repeat N]
  [--keep FOLDER]

In each case 2 data-parallel ranks train 3 steps over gloo and save; shardctl writes the save for N of them (default
3), and as a universal checkpoint if the case requires it. Ranks load that, compare masters and states of every
parameter bit by bit with those of the original engine, and train 3 more steps. A line for each: the numbers of
compared and different tensors, and the losses of steps 4 to 6. `tp` cases have two tensor-parallel ranks for each
data-parallel one.
"""

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import tempfile
from pathlib import Path

os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # Versions before 0.17 load their own classes this way.
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

BASE = {"stage": 1, "dtype": None, "tp": 1, "zero": {}, "universal": False, "frozen": False}
CASES = {
    "stage1": {"universal": True},
    "stage1_bf16_frozen": {"dtype": "bf16", "frozen": True, "universal": True},
    "stage2": {"stage": 2},
    "stage2_robin": {"stage": 2, "dtype": "bf16", "zero": {"round_robin_gradients": True}},
    "stage3": {"stage": 3, "universal": True},
    "stage3_sub_groups": {"stage": 3, "zero": {"sub_group_size": 40}},
    "stage3_bf16_frozen": {"stage": 3, "dtype": "bf16", "frozen": True},
    "tp_stage1": {"tp": 2, "universal": True},
    "tp_stage2_bf16": {"tp": 2, "stage": 2, "dtype": "bf16", "universal": True},
    "tp_stage2_robin": {"tp": 2, "stage": 2, "zero": {"round_robin_gradients": True}},
}
PATTERNS = {
    "universal_checkpoint_version": 0.2,
    "original_vocab_size": 14,
    "tp_replicated_parameter_patterns": [r"norm\.(weight|bias)", r"down\.bias", r"head\.weight"],
    "parameter_with_row_parallelism_patterns": [r"down\.weight"],
    "vocabulary_parameter_patterns": [r"embed\.weight"],
    "parameter_with_2_sub_params_cat_dim_0": [r"up\.weight"],
}
STEPS = 3
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # Or each rank waits for a compiler.


def worker(spec, folder, save_to, truth, out):
    """One rank: loads `folder` if there is one, trains, saves or compares, writes its losses to `out`."""
    deepspeed.init_distributed("gloo")
    rank, tp = dist.get_rank(), spec["tp"]
    data_ranks = dist.get_world_size() // tp
    data_rank, tp_rank = divmod(rank, tp)
    data_groups = [dist.new_group([d * tp + m for d in range(data_ranks)]) for m in range(tp)]
    tp_groups = [dist.new_group([d * tp + m for m in range(tp)]) for d in range(data_ranks)]

    class Mpu:
        get_model_parallel_rank = get_tensor_model_parallel_rank = staticmethod(lambda: tp_rank)
        get_model_parallel_world_size = get_tensor_model_parallel_world_size = staticmethod(lambda: tp)
        get_model_parallel_group = get_tensor_model_parallel_group = staticmethod(lambda: tp_groups[data_rank])
        get_data_parallel_rank = staticmethod(lambda: data_rank)
        get_data_parallel_world_size = staticmethod(lambda: data_ranks)
        get_data_parallel_group = staticmethod(lambda: data_groups[tp_rank])

    def summed(tensor):
        tensor = tensor.float()
        dist.all_reduce(tensor, group=tp_groups[data_rank])
        return tensor

    class Copy(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())
        backward = staticmethod(lambda ctx, grad: summed(grad.clone()).to(grad.dtype))

    class Sum(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: summed(x.clone()).to(x.dtype))
        backward = staticmethod(lambda ctx, grad: grad)

    class Net(nn.Module):
        """An embedding cut by rows of the vocabulary, a gated layer cut into two halves by rows, one cut by columns."""

        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(16 // tp, 6), nn.LayerNorm(6)
            self.up, self.down = nn.Linear(6, 16 // tp, bias=False), nn.Linear(8 // tp, 6)
            self.head = nn.Linear(6, 14, bias=False)

        def forward(self, x):
            first = tp_rank * 16 // tp
            is_here = (x >= first) & (x < first + 16 // tp)
            x = Sum.apply(self.embed(torch.where(is_here, x - first, 0)) * is_here.unsqueeze(-1))
            gate, value = self.up(Copy.apply(self.norm(x))).chunk(2, dim=-1)
            x = x + Sum.apply(nn.functional.linear(torch.tanh(gate) * value, self.down.weight)) + self.down.bias
            return self.head(x)

    def cut(name, whole):
        if name == "down.weight":
            return whole.chunk(tp, 1)[tp_rank]
        if name == "embed.weight":
            return whole.chunk(tp)[tp_rank]
        if name == "up.weight":
            return torch.cat([half.chunk(tp)[tp_rank] for half in whole.chunk(2)])
        return whole

    torch.manual_seed(7)
    shapes = {"embed.weight": (16, 6), "norm.weight": (6,), "norm.bias": (6,), "up.weight": (16, 6), "down.weight": (6, 8), "down.bias": (6,),
              "head.weight": (14, 6)}
    wholes = {name: torch.randn(shape) for name, shape in shapes.items()}
    net = Net()
    for name, param in net.named_parameters():
        param.data = cut(name, wholes[name]).clone()
        param.requires_grad_(not (spec["frozen"] and name in ("norm.weight", "head.weight")))
    config = {"train_batch_size": 12, "gradient_accumulation_steps": 1, "zero_optimization": {"stage": spec["stage"], **spec["zero"]},
              "zero_allow_untested_optimizer": True, "checkpoint": {"load_universal": spec.get("load_universal", False)}}
    if spec["dtype"]:
        config[spec["dtype"]] = {"enabled": True}
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config, mpu=Mpu() if tp > 1 else None)

    def step(number):
        torch.manual_seed(100 + number)
        rows = torch.randint(0, 14, (12, 4)).chunk(data_ranks)[data_rank]
        out = engine(rows).float()
        loss = nn.functional.cross_entropy(out.flatten(0, 1), rows.roll(1, 1).flatten())
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        dist.all_reduce(total, group=data_groups[tp_rank])
        return total.item() / data_ranks

    def states():
        held = {}
        link = getattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
        if link is not None:
            link()  # The first step after loading would.
        for name, param in engine.module.named_parameters():
            if not param.requires_grad:
                continue
            held[name] = safe_get_full_fp32_param(param).clone()
            for state in ("exp_avg", "exp_avg_sq"):
                held[f"{name}.{state}"] = safe_get_full_optimizer_state(param, state).clone()
        return held

    result = {"compared": 0, "differ": []}
    if folder:
        engine.load_checkpoint(folder)
    else:
        for number in range(STEPS):
            step(number)
    truth_file = f"{truth}.{tp_rank}"
    if save_to:
        info = {"universal_checkpoint_info": PATTERNS} if tp > 1 else {}
        engine.save_checkpoint(save_to, tag=f"global_step{STEPS}", client_state=info)
        held = states()
        if data_rank == 0:
            torch.save(held, truth_file)
    # Its own calls then give different values.
    elif not spec.get("load_universal") and not spec["zero"].get("round_robin_gradients"):
        expected, held = torch.load(truth_file), states()
        result["compared"] = len(held)
        result["differ"] = [name for name, tensor in held.items() if not torch.equal(tensor, expected[name])]
    result["losses"] = [step(number) for number in range(STEPS, 2 * STEPS)]
    dist.barrier()
    Path(f"{out}.{rank}").write_text(json.dumps(result))
    dist.destroy_process_group()


def launched(ranks, spec, work, *, folder=None, save_to=None):
    out = work / "result"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}

    def run(rank):
        with open(work / f"log.{rank}", "w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank), LOCAL_SIZE=str(ranks))
        worker(spec, *(str(path or "") for path in (folder, save_to)), work / "truth", out)

    running = [multiprocessing.get_context("fork").Process(target=run, args=(rank,)) for rank in range(ranks)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    for rank, process in enumerate(running):
        if process.exitcode != 0:
            raise RuntimeError((work / f"log.{rank}").read_text()[-2500:])
    results = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(ranks)]
    return results[0] | {"compared": sum(r["compared"] for r in results), "differ": sorted({n for r in results for n in r["differ"]})}


def report(name, row, result):
    found = f"{result['compared']} compared, {len(result['differ'])} differ {' '.join(result['differ'])}"
    print(f"| {name} | {row} | {found.strip()} | {' '.join(f'{loss:.7f}' for loss in result['losses'])} |", flush=True)


def run_case(name, options, work):
    spec = {**BASE, **CASES[name]}
    save, tp = work / "save", spec["tp"]
    report(name, f"{2 * tp} go on", launched(2 * tp, spec, work, save_to=save))
    ranks = options.ranks * tp
    subprocess.run([options.shardctl, "-q", "reshard", save, "-o", work / "again", "--ranks", str(ranks)], check=True)
    subprocess.run([options.shardctl, "-q", "diff", save, work / "again", "--objects", "drop"], check=True)
    for _ in range(options.repeat):
        report(name, f"{ranks} from {2 * tp}", launched(ranks, spec, work, folder=work / "again"))
    if spec["universal"]:
        subprocess.run([options.shardctl, "-q", "convert", save, "-o", work / "universal", "--to", "deepspeed-universal"], check=True)
        # The same number of tensor-parallel ranks: the engine itself does not merge the model's own files.
        universal = launched(ranks, {**spec, "load_universal": True}, work, folder=work / "universal")
        report(name, f"{ranks}, universal", universal)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl", type=Path)
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave each case's files in this folder")
    options = parser.parse_args()
    options.shardctl = options.shardctl.resolve()
    for name in options.case or CASES:
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch) if options.keep is None else options.keep / name
            work.mkdir(parents=True, exist_ok=True)
            try:
                run_case(name, options, work)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                print(f"| {name} | failed: {error} |", flush=True)


if __name__ == "__main__":
    main()
