"""Model maps by every verb, compared with plain loops.

The expected result of a map is computed here element by element.
"""
import json
import math
import pathlib
import shutil
import struct
import zipfile

from int_tensors import WORK, document, numbers, of_rows, read, rows, run, write
from names_of_version_5 import RENAMED
from program import read_safetensors, safetensors_files

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def experts():
    """hf-v5: [E, 2I, H] and [E, H, I] and an expert a tensor."""
    count, inner, hidden = 4, 3, 5
    old, new = {}, {}
    for layer in range(2):
        name = f"model.layers.{layer}.mlp.experts"
        gate_up, down = [], []
        for e in range(count):
            gate, up, out = numbers(inner * hidden), numbers(inner * hidden), numbers(hidden * inner)
            old[f"{name}.{e}.gate_proj.weight"] = [inner, hidden], gate
            old[f"{name}.{e}.up_proj.weight"] = [inner, hidden], up
            old[f"{name}.{e}.down_proj.weight"] = [hidden, inner], out
            gate_up += gate + up
            down += out
        new[f"{name}.gate_up_proj"] = [count, 2 * inner, hidden], gate_up
        new[f"{name}.down_proj"] = [count, hidden, inner], down
    plain = {"model.norm.weight": ([7], numbers(7)), "model.layers.0.mlp.gate.weight": ([count, hidden], numbers(count * hidden))}
    return old | plain, new | plain


def check_both_ways(old, new, kind):
    write(WORK / "old.safetensors", old)
    write(WORK / "new.safetensors", new)
    for source, other, option in (("new", "old", "--map"), ("old", "new", "--to-map")):
        run("gather", f"{source}.safetensors", "-o", "turned.safetensors", "-f", option, "hf-v5", "--set", f"model_type={kind}")
        assert "equal" in run("diff", "turned.safetensors", f"{other}.safetensors"), kind


def check_names_of_version_5():
    for kind, names in RENAMED.items():
        old = {name: ([3], numbers(3)) for name in names}
        check_both_ways(old, {names[name]: tensor for name, tensor in old.items()}, kind)


def check_experts_of_qwen3_vl():
    """Version 4 has [E, H, 2I] and [E, I, H]. Version 5 has the same names, and the last two dimensions the other way round."""
    names = [f"model.language_model.layers.0.mlp.experts.{part}" for part in ("gate_up_proj", "down_proj")]
    old = {names[0]: ([1, 2, 3], [1, 2, 3, 4, 5, 6]), names[1]: ([2, 1, 2], [1, 2, 3, 4])}
    new = {names[0]: ([1, 3, 2], [1, 4, 2, 5, 3, 6]), names[1]: ([2, 2, 1], [1, 2, 3, 4])}
    check_both_ways(old, new, "qwen3_vl_moe")


def check_parts_of_one_tensor():
    """Parts of convolutions and of dense layers, and experts of other names: as with Mixtral, in the order of the list."""
    def parts(names, size):
        return {name: ([size, 2], numbers(2 * size)) for name in names}

    def joined(tensors):
        return [sum(shape[0] for shape, _ in tensors), 2], [each for _, values in tensors for each in values]

    at, to = "language_model.model.layers.0", "model.language_model.layers.0"
    cases = [("kimi_linear", [f"model.layers.0.self_attn.{each}_conv1d.weight" for each in "qkv"], "model.layers.0.self_attn.conv1d.weight"),
             ("bailing_hybrid", [f"model.layers.0.attention.{each}_conv1d.weight" for each in "qkv"], "model.layers.0.self_attn.conv1d.weight"),
             ("minimax_m3_vl", [f"{at}.mlp.{each}_proj.weight" for each in ("gate", "up")], f"{to}.mlp.gate_up_proj.weight")]
    for kind, names, whole in cases:
        old = parts(names, 3)
        check_both_ways(old, {whole: joined(old.values())}, kind)
    experts = [("deepseek_v4", "layers.1.ffn.experts.{}.w2.weight", "model.layers.1.mlp.experts.down_proj"),
               ("nemotron_h", "backbone.layers.1.mixer.experts.{}.up_proj.weight", "model.layers.1.mixer.experts.up_proj"),
               ("minimax_m3_vl", at + ".block_sparse_moe.experts.{}.w2.weight", f"{to}.mlp.experts.down_proj")]
    for kind, name, whole in experts:
        old = parts([name.format(number) for number in range(4)], 3)
        check_both_ways(old, {whole: ([4, 3, 2], joined(old.values())[1])}, kind)


def check_many_experts():
    """A header of 100 tensors may become 70,000 names, if the data is as large as that of a model."""
    layers, count = 48, 512
    new = {f"model.layers.{layer}.mlp.experts.{name}": [count, *shape]
           for layer in range(layers) for name, shape in (("gate_up_proj", (16, 8)), ("down_proj", (8, 8)))}
    safetensors_files.write(WORK / "many.safetensors", {name: ("BF16", shape) for name, shape in new.items()})
    shown = run("convert", "many.safetensors", "-o", "x.safetensors", "--dry-run", "--map", "hf-v5", "--set", "model_type=qwen3_next")
    assert f"{3 * layers * count} tensors" in shown, shown


