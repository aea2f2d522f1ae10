"""The built-in maps megatron:*, both ways, against their formulas (element by element, restated here).

A fused row of queries, keys and values: group g has the heads g*q to g*q+q-1 of the queries, then head g of the keys, then of
the values. A gated projection is the gate's rows, then the other's. Layers, and experts in them, are leading dimensions.
"""
import json
import pathlib

from int_tensors import WORK, numbers, of_rows, read, rows, run, write

HEADS, GROUPS, HEAD, HIDDEN, INNER, EXPERTS, LAYERS, WORDS, PADDED = 4, 2, 2, 4, 3, 3, 2, 5, 128
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": GROUPS, "head_dim": HEAD, "hidden_size": HIDDEN, "vocab_size": WORDS,
          "num_hidden_layers": LAYERS}
SAVES = pathlib.Path(__file__).resolve().parents[1] / "data/megatron"  # By the real Core, see make.py there.
MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")


def made(count, width=HIDDEN):
    return ([count, width], numbers(count * width)) if width else ([count], numbers(count))


def joined(*parts):
    return of_rows([row for part in parts for row in rows(part)]) if len(parts[0][0]) == 2 else (
        [sum(part[0][0] for part in parts)], [number for part in parts for number in part[1]])


def fused(q, k, v):
    part = lambda tensor, i: (lambda each: [[HEAD, *tensor[0][1:]], tensor[1][i * each:(i + 1) * each]])(
        len(tensor[1]) // (tensor[0][0] // HEAD))
    slots = HEADS // GROUPS
    return joined(*(each for g in range(GROUPS)
                    for each in (*(part(q, g * slots + s) for s in range(slots)), part(k, g), part(v, g))))


def stacked(tensors):
    return [len(tensors), *tensors[0][0]], [number for _, values in tensors for number in values]


def padded(tensor):
    return [PADDED, HIDDEN], tensor[1] + [0] * (PADDED - WORDS) * HIDDEN


def gated(hub, core, name, core_name, inner=INNER, words=("gate_proj", "up_proj", "down_proj")):
    gate, up, down = made(inner), made(inner), made(HIDDEN, inner)
    hub |= {f"{name}.{word}.weight": each for word, each in zip(words, (gate, up, down))}
    if core_name:
        core |= {f"{core_name}.linear_fc1.weight": joined(gate, up), f"{core_name}.linear_fc2.weight": down}
    return joined(gate, up), down


def same(hub, core, name, core_name, count, width=HIDDEN):
    hub[name] = core[core_name] = made(count, width)


def latent_attention(hub, core, m, c):
    for name, core_name, count, width in (("q_a_proj", "linear_q_down_proj", 3, HIDDEN), ("q_b_proj", "linear_q_up_proj", 8, 3),
                                          ("kv_a_proj_with_mqa", "linear_kv_down_proj", 4, HIDDEN), ("kv_b_proj", "linear_kv_up_proj", 8, 3),
                                          ("o_proj", "linear_proj", HIDDEN, 4)):
        same(hub, core, f"{m}.self_attn.{name}.weight", f"{c}.self_attention.{core_name}.weight", count, width)
    for x in ("q", "kv"):
        same(hub, core, f"{m}.self_attn.{x}_a_layernorm.weight", f"{c}.self_attention.linear_{x}_up_proj.layer_norm_weight", 3, 0)
    same(hub, core, f"{m}.input_layernorm.weight", f"{c}.input_layernorm.weight", HIDDEN, 0)


def attention(kind, hub, core, m, c):
    for word, width in (("weight", HIDDEN), *((("bias", 0),) if kind.startswith("qwen2") else ())):
        q, k, v = made(HEADS * HEAD, width), made(GROUPS * HEAD, width), made(GROUPS * HEAD, width)
        hub |= {f"{m}.self_attn.{x}_proj.{word}": each for x, each in zip("qkv", (q, k, v))}
        core[f"{c}.self_attention.linear_qkv.{word}"] = fused(q, k, v)
    same(hub, core, f"{m}.self_attn.o_proj.weight", f"{c}.self_attention.linear_proj.weight", HIDDEN, HEADS * HEAD)
    same(hub, core, f"{m}.input_layernorm.weight", f"{c}.self_attention.linear_qkv.layer_norm_weight", HIDDEN, 0)
    for x in "qk" if kind.startswith("qwen3") or kind == "gemma3" else "":
        same(hub, core, f"{m}.self_attn.{x}_norm.weight", f"{c}.self_attention.{x}_layernorm.weight", HEAD, 0)


def experts(kind, hub, core, m, c):
    block, words = ("block_sparse_moe", ("w1", "w3", "w2")) if kind == "mixtral" else ("mlp", ("gate_proj", "up_proj", "down_proj"))
    same(hub, core, f"{m}.{block}.gate.weight", f"{c}.mlp.router.weight", EXPERTS)
    each = [gated(hub, core, f"{m}.{block}.experts.{e}", "", words=words) for e in range(EXPERTS)]
    core[f"{c}.mlp.experts.experts.linear_fc1.weight"] = stacked([fc1 for fc1, _ in each])
    core[f"{c}.mlp.experts.experts.linear_fc2.weight"] = stacked([fc2 for _, fc2 in each])
    if kind == "qwen2_moe":
        gated(hub, core, f"{m}.mlp.shared_expert", f"{c}.mlp.shared_experts", 5)
        same(hub, core, f"{m}.mlp.shared_expert_gate.weight", f"{c}.mlp.shared_experts.gate_weight", 1)
    if kind == "deepseek_v3":
        gated(hub, core, f"{m}.mlp.shared_experts", f"{c}.mlp.shared_experts", 5)
        same(hub, core, f"{m}.mlp.gate.e_score_correction_bias", f"{c}.mlp.router.expert_bias", EXPERTS, 0)


def layer(kind, hub, core, m, c, is_dense):
    if kind == "deepseek_v3":
        latent_attention(hub, core, m, c)
    else:
        attention(kind, hub, core, m, c)
    norm = "mlp.linear_fc1.layer_norm_weight" if is_dense else "pre_mlp_layernorm.weight"
    norms = {"post_attention_layernorm": norm}
    if kind in ("gemma2", "gemma3"):
        norms = {"post_attention_layernorm": "self_attention.linear_proj.post_layernorm.weight", "pre_feedforward_layernorm": norm,
                 "post_feedforward_layernorm": "mlp.linear_fc2.post_layernorm.weight"}
    for name, core_name in norms.items():
        same(hub, core, f"{m}.{name}.weight", f"{c}.{core_name}", HIDDEN, 0)
    if is_dense:
        gated(hub, core, f"{m}.mlp", f"{c}.mlp")
    else:
        experts(kind, hub, core, m, c)


def model(kind, mtp=0):
    """A model's tensors under Hugging Face's names, and under Core's with a layer a name."""
    hub, core = {}, {}
    for name, core_name in (("model.embed_tokens", "embedding.word_embeddings"), ("lm_head", "output_layer")):
        hub[f"{name}.weight"] = made(WORDS)
        core[f"{core_name}.weight"] = padded(hub[f"{name}.weight"])
    same(hub, core, "model.norm.weight", "decoder.final_layernorm.weight", HIDDEN, 0)
    for i in range(LAYERS):
        is_dense = kind not in MOE or (kind == "deepseek_v3" and i == 0)
        layer(kind, hub, core, f"model.layers.{i}", f"decoder.layers.{i}", is_dense)
    for i in range(mtp):
        m, c = f"model.layers.{LAYERS + i}", f"mtp.layers.{i}"
        layer(kind, hub, core, m, f"{c}.transformer_layer", False)
        for name, core_name in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head.norm", "final_layernorm")):
            same(hub, core, f"{m}.{name}.weight", f"{c}.{core_name}.weight", HIDDEN, 0)
        same(hub, core, f"{m}.eh_proj.weight", f"{c}.eh_proj.weight", HIDDEN, 2 * HIDDEN)
    return hub, core


def with_layers_stacked(core):
    found = {}
    for name, tensor in core.items():
        found.setdefault(name.replace("layers.0.", "layers.").replace("layers.1.", "layers."), []).append(tensor)
    return {name: stacked(tensors) if ".layers." in name else tensors[0] for name, tensors in found.items()}


def check_kind(kind):
    name, ref = f"megatron:{'gemma3' if kind == 'gemma2' else kind}", ["--hf-ref", "ref"]
    hub, core = model(kind, mtp=1 if kind == "deepseek_v3" else 0)
    write(WORK / "hub.safetensors", hub)
    forms = {"": core} if kind == "deepseek_v3" else {"": with_layers_stacked(core), "per_layer=1": core}
    if kind == "deepseek_v3":  # The module's name, which Core writes as the older one.
        forms["mtp_layer=mtp_model_layer"] = {each.replace("transformer_layer", "mtp_model_layer"): tensor for each, tensor in core.items()}
    forms["prefix=module."] = {f"module.{each}": tensor for each, tensor in forms[""].items()}
    for form, wanted in forms.items():
        how = ["--set", form] if form else []
        run("convert", "hub.safetensors", "-o", "core.safetensors", "--to-map", name, *ref, *how, "--force")
        assert read(WORK / "core.safetensors") == {each: (list(shape), values) for each, (shape, values) in wanted.items()}, (kind, form)
        run("map", "check", name, "core.safetensors", *ref)
        assert "equal" in run("diff", "core.safetensors", "hub.safetensors", "--map", name, *ref)
    # In chunks, as ranks write them, and by ranks.
    run("convert", "hub.safetensors", "-o", "core.dcp", "--to", "dcp", "--ranks", "3", "--to-map", name, *ref, "--local-ranks", "2",
        "--force")
    run("gather", "core.dcp", "-o", "back.safetensors", "--map", name, *ref, "--local-ranks", "2", "--force")
    assert read(WORK / "back.safetensors") == hub, kind


def check_local_names():
    """The norm names of Core's own layers, which maps read, and write with local_spec=1."""
    renames = {"mixtral": {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
               "qwen3_moe": {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
               "deepseek_v3": {"self_attention.linear_q_up_proj.layer_norm_weight": "self_attention.q_layernorm.weight",
                               "self_attention.linear_kv_up_proj.layer_norm_weight": "self_attention.kv_layernorm.weight",
                               "mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"}}
    for kind, names in renames.items():
        hub, core = model(kind)
        if kind != "deepseek_v3":
            core = with_layers_stacked(core)
        local = {}
        for name, tensor in core.items():
            for theirs, own in names.items():
                name = name.replace(theirs, own)
            local[name] = tensor
        write(WORK / "hub.safetensors", hub)
        write(WORK / "local.safetensors", local)
        run("diff", "local.safetensors", "hub.safetensors", "--map", f"megatron:{kind}", "--hf-ref", "ref")
        run("convert", "hub.safetensors", "-o", "made.safetensors", "--to-map", f"megatron:{kind}", "--hf-ref", "ref", "--set",
            "local_spec=1", "--force")
        run("diff", "made.safetensors", "local.safetensors")
    hub, core = model("llama")
    old = {name.replace("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight").replace(
        "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"): each for name, each in core.items()}
    write(WORK / "hub.safetensors", hub)
    write(WORK / "old.safetensors", old)
    run("diff", "old.safetensors", "hub.safetensors", "--map", "megatron:llama", "--hf-ref", "ref")


def check_beside_weights():
    """States of an optimizer, objects, a vocabulary with different padding, a dense layer among others."""
    hub, core = model("llama")
    states = {}
    for state in ("exp_avg", "exp_avg_sq", "fp32_param", "param"):
        again = {name: (shape, [100 * number for number in values]) for name, (shape, values) in core.items()}
        states |= {f"optimizer.state.{state}.{name}": each for name, each in with_layers_stacked(again).items()}
    words = core["embedding.word_embeddings.weight"]
    core["embedding.word_embeddings.weight"] = [7, HIDDEN], words[1][:WORDS * HIDDEN] + numbers(2 * HIDDEN)
    extra = {"decoder.layers.self_attention.linear_qkv._extra_state": ([1], [5])}
    write(WORK / "train.safetensors", with_layers_stacked(core) | states | extra)
    run("gather", "train.safetensors", "-o", "all.safetensors", "--map", "megatron:llama", "--hf-ref", "ref")
    found = read(WORK / "all.safetensors")
    for name, (shape, values) in hub.items():
        assert found.pop(name) == (shape, values), name
        for state in ("exp_avg", "exp_avg_sq", "fp32_param", "param"):
            assert found.pop(f"optimizer.state.{name}.{state}") == (shape, [100 * number for number in values]), (name, state)
    assert not found, found
    assert "1 dropped" in run("map", "check", "megatron:llama", "train.safetensors", "--hf-ref", "ref")
    run("export", "train.safetensors", "-o", "exported", "--map", "megatron:llama", "--hf-ref", "ref")
    assert read(WORK / "exported/model.safetensors") == hub


def with_norms(tensors, change):
    """Norms as floats with few bits, so that sums are exact."""
    return {name: (list(shape), [change(number / 1024) for number in values] if "norm" in name else values)
            for name, (shape, values) in tensors.items()}


def check_zero_centred():
    """apply_layernorm_1p stores norms less 1. Hugging Face's Gemma does so itself."""
    for kind in ("gemma", "llama", "mistral", "qwen2", "qwen3", *MOE):
        hub, core = model("llama" if kind == "gemma" else kind, mtp=1 if kind == "deepseek_v3" else 0)
        core = core if kind == "deepseek_v3" else with_layers_stacked(core)
        write(WORK / "hub.safetensors", with_norms(hub, lambda number: number))
        for centred, offset in (("1", -1), ("0", 0)):
            wanted = with_norms(core, lambda number: number + offset + (kind == "gemma"))
            how = [f"megatron:{kind}", "--hf-ref", "ref", "--set", f"layernorm_1p={centred}", *(["--set", f"ffn={INNER}"] if kind == "gemma" else [])]
            run("convert", "hub.safetensors", "-o", "core.safetensors", "--to-map", *how, "--force")
            assert read(WORK / "core.safetensors") == wanted, (kind, centred)
            assert "equal" in run("diff", "core.safetensors", "hub.safetensors", "--map", *how)
        if kind == "gemma":  # Both forms of norms exist.
            assert "needs a value for 'layernorm_1p'" in run("digest", "core.safetensors", "--map", *how[:3], *how[-2:], expect=2)


def check_images():
    """Gemma 3 with images: the text model below language_model., SigLIP's modules, and a transposed projection."""
    hub, core = model("gemma3")
    core = with_layers_stacked(core)
    hub, core = ({f"language_model.{name}": each for name, each in tensors.items()} for tensors in (hub, core))
    projection = made(3)
    hub["multi_modal_projector.mm_input_projection_weight"] = projection
    core["multi_modal_projector.proj.weight"] = of_rows([list(column) for column in zip(*rows(projection))])
    same(hub, core, "multi_modal_projector.mm_soft_emb_norm.weight", "multi_modal_projector.mm_soft_embed_norm.weight", 3, 0)
    vision = ("embeddings.patch_embedding.weight", "encoder.layers.0.mlp.fc1.weight", "encoder.layers.1.mlp.fc1.weight", "post_layernorm.weight")
    for name in vision:
        same(hub, core, f"vision_tower.vision_model.{name}", f"vision_tower.{name}", 3)
    write(WORK / "images.safetensors", hub)
    (WORK / "images").mkdir()
    (WORK / "images/config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": CONFIG}))
    use = ["megatron:gemma3", "--hf-ref", "images"]
    run("convert", "images.safetensors", "-o", "images-core.safetensors", "--to-map", *use)
    assert read(WORK / "images-core.safetensors") == {name: (list(shape), values) for name, (shape, values) in core.items()}
    flat = {name.replace("vision_model.", ""): each for name, each in hub.items()}  # Names of transformers from 5.23 on.
    write(WORK / "images-flat.safetensors", flat)
    run("convert", "images-flat.safetensors", "-o", "images-core.safetensors", "--to-map", *use, "--force")
    assert read(WORK / "images-core.safetensors") == {name: (list(shape), values) for name, (shape, values) in core.items()}
    run("diff", "images-core.safetensors", "images-flat.safetensors", "--map", *use, "--set", "vision=")
    wrapped = {f"module.{name}": each for name, each in core.items()}
    older = {name.replace("vision_tower.", "vision_tower.vision_model."): each for name, each in core.items()}
    for form in (core, wrapped, older):
        write(WORK / "images-form.safetensors", form)
        run("gather", "images-form.safetensors", "-o", "images-back.safetensors", "--map", *use, "--force")
        assert read(WORK / "images-back.safetensors") == hub
    assert "megatron:gemma3" in run("digest", "images-core.safetensors", "--map", "megatron:llama", "--hf-ref", "images", expect=8)


def check_states_of_zero_centred():
    """Master weights change like weights, moments do not."""
    hub, core = model("llama")
    norms = {name: each for name, each in with_norms(core, lambda number: number).items()}
    states = {f"optimizer.state.{state}.{name}": each for state in ("exp_avg", "exp_avg_sq", "fp32_param", "param")
              for name, each in norms.items()}
    write(WORK / "train.safetensors", norms | states)
    run("gather", "train.safetensors", "-o", "centred.safetensors", "--map", "megatron:llama", "--hf-ref", "ref", "--set", "layernorm_1p=1")
    found = read(WORK / "centred.safetensors")
    plain, more = with_norms(hub, lambda number: number), with_norms(hub, lambda number: number + 1)
    for name in hub:
        assert found[name] == more[name], name
        for state, wanted in (("exp_avg", plain), ("exp_avg_sq", plain), ("fp32_param", more), ("param", more)):
            assert found[f"optimizer.state.{name}.{state}"] == wanted[name], (name, state)


def check_dense_among_experts():
    hub, core = {}, {}
    for i, is_dense in enumerate((False, True, False)):
        layer("qwen3_moe", hub, core, f"model.layers.{i}", f"decoder.layers.{i}", is_dense)
    same(hub, core, "model.norm.weight", "decoder.final_layernorm.weight", HIDDEN, 0)
    hub["model.embed_tokens.weight"] = made(WORDS)
    core["embedding.word_embeddings.weight"] = padded(hub["model.embed_tokens.weight"])
    write(WORK / "mixed.safetensors", hub)
    run("convert", "mixed.safetensors", "-o", "mixed-core.safetensors", "--to-map", "megatron:qwen3_moe", "--hf-ref", "ref")
    assert read(WORK / "mixed-core.safetensors") == {name: (list(shape), values) for name, (shape, values) in core.items()}
    run("diff", "mixed-core.safetensors", "mixed.safetensors", "--map", "megatron:qwen3_moe", "--hf-ref", "ref")


def check_saves_of_core():
    """Numbers come from the arguments that Core saved; the content equals that of its model."""
    for save, kind in (("dense", "llama"), ("dense_tp2", "llama"), ("experts", "qwen2_moe")):
        use = ["--map", f"megatron:{kind}", "--set", "vocab=10"]
        numbers_of_it = [word for each in ("heads=4", "kv=2", "hd=2") for word in ("--set", each)]
        whole = run("digest", SAVES / f"{save}.safetensors", *use, *numbers_of_it)
        assert run("digest", SAVES / save, *use, "--exclude", "optimizer.**") == whole, save
        assert "'vocab'" in run("digest", SAVES / save, *use[:2], expect=2)
    moments = run("digest", SAVES / "dense", "--map", "megatron:llama", "--set", "vocab=10", "--include", "optimizer.**")
    assert "optimizer.state.model.layers.1.self_attn.k_proj.weight.exp_avg_sq" in moments, moments


def check_two_maps():
    """From one framework to another, with values that only one of the two maps needs."""
    hub, core = model("llama")
    write(WORK / "core.safetensors", with_layers_stacked(core))
    write(WORK / "hub.safetensors", hub)
    stated = [word for each in ("heads=4", "kv=2", "hd=2", "vocab=5") for word in ("--set", each)]
    convert = ["convert", "core.safetensors", "-o", "titan.safetensors", "--map", "megatron:llama", "--to-map", "torchtitan:llama3", *stated]
    run(*convert)
    run("diff", "titan.safetensors", "hub.safetensors", "--map", "torchtitan:llama3", *stated[:4])
    run("diff", "core.safetensors", "titan.safetensors", "--map", "megatron:llama", "--to-map", "torchtitan:llama3", *stated)
    assert "the map has no variable 'nothing'" in run(*convert, "--set", "nothing=1", "--force", expect=2)


def check_refusals():
    hub, core = model("llama")
    core = with_layers_stacked(core)
    write(WORK / "core.safetensors", core)
    write(WORK / "hub.safetensors", hub)
    stated = [word for each in ("heads=4", "kv=2", "hd=2") for word in ("--set", each)]
    digest = ["digest", "core.safetensors", "--map", "megatron:llama"]
    assert "needs a value for 'vocab'" in run(*digest, *stated, expect=2)
    assert "needs a value for 'heads'" in run(*digest, "--set", "vocab=5", expect=2)
    run(*digest, *stated, "--set", "vocab=5")
    assert "fewer elements are stored than the map defines" in run(*digest, *stated, "--set", "vocab=200", expect=2)
    assert "rule 'embed': 'vocab' is not a size" in run(*digest, *stated, "--set", "vocab=-1", expect=2)
    assert "rule 'qkv': 'heads * hd' is not a size" in run(*digest, *stated[2:], "--set", "heads=-4", "--set", "vocab=5", expect=2)
    assert "computed as 'hidden // heads'" in run(*digest, *stated[:4], "--set", "vocab=5", expect=2)
    assert "the variable 'heads' of the map is set twice" in run(*digest, *stated, "--set", "vocab=5", "--set", "heads=8", expect=2)
    assert "its shape is not the one that rule 'qkv' produces" in run(*digest, "--set", "heads=4", "--set", "kv=1", "--set", "hd=2", "--set", "vocab=5", expect=2)
    write(WORK / "odd.safetensors", core | {"decoder.layers.mlp.linear_fc3.weight": ([1], [1])})
    for verb in ("digest", "inspect"):
        assert "decoder.layers.mlp.linear_fc3.weight" in run(verb, "odd.safetensors", "--map", "megatron:llama", "--hf-ref", "ref", expect=2)
    assert "unmatched decoder.layers.mlp.linear_fc3.weight" in run("map", "check", "megatron:llama", "odd.safetensors", "--hf-ref", "ref",
                                                                   expect=1)
    lacking = {name: each for name, each in core.items() if "linear_proj" not in name}
    write(WORK / "lacking.safetensors", lacking)
    assert "rule 'proj'" in run("digest", "lacking.safetensors", "--map", "megatron:llama", "--hf-ref", "ref", expect=2)
    write(WORK / "hole.safetensors", {name: each for name, each in hub.items() if "layers.0.mlp.up_proj" not in name})
    assert "model.layers.0.mlp.up_proj.weight" in run("convert", "hole.safetensors", "-o", "x.safetensors", "--to-map", "megatron:llama",
                                                      "--hf-ref", "ref", expect=3)
    for change, word in (({"model_type": "gemma"}, "megatron:gemma"), ({"model_type": "gemma2"}, "megatron:gemma3"), ({"model_type": "gemma3"}, "megatron:gemma3"), ({"model_type": "qwen3_next"}, "no rule")):
        (WORK / "ref/config.json").write_text(json.dumps(CONFIG | change))
        for use in (["digest", "core.safetensors", "--map"], ["convert", "hub.safetensors", "-o", "x.safetensors", "--to-map"]):
            assert word in run(*use, "megatron:llama", "--hf-ref", "ref", expect=8)
    (WORK / "ref/config.json").write_text(json.dumps(CONFIG))
    assert not (WORK / "x.safetensors").exists()


(WORK / "ref").mkdir()
(WORK / "ref/config.json").write_text(json.dumps(CONFIG | {"num_nextn_predict_layers": 1}))
for each in ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", *MOE):
    check_kind(each)
for check in (check_saves_of_core, check_local_names, check_zero_centred, check_images, check_states_of_zero_centred, check_beside_weights, check_dense_among_experts, check_two_maps, check_refusals):
    check()
