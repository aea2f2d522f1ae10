"""Trains a tiny model with the real DeepSpeed on the CPU and saves it: make.py OUT SPEC, started by torchrun.

SPEC is JSON: stage, and where wanted dtype, tied, frozen, groups, zero (more of zero_optimization), exclude_frozen.
OUT.safetensors, beside OUT, has the expected values: parameters and moments from the live engine, the rest from the module.
The folders here came of DeepSpeed 0.18.2 with torch 2.11 (DS_ACCELERATOR=cpu, gloo):

  stage1          2 ranks  {"stage": 1}
  stage1_frozen   2 ranks  {"stage": 1, "dtype": "bf16", "frozen": true}
  stage2_tied     3 ranks  {"stage": 2, "dtype": "bf16", "tied": true}
  stage2_robin    2 ranks  {"stage": 2, "dtype": "bf16", "zero": {"round_robin_gradients": true}}
                  (without expected values: 0.18.2 itself reads different elements from the saved ones)
  stage3          2 ranks  {"stage": 3}
  stage3_groups   3 ranks  {"stage": 3, "dtype": "bf16", "zero": {"sub_group_size": 10}, "tied": true}

universal_of_stage1 and universal_of_stage3 are the output of its ds_to_universal for two of them:
  python -m deepspeed.checkpoint.ds_to_universal --input_folder stage1/global_step2
    --output_folder universal_of_stage1/global_step2 --inject_missing_state
"""

import json
import os
import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file
from torch import nn

FROZEN = ("a.weight", "embed.weight")


class Net(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.a = nn.Linear(5, 3)
        self.norm = nn.LayerNorm(3)
        self.b = nn.Linear(3, 5, bias=False)
        self.head = nn.Linear(5, 7, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.tensor([3, 1, 4], dtype=torch.int64))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scale", torch.tensor(0.3))

    def forward(self, x):
        return self.head(self.b(self.norm(torch.tanh(self.a(self.embed(x))))))


def config_of(spec):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": spec["stage"], **spec.get("zero", {})},
        "zero_allow_untested_optimizer": True,
    }
    if "dtype" in spec:
        config[spec["dtype"]] = {"enabled": True}
    return config


def truth_of(engine, spec):
    truth = dict(engine.module.named_buffers())
    names = {}
    for name, param in engine.module.named_parameters(remove_duplicate=False):
        first = names.setdefault(param, name)
        if first != name:
            truth[name] = truth[first]
        elif not param.requires_grad:
            truth[name] = param.data
        else:
            truth[name] = safe_get_full_fp32_param(param)
            for state in ("exp_avg", "exp_avg_sq"):
                truth[f"optimizer.state.{name}.{state}"] = safe_get_full_optimizer_state(param, state)
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in truth.items()}


def main(out, spec):
    torch.manual_seed(1)
    net = Net(spec.get("tied", False))
    if spec.get("frozen"):
        for name, param in net.named_parameters():
            param.requires_grad_(name not in FROZEN)
    params = [param for param in net.parameters() if param.requires_grad]
    if spec.get("groups"):
        params = [{"params": params[::2], "lr": 1e-2}, {"params": params[1::2], "lr": 1e-3}]
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(params, lr=1e-2), config=config_of(spec))
    torch.manual_seed(5 + dist.get_rank())
    for _ in range(2):
        loss = engine(torch.randint(0, 7, (2, 4))).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(out, tag="global_step2", exclude_frozen_parameters=spec.get("exclude_frozen", False))
    truth = truth_of(engine, spec)
    if dist.get_rank() == 0:
        save_file(truth, out.rstrip("/") + ".safetensors")
        os.remove(os.path.join(out, "zero_to_fp32.py"))
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], json.loads(sys.argv[2]))