def check_experts():
    old, new = experts()
    write(WORK / "v4.safetensors", old)
    write(WORK / "v5.safetensors", new)
    (WORK / "ref").mkdir()
    # Python's form of numbers that JSON lacks.
    (WORK / "ref/config.json").write_text('{"a": [NaN, -Infinity], "text\\\\\\": NaN": "Infinity", "b": Infinity, "model_type": "qwen3_moe"}')
    ref = ["--hf-ref", "ref"]
    run("gather", "v5.safetensors", "-o", "a.safetensors", "--map", "hf-v5", *ref)
    assert read(WORK / "a.safetensors") == old
    run("convert", "v4.safetensors", "-o", "b.safetensors", "--to-map", "hf-v5", *ref)
    assert read(WORK / "b.safetensors") == new
    run("split", "v5.safetensors", "-o", "cut", "--ranks", "3", "--dim", "1")
    for source in ("v5.safetensors", "cut"):
        assert "equal" in run("diff", source, "v4.safetensors", "--map", "hf-v5", *ref)
        assert "equal" in run("diff", "v4.safetensors", source, "--to-map", "hf-v5", *ref)
        for verb in (["digest"], ["cat", "model.layers.1.mlp.experts.2.up_proj.weight"]):
            words = [verb[0], source, *verb[1:], "--map", "hf-v5", *ref]
            assert run(*words) == run(verb[0], "v4.safetensors", *verb[1:]), words
    run("reshard", "cut", "-o", "cut-v4", "--map", "hf-v5", *ref, "--ranks", "2")
    run("diff", "cut-v4", "v4.safetensors")
    for target in ("c.pt", "c.dcp"):
        run("convert", "cut-v4", "-o", target, "--to-map", "hf-v5", *ref, *(["--to", "dcp", "--ranks", "2"] if target == "c.dcp" else []))
        run("diff", target, "v5.safetensors")
        run("verify", target)
    shown = json.loads(run("inspect", "v5.safetensors", "--map", "hf-v5", *ref, "--json"))
    assert [each["name"] for each in shown["tensors"]] == sorted(old)
    assert "needs a value for 'model_type'" in run("gather", "v5.safetensors", "-o", "x.safetensors", "--map", "hf-v5", expect=2)
    assert "--set model_type=VALUE" in run("digest", "v5.safetensors", "--map", "hf-v5", expect=2)
    missing = {name: each for name, each in old.items() if ".0.mlp.experts.3.up_proj" not in name}
    write(WORK / "missing.safetensors", missing)
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in run(
        "convert", "missing.safetensors", "-o", "x.safetensors", "--to-map", "hf-v5", *ref, expect=3)


def check_adapters_of_fused_experts():
    """An adapter for a fused parameter is merged before hf-v5 divides it."""
    def floats(tensors):
        return {name: (shape, [float(each) for each in values]) for name, (shape, values) in tensors.items()}

    old, new = experts()
    write(WORK / "base-v5.safetensors", floats(new))
    (WORK / "fused").mkdir()
    module, count, inner, hidden = "base_model.model.model.layers.1.mlp.experts", 4, 3, 5
    a, b = [float(i - 4) for i in range(count * inner)], [float(i % 7) for i in range(hidden * count)]
    write(WORK / "fused/adapter_model.safetensors",
          {f"{module}.lora_A.weight": ([count, inner], a), f"{module}.lora_B.weight": ([hidden, count], b)})
    (WORK / "fused/adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_parameters": ["mlp.experts.down_proj"]}))
    expected = floats(old)
    for e in range(count):
        shape, values = expected[f"model.layers.1.mlp.experts.{e}.down_proj.weight"]
        for row in range(hidden):
            for column in range(inner):
                values[row * inner + column] += 2 * b[row * count + e] * a[e * inner + column]
    options = ["--lora", "fused", "--map", "hf-v5", "--set", "model_type=qwen3_moe"]
    for verb, output in (("gather", "merged.safetensors"), ("export", "merged")):
        assert "1 pair found, 1 used" in run(verb, "base-v5.safetensors", "-o", output, *options)
        assert read(next((WORK / output).glob("*.safetensors")) if verb == "export" else WORK / output) == expected
    assert "the base model has nothing for" in run("digest", "merged.safetensors", "--lora", "fused", expect=2)


