"""Model maps of files of ranks, by every verb, compared with plain loops.

The expected result of a map is computed here element by element.
"""
import json
import os
import pathlib
import pickle
import shutil
import struct
import zipfile

from int_tensors import WORK, document, numbers, of_rows, read, rows, run, write

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def check_padding_of_ranks():
    """Ranks that see only their own files also have the padding."""
    embed = [5, 300], numbers(1500)
    write(WORK / "words.safetensors", {"embed": embed})
    document("words.json", rules=[{"logical": "embed", "stored": "tok", "pad": {"dim": 0, "to": "ceil_to(n, 8)"}}])
    for folder, options in (("one", []), ("three", ["--local-ranks", "3"]), ("parts", ["--local-ranks", "3", "--local-input"])):
        run("split", "words.safetensors", "-o", folder, "--ranks", "4", "--to-map", "words.json", *options)
        names = sorted(path.name for path in (WORK / folder).iterdir())
        assert [(WORK / folder / name).read_bytes() for name in names] == [(WORK / "one" / name).read_bytes() for name in names], folder
    run("gather", "parts", "-o", "parts.safetensors")
    assert read(WORK / "parts.safetensors") == {"tok": of_rows(rows(embed) + [[0] * 300] * 3)}


def check_tied_tensors_of_two_layouts():
    """Reading compares tied tensors of two layouts where they overlap."""
    embed = [4, 8], numbers(32)
    changed = [4, 8], embed[1][:24] + [7] + embed[1][25:]  # Its first column and its last row are on different ranks.
    write(WORK / "tied.safetensors", {"embed": embed})
    write(WORK / "changed.safetensors", {"embed": changed})
    for name, head in {"columns": {"shard": [{"axis": "tp", "dim": 1}]}, "whole": {}, "turned": {"permute": "transpose"}}.items():
        document("tied.json", mesh={"tp": "ranks"}, rules=[{"logical": "embed", "stored": "embed", "shard": [{"axis": "tp", "dim": 0}]},
                                                          {"alias": "embed", "stored": "head"} | head])
        for source in "tied", "changed":
            run("split", f"{source}.safetensors", "-o", f"{source}-{name}", "--to", "torch-ranks", "--to-map", "tied.json", "--ranks", "2")
        run("gather", f"tied-{name}", "-o", f"tied-{name}.safetensors", "--map", "tied.json")
        assert read(WORK / f"tied-{name}.safetensors") == {"embed": embed}, name
        shutil.copy(WORK / f"changed-{name}/rank-00001-of-00002.pt", WORK / f"tied-{name}")
        assert "replicas of 'embed' differ" in run("digest", f"tied-{name}", "--map", "tied.json", expect=4), name


