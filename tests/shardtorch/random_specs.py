"""Random sharding specs, shards and placements, given to C++ (spec_program) and to torch: the results are the same,
except for the differences that docs/sharded-tensor.md lists.

Usage: random_specs.py SPEC_PROGRAM SEEDS. A seed is 1000 cases. Exit code 77: torch is not installed.
"""
import random
import subprocess
import sys

try:
    import torch
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec
    from torch.distributed._shard.sharding_spec._internals import check_tensor, validate_non_overlapping_shards_metadata
    from torch.distributed._shard.sharding_spec.api import _infer_sharding_spec_from_shards_metadata as infer_spec
    from torch.distributed.remote_device import _remote_device
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

CASES = 1000  # Per seed.
Box = tuple[list[int], list[int]]


def joined(numbers) -> str:
    return ",".join(map(str, numbers))


# --- Cases: the line for C++, and torch's answer. ---

def chunk_case(rng: random.Random):
    size = [rng.randrange(12) for _ in range(rng.randrange(1, 4))]
    dim = rng.randrange(-len(size) - 1, len(size) + 1)
    ranks = [rng.randrange(6) for _ in range(rng.randrange(1, 7))]
    line = f"chunk {dim} {len(ranks)} {' '.join(map(str, ranks))} {len(size)} {' '.join(map(str, size))}"

    def by_torch() -> str:
        spec = ChunkShardingSpec(dim, [f"rank:{rank}/cpu" for rank in ranks])
        shards = spec.build_metadata(torch.Size(size), TensorProperties()).shards_metadata
        return " ".join(f"{joined(s.shard_offsets)}/{joined(s.shard_sizes)}@{s.placement.rank()}" for s in shards)
    return line, by_torch


def changed(rng: random.Random, boxes: list[Box]) -> list[Box]:
    """Often one number is different from a regular layout."""
    if boxes and rng.random() < 0.5:
        box = rng.choice(boxes)
        numbers = rng.choice(box)
        at = rng.randrange(len(numbers))
        numbers[at] = max(0, numbers[at] + rng.choice([-2, -1, 1, 2]))
    if rng.random() < 0.2 and len(boxes) > 1:
        boxes.pop(rng.randrange(len(boxes)))
    rng.shuffle(boxes)
    return boxes


