"""ZeRO 3 with tensor-parallel ranks, made by DeepSpeed's formulas: no engine that runs on the CPU writes such saves."""
import unittest

import torch
from safetensors.torch import load_file
from support import LiveTest, assert_same_tensors, shardctl, shardctl_json

TP, DP = 2, 3
# Name -> (shape of the whole, sharding of the ranks' parts: a dimension, None for equal ones, "halves" of dimension 0).
GROUPS = [{"embed.weight": ((10, 5), 0), "norm.weight": ((7,), None), "in.weight": ((12, 5), "halves")},
          {"out.weight": ((5, 14), 1), "head.weight": ((6, 3), 0), "head.bias": ((6,), 0)}]
RULES = {"universal_checkpoint_version": 0.2, "vocabulary_parameter_patterns": ["embed"], "original_vocab_size": 9,
         "tp_replicated_parameter_patterns": ["norm"], "parameter_with_row_parallelism_patterns": ["out\\.weight"],
         "parameter_with_2_sub_params_cat_dim_0": ["in\\.weight"]}


def part_of(whole: torch.Tensor, rule, tp: int) -> torch.Tensor:
    if rule is None:
        return whole
    if rule == "halves":
        return torch.cat([half.chunk(TP)[tp] for half in whole.chunk(2)])
    return whole.chunk(TP, rule)[tp]


def slice_of(tensor: torch.Tensor, dp: int) -> torch.Tensor:
    """Rank dp's piece of ceil(numel / DP) elements; missing ones are uninitialised memory."""
    count = -(-tensor.numel() // DP)
    piece = torch.full((count,), float("nan"))
    real = tensor.flatten()[dp * count:(dp + 1) * count]
    piece[:real.numel()] = real
    return piece


def save(folder, truth: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder.parent / "latest").write_text(folder.name)
    for tp in range(TP):
        parts = [{name: {state: part_of(truth[f"{state}{name}"], rule, tp) for state in ("", "exp_avg ", "exp_avg_sq ")}
                  for name, (_, rule) in group.items()} for group in GROUPS]
        for dp in range(DP):
            def flat(state: str) -> list[torch.Tensor]:
                return [torch.cat([slice_of(each[state], dp) for each in group.values()]) for group in parts]

            module = {name: torch.empty(0) for group in parts for name in group}
            model = {"module": module, "buffer_names": [], "shared_params": {}, "frozen_param_shapes": None, "frozen_param_fragments": None,
                     "param_shapes": [{name: each[""].shape for name, each in group.items()} for group in parts],
                     "dp_world_size": DP, "mp_world_size": TP, "ds_version": "0.18.2", "universal_checkpoint_info": RULES}
            torch.save(model, folder / f"zero_pp_rank_{dp}_mp_rank_{tp:02d}_model_states.pt")
            moments = [{"step": torch.tensor(4.0), "exp_avg": first, "exp_avg_sq": second}
                       for first, second in zip(flat("exp_avg "), flat("exp_avg_sq "))]
            optimizer = {"zero_stage": 3, "partition_count": DP, "fp32_flat_groups": flat(""),
                         "optimizer_state_dict": {"state": dict(enumerate(moments)), "param_groups": [{"lr": 0.1}]}}
            torch.save({"optimizer_state_dict": optimizer}, folder / f"zero_pp_rank_{dp}_mp_rank_{tp:02d}_optim_states.pt")


class DeepSpeedFormulaTest(LiveTest):
    def test_stage_3_of_tensor_parallel_ranks_is_joined(self):
        truth, at = {}, 0
        for state in ("", "exp_avg ", "exp_avg_sq "):
            for group in GROUPS:
                for name, (shape, _) in group.items():
                    truth[state + name] = torch.arange(at, at + torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
                    at += truth[state + name].numel()
        save(self.dir / "save" / "global_step4", truth)
        inspected = shardctl_json("inspect", self.dir / "save")
        self.assertEqual((inspected["format"], inspected["world_size"]), ("deepspeed", TP * DP))
        shardctl("gather", self.dir / "save", "-o", self.dir / "whole.safetensors", "--objects", "drop")
        expected = {f"optimizer.state.{key.split()[1]}.{key.split()[0]}" if " " in key else key: tensor for key, tensor in truth.items()}
        for name in [name for name in expected if "embed" in name]:
            expected[name] = expected[name][:9].clone()
        assert_same_tensors(self, load_file(self.dir / "whole.safetensors"), expected)
        shardctl("verify", self.dir / "save")


if __name__ == "__main__":
    unittest.main()
