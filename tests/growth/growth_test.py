"""Runs shardctl (SHARDCTL) on families of inputs that double: the cost of a run must not grow faster than its
input.

growth_test.py [--long] [--table] [PART OF A NAME...]. A family is named FORMAT: WHAT, VERB. For every family and
verb the exponents of processor time and of peak memory over input bytes are fitted over all members; quadratic
growth has 2. Costs that are too small to show growth, or below the allowed cost per byte, are ignored. Exit code 4
is an answer with the same law. A short run starts with the largest member, and runs the smaller ones only if that one
was refused or its cost was high. The limits of the hostile test also apply. --long doubles up to 16 MB, options up to the
megabyte that a command line may have. --table prints the costs of the largest member of each family. Needs only
Python's standard library, except for HDF5 files, which HDF5_PYTHON creates.
"""
import argparse
import math
import multiprocessing
import shutil
import sys
import tempfile
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

for beside in ("hostile", "support"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / beside))

import of_computed
import of_dcp
import of_deepspeed
import of_hdf5
import of_megatron
import of_quantized
import of_ranks
import of_safetensors
import of_torch
from bounded import SECONDS, SHARDCTL, Ended, cost_problems, run
from family import Family
from machine import slowness

FAMILIES = (of_safetensors.FAMILIES + of_torch.FAMILIES + of_dcp.FAMILIES + of_ranks.FAMILIES + of_deepspeed.FAMILIES +
            of_megatron.FAMILIES + of_hdf5.FAMILIES + of_quantized.FAMILIES + of_computed.FAMILIES)
VERBS = {
    "inspect": lambda source: ["inspect", "--json", source],
    "digest": lambda source: ["digest", source],
    "verify": lambda source: ["verify", source],
    "gather": lambda source: ["gather", source, "-n", "-o", "out.pt"],
    "convert": lambda source: ["convert", source, "-n", "-o", "out", "--to", "dcp"],
    "diff": lambda source: ["diff", source, source],
}
OWN_VERBS = {"average": lambda source: ["average", source, source, "-n", "-o", "out.pt"]}  # For families that name them.
WITHOUT_OPTIONS = "inspect", "verify", "diff"  # Take no rules.
CODES = {0, 1, 2, 3, 4, 8}  # 1: verify has findings; 2: a layout document beside the files.
READ_CODES = {0, 1}  # Input that is refused costs less than what was read before.
STEEPEST = 1.5  # Exponent; n log n has less than 1.1, noise adds 0.2.
# The length of 1 GiB, which tensors may name without having it.
SECONDS_FLOOR = {"digest": 0.5, "verify": 0.5, "diff": 1}
OTHER_SECONDS_FLOOR = 0.4  # Hashing the GiB that any checkpoint may name takes as long.
NAMED_BYTES = 1 << 20  # The size of an input; larger ones may name 1032 times their bytes, which take as long to hash.
KIB_FLOOR = 64 << 10
SECONDS_A_BYTE = 1e-7  # So much any byte of an input may cost (libshard/core/budget.h). Growth below that ends there, in
KIB_A_BYTE = 0.2       # exit 4; it has no room to do harm.
LONG_BYTES = 16 << 20
OPTION_BYTES = 1 << 20
ATTEMPTS = 4  # Before growth is believed: other processes only ever add time.


class Member(NamedTuple):
    bytes: int
    ended: Ended


def input_bytes(source: Path, options: list[str]) -> int:
    files = [source] if source.is_file() else [file for file in source.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) + sum(map(len, options))


def exponent(points: list[tuple[int, float]], floor: float) -> float:
    """The slope of log cost over log bytes, by least squares over all members whose cost is not far below the floor."""
    logs = [(math.log(size), math.log(cost)) for size, cost in points if cost > floor / 8]
    if len(logs) < 2 or max(cost for _, cost in points) <= floor:
        return 0
    mean_x, mean_y = (sum(column) / len(logs) for column in zip(*logs))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


class Cost(NamedTuple):
    """One cost of all members of a family."""
    name: str
    points: list[tuple[int, float]]  # Bytes and cost.
    floor: float
    a_byte: float

    @property
    def is_high(self) -> bool:
        return any(cost > self.floor * max(1, size / NAMED_BYTES) + self.a_byte * size for size, cost in self.points)


def costs(verb: str, members: list[Member], base: Ended, slow: float = 1) -> list[Cost]:
    """Limits of time hold on a machine that is `slow` times slower than the one on which they were set."""
    seconds = [(member.bytes, member.ended.seconds - base.seconds) for member in members]
    kib = [(member.bytes, member.ended.kib - base.kib) for member in members]
    return [Cost("time", seconds, slow * SECONDS_FLOOR.get(verb, OTHER_SECONDS_FLOOR), slow * SECONDS_A_BYTE),
            Cost("memory", kib, KIB_FLOOR, KIB_A_BYTE)]


def problems(verb: str, members: list[Member], base: Ended, slow: float = 1) -> list[str]:
    """The violations of one family under one verb."""
    found = [f"exit {member.ended.code} at {member.bytes} bytes" for member in members if member.ended.code not in CODES]
    found += [problem for member in members for problem in cost_problems(member.ended)]
    for cost in costs(verb, members, base, slow):
        if cost.is_high and (slope := exponent(cost.points, cost.floor)) > STEEPEST:
            found.append(f"{cost.name} grows with bytes^{slope:.1f}")
    return found