def grid(rng: random.Random, size: list[int]) -> list[Box]:
    """Boxes that cover a tensor, cut in one or more dimensions."""
    boxes: list[Box] = [([0] * len(size), list(size))]
    for dim in rng.sample(range(len(size)), rng.randrange(1, len(size) + 1)):
        parts = rng.randrange(1, 4)
        step = -(-size[dim] // parts)
        cut = []
        for offsets, sizes in boxes:
            for begin in range(0, max(size[dim], 1), max(step, 1)):
                cut.append((offsets[:dim] + [begin] + offsets[dim + 1:],
                            sizes[:dim] + [min(step, size[dim] - begin)] + sizes[dim + 1:]))
        boxes = cut
    return boxes


def flat(boxes: list[Box], ranks: list[int] | None) -> str:
    numbers = []
    for index, (offsets, sizes) in enumerate(boxes):
        numbers += offsets + sizes + ([ranks[index]] if ranks else [])
    return f"{len(boxes)} {len(boxes[0][0]) if boxes else 0} {' '.join(map(str, numbers))}"


def infer_case(rng: random.Random):
    size = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.6:  # A chunk spec's own shards, which may be empty.
        dim, parts = rng.randrange(len(size)), rng.randrange(1, 6)
        step = -(-size[dim] // parts)
        boxes = [([step * i if d == dim else 0 for d in range(len(size))],
                  [max(0, min(step, size[dim] - step * i)) if d == dim else n for d, n in enumerate(size)])
                 for i in range(parts)]
    else:
        boxes = grid(rng, size)
    boxes = changed(rng, boxes)
    ranks = [rng.randrange(6) for _ in boxes]

    def by_torch() -> str:
        shards = [ShardMetadata(list(o), list(s), f"rank:{r}/cpu") for (o, s), r in zip(boxes, ranks)]
        spec = infer_spec(shards)
        if not isinstance(spec, ChunkShardingSpec):
            return "EnumerableShardingSpec"
        return f"ChunkShardingSpec {spec.dim} {joined(p.rank() for p in spec.placements)}"
    return f"infer {flat(boxes, ranks)}", by_torch


def cover_case(rng: random.Random):
    size = [rng.randrange(1, 7) for _ in range(rng.randrange(1, 4))]
    boxes = changed(rng, grid(rng, size)) or [([0] * len(size), list(size))]
    shape = size if rng.random() < 0.9 else size + [1]

    def by_torch() -> str:
        shards = [ShardMetadata(list(o), list(s)) for o, s in boxes]
        validate_non_overlapping_shards_metadata(shards)
        check_tensor(shards, shape)
        return "ok"
    return f"cover {len(shape)} {' '.join(map(str, shape))} {flat(boxes, None)}", by_torch


def place_case(rng: random.Random):
    pieces = ["rank:", "worker", "cuda", "cpu", "meta", ":", "/", "0", "1", "23", "x", "-1", "cuda:0", "rank:1/cpu"]
    text = "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 5)))
    return f"place {text}", lambda: str(_remote_device(text))


# --- Comparison ---

KINDS = ("overlap", "exceeds tensor dim", "Total volume of shards", "Rank of tensor", "Invalid sharding dim")


def kind_of(text: str) -> str:
    """The kind of an error. Texts spell sizes differently, and may name a different pair."""
    return next((kind for kind in KINDS if kind in text), "other")


def boxes_of(line: str) -> list[Box]:
    words = [int(word) for word in line.split()[1:]]
    if line.startswith("cover"):
        words = words[1 + words[0]:]
    count, dims, *numbers = words
    width = (len(numbers) // count) if count else 0
    rows = [numbers[i * width:(i + 1) * width] for i in range(count)]
    return [(row[:dims], row[dims:2 * dims]) for row in rows]


def is_documented(line: str, found: str, expected: str) -> bool:
    """Whether the page lists the difference."""
    verb = line.split()[0]
    if verb == "chunk":
        return False
    if verb == "place":
        return "-1" in line and found.startswith("error")  # A rank is not negative.
    boxes = boxes_of(line)
    if any(0 in sizes for _, sizes in boxes):  # Empty shards overlap nothing and may begin past the end.
        return True
    # A chunk spec is inferred only if it has exactly these boxes; torch compares lengths along one dimension.
    if verb == "infer" and expected.startswith("ChunkShardingSpec"):
        dim = int(expected.split()[1])
        others = [[n for d, n in enumerate(sizes) if d != dim] for _, sizes in boxes]
        in_line = all(offset == 0 for offsets, _ in boxes for d, offset in enumerate(offsets) if d != dim)
        return any(other != others[0] for other in others) or not in_line
    return False


def torchs(answer) -> str:
    try:
        return answer()
    except Exception as error:  # noqa: BLE001: every type is compared
        return f"error {type(error).__name__} {error}"


def is_same(found: str, expected: str) -> bool:
    if not (found.startswith("error") and expected.startswith("error")):
        return found == expected
    return kind_of(found) == kind_of(expected)


def main() -> int:
    program, seeds = sys.argv[1], int(sys.argv[2])
    makers = [chunk_case] * 2 + [infer_case] * 5 + [cover_case] * 3 + [place_case]
    cases = [rng.choice(makers)(rng) for seed in range(seeds) for rng in [random.Random(seed)] for _ in range(CASES)]
    lines = "".join(line + "\n" for line, _ in cases)
    found = subprocess.run([program], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(found) == len(cases), (len(found), len(cases))
    documented, wrong = 0, []
    for (line, answer), ours in zip(cases, found):
        expected = torchs(answer)
        if is_same(ours, expected):
            continue
        if is_documented(line, ours, expected):
            documented += 1
        else:
            wrong.append(f"{line}\n  C++:   {ours}\n  torch: {expected}")
    print(f"{len(cases)} cases, {documented} documented differences, {len(wrong)} others")
    print("\n".join(wrong[:20]))
    return 1 if wrong or documented * 5 > len(cases) else 0


sys.exit(main())
