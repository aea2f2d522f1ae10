"""Megatron-Core both ways: shardctl reads its saves, and it loads shardctl's output. Skipped if megatron-core is
not installed."""
import importlib.util
import os
import sys
import unittest
from pathlib import Path

from support import LiveTest, assert_same_tensors, shardctl, shardctl_json, spawn
import megatron_models  # noqa: E402: support finds the next one
import python_ranks  # noqa: E402

python_ranks.PRELOADED += megatron_models.MODULES
BESIDE = Path(sys.prefix) / "megatron"
if BESIDE.is_dir():
    sys.path.append(str(BESIDE))
    os.environ["PYTHONPATH"] = f"{BESIDE}:{os.environ.get('PYTHONPATH', '')}"
DATA = Path(__file__).resolve().parents[1] / "data" / "megatron"
sys.path.insert(0, str(DATA))


def load_rank(rank: int, source: str, prefix: str, out: str) -> None:
    """Loads into a model of new numbers, strictly, and saves the result with one rank."""
    import torch
    from safetensors.torch import save_file

    import make

    model = make.build(make.FAMILIES["llama"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    loaded = make.load(model, source, prefix)
    model.load_state_dict(loaded["model"])
    assert loaded["args"].hidden_size == 8 and loaded["iteration"] == 7, loaded
    if torch.distributed.get_world_size() == 1:
        save_file(make.truth_of(model, prefix), f"{out}.safetensors")
    else:
        make.save(model, out, make.FAMILIES["llama"])


@unittest.skipUnless(importlib.util.find_spec("megatron"), "megatron-core is not installed")
class MegatronTest(LiveTest):
    def test_what_it_saves_is_read_and_what_is_written_it_loads(self):
        from safetensors.torch import load_file

        import make

        save = self.dir / "iteration"
        make.make(str(save), {"family": "llama", "ranks": 2})
        truth = load_file(f"{save}.safetensors")
        shardctl("gather", save, "-o", self.dir / "read.safetensors", "--objects", "drop")
        assert_same_tensors(self, load_file(self.dir / "read.safetensors"), truth)

        ours = self.dir / "ours"
        shardctl("convert", save, "-o", ours, "--to", "megatron-dist", "--core-version", "0.18")
        self.assertEqual(shardctl_json("inspect", ours)["format"], "megatron-dist")
        spawn(load_rank, 1, str(ours), "", str(self.dir / "one"))
        assert_same_tensors(self, load_file(self.dir / "one.safetensors"), truth)
        whole = self.dir / "whole"
        shardctl("gather", save, "-o", whole, "--to", "megatron-dist", "--core-version", "0.18")
        spawn(load_rank, 2, str(whole), "", str(self.dir / "two"))
        shardctl("diff", self.dir / "two", f"{save}.safetensors", "--objects", "drop")


if __name__ == "__main__":
    unittest.main()
