"""The speed of this machine at this moment. Time limits of tests are set on a machine with nothing else to do; CI's may be several
times slower, also in processor time, because neighbours share its caches and its memory."""
import random
import time
from collections.abc import Callable

REFERENCE_SECONDS = 0.22  # The work below, on the machine on which the limits were set.
MIB = 1 << 20


def work() -> None:
    """Arithmetic, memory that is touched for the first time, and accesses in random order."""
    order = list(range(100_000))
    random.Random(1).shuffle(order)
    places = {each: str(each) for each in order}
    sorted(places.values())
    for _ in range(4):
        bytearray(32 * MIB).replace(b"\1", b"")


def slowness(clock: Callable[[], float] = time.thread_time) -> float:
    """How many times as long as there the work takes now, by the slowest of three tries; at least 1. With `time.monotonic` it
    counts other processes too. Costs about half a second."""
    taken = []
    for _ in range(3):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return max(1.0, *(each / REFERENCE_SECONDS for each in taken))


def is_longer(seconds: float, limit: float, clock: Callable[[], float] = time.thread_time) -> bool:
    """True if `seconds` exceed the limit on this machine."""
    return seconds > limit and seconds > limit * slowness(clock)