def check_rotary():
    """Rows of heads as halves and as pairs: view [heads, hd/2, 2] with the last two swapped."""
    heads, head, width = 6, 8, 5
    halves = [heads * head, width], numbers(heads * head * width)
    source = rows(halves)
    pairs = of_rows([source[h * head + j * (head // 2) + k] for h in range(heads) for k in range(head // 2) for j in range(2)])
    write(WORK / "halves.safetensors", {"q": halves})
    write(WORK / "pairs.safetensors", {"wq": pairs})
    document("rope.json", vars={"heads": {"from": "config.json#/num_attention_heads"}},
             rules=[{"id": "q", "logical": "q", "stored": "wq", "permute": "rope_half_to_pairs(heads)"}])
    document("back.json", vars={"heads": 6},
             rules=[{"id": "q", "logical": "wq", "stored": "q", "permute": "rope_pairs_to_half(heads)"}])
    heads = ["--set", "heads=6"]
    run("gather", "pairs.safetensors", "-o", "h.safetensors", "--map", "rope.json", *heads)
    assert read(WORK / "h.safetensors") == {"q": halves}
    run("gather", "halves.safetensors", "-o", "p.safetensors", "--to-map", "rope.json", *heads)
    assert read(WORK / "p.safetensors") == {"wq": pairs}
    run("gather", "halves.safetensors", "-o", "p2.safetensors", "--map", "back.json")
    assert read(WORK / "p2.safetensors") == {"wq": pairs}
    run("gather", "pairs.safetensors", "-o", "h2.safetensors", "--to-map", "back.json")
    assert read(WORK / "h2.safetensors") == {"q": halves}
    run("convert", "halves.safetensors", "-o", "p.pt", "--to-map", "rope.json", *heads)
    run("verify", "p.pt")
    run("diff", "p.pt", "pairs.safetensors")
    run("split", "pairs.safetensors", "-o", "pairs-cut", "--ranks", "7")
    run("reshard", "pairs-cut", "-o", "halves-cut", "--ranks", "4", "--map", "rope.json", *heads)
    run("diff", "halves-cut", "halves.safetensors")
    assert "cannot permute 48 rows as 5 heads" in run(
        "digest", "pairs.safetensors", "--map", "rope.json", "--set", "heads=5", expect=2)


def check_heads():
    """Kernels of JAX: transposed, heads as a dimension of their own, layers stacked behind the first dimension."""
    layers, heads, head, width = 2, 3, 4, 5
    order = [h * head + j * (head // 2) + k for h in range(heads) for k in range(head // 2) for j in range(2)]
    plain = {f"{name}.{layer}": (shape, numbers(math.prod(shape))) for layer in range(layers) for name, shape in
             (("q", [heads * head, width]), ("v", [heads * head, width]), ("o", [width, heads * head]), ("b", [heads * head]))}
    of = {name: rows(each) if len(each[0]) > 1 else each[1] for name, each in plain.items()}
    of_layers = range(layers)
    jax = {"query": ([width, layers, heads, head], [of[f"q.{l}"][row][d] for d in range(width) for l in of_layers for row in order]),
           "value": ([width, layers, heads, head], [each[d] for d in range(width) for l in of_layers for each in of[f"v.{l}"]]),
           "out": ([heads, layers, head, width], [of[f"o.{l}"][d][h * head + i] for h in range(heads) for l in of_layers for i in range(head)
                                                  for d in range(width)]),
           "bias": ([heads, layers, head], [of[f"b.{l}"][h * head + i] for h in range(heads) for l in of_layers for i in range(head)])}
    write(WORK / "plain.safetensors", plain)
    write(WORK / "jax.safetensors", jax)
    stack = {"stack": [{"index": "l", "dim": 1}]}
    columns = {"dim": 1, "size": "head"}
    rules = [{"id": "q", "logical": "q.{l}", "stored": "query", "permute": "rope_half_to_pairs(3) then transpose", "unflatten": columns},
             {"id": "v", "logical": "v.{l}", "stored": "value", "permute": "transpose", "unflatten": columns},
             {"id": "o", "logical": "o.{l}", "stored": "out", "permute": "transpose", "unflatten": {"size": "head"}},
             {"id": "b", "logical": "b.{l}", "stored": "bias", "unflatten": {"size": "head"}}]
    document("heads.json", vars={"head": head}, rules=[rule | stack for rule in rules])
    run("gather", "jax.safetensors", "-o", "plain-out.safetensors", "--map", "heads.json")
    assert read(WORK / "plain-out.safetensors") == plain
    run("convert", "plain.safetensors", "-o", "jax-out.safetensors", "--to-map", "heads.json")
    assert read(WORK / "jax-out.safetensors") == jax
    run("split", "jax.safetensors", "-o", "jax-cut", "--ranks", "2", "--dim", "1")
    run("diff", "jax-cut", "plain.safetensors", "--map", "heads.json")
    # The heads are sharded over ranks, each of which has whole ones.
    shard = {"q": 1, "v": 1, "o": 0, "b": 0}
    document("ranked.json", vars={"head": head}, mesh={"tp": 3},
             rules=[rule | stack | {"shard": [{"axis": "tp", "dim": shard[rule["id"]]}]} for rule in rules])
    run("split", "plain.safetensors", "-o", "heads-of-ranks", "--to", "torch-ranks", "--to-map", "ranked.json", "--ranks", "3")
    shown, _ = json.JSONDecoder().raw_decode(run("inspect", "heads-of-ranks/rank-00001-of-00003.pt", "--json"))
    assert {each["name"]: each["shape"] for each in shown["tensors"]} == {
        "query": [width, layers, 1, head], "value": [width, layers, 1, head], "out": [1, layers, head, width], "bias": [1, layers, head]}
    run("gather", "heads-of-ranks", "-o", "of-ranks.safetensors", "--map", "ranked.json")
    assert read(WORK / "of-ranks.safetensors") == plain
    # Flat biases, and rows that do not fit, in both directions.
    document("unflat.json", vars={"head": 5}, rules=[{"id": "b", "logical": "b.{l}", "stored": "b{l}", "unflatten": {"size": "head"}}])
    biases = ["--include", "b.*"]
    assert "cannot divide a dimension of 12 into rows of 5" in run(
        "convert", "plain.safetensors", "-o", "x.safetensors", "--to-map", "unflat.json", *biases, expect=2)
    assert "cannot divide a dimension of 12 into rows of 0" in run(
        "convert", "plain.safetensors", "-o", "x.safetensors", "--to-map", "unflat.json", *biases, "--set", "head=0", expect=2)
    run("convert", "plain.safetensors", "-o", "flat-biases.safetensors", *biases, "--rename", r"b\.(.)=b\1")
    assert "divides dimension 0, which a tensor of [12] lacks" in run("digest", "flat-biases.safetensors", "--map", "unflat.json", expect=2)
    run("convert", "plain.safetensors", "-o", "fours.safetensors", *biases, "--to-map", "unflat.json", "--set", "head=4")
    assert "its shape is not the one that rule 'b' produces" in run("digest", "fours.safetensors", "--map", "unflat.json", "--set", "head=6", expect=2)
    # 64 dimensions are the most.
    write(WORK / "deep.safetensors", {"b.0": ([1] * 64, numbers(1))})
    assert "stores a tensor of more than 64 dimensions" in run(
        "convert", "deep.safetensors", "-o", "x.safetensors", "--to-map", "unflat.json", "--set", "head=1", expect=2)


def check_padding_and_replicas():
    """A vocabulary that is padded, weights that are tied, and a tensor that is stored transposed."""
    embed, conv = ([5, 3], numbers(15)), ([4, 6], numbers(24))
    zeros = of_rows(rows(embed) + [[0] * 3] * 3)
    turned = of_rows([list(column) for column in zip(*rows(conv))])
    write(WORK / "logical.safetensors", {"embed": embed, "conv": conv})
    write(WORK / "stored.safetensors", {"tok": zeros, "head": zeros, "conv.t": turned})
    rules = [{"id": "tok", "logical": "embed", "stored": "tok", "pad": {"dim": 0, "to": "ceil_to(n, 4)", "true": "vocab"}},
             {"id": "head", "alias": "embed", "stored": "head", "pad": {"dim": 0, "to": "ceil_to(n, 4)", "true": "vocab"}},
             {"id": "conv", "logical": "conv", "stored": "conv.t", "permute": "transpose"}]
    document("pad.json", vars={"vocab": {}}, rules=rules)
    known = ["--set", "vocab=5"]
    run("gather", "logical.safetensors", "-o", "s.safetensors", "--to-map", "pad.json", *known)
    assert read(WORK / "s.safetensors") == {"tok": zeros, "head": zeros, "conv.t": turned}
    run("gather", "logical.safetensors", "-o", "s.pt", "--to-map", "pad.json", *known)
    run("verify", "s.pt")
    for stored in ("stored.safetensors", "s.pt"):
        assert "equal" in run("diff", stored, "logical.safetensors", "--map", "pad.json", *known)
    run("gather", "stored.safetensors", "-o", "l.safetensors", "--map", "pad.json", *known)
    assert read(WORK / "l.safetensors") == {"embed": embed, "conv": conv}
    assert "needs a value for 'vocab'" in run("digest", "stored.safetensors", "--map", "pad.json", expect=2)
    for name, place in (("tok", 17), ("head", 2)):  # Padding, and a replica.
        wrong = {each: (shape, list(values)) for each, (shape, values) in read(WORK / "stored.safetensors").items()}
        wrong[name][1][place] += 1
        write(WORK / "wrong.safetensors", wrong)
        message = run("gather", "wrong.safetensors", "-o", "x.safetensors", "--map", "pad.json", *known, expect=4)
        assert ("padding of 'tok' is not zero" if name == "tok" else "replicas of 'embed' differ") in message, message
        assert not (WORK / "x.safetensors").exists()


def check_aliases():
    """An alias has the values of its tensor, and the tensor is also stored under its own name."""
    embed, norm = ([2, 2], [1.0, 2.0, 3.0, 4.0]), ([2], [5.0, 6.0])
    doubled, plain = ([2, 2], [2.0, 4.0, 6.0, 8.0]), {"m.embed": embed, "m.norm": norm}
    write(WORK / "alias.safetensors", plain)
    alias = {"id": "head", "alias": "m.embed", "stored": "head"}
    document("alias-scaled.json", types={"x": "[a-z]+"}, rules=[{"logical": "m.{x}", "stored": "c.{x}", "scale": 2}, alias])
    document("alias-of-pattern.json", rules=[{"match": ".*embed|.*norm"}, alias])
    document("alias-of-copy.json", rules=[alias], strict={"unmatched": "copy"})
    document("alias-alone.json", rules=[alias, {"match": ".*norm"}])
    document("alias-of-dropped.json", rules=[alias, {"match": ".*norm"}, {"match": ".*", "drop": True}])
    for name, stored in {"scaled": {"c.embed": doubled, "head": doubled, "c.norm": ([2], [10.0, 12.0])},
                         "of-pattern": plain | {"head": embed}, "of-copy": plain | {"head": embed}}.items():
        run("convert", "alias.safetensors", "-o", f"alias-{name}.safetensors", "--to-map", f"alias-{name}.json")
        assert read(WORK / f"alias-{name}.safetensors") == stored, name
        run("convert", f"alias-{name}.safetensors", "-o", f"alias-{name}-back.safetensors", "--map", f"alias-{name}.json")
        assert read(WORK / f"alias-{name}-back.safetensors") == plain, name
    run("convert", "alias-scaled.safetensors", "-o", "alias-only.safetensors", "--exclude", "c.embed")
    run("convert", "alias-only.safetensors", "-o", "alias-only-back.safetensors", "--map", "alias-scaled.json")
    assert read(WORK / "alias-only-back.safetensors") == plain
    assert "no rule of the map matches" in run(
        "convert", "alias.safetensors", "-o", "x.safetensors", "--to-map", "alias-alone.json", expect=2)
    run("convert", "alias.safetensors", "-o", "alias-dropped.safetensors", "--to-map", "alias-of-dropped.json")
    assert read(WORK / "alias-dropped.safetensors") == {"head": embed, "m.norm": norm}


def check_like():
    """Ranks' parts are in the same positions as in another checkpoint, which has the names of the output: logical
    or stored ones."""
    old, new = experts()
    write(WORK / "old.safetensors", old)
    write(WORK / "new.safetensors", new)
    ref = ["--hf-ref", "ref"]
    pieces = lambda folder: {each["name"]: [(chunk["rank"], chunk["offsets"], chunk["sizes"]) for chunk in each["chunks"]]
                             for each in json.loads(run("inspect", folder, "--json"))["tensors"]}
    mesh = ["--mesh", "dp=2,tp=2", "--place", "**.down_proj.weight=S(0),S(1)", "--place", "**=R,S(0)"]
    run("split", "old.safetensors", "-o", "like-old", *mesh)
    run("split", "old.safetensors", "-o", "like-ranks", *mesh, "--to", "torch-ranks")
    run("split", "new.safetensors", "-o", "like-new", "--ranks", "3", "--dim", "1")
    run("split", "new.safetensors", "-o", "done-old", "--map", "hf-v5", *ref, "--like", "like-old")
    run("diff", "done-old", "old.safetensors")
    assert pieces("done-old") == pieces("like-old")
    run("reshard", "like-old", "-o", "done-new", "--to-map", "hf-v5", *ref, "--like", "like-new")
    run("diff", "done-new", "new.safetensors")
    assert pieces("done-new") == pieces("like-new")
    run("split", "new.safetensors", "-o", "ranks-old", "--to", "torch-ranks", "--map", "hf-v5", *ref, "--like", "like-ranks")
    run("diff", "ranks-old", "old.safetensors")
    assert pieces("ranks-old") == pieces("like-ranks")
    assert "has no tensor" in run("split", "new.safetensors", "-o", "x", "--map", "hf-v5", *ref, "--like", "like-new", expect=2)


def check_config_beside():
    """The numbers of a map are in the config.json that export would also use: beside the source, in huggingface, in
    the parent."""
    _, new = experts()
    for place in ("run/step-1/src", "run/step-1/src/huggingface", "run/step-1"):
        shutil.rmtree(WORK / "run", ignore_errors=True)
        (WORK / "run/step-1/src/huggingface").mkdir(parents=True)
        write(WORK / "run/step-1/src/model.safetensors", new)
        assert "needs a value for 'model_type'" in run("digest", "run/step-1/src", "--map", "hf-v5", expect=2)
        (WORK / place / "config.json").write_text('{"model_type": "qwen3_moe"}')
        run("digest", "run/step-1/src", "--map", "hf-v5")


def check_last_row():
    """Padding that repeats the last row, made and compared."""
    embed = [5, 3], numbers(15)
    padded = of_rows(rows(embed) + rows(embed)[-1:] * 3)
    write(WORK / "embed.safetensors", {"embed": embed})
    document("last.json", vars={"vocab": 5}, rules=[
        {"logical": "embed", "stored": "tok", "pad": {"to": "ceil_to(n, 4)", "fill": "last_row", "true": "vocab"}}])
    run("gather", "embed.safetensors", "-o", "repeated.safetensors", "--to-map", "last.json")
    assert read(WORK / "repeated.safetensors") == {"tok": padded}
    run("gather", "repeated.safetensors", "-o", "once.safetensors", "--map", "last.json")
    assert read(WORK / "once.safetensors") == {"embed": embed}
    padded[1][20] += 1
    write(WORK / "altered.safetensors", {"tok": padded})
    assert "replicas of 'embed' differ" in run("gather", "altered.safetensors", "-o", "x.safetensors", "--map", "last.json", expect=4)
    assert not (WORK / "x.safetensors").exists()


def check_dtypes():
    """Floats of 32 bits whose lower half is zero, which bfloat16 represents exactly."""
    def patch(name, old, new):
        path = WORK / name
        path.write_bytes(path.read_bytes().replace(old, new))

    halves = list(range(0x3f80, 0x3f80 + 12))
    gate, up = halves[:6], halves[6:]
    floats = {name: ([2, 3], [each << 16 for each in values]) for name, values in (("gate", gate), ("up", up))}
    moments = {f"optimizer.state.{name}.exp_avg": each for name, each in floats.items()}
    write(WORK / "floats.safetensors", floats | moments)
    patch("floats.safetensors", b'"I32"', b'"F32"')
    rule = {"id": "both", "logical": ["gate", "up"], "stored": "both", "concat": {"sizes": "equal"}, "dtype": "BF16"}
    states = [{"name": "exp_avg", "key": "m.{key}", "dtype": "float32"}]
    document("dtype.json", rules=[rule], states=states)
    run("gather", "floats.safetensors", "-o", "stored16.safetensors", "--to-map", "dtype.json")
    stored = read_safetensors(WORK / "stored16.safetensors")
    assert (stored["both"][0], stored["m.both"][0]) == ("BF16", "F32"), stored
    assert list(struct.unpack("<12H", stored["both"][2])) == halves
    run("gather", "stored16.safetensors", "-o", "logical16.safetensors", "--map", "dtype.json")
    assert "equal" in run("diff", "logical16.safetensors", "floats.safetensors", "--cast", "gate=float32", "--cast", "up=float32")
    document("other.json", rules=[rule | {"dtype": "float16"}], states=states)
    assert "its dtype is not the one that rule 'both' stores" in run("digest", "stored16.safetensors", "--map", "other.json", expect=2)
    document("integers.json", rules=[{"id": "a", "logical": "a", "stored": "a", "dtype": "float32"}])
    write(WORK / "a.safetensors", {"a": ([1], [1])})
    assert "cannot convert 'a' from int32 to float32" in run("gather", "a.safetensors", "-o", "x.pt", "--to-map", "integers.json", expect=8)
    document("word.json", rules=[{"logical": "a", "stored": "a", "dtype": "long double"}])
    assert "is not a dtype" in run("map", "show", "word.json", expect=2)


def check_rotary_frequencies():
    """Files of Meta and torchtitan and older ones of Hugging Face also have rotary frequencies, which maps drop."""
    shapes = {"self_attn.q_proj": [2, 2], "self_attn.k_proj": [2, 2], "self_attn.v_proj": [2, 2], "self_attn.o_proj": [2, 2], "mlp.gate_proj": [3, 2],
              "mlp.up_proj": [3, 2], "mlp.down_proj": [2, 3], "input_layernorm": [2], "post_attention_layernorm": [2]}
    shapes = {f"model.layers.0.{name}.weight": shape for name, shape in shapes.items()} | {"model.embed_tokens.weight": [5, 2], "model.norm.weight": [2]}
    hub = {name: (shape, [float(n) for n in numbers(math.prod(shape))]) for name, shape in shapes.items()}
    frequencies = [1], [0.5]
    write(WORK / "older.safetensors", hub | {"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies})
    (WORK / "rotary").mkdir()
    config = {"num_attention_heads": 1, "hidden_size": 2, "vocab_size": 5}
    (WORK / "rotary/config.json").write_text(json.dumps(config))
    ref = ["--hf-ref", "rotary"]
    for name, more in (("llama-pth", ("rope.freqs", "layers.0.attention.inner_attention.rope.freqs")), ("torchtitan:llama3", ("freqs_cis",)),
                       ("maxtext:llama", ())):
        run("convert", "older.safetensors", "-o", "framework.safetensors", "-f", "--to-map", name, *ref)
        stored = read(WORK / "framework.safetensors")
        assert not [each for each in stored if "freq" in each], name
        write(WORK / "framework.safetensors", stored | {each: frequencies for each in more})
        run("gather", "framework.safetensors", "-o", "without.safetensors", "-f", "--map", name, *ref)
        assert read(WORK / "without.safetensors").keys() == hub.keys()
    run("split", "older.safetensors", "-o", "served", "--to", "vllm", "--to-map", "vllm:llama", "--ranks", "1", *ref)
    assert not [each for each in read(WORK / "served/model-rank-0-part-0.safetensors") if "freq" in each]
    # The older key of the type of rotary embeddings.
    (WORK / "rotary/config.json").write_text(json.dumps(config | {"rope_scaling": {"type": "linear", "factor": 2.0}}))
    assert "rope is linear" in run("convert", "older.safetensors", "-o", "x.safetensors", "--to-map", "maxtext:llama", *ref, expect=8)


def check_names():
    """Names that no rule matches or that two match, and rules that match nothing."""
    write(WORK / "two.safetensors", {"a.0": ([1], [1]), "b": ([1], [2])})
    a = {"id": "a", "logical": "x.{i}", "stored": "a.{i}"}
    document("one.json", rules=[a])
    assert "tensor 'b'" in run("digest", "two.safetensors", "--map", "one.json", expect=2).replace("tensors 'b'", "tensor 'b'")
    assert "x.0" in run("digest", "two.safetensors", "--map", "one.json", "--exclude", "b")
    assert "unmatched b" in run("map", "check", "one.json", "two.safetensors", expect=1)
    assert "0 unmatched" in run("map", "check", "one.json", "two.safetensors", "--exclude", "b")
    assert "unmatched b" in run("map", "check", "one.json", "two.safetensors", "--include", "b", expect=1)
    assert "'c'" in run("map", "check", "one.json", "two.safetensors", "--include", "c", expect=2)
    document("copy.json", rules=[a], strict={"unmatched": "copy"})
    assert "x.0" in run("digest", "two.safetensors", "--map", "copy.json")
    document("both.json", rules=[a, {"id": "again", "logical": "y.{i}", "stored": "a.{i}"}], strict={"unmatched": "copy"})
    assert "rule 'a' and rule 'again'" in run("digest", "two.safetensors", "--map", "both.json", expect=2)
    document("more.json", rules=[a, {"id": "unused", "logical": "c", "stored": "c"}], strict={"unmatched": "copy"})
    assert "rule 'unused'" in run("digest", "two.safetensors", "--map", "more.json", expect=2)
    for words in (["gather", "--map"], ["convert", "--to-map"], ["map", "check"]):  # The type is misspelled.
        words = [*words, "hf-v5", "two.safetensors"] if words[0] == "map" else [words[0], "two.safetensors", "-o", "kept.safetensors", "-f", words[1], "hf-v5"]
        assert "the map changes no tensor" in run(*words, "--set", "model_type=qwen3-moe"), words
    document("warned.json", rules=[{"logical": "b", "stored": "c"}, {"id": "unused", "match": "d"}], strict={"unmatched": "copy", "unused_rule": "warn"})
    convert = ["convert", "two.safetensors", "-o", "kept.safetensors", "-f", "--json", "--to-map", "warned.json"]
    assert json.JSONDecoder().raw_decode(run(*convert))[0]["warnings"] == ["rule 'unused' of the map matches no tensor"]
    document("same.json", rules=[{"id": "a", "logical": "b", "stored": "a.0"}], strict={"unmatched": "copy"})
    assert "two stored tensors produce 'b'" in run("digest", "two.safetensors", "--map", "same.json", expect=2)
    # Errors of a document name its file.
    assert "more.json: cannot use the map" in run("digest", "two.safetensors", "--map", "more.json", expect=2)
    assert "one.json: cannot map tensors 'a.0', 'b'" in run("convert", "two.safetensors", "-o", "x.safetensors", "--to-map", "one.json", expect=2)
    assert "same.json: cannot map the checkpoint" in run("map", "check", "same.json", "two.safetensors", expect=2)
    document("mesh.json", vars={"tp": {}}, mesh={"dp": "tp"}, rules=[a])
    assert "mesh.json: the map needs a value for 'tp'" in run("digest", "two.safetensors", "--map", "mesh.json", expect=2)
    assert "has no variable 'z'" in run("digest", "two.safetensors", "--map", "copy.json", "--set", "z=1", expect=2)
    assert "neither a built-in map nor a file" in run("digest", "two.safetensors", "--map", "hf-v6", expect=2)
    document("key.json", rules=[a], sorts=1)
    assert "unknown key 'sorts'" in run("map", "show", "key.json", expect=2)
    assert json.loads(run("map", "show", "hf-v5"))["name"] == "hf-v5"
    assert "hf-v5" in run("map", "list")


def rounded(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def check_arithmetic():
    """Scales and sums in float32, through every operation on positions, both ways, by ranks and in every format."""
    count, width = 6, 4
    logical = {"q": ([count, width], [float(n) / 7 for n in range(1, count * width + 1)]),
               "k": ([count, width], [float(n) / 9 for n in range(1, count * width + 1)]), "norm": ([width], [1.0, 0.5, -2.0, 3.25])}
    logical = {name: (shape, [rounded(value) for value in values]) for name, (shape, values) in logical.items()}
    scale = rounded(1 / math.sqrt(8))
    turned = [list(column) for column in zip(*rows(logical["k"]))] + [[0.0] * count]
    stored = {"wk": of_rows([[rounded(value * scale) for value in row] for row in turned]),
              "norm": ([width], [value - 1 for value in logical["norm"][1]])}
    stored["wq"] = stored["again"] = [count, width], [rounded(value * scale) for value in logical["q"][1]]
    write(WORK / "arithmetic-plain.safetensors", logical)
    document("numbers.json", vars={"hd": 8, "centred": {"value": 1}},
             rules=[{"id": "q", "logical": "q", "stored": "wq", "scale": "1 / sqrt(hd)"}, {"id": "again", "alias": "q", "stored": "again"},
                    {"id": "k", "logical": "k", "stored": "wk", "permute": "transpose", "pad": {"to": 5, "true": 4}, "scale": "1 / sqrt(hd)"},
                    {"id": "norm", "match": "norm", "add": "-centred"}])
    back = {name: (shape, [rounded(rounded(value * scale) / scale) for value in values]) if name != "norm" else (shape, values)
            for name, (shape, values) in logical.items()}
    run("convert", "arithmetic-plain.safetensors", "-o", "arithmetic-numbers.safetensors", "--to-map", "numbers.json")
    assert read(WORK / "arithmetic-numbers.safetensors") == {name: (list(shape), values) for name, (shape, values) in stored.items()}
    for form, to in (("pt", []), ("dcp", ["--to", "dcp", "--ranks", "3", "--local-ranks", "2"])):
        run("convert", "arithmetic-plain.safetensors", "-o", f"arithmetic-numbers.{form}", *to, "--to-map", "numbers.json")
        run("diff", f"arithmetic-numbers.{form}", "arithmetic-numbers.safetensors")
        run("gather", f"arithmetic-numbers.{form}", "-o", f"arithmetic-back-{form}.safetensors", "--map", "numbers.json", "--local-ranks", "2", "--max-memory", "1MiB")
        assert read(WORK / f"arithmetic-back-{form}.safetensors") == back, form
    run("convert", "arithmetic-plain.safetensors", "-o", "arithmetic-same.safetensors", "--to-map", "numbers.json", "--set", "centred=0")
    assert read(WORK / "arithmetic-same.safetensors")["norm"] == logical["norm"]
    shown = json.loads(run("inspect", "arithmetic-numbers.safetensors", "--map", "numbers.json", "--json"))
    assert [(each["name"], each["dtype"], each["shape"]) for each in shown["tensors"]] == [
        ("k", "float32", [6, 4]), ("norm", "float32", [4]), ("q", "float32", [6, 4])]
    # The inverse as a number: undoing multiplies by it. States are divided as before.
    document("inverse.json", vars={"hd": 8}, rules=[{"logical": "q", "stored": "q", "scale": "1 / sqrt(hd)", "unscale": "sqrt(hd)"}, {"match": "k|norm"}],
             states=[{"name": "m", "key": "mu.{key}", "as": "weights"}, {"name": "v", "key": "nu.{key}", "as": "gradients"}])
    write(WORK / "inverse.safetensors", logical | {"mu.q": logical["q"], "nu.q": logical["q"]})
    run("gather", "inverse.safetensors", "-o", "inverse-back.safetensors", "--map", "inverse.json")
    inverse = [rounded(value * rounded(math.sqrt(8))) for value in logical["q"][1]]
    assert inverse != [rounded(value / scale) for value in logical["q"][1]]
    found = read(WORK / "inverse-back.safetensors")
    assert found["q"][1] == found["optimizer.state.q.m"][1] == inverse
    assert found["optimizer.state.q.v"][1] == [rounded(value / rounded(math.sqrt(8))) for value in logical["q"][1]]
    run("convert", "arithmetic-plain.safetensors", "-o", "inverse-made.safetensors", "--to-map", "inverse.json", "--exclude", "norm")
    assert read(WORK / "inverse-made.safetensors")["q"][1] == stored["wq"][1]
    document("wrong-inverse.json", rules=[{"match": "q", "scale": 2, "unscale": 2}, {"match": "k|norm"}])
    assert "unscale is not the inverse of scale" in run("digest", "arithmetic-plain.safetensors", "--map", "wrong-inverse.json", expect=2)
    # bfloat16 is rounded once: 1 + 2^-8 is not one of its numbers, but the sum with -1 is.
    write(WORK / "arithmetic-fine.safetensors", {"norm": ([1], [1 + 2.0 ** -8])})
    document("norm.json", rules=[{"match": "norm", "add": -1}])
    run("convert", "arithmetic-fine.safetensors", "-o", "arithmetic-fine-out.safetensors", "--to-map", "norm.json", "--cast", "norm=bfloat16")
    assert (WORK / "arithmetic-fine-out.safetensors").read_bytes()[-2:] == struct.pack("<f", 2.0 ** -8)[2:]
    # Ranks with tensors of their own.
    document("ranked.json", mesh={"tp": "ranks"}, rules=[{"logical": "q", "stored": "q", "shard": [{"axis": "tp", "dim": 0}], "scale": 2},
                                                        {"match": "norm", "add": 1}, {"match": "k"}])
    run("split", "arithmetic-plain.safetensors", "-o", "arithmetic-ranked", "--to", "torch-ranks", "--to-map", "ranked.json", "--ranks", "2")
    run("gather", "arithmetic-ranked", "-o", "arithmetic-whole.safetensors", "--map", "ranked.json")
    assert read(WORK / "arithmetic-whole.safetensors") == logical
    assert read_rank(WORK / "arithmetic-ranked/rank-00001-of-00002.pt") == [logical["k"][1], [2 * value for value in logical["q"][1][count * width // 2:]],
                                                                [value + 1 for value in logical["norm"][1]]]
    write(WORK / "arithmetic-ints.safetensors", {"norm": ([2], [1, 2])})
    assert "computes its values" in run("digest", "arithmetic-ints.safetensors", "--map", "norm.json", expect=8)
    assert "computes its values" in run("convert", "arithmetic-ints.safetensors", "-o", "x.pt", "--to-map", "norm.json", expect=8)


def read_rank(path):
    """The float32 tensors of a torch.save file in the order of their numbers."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if "/data/" in name and name.rsplit("/", 1)[1].isdigit())
        contents = [archive.read(name) for name in names]
    return sorted((list(struct.unpack(f"<{len(each) // 4}f", each)) for each in contents), key=len, reverse=True)


for check in (check_arithmetic, check_experts, check_adapters_of_fused_experts, check_names_of_version_5, check_experts_of_qwen3_vl,
              check_rotary, check_heads, check_padding_and_replicas, check_aliases, check_last_row, check_rotary_frequencies, check_names, check_like,
              check_config_beside, check_dtypes, check_parts_of_one_tensor, check_many_experts):
    check()
