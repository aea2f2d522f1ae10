"""Saves tiny models with the real Megatron-LM on the CPU, `--ckpt-format torch`: make.py OUT NAME, started by torchrun.

The saves here came of megatron-core 0.16.1 from PyPI and megatron/{training,legacy} of Megatron-LM's tag core_v0.16.1, whose
`save_checkpoint` wrote them, with torch 2.11 and gloo. No GPU: torch reports "cpu" as its CUDA device.
OUT.safetensors beside OUT has the expected whole tensors, by Megatron's own sharded_state_dict of the same objects.

  dense    4 ranks  tensor 2, pipeline 2 with 2 virtual stages; GQA, SwiGLU, RMSNorm, tied embedding, distributed optimizer
  experts  4 ranks  tensor 2, expert 2; 4 experts beside a shared one with a gate (as Qwen2-MoE), distributed optimizer
  uneven   3 ranks  pipeline 3 with 1, 2 and 1 layers; GELU, biases, learned positions; every rank its whole optimizer
"""

import sys
from argparse import Namespace

import torch
import torch.distributed as dist
import torch.overrides
from safetensors.torch import save_file



class OnCpu(torch.overrides.TorchFunctionMode):
    """Creates tensors for a GPU on the CPU, and reports a GPU as their device, as the optimizers require."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if function is torch.Tensor.type and isinstance(result, str) else result


torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda device=None: None
torch.cuda.get_rng_state = torch.get_rng_state
torch.Tensor.cuda = lambda tensor, *ignored, **more: tensor

from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import (  # noqa: E402
    ShardedTensor, ShardedTensorFactory, apply_factories, is_main_replica)
from megatron.core.dist_checkpointing.optimizer import make_sharded_optimizer_tensor  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from megatron.training import global_vars  # noqa: E402
from megatron.training.checkpointing import save_checkpoint  # noqa: E402

SPECS = {
    "dense": dict(norm="RMSNorm", tensor=2, pipeline=2, virtual=2, layers=4, gated=True, tied=True, distributed=True),
    "experts": dict(norm="RMSNorm", tensor=2, expert=2, layers=2, gated=True, experts=4, distributed=True),
    "uneven": dict(pipeline=3, layers=4, first=1, last=1, bias=True, positions="learned_absolute"),
}
# Names of torch_dist for tensors that this format stores under the names of the modules.
NAMES = {"optimizer.state.param.": "optimizer.state.fp32_param.", "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
         "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm."}


def config_of(spec):
    more = {}
    if "experts" in spec:
        more = dict(num_moe_experts=spec["experts"], moe_ffn_hidden_size=6, moe_router_topk=2, moe_token_dispatcher_type="allgather",
                    moe_shared_expert_intermediate_size=4, moe_shared_expert_gate=True, add_qkv_bias=True)
    return TransformerConfig(
        num_layers=spec["layers"], hidden_size=8, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=12,
        gated_linear_unit=spec.get("gated", False), add_bias_linear=spec.get("bias", False), normalization=spec.get("norm", "LayerNorm"),
        activation_func=torch.nn.functional.silu if spec.get("gated") else torch.nn.functional.gelu,
        bias_activation_fusion=False, use_cpu_initialization=True, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=spec.get("tensor", 1),
        pipeline_model_parallel_size=spec.get("pipeline", 1), expert_model_parallel_size=spec.get("expert", 1),
        virtual_pipeline_model_parallel_size=spec.get("virtual"), num_layers_in_first_pipeline_stage=spec.get("first"),
        num_layers_in_last_pipeline_stage=spec.get("last"), gradient_accumulation_fusion=False, **more)


def chunk_of(spec, config, virtual):
    stage, stages = parallel_state.get_pipeline_model_parallel_rank(), config.pipeline_model_parallel_size
    is_first = stage == 0 and (virtual or 0) == 0
    is_last = stage == stages - 1 and (virtual is None or virtual == spec["virtual"] - 1)
    model = GPTModel(
        config, get_gpt_layer_local_spec(spec.get("experts"), False, normalization=config.normalization), vocab_size=16, max_sequence_length=4,
        pre_process=is_first, post_process=is_last, share_embeddings_and_output_weights=spec.get("tied", False),
        position_embedding_type=spec.get("positions", "rope"), vp_stage=virtual)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=spec.get("distributed", False))
    return DistributedDataParallel(config, ddp, Float16Module(config, model))


def fill(models):
    """Other values in every part, the same ones in copies."""
    tensor, expert = parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_expert_model_parallel_rank()
    for chunk, model in enumerate(models):
        for number, param in enumerate(model.parameters()):
            is_tied = getattr(param, "shared_embedding", False)
            seed = 1 if is_tied else 100 * (1 + number) + 10 * parallel_state.get_pipeline_model_parallel_rank() + chunk
            seed += 10_000 * (1 + tensor) if getattr(param, "tensor_model_parallel", False) else 0
            seed += 100_000 * (1 + expert) if not getattr(param, "allreduce", True) else 0
            param.data.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(seed)))


def step(models, optimizer):
    """One step with gradients that are computed from the parameters, so equal parameters have equal gradients."""
    for model in models:
        for param in model.parameters():
            param.main_grad.copy_(torch.sin(37 * param.detach().float()) / 8)
        model.finish_grad_sync()
    optimizer.step()


def arguments_of(spec, config, out):
    """The result of Megatron-LM's command line, as far as saving and reading need it."""
    known = {key: getattr(config, key) for key in (
        "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size", "normalization",
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size", "moe_ffn_hidden_size",
        "virtual_pipeline_model_parallel_size", "expert_tensor_parallel_size", "bf16", "params_dtype",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "pipeline_model_parallel_layout")}
    return Namespace(
        **known, group_query_attention=True, swiglu=spec.get("gated", False), add_bias_linear=spec.get("bias", False),
        num_experts=spec.get("experts"), padded_vocab_size=16, decoder_first_pipeline_num_layers=spec.get("first"),
        decoder_last_pipeline_num_layers=spec.get("last"), untie_embeddings_and_output_weights=not spec.get("tied", False),
        save=out, use_dist_ckpt=False, ckpt_format="torch", async_save=False, use_distributed_optimizer=spec.get("distributed", False),
        no_save_optim=False, no_save_rng="tied" not in spec, data_parallel_random_init=False, optimizer="adam", log_progress=False,
        model_type=ModelType.encoder_or_decoder, rank=dist.get_rank(), world_size=dist.get_world_size())


