"""Every hostile input through every verb of shardctl (SHARDCTL): each run ends soon, small, with an exit code from 0 to 8.

every_verb_test.py [--long] [--part K/N] [PART OF A NAME...]. The short run has one input of each kind of `inputs.py`, and
every twentieth case of the hostile test, whose inputs it gives to verbs that test does not try. The long run has all of
both. A name of a verb after "--verb" tries only that. Only Python's standard library, but for HDF5 files, which HDF5_PYTHON
makes.
"""
import argparse
import itertools
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import collisions
import containers
import inputs
import pickles
import places
import proportion
import ranks
import views
from bounded import Ended, run
from verbs import ALWAYS, VERBS, Hostile, try_case

WORKERS = 2
NTH = 20  # Cases of the hostile test in a short run.
OTHERS = (pickles.cases, places.cases, proportion.cases, ranks.cases, views.cases, containers.zips, containers.folders)
# These take seconds, and hundreds of megabytes, to make.
LONG_OTHERS = (*OTHERS, containers.zstd, containers.layouts, containers.texts, collisions.cases)
HONEST = ("one tensor of 1 TiB",)  # Reading it takes an hour.


def from_hostile_test(is_long: bool) -> Iterator[Hostile]:
    cases = itertools.chain.from_iterable(group() for group in (LONG_OTHERS if is_long else OTHERS))
    for number, case in enumerate(cases):
        if (is_long or number % NTH == 0) and case.name not in HONEST:
            yield Hostile(case.name, case.make, case.options)


def all_inputs(is_long: bool) -> Iterator[Hostile]:
    return itertools.chain(inputs.all_inputs(is_long), from_hostile_test(is_long))


class Tally:
    """The remaining inputs, and the results of the runs. For several threads."""

    def __init__(self, inputs_left: Iterator[Hostile], verbs: tuple[str, ...]):
        self.lock, self.inputs_left, self.verbs = threading.Lock(), inputs_left, verbs
        self.inputs = self.runs = self.problems = 0
        self.seconds, self.slowest, self.largest = 0.0, (0.0, ""), (0, "")

    def take(self) -> Hostile | None:
        with self.lock:
            hostile = next(self.inputs_left, None)
            self.inputs += hostile is not None
            return hostile

    def add(self, name: str, ended: Ended, problems: list[str]) -> None:
        with self.lock:
            self.runs += 1
            self.problems += len(problems)
            self.seconds += ended.seconds
            self.slowest, self.largest = max(self.slowest, (ended.seconds, name)), max(self.largest, (ended.kib, name))
            for problem in problems:
                print(f"FAIL {name}: {problem}", flush=True)

    def verbs_of(self, hostile: Hostile) -> tuple[str, ...]:
        own = (*hostile.verbs, *ALWAYS) if hostile.verbs else VERBS
        return tuple(verb for verb in own if not self.verbs or verb in self.verbs)


def try_inputs(pool: ProcessPoolExecutor, tally: Tally) -> None:
    def runner(command: list[str], folder: Path, seconds: float) -> Ended:
        return pool.submit(run, command, folder, seconds).result()
    while (hostile := tally.take()) is not None:
        for verb, ended, problems in try_case(hostile, tally.verbs_of(hostile), runner):
            tally.add(f"{hostile.name}, {verb}", ended, problems)


def chosen(options: argparse.Namespace) -> Iterator[Hostile]:
    part, parts = map(int, options.part.split("/"))
    for number, hostile in enumerate(all_inputs(options.long)):
        if number % parts == part - 1 and all(word in hostile.name for word in options.words):
            yield hostile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--part", default="1/1", help="the K-th of N parts")
    parser.add_argument("--verb", action="append", default=[], help="only this one")
    parser.add_argument("words", nargs="*", help="only inputs whose name has all of them")
    options = parser.parse_args()
    tally, begin = Tally(chosen(options), tuple(options.verb)), time.monotonic()
    with (ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool,
          ThreadPoolExecutor(WORKERS) as threads):
        for worker in [threads.submit(try_inputs, pool, tally) for _ in range(WORKERS)]:
            worker.result()
    print(f"{tally.inputs} inputs, {tally.runs} runs, {tally.problems} problems; {tally.seconds:.0f} s of processor time in "
          f"{time.monotonic() - begin:.0f} s")
    print("slowest: {:.2f} s ({})".format(*tally.slowest))
    print("largest: {} MiB ({})".format(tally.largest[0] >> 10, tally.largest[1]))
    return 1 if tally.problems or tally.runs == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
