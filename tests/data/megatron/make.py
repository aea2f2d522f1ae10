"""Saves tiny models with the real Megatron-Core on the CPU: make.py OUT SPEC, SPEC as JSON; or make.py for the folders here.

SPEC: family (a key of FAMILIES), ranks (tensor-parallel, default 1), optimizer (moments beside the model), prefix (of the
model's keys), per_layer (keys of each layer instead of stacked ones), functions (args that name functions and enums).
OUT is the iteration's folder. OUT.safetensors beside it has the expected values: the tensors of the model with one rank, stacked. The
folders here are save folders with one iteration, and NAME.safetensors is their truth.
Other tests import this file: build(), save() and truth_of() are for them.

Needs megatron-core 0.16.1 on PYTHONPATH (scripts/setup puts it into the folder `megatron` of the environment).
"""
import argparse
import json
import os
import queue
import shutil
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import torch

warnings.filterwarnings("ignore")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from python_ranks import spawn  # noqa: E402

VOCAB, DIVISIBLE_BY = 10, 8  # Padded to a multiple of 8 x ranks.

# Arguments of Megatron-LM, as far as they shape the model.
DENSE = {"num_layers": 2, "hidden_size": 8, "num_attention_heads": 4, "group_query_attention": True, "num_query_groups": 2,
         "kv_channels": 2, "ffn_hidden_size": 6, "swiglu": True, "normalization": "RMSNorm", "add_qkv_bias": False,
         "qk_layernorm": False, "untie_embeddings_and_output_weights": True, "num_experts": None, "moe_ffn_hidden_size": None,
         "moe_shared_expert_intermediate_size": None, "moe_layer_freq": 1, "multi_latent_attention": False,
         "attention_output_gate": False, "apply_layernorm_1p": False, "hetereogenous_dist_checkpoint": False}
EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 6, "moe_router_topk": 2}
FAMILIES = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen2": DENSE | {"add_qkv_bias": True, "untie_embeddings_and_output_weights": False},
    "qwen3": DENSE | {"qk_layernorm": True},
    "mixtral": DENSE | EXPERTS,
    "qwen2_moe": DENSE | EXPERTS | {"add_qkv_bias": True, "moe_shared_expert_intermediate_size": 6, "moe_shared_expert_gate": True},
    "qwen3_moe": DENSE | EXPERTS | {"qk_layernorm": True},
}
# The folders beside this file.
FOLDERS = {
    "dense": {"family": "llama", "optimizer": True, "functions": True},
    "dense_tp2": {"family": "llama", "ranks": 2},
    "experts": {"family": "mixtral", "prefix": "module."},
}


def config_of(args: dict):
    from megatron.core.transformer.transformer_config import TransformerConfig

    renamed = {"activation_func": torch.nn.functional.silu, "gated_linear_unit": args["swiglu"], "bias_activation_fusion": False,
               "add_bias_linear": False, "use_cpu_initialization": True, "gradient_accumulation_fusion": False,
               "params_dtype": torch.bfloat16, "bf16": True, "num_moe_experts": args["num_experts"], "moe_token_dispatcher_type": "alltoall",
               "apply_rope_fusion": False, "persist_layer_norm": False}
    if args["num_experts"]:
        renamed |= {"moe_grouped_gemm": False}
    known = {key: value for key, value in args.items() if key in TransformerConfig.__dataclass_fields__}
    return TransformerConfig(tensor_model_parallel_size=torch.distributed.get_world_size(), **(known | renamed))


def set_parallel() -> None:
    """One tensor-parallel group of all ranks. Core's saving asks for a GPU, which need not be there."""
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.Stream = lambda *_, **__: None
    filesystem_async._get_write_results_queue = queue.Queue  # Core's is a process that would outlive this one.
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=torch.distributed.get_world_size())