def distributed_states(optimizer, model):
    """The distributed optimizer's state of each parameter. In 0.16.1 its own way to whole tensors (fully_reshardable) uses
    wrong elements if a bucket ends with padding."""
    by_param = {id(each.data): each for each in nested_values(model) if isinstance(each, (ShardedTensor, ShardedTensorFactory))}
    states = []
    for part in optimizer.chained_optimizers:
        for param in (param for buffer in part.buffers for param in buffer.params):
            for state in ("param", "exp_avg", "exp_avg_sq"):
                whole = torch.zeros(param.numel())
                if param in part.model_param_gbuf_map:
                    here = part._get_model_param_range_map(param)["param"]
                    whole[here.start:here.end] = part._get_main_param_and_optimizer_states(param)[state]
                dist.all_reduce(whole, group=part.data_parallel_group)
                states.append(make_sharded_optimizer_tensor(by_param[id(param)], whole.view(param.shape), f"optimizer.state.{state}"))
    return states


def save_truth(models, optimizer, out):
    """Whole tensors, as Megatron's torch_dist would write them with keys by layer."""
    metadata = {"non_homogeneous_layers": True, "singleton_local_shards": False,
                "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
    state = {f"model{i}": model.module.module.sharded_state_dict(metadata=metadata) for i, model in enumerate(models)}
    is_distributed = hasattr(optimizer.chained_optimizers[0], "gbuf_ranges")
    state["optimizer"] = (distributed_states(optimizer, dict(state)) if is_distributed
                          else optimizer.sharded_state_dict(dict(state), metadata=metadata))
    apply_factories(state)
    parts = [(each.key, each.global_shape, each.global_slice(), each.data.detach().contiguous())
             for each in nested_values(state) if isinstance(each, ShardedTensor) and is_main_replica(each.replica_id)]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, parts)
    whole = {}
    for key, shape, place, part in (each for rank in gathered for each in rank):
        for there, here in NAMES.items():
            key = key.replace(there, here)
        whole.setdefault(key, torch.full(shape, torch.nan, dtype=part.dtype))[place] = part
    assert not any(tensor.isnan().any() for tensor in whole.values())
    if dist.get_rank() == 0:
        save_file(whole, out + ".safetensors")


def main(out, name):
    spec = SPECS[name]
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        spec.get("tensor", 1), spec.get("pipeline", 1), spec.get("virtual"), expert_model_parallel_size=spec.get("expert", 1))
    config = config_of(spec)
    models = [chunk_of(spec, config, i if "virtual" in spec else None) for i in range(spec.get("virtual", 1))]
    fill(models)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, bf16=True, params_dtype=torch.bfloat16, clip_grad=0.0,
                        use_distributed_optimizer=spec.get("distributed", False)), models)
    step(models, optimizer)
    save_truth(models, optimizer, out)
    global_vars._GLOBAL_ARGS = arguments_of(spec, config, out)
    save_checkpoint(5, models, optimizer, None, 0)
    dist.barrier()
    dist.destroy_process_group()


with OnCpu():
    main(sys.argv[1].rstrip("/"), sys.argv[2])