def check_ranks():
    """Files of ranks for vLLM: columns of q, k and v a rank, with k and v repeated, and a padded vocabulary."""
    heads, groups, head, hidden, ranks = 8, 2, 2, 3, 4
    q, k, v = ([n * head, hidden] for n in (heads, groups, groups))
    tensors = {"l.0.q": (q, numbers(q[0] * hidden)), "l.0.k": (k, numbers(k[0] * hidden)), "l.0.v": (v, numbers(v[0] * hidden)),
               "l.0.o": ([hidden, 8], numbers(24)), "embed": ([5, hidden], numbers(15)), "norm": ([3], numbers(3))}
    write(WORK / "qkv.safetensors", tensors)
    cut = [{"axis": "tp", "dim": 0}]
    document("vllm.json", mesh={"tp": "ranks"}, vars={"kv": 2}, rules=[
        {"logical": ["l.{l}.q", "l.{l}.k", "l.{l}.v"], "stored": "l.{l}.qkv", "shard": cut,
         "concat": {"per_segment": True, "replicas": [1, "max(1, tp//kv)", "max(1, tp//kv)"]}},
        {"match": r".*\.o", "shard": [{"axis": "tp", "dim": 1}]}, {"match": "norm"},
        {"logical": "embed", "stored": "embed", "pad": {"to": "ceil_to(n, 8)"}, "shard": cut}])
    run("split", "qkv.safetensors", "-o", "served", "--to", "vllm", "--to-map", "vllm.json", "--ranks", ranks)
    files = sorted(path.name for path in (WORK / "served").iterdir())
    assert files == [f"model-rank-{rank}-part-0.safetensors" for rank in range(ranks)], files
    part = lambda name, n, of: rows(tensors[name])[len(rows(tensors[name])) // of * n:len(rows(tensors[name])) // of * (n + 1)]
    padded = rows(tensors["embed"]) + [[0] * hidden] * 3
    for rank in range(ranks):
        assert read(WORK / "served" / files[rank]) == {
            "l.0.qkv": of_rows(part("l.0.q", rank, 4) + part("l.0.k", rank // 2, 2) + part("l.0.v", rank // 2, 2)),
            "l.0.o": of_rows([row[rank * 2:rank * 2 + 2] for row in rows(tensors["l.0.o"])]),
            "norm": tensors["norm"], "embed": of_rows(padded[rank * 2:rank * 2 + 2])}, rank
    assert "without a model map" in run("split", "qkv.safetensors", "-o", "x", "--to", "vllm", "--ranks", "2", expect=2)
    run("split", "qkv.safetensors", "-o", "x", "--to", "dcp", "--to-map", "vllm.json", "--ranks", "2", expect=8)
    assert "evenly" in run("split", "qkv.safetensors", "-o", "x", "--to", "vllm", "--to-map", "vllm.json", "--ranks", "3", expect=2)


def check_whole_heads():
    """The built-in maps of ranks refuse numbers of ranks that divide a head, even if its rows divide evenly."""
    write(WORK / "any.safetensors", {"a": ([1], [1])})
    for name, to, ranks, heads, kv, expect in (("vllm:llama", "vllm", 4, 6, 6, 8), ("vllm:qwen2", "vllm", 2, 6, 3, 8), ("vllm:qwen3", "vllm", 4, 8, 3, 8),
                                               ("vllm:mistral", "vllm", 6, 6, 3, 2), ("llama-pth", "torch-ranks", 2, 3, 3, 8),
                                               ("llama-pth", "torch-ranks", 4, 8, 2, 8), ("llama-pth", "torch-ranks", 2, 8, 2, 2)):
        found = run("split", "any.safetensors", "-o", "x", "--to", to, "--to-map", name, "--ranks", ranks, "--set", f"heads={heads}", "--set", f"kv={kv}",
                    expect=expect)
        assert ("each rank has whole heads" if expect == 8 else "no rule of the map matches") in found, found


def check_other_cuts():
    """A map for ranks already defines their content and number."""
    run("split", "qkv.safetensors", "-o", "like-old", "--ranks", "2")
    served = ["split", "qkv.safetensors", "-o", "x", "--to", "vllm"]
    for cut in (["--like", "like-old"], ["--mesh", "tp=2"], ["--ranks", "2", "--dim", "1"]):
        assert "already defines the content of each rank" in run(*served, "--to-map", "vllm.json", *cut, expect=2)
    document("alone.json", rules=[{"match": ".*"}])
    assert "different number of ranks" in run(*served, "--to-map", "alone.json", "--ranks", "2", expect=2)


def check_flat_buffers():
    """Buffers of two groups on three ranks, each tensor at a multiple of 4; an impossible request is refused before
    anything is written."""
    tensors = {"embed": ([5, 3], numbers(15)), "l.0.up": ([2, 3], numbers(6)), "l.1.up": ([2, 3], numbers(6)), "l.1.norm": ([3], numbers(3)),
               "l.0.norm": ([3], numbers(3))}
    write(WORK / "flat.safetensors", tensors)
    flatten = {"axis": "dp", "kind": "fsdp1", "align": 4, "stored": "flat.{group}", "groups": ["(l)\\..*", "(embed)"],
               "order": ["embed", ["l.{l}.norm", "l.{l}.up"]]}
    document("flat.json", mesh={"dp": "ranks"}, rules=[{"match": ".*"}], flatten=flatten)
    run("split", "flat.safetensors", "-o", "buffers", "--to", "vllm", "--to-map", "flat.json", "--ranks", "3")
    layers = []
    for name in ("l.0.norm", "l.0.up", "l.1.norm", "l.1.up"):
        layers += [0] * (-len(layers) % 4) + tensors[name][1]
    layers += [0] * (-len(layers) % 3)
    embed = tensors["embed"][1]
    for rank in range(3):
        size = len(layers) // 3
        assert read(WORK / "buffers" / f"model-rank-{rank}-part-0.safetensors") == {
            "flat.embed": ([5], embed[rank * 5:rank * 5 + 5]), "flat.l": ([size], layers[rank * size:rank * size + size])}, rank
    document("one.json", mesh={"dp": 1}, rules=[{"match": ".*"}], index={"l": {"count": 2}},
             flatten=flatten | {"shapes": {"embed": [5, 3], "l.{l}.up": [2, 3], "l.{l}.norm": [3]}})
    run("gather", "flat.safetensors", "-o", "one.safetensors", "--to-map", "one.json")
    run("gather", "one.safetensors", "-o", "again.safetensors", "--map", "one.json")
    assert read(WORK / "again.safetensors") == tensors
    assert "equal" in run("diff", "one.safetensors", "flat.safetensors", "--map", "one.json")
    assert "as the map's flatten" not in run("map", "check", "one.json", "one.safetensors")
    wrong = read(WORK / "one.safetensors")
    wrong["flat.l"][1][3] = 7
    write(WORK / "wrong-flat.safetensors", wrong)
    assert "padding of 'flat.l' is not zero" in run("gather", "wrong-flat.safetensors", "-o", "x.safetensors", "--map", "one.json", expect=4)
    assert not (WORK / "x.safetensors").exists()
    document("orders.json", mesh={"dp": 1}, rules=[{"match": ".*"}], flatten=flatten | {"order": "param_shapes"})
    assert "param_shapes states the groups" in run("digest", "one.safetensors", "--map", "orders.json", expect=2)
    del flatten["groups"]
    document("orders.json", mesh={"dp": 1}, rules=[{"match": ".*"}], flatten=flatten | {"order": "param_shapes"})
    assert "lists param_shapes" in run("digest", "one.safetensors", "--map", "orders.json", expect=2)
    assert "in the order of param_shapes" in run("gather", "one.safetensors", "-o", "x.pt", "--to-map", "orders.json", expect=8)
    document("mean.json", rules=[{"match": ".*", "reduce": "mean"}])
    assert "is not one of the allowed words" in run("digest", "one.safetensors", "--map", "mean.json", expect=2)


def check_files_of_ranks():
    """Files with plain slices, including a tensor that is equal on all ranks."""
    halves = [8, 3], numbers(24)
    source = rows(halves)
    pairs = of_rows([source[h * 4 + j * 2 + k] for h in range(2) for k in range(2) for j in range(2)])
    write(WORK / "whole.safetensors", {"wq": pairs, "bias": ([7], numbers(7)), "same": ([4], [5] * 4)})
    run("split", "whole.safetensors", "-o", "ranks", "--to", "torch-ranks", "--as", "plain", "--ranks", "2")
    cut = [{"axis": "mp", "dim": 0, "split": "chunk"}]
    document("ranks.json", mesh={"mp": "ranks"}, rules=[
        {"logical": "q", "stored": "wq", "permute": "rope_half_to_pairs(2)", "shard": cut}, {"match": "bias|same", "shard": cut}])
    expected = {**read(WORK / "whole.safetensors"), "q": halves}
    del expected["wq"]
    run("gather", "ranks", "-o", "undone.safetensors", "--map", "ranks.json")
    assert read(WORK / "undone.safetensors") == expected
    run("map", "check", "ranks.json", "ranks")
    (WORK / "ranks/layout.json").unlink()
    run("diff", "ranks", "undone.safetensors", "--map", "ranks.json")


def check_files_are_written():
    """The ranks' tensors, in files that the document names."""
    document("named.json", mesh={"mp": "ranks"}, vars={"step": 7}, files={"path": "step{step}.part_{mp:02d}.pth"},
             rules=json.loads((WORK / "ranks.json").read_text())["rules"])
    split = ["split", "undone.safetensors", "-o", "written", "--to", "torch-ranks", "--to-map", "named.json"]
    run(*split, "--ranks", "2")
    assert sorted(path.name for path in (WORK / "written").iterdir()) == ["step7.part_00.pth", "step7.part_01.pth"]
    run("gather", "written", "-o", "read-back.safetensors", "--map", "named.json")
    assert read(WORK / "read-back.safetensors") == read(WORK / "undone.safetensors")
    run("gather", "written/step7.part_01.pth", "-o", "part.safetensors")
    run("gather", "ranks/rank-00001-of-00002.pt", "-o", "same.safetensors", "--from", "torch")
    assert read(WORK / "part.safetensors") == read(WORK / "same.safetensors")
    assert "plain tensors" in run(*split, "--ranks", "2", "--as", "dtensor", "-f", expect=2)
    assert "--to torch-ranks" in run(*[word if word != "torch-ranks" else "dcp" for word in split], "--ranks", "2", "-f", expect=8)
    document("plain.json", mesh={"mp": "ranks"}, rules=[{"match": "bias|same", "shard": [{"axis": "mp", "dim": 0, "split": "chunk"}]}])
    run(*split[:-1], "plain.json", "--ranks", "3", "-f", "--exclude", "q")
    assert sorted(path.name for path in (WORK / "written").iterdir())[2] == "rank-00002-of-00003.pt"
    for path, words, code in (("same.pth", "two ranks one name", 2), ("{pp}.pth", "neither an axis", 2), ("a{mp", "with fields", 2),
                              ("d/../{mp}.pth", "cannot be a file's", 2), ("/{mp}.pth", "cannot be a file's", 2)):
        document("bad.json", mesh={"mp": "ranks"}, files={"path": path}, rules=[{"match": ".*", "shard": [{"axis": "mp", "dim": 0, "split": "chunk"}]}])
        assert words in run(*split[:-1], "bad.json", "--ranks", "2", "-f", expect=code), path
    document("bad.json", files={"path": "a"}, rules=[])
    assert "needs a mesh" in run("map", "show", "bad.json", expect=2)
    document("bad.json", mesh={"mp": 1}, files={"path": "a", "container": "dcp"}, rules=[])
    assert "files.container is not one of the allowed words" in run("map", "show", "bad.json", expect=2)


def check_safetensors_of_ranks():
    """The same in safetensors files: each file has its rank's tensors, and all have the same names."""
    rules = json.loads((WORK / "ranks.json").read_text())["rules"]
    document("safe.json", mesh={"tp": "ranks"}, files={"path": "tp{tp}/model.safetensors", "container": "safetensors"},
             rules=json.loads(json.dumps(rules).replace('"mp"', '"tp"')))
    split = ["split", "undone.safetensors", "-o", "safe", "--to-map", "safe.json", "--ranks", "2"]
    run(*split, "--to", "safetensors")
    assert sorted(str(path.relative_to(WORK / "safe")) for path in (WORK / "safe").rglob("*.*")) == [
        "tp0/model.safetensors", "tp1/model.safetensors"]
    run("split", "undone.safetensors", "-o", "torch", "--to", "torch-ranks", "--to-map", "named.json", "--ranks", "2")
    for rank in range(2):
        run("convert", f"torch/step7.part_{rank:02d}.pth", "-o", f"rank{rank}.safetensors")
        assert read(WORK / f"safe/tp{rank}/model.safetensors") == read(WORK / f"rank{rank}.safetensors")
    run("gather", "safe", "-o", "safe.safetensors", "--map", "safe.json")
    assert read(WORK / "safe.safetensors") == read(WORK / "undone.safetensors")
    run("diff", "safe", "undone.safetensors", "--map", "safe.json")
    # Tensors on all ranks are compared.
    document("alike.json", mesh={"tp": "ranks"}, files=json.loads((WORK / "safe.json").read_text())["files"], rules=[{"match": ".*"}])
    run("split", "whole.safetensors", "-o", "alike", "--to", "safetensors", "--to-map", "alike.json", "--ranks", "2")
    run("diff", "alike", "whole.safetensors", "--map", "alike.json")
    with (WORK / "alike/tp1/model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert "replica" in run("digest", "alike", "--map", "alike.json", expect=4)
    run("map", "check", "safe.json", "safe")
    assert "--to safetensors" in run(*split, "--to", "torch-ranks", "-f", expect=8)
    assert "--to safetensors" in run(*split, "-f", expect=8)
    assert "stores only whole tensors" in run("split", "undone.safetensors", "-o", "x", "--to", "safetensors", "--ranks", "2", "--to-map", "hf-v5", expect=2)
    document("keys.json", mesh={"tp": 2}, files={"path": "tp{tp}.safetensors", "container": "safetensors", "root": "model"}, rules=[])
    assert "files.root is only for torch.save files" in run("map", "show", "keys.json", expect=2)
    document("two.json", mesh={"tp": 2}, files=[{"path": "{tp}.pt"}, {"path": "{tp}.safetensors", "container": "safetensors"}], rules=[])
    assert "is not that of the entries before it" in run("map", "show", "two.json", expect=2)


def check_files_in_folders():
    """A grid of ranks, in folders and below keys; the names' order of axes is not the mesh's."""
    tensors = {"row": ([2, 8], numbers(16)), "column": ([4, 3], numbers(12)), "same": ([5], numbers(5))}
    write(WORK / "grid.safetensors", tensors)
    rules = [{"match": "row", "shard": [{"axis": "tp", "dim": 1}], "on": {"pp": "first"}},
             {"match": "column", "shard": [{"axis": "pp", "dim": 0}]}, {"match": "same", "on": {"pp": "last"}}]
    grid = {"mesh": {"pp": 2, "tp": 2}, "rules": rules}
    files = {"path": "iter_{step:07d}/mp_rank_{tp:02d}_{pp:03d}/model.pt", "root": ["model", "a.b"]}
    document("grid.json", **grid, vars={"step": {"from": "config.json#/step"}}, files=files)
    for step in (10, 20):
        run("split", "grid.safetensors", "-o", f"step{step}", "--to", "torch-ranks", "--to-map", "grid.json", "--ranks", "4", "--set", f"step={step}")
    one = "step10/iter_0000010/mp_rank_01_000/model.pt"  # The first stage's second rank.
    run("gather", one, "-o", "one-of-four.safetensors")
    half = [n for row in rows(tensors["row"]) for n in row[4:]]
    assert read(WORK / "one-of-four.safetensors") == {"model.a.b.row": ([2, 4], half), "model.a.b.column": ([2, 3], tensors["column"][1][:6])}
    gather = ["gather", "step10", "-o", "whole-again.safetensors", "--map", "grid.json", "-f"]
    run(*gather)
    assert read(WORK / "whole-again.safetensors") == tensors
    shutil.copytree(WORK / "step20/iter_0000020", WORK / "step10/iter_0000020")
    assert "--set step=VALUE" in run(*gather, expect=2)
    (WORK / "step10/iter_0000020/mp_rank_00_001/model.pt").unlink()
    run(*gather, "--set", "step=10")
    found = run(*gather, "--set", "step=20", expect=3)
    assert "iter_0000020/mp_rank_00_001/model.pt" in found, found
    document("half.json", **(grid | {"mesh": {"pp": 1, "tp": 2}}), files=files)
    assert "mesh does not match the files" in run("gather", "step20", "-o", "x.safetensors", "--map", "half.json", expect=2)
    assert "contains none of the files that the map lists" in run("gather", "ranks", "-o", "x.safetensors", "--map", "grid.json", expect=3)
    # Only the first of two data-parallel ranks writes.
    document("writer.json", mesh={"dp": 2, "pp": 2, "tp": 2}, rules=rules, files=files | {"writer": {"dp": 0}})
    run("gather", "step20", "-o", "written-once.safetensors", "--map", "writer.json")
    assert read(WORK / "written-once.safetensors") == tensors
    document("unstated.json", mesh={"dp": 2, "pp": 2, "tp": 2}, rules=rules, files=files)
    assert "lacks the axis 'dp'" in run("gather", "step20", "-o", "x.safetensors", "--map", "unstated.json", expect=2)
    split = ["split", "grid.safetensors", "-o", "x", "--to", "torch-ranks", "--ranks", "8", "--to-map"]
    assert "such files are only read" in run(*split, "writer.json", expect=8)


def with_entry(source, target, key, value):
    """A copy of a torch.save file whose dict has one more entry, of which `value` is the pickle."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("/data.pkl"):
                content = content[:-1] + b"X" + struct.pack("<I", len(key)) + key.encode() + value + b"s."
            new.writestr(name, content)


def check_save_of_deepspeed():
    """A real save of DeepSpeed with only a document, compared with its format; docs/map-documents.md has one of Megatron-LM."""
    saved = DATA / "deepspeed/stage1/global_step2"
    document("zero.json", mesh={"dp": "ranks"}, types={"name": r"(?:embed|a|norm|b|head)\.(?:weight|bias)"},
             files=[{"path": "mp_rank_00_model_states.pt", "root": "module", "writer": {"dp": 0}},
                    {"path": "zero_pp_rank_{dp}_mp_rank_00_optim_states.pt", "root": "optimizer_state_dict",
                     "states": ["fp32", "exp_avg", "exp_avg_sq"]}],
             rules=[{"logical": "{name}", "stored": "{name}"}, {"match": "steps|mask|scale"},
                    {"match": r"base_optimizer_state\.state\.0\.step", "drop": True}],
             flatten={"axis": "dp", "kind": "zero12", "order": "param_shapes", "states": {
                 "fp32": "single_partition_of_fp32_groups.{group}", "exp_avg": "base_optimizer_state.state.{group}.exp_avg",
                 "exp_avg_sq": "base_optimizer_state.state.{group}.exp_avg_sq"}})
    words = ["--map", "zero.json", "--unknown-globals", "opaque", "--objects", "drop"]
    run("gather", saved, "-o", "zero.safetensors", *words)
    assert "equal" in run("diff", "zero.safetensors", saved, "--exclude", "optimizer.state.**.fp32", "--objects", "drop")
    run("gather", saved, "-o", "masters.safetensors", *words, "--include", "optimizer.state.**.fp32", "--rename", r"optimizer\.state\.(.*)\.fp32=\1")
    assert "equal" in run("diff", "masters.safetensors", saved, *[word for name in ("optimizer.**", "steps", "mask", "scale")
                                                                   for word in ("--exclude", name)], "--objects", "drop")
    shutil.copytree(saved, WORK / "edited")
    model = "mp_rank_00_model_states.pt"
    with_entry(saved / model, WORK / "edited" / model, "config", b"ctrainer\nConfig\n)R")
    run("gather", "edited", "-o", "of-edited.safetensors", *words)
    assert "equal" in run("diff", "of-edited.safetensors", "zero.safetensors")
    for value, why in (([{7: (2,)}], "not a string"), ([["a"]], "not a dict"), (7, "not a list"), ([{"a": ()}, {"a": ()}], "lists 'a' again")):
        with_entry(saved / model, WORK / "edited" / model, "param_shapes", pickle.dumps(value, 2)[2:-1])
        found = run("gather", "edited", "-o", "x.safetensors", *words, expect=4)
        assert model in found and "param_shapes" in found and why in found, found
    run("export", saved, "-o", "zero-model", *words[:-2])
    names = [each["name"] for each in json.loads(run("inspect", "zero-model", "--json"))["tensors"]]
    assert names == ["a.bias", "a.weight", "b.weight", "embed.weight", "head.weight", "mask", "norm.bias", "norm.weight", "scale", "steps"]


for check in (check_files_of_ranks, check_files_are_written, check_safetensors_of_ranks, check_files_in_folders, check_save_of_deepspeed,
              check_flat_buffers, check_ranks, check_whole_heads, check_other_cuts, check_padding_of_ranks,
              check_tied_tensors_of_two_layouts):
    check()
