"""Flat buffers of model maps compared with their origins: FSDP1 of PyTorch on two ranks, and Megatron-Core's
buffers.

Each rank's buffers are saved with torch.save; the parameters that shardctl finds in them must be the model's.
"""
import importlib.util
import json
import math
import os
import sys
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file

from support import LiveTest, assert_same_tensors, shardctl, spawn

BESIDE = Path(sys.prefix) / "megatron"
if BESIDE.is_dir():
    sys.path.append(str(BESIDE))
    os.environ["PYTHONPATH"] = f"{BESIDE}:{os.environ.get('PYTHONPATH', '')}"


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(5, 7), torch.nn.Linear(7, 5, bias=False), torch.nn.LayerNorm(5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(11, 5)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))


def save_fsdp(rank: int, folder: str, original: str) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), use_orig_params=original == "1")
    torch.save({(f"blocks.{i - 1}" if i else "embed"): each._handle.flat_param.detach().clone()
                for i, each in enumerate(FSDP.fsdp_modules(model))}, f"{folder}/rank{rank}.pt")


def write_map(path, **keys):
    path.write_text(json.dumps({"schema": "shardctl.layout/1", **keys}))
    return path


PARTS = {"up.weight": [7, 5], "up.bias": [7], "down.weight": [5, 7], "norm.weight": [5], "norm.bias": [5]}


def rules_and_shapes():
    rules = [{"match": r".*"}]
    shapes = {"embed.weight": [11, 5]} | {f"blocks.{{l}}.{name}": shape for name, shape in PARTS.items()}
    return {"rules": rules, "index": {"l": {"count": 2}}}, shapes


class FlatMapsTest(LiveTest):
    def test_what_fsdp1_holds(self):
        wanted = {name: each.detach() for name, each in Net().named_parameters()}
        for original, align in (("0", 1), ("1", 4)):  # With the original parameters each begins at 16 bytes.
            folder = self.dir / f"fsdp{original}"
            folder.mkdir()
            spawn(save_fsdp, 2, str(folder), original)
            document, shapes = rules_and_shapes()
            fsdp = write_map(self.dir / "fsdp.json", **document, mesh={"dp": "ranks"}, flatten={
                "axis": "dp", "kind": "fsdp1", "align": align, "fill": "keep", "stored": "{group}", "shapes": shapes,
                "groups": [r"(blocks\.[0-9]+)\..*", "(embed).*"], "order": ["embed.weight", [f"blocks.{{l}}.{name}" for name in PARTS]]})
            shardctl("gather", folder, "-o", self.dir / f"{original}.safetensors", "--map", fsdp)
            assert_same_tensors(self, load_file(self.dir / f"{original}.safetensors"), wanted)

    @unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not installed")
    def test_where_megatron_lays_parameters(self):
        from types import SimpleNamespace
        from unittest import mock

        from megatron.core.distributed import param_and_grad_buffer
        from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig

        parameters = {name: torch.nn.Parameter(each.detach().clone()) for name, each in Net().named_parameters()}
        ranks = 4
        group = SimpleNamespace(size=lambda: ranks, rank=lambda: 0)
        with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"), \
                mock.patch.object(param_and_grad_buffer, "log_on_each_pipeline_stage", lambda *words, **more: None):
            buffer = param_and_grad_buffer._ParamAndGradBuffer(
                DistributedDataParallelConfig(use_distributed_optimizer=True), torch.float32, torch.float32, list(parameters.values()),
                group, 100, {each: name for name, each in parameters.items()}, 1.0, list(range(len(parameters))), False,
                SimpleNamespace(tp=group, dp_cp=group))
        document, shapes = rules_and_shapes()
        core = write_map(self.dir / "core.json", **document, mesh={"dp": "ranks"}, flatten={
            "axis": "dp", "kind": "mcore_bucket", "buckets": 100, "stored": "bucket.{bucket}", "shapes": shapes,
            "order": ["embed.weight", [f"blocks.{{l}}.{name}" for name in PARTS]]})
        folder = self.dir / "core"
        folder.mkdir()
        self.assertGreater(len(buffer.buckets), 2)
        for rank in range(ranks):
            torch.save({f"bucket.{i}": bucket.param_data.chunk(ranks)[rank].clone() for i, bucket in enumerate(buffer.buckets)},
                       folder / f"rank{rank}.pt")
        shardctl("gather", folder, "-o", self.dir / "core.safetensors", "--map", core)
        assert_same_tensors(self, load_file(self.dir / "core.safetensors"), {name: each.detach() for name, each in parameters.items()})

    def test_zero_both_ways(self):
        """stage_1_and_2.py and stage3.py, restated in a few lines: they need more than this machine has to run."""
        wanted = {name: each.detach().clone() for name, each in Net().named_parameters()}
        order = list(wanted)
        for kind, ranks in (("zero12", 3), ("zero3", 4)):
            flat = torch.cat([wanted[name].flatten() for name in order])
            if kind == "zero12":
                size = math.ceil(len(flat) / (2 * ranks)) * 2
                parts = list(torch.nn.functional.pad(flat, (0, size * ranks - len(flat))).chunk(ranks))
                parts[-1] = parts[-1][:len(flat) - size * (ranks - 1)]
            else:
                parts = [torch.cat([torch.nn.functional.pad(wanted[name].flatten(), (0, -wanted[name].numel() % ranks)).chunk(ranks)[rank]
                                    for name in order]) for rank in range(ranks)]
            document, shapes = rules_and_shapes()
            zero = write_map(self.dir / f"{kind}.json", **document, mesh={"dp": "ranks"}, flatten={
                "axis": "dp", "kind": kind, "stored": "flat", "shapes": shapes, "order": order})
            source = self.dir / kind
            source.mkdir()
            for rank, part in enumerate(parts):
                torch.save({"flat": part.clone()}, source / f"rank{rank}.pt")
            found = self.dir / f"{kind}.safetensors"
            shardctl("gather", source, "-o", found, "--map", zero)
            assert_same_tensors(self, load_file(found), wanted)
            made = self.dir / f"{kind}-made"
            shardctl("split", found, "-o", made, "--to", "vllm", "--to-map", zero, "--ranks", ranks)
            for rank, part in enumerate(parts):
                assert_same_tensors(self, load_file(made / f"model-rank-{rank}-part-0.safetensors"), {"flat": part})
            if kind == "zero3":
                parts[-1][-1] = 1  # Padding of the last parameter.
                torch.save({"flat": parts[-1].clone()}, source / f"rank{ranks - 1}.pt")
                shardctl("gather", source, "-o", self.dir / "x.safetensors", "--map", zero, code=4)


if __name__ == "__main__":
    unittest.main()
