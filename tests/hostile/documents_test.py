"""The cost of a document does not grow faster than its length: documents_test.py [--long] [PART OF A NAME...].

Every kind of document with lists of {}, [], 0, short rules and honest entries, doubled: the processor time of a run
may at most be 3.5 times that of the document of half the length, and 2.5 times on average over all doublings, if times
are long enough to measure. Quadratic growth has 4. --long doubles up to 16 MB. Limits of every hostile input also apply.
Needs only Python's standard library.
"""
import shutil
import sys
import tempfile
from pathlib import Path

from bounded import SHARDCTL, Ended, cost_problems, run
from documents import ENTRIES, KINDS, Kind, entries_of

STEEPEST, AVERAGE = 3.5, 2.5  # Limits for one doubling and for the mean of all.
FLOOR = 0.5  # Seconds: shorter runs vary too much. Quadratic growth takes many times that at 4 MiB.
ATTEMPTS = 3  # The least time of each size counts: other processes only ever add time.
SHORT, LONG = [1 << 20, 2 << 20, 4 << 20], [1 << 20, 2 << 20, 4 << 20, 8 << 20, 15 << 20]


def measured(kind: Kind, entry_of, size: int) -> tuple[Ended, bytes]:
    folder = Path(tempfile.mkdtemp(prefix="documents-"))
    try:
        words = kind.make(folder, entries_of(kind, entry_of, size))
        ended = run([SHARDCTL, *words, "-j", "1"], folder)
        return ended, (folder / "stderr").read_bytes()[:300]
    finally:
        shutil.rmtree(folder)


def run_all(kind: Kind, entry_of, sizes: list[int]) -> tuple[list[str], list[Ended]]:
    """Runs with documents of these sizes, up to the first that breaks a limit of every input; and what it breaks."""
    found, all_ended = [], []
    for size in sizes:
        ended, message = measured(kind, entry_of, size)
        all_ended.append(ended)
        what = f"{size >> 20} MiB"
        if ended.code is None or not 0 <= ended.code <= 8:
            found.append(f"{what}: exit {ended.code}: {message!r}")
        found += [f"{what}: {problem}" for problem in cost_problems(ended)]
        if found:
            break
    return found, all_ended


def growth(ended: list[Ended], sizes: list[int]) -> list[str]:
    found = [f"from {small.seconds:.2f} s to {large.seconds:.2f} s at {size >> 20} MiB"
             for small, large, size in zip(ended, ended[1:], sizes[1:])
             if large.seconds > FLOOR and large.seconds > STEEPEST * small.seconds]
    first, last, doublings = ended[0].seconds, ended[-1].seconds, len(ended) - 1
    if last > FLOOR and last > first * AVERAGE**doublings:
        found.append(f"from {first:.2f} s to {last:.2f} s in {doublings} doublings")
    return found


def main() -> int:
    sizes = LONG if "--long" in sys.argv else SHORT
    words = [word for word in sys.argv[1:] if word != "--long"]
    tried = failed = 0
    seconds = 0.0
    for kind in KINDS:
        for title, entry_of in {**ENTRIES, "honest entries": kind.honest}.items():
            name = f"{kind.name} of {title}"
            if not all(word in name for word in words):
                continue
            ended: list[Ended] = []
            for _ in range(ATTEMPTS):
                found, again = run_all(kind, entry_of, sizes)
                seconds += sum(each.seconds for each in again)
                ended = [min(pair, key=lambda each: each.seconds) for pair in zip(ended or again, again)]
                found = found or growth(ended, sizes)
                if not found:
                    break
            print(f"{name}: " + ", ".join(f"{each.seconds:.2f} s {each.kib >> 10} MiB" for each in ended) +
                  f", exit {ended[-1].code}", flush=True)
            tried += 1
            failed += bool(found)
            for problem in found:
                print(f"FAIL {name}: {problem}", flush=True)
    print(f"{tried} documents, {failed} grow faster than their length; {seconds:.0f} s of processor time")
    return 1 if failed or tried == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
