"""Trains models with experts and pipelines with the real DeepSpeed on the CPU: make_parts.py OUT SPEC, by torchrun.

SPEC is JSON: kind, stage, and where wanted dtype. OUT.rankR.safetensors, beside OUT, have the engine's masters and, of
pipelines, moments on each rank. OUT.safetensors has those of all ranks, under the names in the whole model.
The folders here came of DeepSpeed 0.19.8 with torch 2.11 (DS_ACCELERATOR=cpu, gloo), each on 4 ranks:

  experts_stage2   {"kind": "experts", "stage": 2}                  2 ranks share the same 2 of 4 experts
  pipeline_stage1  {"kind": "pipeline", "stage": 1, "dtype": "bf16"}  2 stages of 2 data-parallel ranks

stage1_aligned is of the same versions: 2 ranks of make.py, whose Net had one more parameter of one element, with
{"stage": 1, "dtype": "bf16", "zero": {"parameter_alignment": true}}; without expected values.
"""

import json
import os
import re
import sys

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import load_file, save_file
from torch import nn

EXPERTS, SHARES = 4, 2


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(5, 9), nn.Linear(9, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Block(nn.Module):
    def __init__(self, residual):
        super().__init__()
        self.norm = nn.LayerNorm(5)
        self.moe = MoE(5, Expert(), num_experts=EXPERTS, ep_size=SHARES, use_residual=residual, k=1, min_capacity=0)

    def forward(self, x):
        return x + self.moe(self.norm(x))[0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.blocks = nn.ModuleList([Block(False), Block(True)])
        self.head = nn.Linear(5, 7)
        self.register_buffer("scale", torch.tensor(0.3))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Middle(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 5)
        self.register_buffer("count", torch.arange(3))

    def forward(self, x):
        return x + self.lin(x)


def pipeline():
    def head(module, x):
        return nn.functional.linear(x, module.weight)

    shared = {"tied_weight_attr": "weight"}
    layers = [TiedLayerSpec("embed", nn.Embedding, 7, 5, **shared), LayerSpec(Middle), torch.tanh,
              LayerSpec(nn.Linear, 5, 5), LayerSpec(nn.LayerNorm, 5), LayerSpec(nn.Linear, 5, 5),
              TiedLayerSpec("embed", nn.Embedding, 7, 5, forward_fn=head, **shared)]
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=1, num_dp=2)
    return PipelineModule(layers, topology=topology, loss_fn=lambda out, _: out.float().pow(2).mean(),
                          partition_method="uniform")


def batches():
    generator = torch.Generator().manual_seed(5)
    while True:
        x = torch.randint(0, 7, (2, 4), generator=generator)
        yield x, x


def main(out, spec):
    is_pipeline = spec["kind"] == "pipeline"
    net = pipeline() if is_pipeline else Net()
    params = list(net.parameters())
    if not is_pipeline:
        params = split_params_into_different_moe_groups_for_optimizer({"params": params, "name": "parameters"})
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": spec["stage"]},
              "zero_allow_untested_optimizer": True}
    if "dtype" in spec:
        config[spec["dtype"]] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(params, lr=1e-2), config=config)
    data = batches()
    torch.manual_seed(5 + dist.get_rank())
    for _ in range(2):
        if is_pipeline:
            engine.train_batch(data_iter=data)
        else:
            engine.backward(engine(torch.randint(0, 7, (2, 4))).float().pow(2).mean())
            engine.step()
    engine.save_checkpoint(out, tag="global_step2")
    truth = dict(engine.module.named_buffers())
    for name, param in engine.module.named_parameters():
        first = dist.get_rank() % SHARES * (EXPERTS // SHARES)
        name = re.sub(r"(deepspeed_experts\.)(\d+)", lambda match: f"{match[1]}{int(match[2]) + first}", name)
        truth[name] = safe_get_full_fp32_param(param)
        for state in ("exp_avg", "exp_avg_sq") if is_pipeline else ():
            truth[f"optimizer.state.{name}.{state}"] = safe_get_full_optimizer_state(param, state)
    truth = {name: tensor.detach().clone().contiguous() for name, tensor in truth.items()}
    save_file(truth, f"{out}.rank{dist.get_rank()}.safetensors")
    dist.barrier()
    if dist.get_rank() == 0:
        all_ranks = {}
        for rank in range(dist.get_world_size()):
            all_ranks.update(load_file(f"{out}.rank{rank}.safetensors"))
        save_file(all_ranks, out.rstrip("/") + ".safetensors")
        for name in "zero_to_fp32.py", "zero_to_torch.py":
            os.remove(os.path.join(out, name))
    dist.barrier()
    dist.destroy_process_group()


deepspeed.init_distributed("gloo")
torch.manual_seed(1)
main(sys.argv[1], json.loads(sys.argv[2]))
