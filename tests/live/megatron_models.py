"""Tiny GPTModels of the real Megatron-Core on the CPU, of the architectures that folders of transformers describe.

Layers are Core's own (no Transformer Engine). Everything here runs on gloo ranks, which are the tensor-parallel group.
"""
import contextlib
import importlib.util
import io
import json
from pathlib import Path

import torch
import torch.distributed as dist

# Imported once by the server that forks the ranks.
MODULES = ["megatron.core.models.gpt.gpt_model", "megatron.core.models.gpt.gpt_layer_specs", "megatron.core.dist_checkpointing"]
TOKENS = torch.arange(24).reshape(2, 12) * 3 % 96  # The inputs of tiny_models.logits.


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("megatron", "psutil"))


def has_experts(folder) -> bool:
    return "num_experts_per_tok" in json.loads((Path(folder) / "config.json").read_text())


def set_parallel() -> None:
    """One tensor-parallel group of all ranks. Core calls a GPU in some functions that work without one."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import moe_utils

    if not torch.cuda.is_available():
        torch.cuda.synchronize = lambda device=None: None
        torch.cuda.current_device = lambda: "cpu"
        multi_latent_attention.TELinear = type("Absent", (), {})  # Core names both though Transformer Engine is absent.
        moe_utils.te_general_gemm = None
        CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())


def gelu(values):
    return torch.nn.functional.gelu(values, approximate="tanh")


def dense_arguments(hf: dict) -> dict:
    kind, heads = hf["model_type"], hf["num_attention_heads"]
    return {"num_layers": hf["num_hidden_layers"], "hidden_size": hf["hidden_size"], "num_attention_heads": heads,
            "num_query_groups": hf["num_key_value_heads"], "kv_channels": hf.get("head_dim") or hf["hidden_size"] // heads,
            "ffn_hidden_size": hf["intermediate_size"], "gated_linear_unit": True,
            "activation_func": gelu if kind == "gemma" else torch.nn.functional.silu,
            "add_bias_linear": False, "add_qkv_bias": kind.startswith("qwen2"), "normalization": "RMSNorm",
            "layernorm_epsilon": hf["rms_norm_eps"], "qk_layernorm": kind.startswith(("qwen3", "deepseek")),
            "tensor_model_parallel_size": dist.get_world_size(), "use_cpu_initialization": True, "hidden_dropout": 0.0,
            "attention_dropout": 0.0, "bias_activation_fusion": False, "apply_rope_fusion": False,
            "gradient_accumulation_fusion": False}


def expert_arguments(hf: dict) -> dict:
    # transformers writes a config's own name of the number of experts, or the common one.
    experts = next(hf[name] for name in ("num_local_experts", "num_experts", "n_routed_experts") if hf.get(name))
    shared = hf.get("shared_expert_intermediate_size") or hf.get("n_shared_experts", 0) * hf.get("moe_intermediate_size", 0)
    return {"num_moe_experts": experts, "moe_router_topk": hf["num_experts_per_tok"], "moe_aux_loss_coeff": 0.0,
            "moe_ffn_hidden_size": hf.get("moe_intermediate_size", hf["intermediate_size"]), "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "allgather", "moe_shared_expert_intermediate_size": shared or None,
            "moe_shared_expert_gate": hf["model_type"] == "qwen2_moe",
            "moe_router_pre_softmax": not hf.get("norm_topk_prob", True)}


def latent_arguments(hf: dict) -> dict:
    dense = hf["first_k_dense_replace"]
    return {"multi_latent_attention": True, "num_query_groups": None, "kv_channels": None, "rope_type": "rope", "rotary_base": 10000,
            "q_lora_rank": hf["q_lora_rank"], "kv_lora_rank": hf["kv_lora_rank"], "qk_head_dim": hf["qk_nope_head_dim"],
            "qk_pos_emb_head_dim": hf["qk_rope_head_dim"], "v_head_dim": hf["v_head_dim"],
            "moe_layer_freq": [0] * dense + [1] * (hf["num_hidden_layers"] - dense), "moe_router_pre_softmax": False,
            "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
            "moe_router_num_groups": hf["n_group"], "moe_router_group_topk": hf["topk_group"],
            "moe_router_topk_scaling_factor": hf["routed_scaling_factor"]}


def layers_of(config):
    """The specification of the layers, with an attention that knows values narrower than keys."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Attention(DotProductAttention):
        def __init__(self, *words, k_channels=None, v_channels=None, **more):
            super().__init__(*words, **more)
            if v_channels:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    if not isinstance(config.moe_layer_freq, list):
        return get_gpt_layer_local_spec(num_experts=config.num_moe_experts, qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    for layer in block.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = Attention
    return block


def build(folder):
    """The model that a folder's config.json describes, its vocabulary padded as Megatron-LM does it."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    set_parallel()
    hf = json.loads((Path(folder) / "config.json").read_text())
    arguments = dense_arguments(hf)
    if has_experts(folder):
        arguments |= expert_arguments(hf)
    is_latent = "kv_lora_rank" in hf
    config = MLATransformerConfig(**arguments | latent_arguments(hf)) if is_latent else TransformerConfig(**arguments)
    multiple = 128 * dist.get_world_size()
    model = GPTModel(config, layers_of(config), vocab_size=-(-hf["vocab_size"] // multiple) * multiple, max_sequence_length=64,
                     position_embedding_type="rope", rotary_base=hf["rope_parameters"]["rope_theta"], parallel_output=False,
                     share_embeddings_and_output_weights=hf["tie_word_embeddings"]).eval()
    if hf["model_type"] == "gemma":  # Core has no factor for embeddings.
        model.embedding.register_forward_hook(lambda module, inputs, output: output * hf["hidden_size"] ** 0.5)
    return model


def randomize(model) -> None:
    """Other numbers on each rank; norms near 1."""
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("weight", "bias")) and tensor.dtype == torch.float32:
            values = torch.randn(tensor.shape, generator=generator) / 8
            tensor.data.copy_(values + ("norm" in name))
    for name, tensor in model.named_parameters():  # Parts that are the same on all ranks.
        if not getattr(tensor, "tensor_model_parallel", False):
            dist.broadcast(tensor.data, 0)
    for name, tensor in model.named_buffers():
        if tensor.dtype == torch.float32:
            dist.broadcast(tensor.data, 0)


def logits(model, words: int) -> torch.Tensor:
    positions = torch.arange(12).expand(2, 12)
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)[None, None]  # True: not looked at.
    with torch.no_grad():
        return model(TOKENS, positions, hidden)[..., :words]


SINGLE = {"singleton_local_shards": True}  # Metadata: halves of linear_fc1 and experts under separate keys.


def sharded_state(model, metadata) -> dict:
    return model.sharded_state_dict(metadata=metadata and dict(metadata))


def save(model, folder, metadata=None) -> None:
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        Path(folder).mkdir(parents=True)
    dist.barrier()
    dist_checkpointing.save(sharded_state(model, metadata), str(folder))


def load(model, folder, metadata=None) -> None:
    """Loading as Core does it by its defaults: all that the model would save must be in the folder, `_extra_state` too."""
    from megatron.core import dist_checkpointing

    model.load_state_dict(dist_checkpointing.load({"model": sharded_state(model, metadata)}, str(folder))["model"])


def listing(folder) -> dict:
    """The content of a folder by name: shape and dtype of tensors, the objects of modules, "common" for common
    data."""
    from torch.distributed.checkpoint import FileSystemReader

    metadata = FileSystemReader(str(folder)).read_metadata()
    places = {index.fqn: place for index, place in metadata.storage_data.items()}

    def described(name: str, entry):
        if hasattr(entry, "size"):
            return tuple(entry.size), str(entry.properties.dtype)
        if not name.rpartition("/shard_")[0].endswith("_extra_state"):
            return "common"
        content = (Path(folder) / places[name].relative_path).read_bytes()
        return torch.load(io.BytesIO(content[places[name].offset:places[name].offset + places[name].length]))

    return {name: described(name, entry) for name, entry in metadata.state_dict_metadata.items()}


def writes_common_file() -> bool:
    """Core up to 0.18 keeps common data in common.pt."""
    import megatron.core

    return tuple(map(int, megatron.core.__version__.split(".")[:2])) < (0, 19)