def build(args: dict):
    """A GPTModel with local layers (no Transformer Engine), each parameter filled with numbers of its own. \\pre a group"""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec

    set_parallel()
    config = config_of(args)
    if args["num_experts"]:
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=args["qk_layernorm"], normalization=args["normalization"])
    multiple = DIVISIBLE_BY * torch.distributed.get_world_size()
    model = GPTModel(config, spec, vocab_size=-(-VOCAB // multiple) * multiple, max_sequence_length=16,
                     position_embedding_type="rope",
                     share_embeddings_and_output_weights=not args["untie_embeddings_and_output_weights"]).bfloat16()
    for name, parameter in model.named_parameters():
        fill(name, parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.data = fill(name, torch.empty_like(buffer, dtype=torch.float32))
    return model


def fill(name: str, tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        return tensor.copy_(torch.randn(tensor.shape, generator=generator))


def arguments(args: dict, functions: bool = False) -> argparse.Namespace:
    """The facts about the model in Megatron-LM's own namespace."""
    ranks = torch.distributed.get_world_size()
    multiple = DIVISIBLE_BY * ranks
    more = {"tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
            "padded_vocab_size": -(-VOCAB // multiple) * multiple, "make_vocab_size_divisible_by": DIVISIBLE_BY, "seq_length": 16,
            "params_dtype": torch.bfloat16, "bf16": True, "position_embedding_type": "rope", "iteration": 7}
    if functions:
        from megatron.core.enums import ModelType
        from megatron.core.transformer.enums import AttnBackend

        more |= {"model_type": ModelType.encoder_or_decoder, "attention_backend": AttnBackend.auto,
                 "activation_func": torch.nn.functional.silu, "init_method": torch.nn.init.xavier_uniform_}
    return argparse.Namespace(**args, **more)


def optimizer_state(model, sharded_model: dict) -> dict:
    """One step of Adam, sharded as core's FP32Optimizer does it, which itself wants a GPU."""
    from megatron.core.dist_checkpointing.optimizer import get_param_id_to_sharded_param_map, optim_state_to_sharding_state

    adam = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = parameter.detach() / 16
    adam.step()
    state = adam.state_dict()
    parameters = [parameter for group in adam.param_groups for parameter in group["params"]]
    optim_state_to_sharding_state(state, get_param_id_to_sharded_param_map(sharded_model, parameters), exclude_keys="step")
    state["state"]["common_step"] = 1
    return state


def save(model, folder, args: dict, optimizer: bool = False, prefix: str = "", functions: bool = False) -> None:
    """Saves as Megatron-LM's save_checkpoint does: the sharded tensors, and the common data beside them."""
    from megatron.core import dist_checkpointing

    folder = Path(folder)
    if torch.distributed.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    state = {"args": arguments(args, functions), "checkpoint_version": 3.0, "iteration": 7,
             "num_floating_point_operations_so_far": 12345, "content_metadata": {"distrib_optim_sharding_type": "fully_reshardable"}}
    state["model"] = model.sharded_state_dict(prefix)
    if optimizer:
        state["optimizer"] = optimizer_state(model, state["model"])
    dist_checkpointing.save(state, str(folder))


def load(model, folder, prefix: str = "") -> dict:
    """Loads into the model, strictly. \\returns what was loaded, the common data in it."""
    from megatron.core import dist_checkpointing
    from megatron.core.safe_globals import register_safe_globals

    register_safe_globals()
    state = {"model": model.sharded_state_dict(prefix)}
    loaded = dist_checkpointing.load(state, str(folder), strict=dist_checkpointing.validation.StrictHandling.RAISE_ALL)
    return loaded


def truth_of(model, prefix: str = "") -> dict[str, torch.Tensor]:
    """The whole tensors under their keys, taken from a model on one rank. Layers are stacked here, not by Core."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    whole: dict[str, torch.Tensor] = {}
    for item in nested_values(model.sharded_state_dict(prefix)):
        for part in nested_values(item.build()) if isinstance(item, ShardedTensorFactory) else [item]:
            if not isinstance(part, ShardedTensor):
                continue
            target = whole.setdefault(part.key, torch.zeros(part.global_shape, dtype=part.dtype))
            axes = part.prepend_axis_num
            box = [slice(begin, begin + 1) for begin in part.global_offset[:axes]]
            box += [slice(begin, begin + size) for begin, size in zip(part.global_offset[axes:], part.local_shape)]
            target[tuple(box)] = part.data.detach()
    return whole


def save_rank(rank: int, out: str, spec: dict) -> None:
    """A model of several ranks is loaded from the save of one."""
    args = dict(FAMILIES[spec["family"]], hetereogenous_dist_checkpoint=spec.get("per_layer", False))
    model = build(args)
    options = {key: spec[key] for key in ("optimizer", "prefix", "functions") if key in spec}
    if "from" in spec:
        model.load_state_dict(load(model, spec["from"], spec.get("prefix", ""))["model"])
    save(model, out, args, **options)
    if "from" not in spec:
        from safetensors.torch import save_file

        save_file(truth_of(model, spec.get("prefix", "")), f"{out}.safetensors")


def make(out: str, spec: dict) -> None:
    ranks = spec.get("ranks", 1)
    if ranks == 1:
        return spawn(save_rank, 1, out, spec)
    with tempfile.TemporaryDirectory() as folder:
        make(f"{folder}/one", {**spec, "ranks": 1, "optimizer": False, "functions": False})
        os.rename(f"{folder}/one.safetensors", f"{out}.safetensors")
        spawn(save_rank, ranks, out, {**spec, "from": f"{folder}/one"})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        make(sys.argv[1], json.loads(sys.argv[2]))
    for name, spec in FOLDERS.items() if len(sys.argv) == 1 else ():
        folder = Path(__file__).parent / name
        shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory() as scratch:  # The save records its folder.
            make(f"{scratch}/{name}", spec)
            shutil.move(f"{scratch}/{name}.safetensors", f"{folder}.safetensors")
            shutil.copytree(f"{scratch}/{name}", folder / "iter_0000007")
        (folder / "latest_checkpointed_iteration.txt").write_text("7")
