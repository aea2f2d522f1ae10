"""`split` of layout documents: each form shards by its arithmetic, every element is stored once, and the shards are
gathered again.

Environment: SHARDCTL is the program.
"""
import itertools
import json
import math
import os
import random
import struct
import subprocess
import tempfile
from pathlib import Path

from program import SHARDCTL, write_safetensors

SHAPES = {"a": [24, 6], "b": [7, 5], "c": [3], "d": [24, 10, 2], "e": [0, 4]}


def run(*arguments, expect: int = 0) -> str:
    done = subprocess.run([SHARDCTL, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expect, f"shardctl {' '.join(map(str, arguments))}: exit {done.returncode}, not {expect}\n{done.stderr}"
    return done.stdout if expect == 0 else done.stderr


def write_model(path: str, shapes: dict) -> None:
    tensors, first = {}, 0
    for name, shape in shapes.items():
        count = math.prod(shape)
        tensors[name] = "I32", shape, struct.pack(f"<{count}i", *range(first, first + count))
        first += count
    write_safetensors(path, tensors)


def write_layout(mesh: dict, rules: list, path: str = "layout.json") -> str:
    Path(path).write_text(json.dumps({"schema": "shardctl.layout/1", "mesh": mesh, "rules": rules}))
    return path


def parts_of(size: int, parts: int, cut: dict) -> list[tuple[int, int]]:
    """Offset and size of each part, in words other than the program's."""
    split = cut.get("split", "chunk")
    if split == "even":
        sizes = [size // parts] * parts
    elif split == "chunk":
        step = -(-size // parts)
        sizes = [max(0, min(step, size - i * step)) for i in range(parts)]
    elif split == "first_extra":
        sizes = [size // parts + (i < size % parts) for i in range(parts)]
    else:
        sizes = cut["widths"]
    assert sum(sizes) == size
    return list(zip(itertools.accumulate([0, *sizes]), sizes))


def random_cut(chance: random.Random, axis: str, parts: int, dim: int, size: int) -> dict:
    """A cut of `size` elements; the sizes of its parts follow from it."""
    forms = ["", "chunk", "first_extra", "widths"] + ["even"] * (size % parts == 0)
    cut = {"axis": axis, "dim": dim}
    if form := chance.choice(forms):
        cut["split"] = form
    if form == "widths":
        ends = sorted(chance.randint(0, size) for _ in range(parts - 1))
        cut["widths"] = [end - begin for begin, end in zip([0, *ends], [*ends, size])]
    return cut


def expected_boxes(shape: list, mesh: dict, cuts: list) -> set:
    """Rank, offsets and sizes of each part with elements; cuts are of different dimensions. Replicas are the lowest rank's."""
    boxes = set()
    for rank, coordinates in enumerate(itertools.product(*(range(size) for size in mesh.values()))):
        at = dict(zip(mesh, coordinates))
        if any(at[axis] for axis in mesh if axis not in [cut["axis"] for cut in cuts]):
            continue
        offsets, sizes = [0] * len(shape), list(shape)
        for cut in cuts:
            offsets[cut["dim"]], sizes[cut["dim"]] = parts_of(shape[cut["dim"]], mesh[cut["axis"]], cut)[at[cut["axis"]]]
        if all(sizes):
            boxes.add((rank, tuple(offsets), tuple(sizes)))
    return boxes


def found_boxes(folder: str, name: str) -> set:
    tensors = json.loads(run("inspect", folder, "--json"))["tensors"]
    chunks = next(tensor["chunks"] for tensor in tensors if tensor["name"] == name)
    return {(chunk["rank"], tuple(chunk["offsets"]), tuple(chunk["sizes"])) for chunk in chunks}


def test_random_documents(seed: int) -> None:
    chance = random.Random(seed)
    mesh = {"dp": chance.choice([1, 2, 3]), "tp": chance.choice([2, 3, 4])}
    rules, cuts_of = [], {}
    for name, shape in SHAPES.items():
        dims = chance.sample(range(len(shape)), min(len(shape), 2))
        cuts = [random_cut(chance, axis, mesh[axis], dim, shape[dim]) for axis, dim in zip(chance.sample(sorted(mesh), len(dims)), dims)]
        cuts_of[name] = cuts
        rules.append({"match": name, "shard": cuts})
    layout = write_layout(mesh, rules)
    for form, options in (("dcp", []), ("dcp", ["--local-ranks", 2]), ("torch-ranks", ["--as", "plain"])):
        run("split", "model.safetensors", "-o", "cut", "--to", form, "--layout", layout, *options, "--force")
        if form == "dcp":
            for name in SHAPES:
                if all(SHAPES[name]):
                    assert found_boxes("cut", name) == expected_boxes(SHAPES[name], mesh, cuts_of[name]), (seed, name)
        run("verify", "cut")
        run("gather", "cut", "-o", "again.safetensors", "--force")
        run("diff", "again.safetensors", "model.safetensors")


def test_nested_cuts() -> None:
    """A sharding of the result of an earlier one, in the order of the list."""
    for cuts, wanted in ((["tp", "dp"], {(0, (0,), (4,)), (2, (4,), (4,)), (1, (8,), (2,)), (3, (10,), (1,))}),
                         (["dp", "tp"], {(0, (0,), (4,)), (1, (4,), (2,)), (2, (6,), (3,)), (3, (9,), (2,))})):
        write_model("n.safetensors", {"n": [11]})
        widths = {"tp": {"split": "widths", "widths": [8, 3]}, "dp": {"split": "first_extra"}}
        if cuts[0] == "dp":
            widths["tp"] = {"split": "first_extra"}
            wanted = {(0, (0,), (3,)), (1, (3,), (3,)), (2, (6,), (3,)), (3, (9,), (2,))}
        layout = write_layout({"dp": 2, "tp": 2}, [{"match": "n", "shard": [{"axis": axis, "dim": 0} | widths[axis] for axis in cuts]}])
        run("split", "n.safetensors", "-o", "nested", "--to", "dcp", "--layout", layout, "--force")
        assert found_boxes("nested", "n") == wanted, found_boxes("nested", "n")
        run("diff", "nested", "n.safetensors")


def test_plain_slices_are_read_by_their_document() -> None:
    """Files whose parts torch.chunk would not make, with the document beside them and without."""
    rule = {"match": "b", "shard": [{"axis": "tp", "dim": 0, "split": "first_extra"}]}
    layout = write_layout({"tp": 3}, [rule])
    run("split", "model.safetensors", "-o", "plain", "--to", "torch-ranks", "--as", "plain", "--layout", layout, "--force", "--include", "b")
    written = json.loads(Path("plain/layout.json").read_text())
    assert written["rules"] == [rule], written
    os.remove("plain/layout.json")
    shown = next(tensor for tensor in json.loads(run("inspect", "plain", "--layout", layout, "--json"))["tensors"])
    assert shown["placements"] == ["S(0,first_extra)"] and shown["shape"] == [7, 5], shown
    run("gather", "plain", "-o", "b.safetensors", "--layout", layout, "--force")
    run("diff", "b.safetensors", "model.safetensors", "--include", "b")
    widths = write_layout({"tp": 3}, [{"match": "b", "shard": [{"axis": "tp", "dim": 0, "split": "widths", "widths": [3, 2, 2]}]}], "widths.json")
    run("diff", "plain", "model.safetensors", "--layout", widths, "--include", "b")
    for split in ({}, {"split": "even"}, {"split": "widths", "widths": [3, 3, 1]}, {"split": "widths", "widths": [3, 2, 1]}):
        other = write_layout({"tp": 3}, [{"match": "b", "shard": [{"axis": "tp", "dim": 0} | split]}], "other.json")
        run("gather", "plain", "-o", "none.safetensors", "--layout", other, expect=4)


def test_kinds_of_rank_files() -> None:
    """ShardedTensors list their boxes, DTensors know equal parts and those of torch.chunk only."""
    def layout(split: dict) -> str:
        return write_layout({"tp": 2}, [{"match": "a|b", "shard": [{"axis": "tp", "dim": 0} | split]}])
    first = layout({"split": "first_extra"})
    run("split", "model.safetensors", "-o", "sharded", "--to", "torch-ranks", "--as", "sharded_tensor", "--layout", first, "--force")
    run("diff", "sharded", "model.safetensors")
    refusal = run("split", "model.safetensors", "-o", "none", "--to", "torch-ranks", "--as", "dtensor", "--layout", first, expect=8)
    assert "'a'" in refusal and "torch.chunk" in refusal and "--as plain" in refusal, refusal
    even = write_layout({"tp": 2}, [{"match": "a", "shard": [{"axis": "tp", "dim": 0, "split": "even"}]}])
    run("split", "model.safetensors", "-o", "dtensors", "--to", "torch-ranks", "--as", "dtensor", "--layout", even, "--force")
    run("diff", "dtensors", "model.safetensors")
    one = write_layout({"dp": 2, "tp": 1}, [{"match": "a", "shard": [{"axis": "tp", "dim": 0}, {"axis": "dp", "dim": 0}]}])
    for kind in ("plain", "dtensor"):  # The order of an axis with one rank does not matter.
        run("split", "model.safetensors", "-o", "ordered", "--to", "torch-ranks", "--as", kind, "--layout", one, "--force")
        run("diff", "ordered", "model.safetensors")


def test_refusals() -> None:
    """Exit 2 with the tensor, or the place in the document."""
    def refusal(cut: dict, name: str = "b") -> str:
        layout = write_layout({"tp": 3}, [{"match": name, "shard": [{"axis": "tp", "dim": 0} | cut]}])
        return run("split", "model.safetensors", "-o", "none", "--to", "dcp", "--layout", layout, expect=2)
    found = refusal({"split": "even"})
    assert "divide 7 evenly into 3" in found and "'b'" in found, found
    found = refusal({"split": "widths", "widths": [1, 2, 3]})
    assert "3 widths do not add up to 7" in found and "'b'" in found, found
    found = refusal({"split": "widths", "widths": [1, 2]})
    assert "layout.json" in found and "rules[0].shard[0].widths" in found, found
    assert not os.path.exists("none")
    # Expressions are those of maps; names are the mesh's axes.
    layout = write_layout({"tp": 3}, [{"match": "b", "shard": [{"axis": "tp", "dim": 0, "split": "widths", "widths": ["tp - 1", "2 * 2", 1]}]}])
    run("split", "model.safetensors", "-o", "named", "--to", "dcp", "--layout", layout, "--force")
    assert found_boxes("named", "b") == {(0, (0, 0), (2, 5)), (1, (2, 0), (4, 5)), (2, (6, 0), (1, 5))}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_model("model.safetensors", SHAPES)
        for seed in range(int(os.environ.get("SHARD_SEED", 1)), int(os.environ.get("SHARD_SEED", 1)) + 12):
            test_random_documents(seed)
        test_nested_cuts()
        test_plain_slices_are_read_by_their_document()
        test_kinds_of_rank_files()
        test_refusals()
        os.chdir("/")


if __name__ == "__main__":
    main()