def described(members: list[Member]) -> str:
    return "; ".join(f"{each.bytes >> 10} KiB: {each.ended.seconds:.3f} s, {each.ended.kib >> 10} MiB, exit {each.ended.code}"
                     for each in members)


class Input(NamedTuple):
    """A member's files and options."""
    source: Path
    options: list[str]
    bytes: int


class Runner:
    """Runs the program in a small process of its own, one at a time."""

    def __init__(self, pool: Executor):
        self.pool = pool
        self.seconds = 0.0  # Seconds of processor time, all runs together.

    def run(self, words: list[str], folder: Path) -> Ended:
        ended = self.pool.submit(run, [SHARDCTL, *words, "-j", "1"], folder).result()
        self.seconds += ended.seconds
        return ended

    def member(self, verb: str, given: Input) -> Member:
        words = (VERBS | OWN_VERBS)[verb](str(given.source))
        return Member(given.bytes, self.run([*words, *(given.options if verb not in WITHOUT_OPTIONS else [])], given.source.parent))


class Inputs:
    """The inputs of a family. Creates each one when it is first needed, because some take longer to create than to read."""

    def __init__(self, family: Family, folder: Path, is_long: bool):
        self.family, self.folder = family, folder
        self.made: dict[int, Input] = {}
        self.sizes = [family.first]
        while (is_long or len(self.sizes) < family.members) and 2 * self.sizes[-1] <= family.most and not self.is_full(is_long):
            self.sizes.append(2 * self.sizes[-1])

    def is_full(self, is_long: bool) -> bool:
        """True if the largest input may not double. Inputs of short runs are too small for that."""
        if not is_long:
            return False
        largest = self.of(self.sizes[-1])
        return largest.bytes > LONG_BYTES // 2 or sum(map(len, largest.options)) > OPTION_BYTES // 2

    def of(self, n: int) -> Input:
        if n not in self.made:
            here = self.folder / str(n)
            here.mkdir()
            source, options = self.family.make(here, n), self.family.options(n)
            self.made[n] = Input(source, options, input_bytes(source, options))
        return self.made[n]

    def largest(self) -> Input:
        return self.of(self.sizes[-1])

    def all(self) -> list[Input]:
        return [self.of(n) for n in self.sizes]


def print_row(name: str, last: Member, base: Ended) -> None:
    seconds, kib = last.ended.seconds - base.seconds, last.ended.kib - base.kib
    print(f"| {name} | {last.bytes / 1e6:.1f} | {seconds:.2f} | {kib / 1024:.0f} | {1024 * kib / last.bytes:.0f} | "
          f"{last.ended.code} |", flush=True)


def is_low(verb: str, largest: Member, base: Ended) -> bool:
    """True if the largest member was read to its end at a low cost, which cannot show growth. Smaller ones are not run."""
    return largest.ended.code in READ_CODES and not any(cost.is_high for cost in costs(verb, [largest], base))


def try_verb(runner: Runner, name: str, verb: str, inputs: Inputs, base: Ended, is_long: bool, has_table: bool) -> list[str]:
    if not (is_long or has_table) and is_low(verb, runner.member(verb, inputs.largest()), base):
        return []
    members: list[Member] = []
    for given in inputs.all():
        members.append(runner.member(verb, given))
        if members[-1].ended.seconds > SECONDS:
            break
    for _ in range(ATTEMPTS - 1):
        if members[-1].ended.seconds > SECONDS or not problems(verb, members, base):
            break
        again = [runner.member(verb, given) for given in inputs.all()]
        members = [min(pair, key=lambda member: member.ended.seconds) for pair in zip(members, again)]
    if has_table:
        print_row(name, members[-1], base)
    found = problems(verb, members, base) and problems(verb, members, base, slowness())
    return [f"{', '.join(found)} ({described(members)})"] if found else []


def try_family(runner: Runner, family: Family, verbs: list[str], base: Ended, is_long: bool, has_table: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="growth-"))
    try:
        inputs = Inputs(family, folder, is_long)
        failed = 0
        for verb in verbs:
            name = f"{family.name}, {verb}"
            for problem in try_verb(runner, name, verb, inputs, base, is_long, has_table):
                print(f"FAIL {name}: {problem}", flush=True)
                failed += 1
        return failed
    finally:
        shutil.rmtree(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="double up to 16 MB")
    parser.add_argument("--table", action="store_true", help="print what the largest inputs take")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only families and verbs whose name contains all of them")
    options = parser.parse_args()
    tried = failed = 0
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        runner = Runner(pool)
        base = min((runner.run(["--version"], Path(tempfile.gettempdir())) for _ in range(3)), key=lambda each: each.seconds)
        if options.table:
            print("| family and verb | MB | seconds | MiB | bytes a byte | exit |\n|---|--:|--:|--:|--:|--:|")
        for family in FAMILIES:
            verbs = [verb for verb in family.verbs or VERBS if all(word in f"{family.name}, {verb}" for word in options.words)]
            tried += len(verbs)
            failed += try_family(runner, family, verbs, base, options.long, options.table) if verbs else 0
    print(f"{tried} families and verbs, {failed} grow faster than their input; {runner.seconds:.0f} s of processor time")
    return 1 if failed or tried == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
