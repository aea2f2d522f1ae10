"""Random map documents: --map converts the output of --to-map back, or one of the two refuses. Nothing is lost, and
no run ends by a signal."""
import json
import random
import shutil
import subprocess

from int_tensors import SHARDCTL, WORK, document, numbers, read, write

DOCUMENTS = 200
chance = random.Random(7)
SHAPES = {f"l.{i}.{name}": shape for i in range(2) for name, shape in {"q": [8, 4], "k": [4, 4]}.items()}
SHAPES |= {f"e.{i}.w": [2, 3] for i in range(2)} | {"emb": [11, 4], "n": [4]}
TENSORS = {name: (shape, numbers(shape[0] * (shape[1] if len(shape) > 1 else 1))) for name, shape in SHAPES.items()}
WORDS = ["2*tp", "x//tp", "x%tp", "ceil_to(x,tp)", "-x", "min(x,tp)", -1, 2**31, 2**63 - 1, "9223372036854775807*2"]


def number(*likely):
    return chance.choice(likely) if likely and chance.random() < 0.85 else chance.choice([0, 1, 2, 3, 4, 8, 11, *WORDS])


def some(**makers):
    """Each key with the chance before its maker."""
    return {key: make() for key, (odds, make) in makers.items() if chance.random() < odds}


def cut():
    split = chance.choice([{}, {}, {"split": "chunk"}, {"split": "first_extra"}, {"split": "widths", "widths": [number(2), number(2)]}])
    return {"axis": chance.choice(["tp", "pp"])} | split | some(dim=(0.4, lambda: chance.choice([0, 1, 2])))


def concat():
    return some(dim=(0.2, lambda: chance.choice([0, 1])), sizes=(0.9, lambda: chance.choice(["equal", [number(8), number(4)], [8, 4]])),
                interleave=(0.3, lambda: number(1, 2, 4)), per_segment=(0.4, lambda: True), replicas=(0.1, lambda: [number(1, 2), number(1)]))


def rule():
    stored, logical = chance.choice([("m.{l}.q", "l.{l}.q"), ("m{l_chunk}.{l_local}.q", "l.{l}.q"), ("m.q", "l.{l}.q"),
                                     ("m.{l}.qk", ["l.{l}.q", "l.{l}.k"]), ("e.w", "e.{e}.w"), ("x.{e_local}.w", "e.{e}.w"), ("emb", "emb"), ("n", "n")])
    made = {"logical": logical, "stored": stored, "optional": True} | ({"concat": concat()} if isinstance(logical, list) else {})
    if stored in ("m.q", "e.w"):
        made["stack"] = [{"index": "l" if stored == "m.q" else "e", "dim": chance.choice([0, 1])}]
    return made | some(shard=(0.5, lambda: [cut() for _ in range(chance.choice([1, 1, 2]))]), permute=(0.2, lambda: chance.choice(
        ["transpose", f"rope_half_to_pairs({number(1, 2)})", f"rope_pairs_to_half({number(1, 2)}) then transpose"])),
            unflatten=(0.2, lambda: {"size": number(1, 2, 4)} | some(dim=(0.5, lambda: chance.choice([0, 1, 2])))), on=(0.2, lambda: {chance.choice(["tp", "pp"]): chance.choice(
            ["first", "last", 0, -1, [0, 1]])}), pad=(0.2, lambda: {"to": number(11, 12, 16), "fill": chance.choice(
                ["zero", "last_row", "keep"])} | some(true=(0.8, lambda: number(4, 8, 11)))))


def index():
    return some(count=(0.8, lambda: number(2)), axis=(0.5, lambda: chance.choice(["pp", "tp"])), split=(0.2, lambda: "chunk"),
                counts=(0.1, lambda: [number(1), number(1)]), chunks=(0.2, lambda: number(1, 2)), offset=(0.2, lambda: number(0, 1)),
                begin=(0.1, lambda: number(0)))


def run(*words):
    done = subprocess.run([SHARDCTL, *words], cwd=WORK, capture_output=True, text=True)
    assert done.returncode in (0, 2, 3, 4, 8), f"{words}: {done.returncode}\n{done.stderr}\n{(WORK / 'map.json').read_text()}"
    return done.returncode == 0


write(WORK / "all.safetensors", TENSORS)
undone = 0
for _ in range(DOCUMENTS):
    rules = [rule() for _ in range(chance.choice([1, 2, 3]))]
    document("map.json", vars={"x": chance.choice([1, 2, 4])}, mesh={"pp": number(1, 2), "tp": number(1, 2)}, rules=rules,
             index={"l": index(), "e": index()}, strict={"unmatched": "copy", "unused_rule": "warn"})
    shutil.rmtree(WORK / "made", ignore_errors=True)
    if not run("split", "all.safetensors", "-o", "made", "--to", "torch-ranks", "--to-map", "map.json"):
        continue
    source = "made" if len(list((WORK / "made").iterdir())) > 1 else "made/rank-00000-of-00001.pt"
    if run("gather", source, "-o", "back.safetensors", "-f", "--map", "map.json", *(["--from", "torch-ranks"] if source != "made" else [])):
        undone += 1
        assert read(WORK / "back.safetensors") == TENSORS, json.loads((WORK / "map.json").read_text())
assert undone > DOCUMENTS // 20, f"{undone} of {DOCUMENTS} documents were undone: the others say nothing"
