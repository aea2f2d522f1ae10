#!/usr/bin/env python3
"""Compares place_driver with torch's own Shard and _StridedShard, element by element.

Usage: placements_against_torch.py PATH_OF_PLACE_DRIVER

For random shapes, meshes and placements every rank's local tensor is cut out of arange() by torch's _split_tensor, axis
by axis, and by the boxes that place_driver prints; sizes are compared with compute_local_shape_and_global_offset too.
The seed is printed; SHARD_SEED repeats a run.
"""

import itertools
import json
import os
import random
import subprocess
import sys
import unittest

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

CASES = 3000
SEED = int(os.environ.get("SHARD_SEED", random.SystemRandom().randrange(2**32)))


def random_placement(rng, dims):
    kind = rng.choice(("R", "S", "S", "_S", "_S")) if dims else "R"
    if kind == "R":
        return Replicate()
    dim = rng.randrange(dims)
    return Shard(dim) if kind == "S" else _StridedShard(dim, split_factor=rng.randint(1, 5))


def random_case(rng):
    shape = [rng.choice((0, 1, 2, 3, 4, 5, 7, 8, 11, 16, 23)) for _ in range(rng.randint(0, 3))]
    mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    return shape, mesh, [random_placement(rng, len(shape)) for _ in mesh]


def line_of(shape, mesh, placements):
    axes = ",".join(f"{chr(97 + i)}={n}" for i, n in enumerate(mesh))
    texts = ["R" if isinstance(p, Replicate) else str(p) for p in placements]
    return ";".join((",".join(map(str, shape)), axes, "/".join(texts)))


def cut_by_torch(whole, mesh, placements, coordinate):
    for placement, parts, index in zip(placements, mesh, coordinate):
        if not isinstance(placement, Replicate):
            whole = placement._split_tensor(whole, parts, with_padding=False, contiguous=False)[0][index]
    return whole


def cut_by_boxes(whole, local_sizes, boxes):
    local = torch.full(local_sizes, -1, dtype=whole.dtype)
    for offsets, sizes, local_offsets in boxes:
        source = tuple(slice(o, o + n) for o, n in zip(offsets, sizes))
        local[tuple(slice(o, o + n) for o, n in zip(local_offsets, sizes))] = whole[source]
    return local


class Placements(unittest.TestCase):
    def check(self, case, ranks):
        shape, mesh, placements = case
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        coordinates = list(itertools.product(*map(range, mesh)))
        self.assertEqual(len(ranks), len(coordinates))
        for coordinate, (local_sizes, boxes, replica) in zip(coordinates, ranks):
            expected = cut_by_torch(whole, mesh, placements, coordinate)
            self.assertEqual(local_sizes, list(expected.shape))
            self.assertTrue(torch.equal(cut_by_boxes(whole, local_sizes, boxes), expected))
            if 0 not in shape:  # torch's own arithmetic fails for empty dimensions.
                computed = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
                self.assertEqual(local_sizes, list(computed[0]))
                if boxes:
                    self.assertEqual(boxes[0][0], list(computed[1]))
            self.assertEqual(replica, any(i and isinstance(p, Replicate) for i, p in zip(coordinate, placements)))

    def test_random_shapes_meshes_and_placements(self):
        rng = random.Random(SEED)
        cases = [random_case(rng) for _ in range(CASES)]
        text = "".join(line_of(*case) + "\n" for case in cases)
        done = subprocess.run([DRIVER], input=text, capture_output=True, text=True, check=True)
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(answers), CASES)
        for case, ranks in zip(cases, answers):
            with self.subTest(case=line_of(*case), seed=SEED):
                self.check(case, ranks)


if __name__ == "__main__":
    DRIVER = sys.argv.pop(1)
    print("seed", SEED)
    unittest.main()
