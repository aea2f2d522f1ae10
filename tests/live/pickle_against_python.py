"""shardctl's pickle reader and dumper, compared with Python itself.

Usage: pickle_against_python.py DRIVER [SEED] DRIVER reads a pickle on stdin and writes it again
(tests/formats/pickle_driver.cpp).
"""

import argparse
import collections
import datetime
import io
import math
import pathlib
import pickle
import pickletools
import random
import subprocess
import sys
import uuid

# Names that torch.load(weights_only=True) executes (torch/_weights_only_unpickler.py).
WEIGHTS_ONLY = set(
    "PROTO EMPTY_DICT EMPTY_LIST EMPTY_TUPLE EMPTY_SET MARK BINUNICODE BININT BININT1 BININT2 LONG1 BINFLOAT NONE"
    " NEWTRUE NEWFALSE TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS GLOBAL REDUCE NEWOBJ BUILD BINPUT"
    " LONG_BINPUT BINGET LONG_BINGET BINPERSID STOP SHORT_BINSTRING".split()
)


class Slots:
    """An object whose state is a pair (None, dict)."""

    __slots__ = ("left", "right")

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __eq__(self, other):
        return type(other) is Slots and (self.left, self.right) == (other.left, other.right)


class Keywords(int):
    """An object that is made with keyword arguments (NEWOBJ_EX)."""

    def __new__(cls, *, number):
        return super().__new__(cls, number)

    def __getnewargs_ex__(self):
        return (), {"number": int(self)}


class ListWithState(list):
    pass


def again(driver, data, protocol, more_opcodes=frozenset()):
    done = subprocess.run([driver, str(protocol), "any"], input=data, capture_output=True)
    assert done.returncode == 0, (done.stderr.decode(), data[:200])
    pickletools.dis(done.stdout, out=io.StringIO())
    if protocol == 2:
        opcodes = {op.name for op, _, _ in pickletools.genops(done.stdout)}
        assert opcodes <= WEIGHTS_ONLY | more_opcodes, opcodes - WEIGHTS_ONLY
    return pickle.loads(done.stdout)


def same(a, b):
    """Equality that also compares types and takes NaN as equal; for trees without cycles."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(x, b[k]) for k, x in a.items()) and getattr(a, "__dict__", 0) == getattr(b, "__dict__", 0)
    if isinstance(a, Slots):
        return same(a.left, b.left) and same(a.right, b.right)
    return a == b


def text(r):
    alphabet = r.choice(["abc.", "äöü€", "\U0001F600x", "\ud800\udfffy", "\x00\n'\""])
    return "".join(r.choice(alphabet) for _ in range(r.choice([0, 1, 3, 30, 255, 256, 300])))


def hashable(r):
    return r.choice([
        lambda: r.randint(-300, 70000), lambda: text(r), lambda: r.randbytes(r.choice([0, 3, 256])), lambda: None,
        lambda: r.random() < 0.5, lambda: (r.randint(0, 9), text(r)), lambda: frozenset([r.randint(0, 5), "x"]),
    ])()


def leaf(r):
    return r.choice([
        lambda: hashable(r), lambda: r.choice([0.0, -0.0, 1e308, math.inf, -math.inf, math.nan, r.random()]),
        lambda: r.choice([1, -1]) * (1 << r.choice([7, 8, 15, 16, 31, 32, 40, 62, 63, 64, 100, 1000])) + r.choice([-1, 0, 1]),
        lambda: bytearray(r.randbytes(r.choice([0, 4, 500]))), lambda: complex(1, -2), lambda: range(3, 9, 2),
        lambda: slice(1, None, 2), lambda: pathlib.PosixPath("/a/b"), lambda: datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        lambda: datetime.timedelta(3, 4, 5), lambda: uuid.UUID(int=r.getrandbits(128)), lambda: collections.OrderedDict,
        lambda: argparse.Namespace(a=1, b="x"), lambda: int, lambda: Keywords(number=5),
    ])()


def tree(r, depth):
    if depth == 0 or r.random() < 0.3:
        return leaf(r)
    n = r.choice([0, 1, 2, 3, 4, 9]) if depth < 4 else r.choice([3, 5, 1001])
    def child():
        return tree(r, depth - 1) if n < 100 else leaf(r)
    def ordered():
        made = collections.OrderedDict((text(r), child()) for _ in range(n))
        made._metadata = {"": {"version": 1}}
        return made
    return r.choice([
        lambda: [child() for _ in range(n)], lambda: tuple(child() for _ in range(n)),
        lambda: {hashable(r): child() for _ in range(n)}, ordered, lambda: {hashable(r) for _ in range(n)},
        lambda: collections.deque([child() for _ in range(n)], 5000), lambda: Slots(child(), child()),
        lambda: collections.Counter({text(r): 3 for _ in range(n)}),
        lambda: collections.defaultdict(list, {text(r): child() for _ in range(n)}),
    ])()


def holds_keywords(value):
    return b"Keywords" in pickle.dumps(value, 4)


def check_random(driver, r, count):
    for i in range(count):
        value = tree(r, r.choice([0, 1, 2, 3, 4]))
        for source in (2, 3, 4, 5):
            if source < 4 and holds_keywords(value):
                continue  # Python spells it with functools.partial there, which is refused.
            data = pickle.dumps(value, source)
            data = pickletools.optimize(data) if i % 7 == 0 else data
            for target in (2, 4):
                if target == 2 and holds_keywords(value):
                    continue
                back = again(driver, data, target)
                assert same(back, value), (source, target, value, back)


def check_sharing(driver):
    for source in (2, 3, 4, 5):
        for target in (2, 4):
            shared = [1]
            pair = (shared, "x" * 300)
            value = {"a": shared, "b": (shared, shared), "c": pair, "d": pair, "e": bytearray(b"12")}
            value["f"] = value["e"]
            back = again(driver, pickle.dumps(value, source), target)
            assert back["a"] is back["b"][0] is back["b"][1] is back["c"][0] and back["c"] is back["d"]
            assert back["e"] is back["f"] == bytearray(b"12")


def check_cycles(driver):
    for source in (2, 3, 4, 5):
        for target in (2, 4):
            def through(value):
                # Only a tuple that contains itself needs POP; torch cannot read back its own such file either.
                return again(driver, pickle.dumps(value, source), target, {"POP"})
            cycle = []
            cycle.append(cycle)
            back = through(cycle)
            assert back[0] is back
            cycle = {}
            cycle["self"] = cycle
            back = through(cycle)
            assert back["self"] is back
            cycle = ([], 5)
            cycle[0].append(cycle)
            back = through(cycle)
            assert type(back) is tuple and back[0][0] is back and back[1] == 5
            cycle = ([], 1, 2, 3)
            cycle[0].append(cycle)
            back = through(cycle)
            assert back[0][0] is back and back[1:] == (1, 2, 3)
            cycle = ListWithState([1])
            cycle.append(cycle)
            cycle.me = cycle
            back = through(cycle)
            assert back[1] is back and back.me is back
            cycle = Slots(None, 1)
            cycle.left = {"me": cycle}
            back = through(cycle)
            assert back.left["me"] is back


def check_long_integers(driver):
    for number in (1 << 3000, -(1 << 3000), (1 << 13000) - 1, 1 << 2031, -(1 << 2039)):
        for target in (2, 4):  # Past 255 bytes Python writes LONG4, which weights_only does not read.
            assert again(driver, pickle.dumps(number, 4), target, {"LONG4"}) == number


def check_python2(driver):
    """Output of Python 2's picklers: old module names, byte strings, INT lines."""
    assert again(driver, b"\x80\x02c__builtin__\nxrange\nq\x00K\x01K\x05K\x02\x87Rq\x01.", 4) == range(1, 5, 2)
    assert again(driver, b"\x80\x02(U\x03abcq\x01T\x03\x00\x00\x00xyzI5000000000\nI01\nU\x02\xff\xfet.", 2) == (
        "abc", "xyz", 5000000000, True, b"\xff\xfe")
    assert again(driver, b"\x80\x02(K\x01K\x02lq\x01(U\x01aK\x01dq\x02\x86.", 2) == ([1, 2], {"a": 1})


def check_numpy(driver):
    try:
        import numpy
    except ImportError:
        print("numpy is not installed: skipped")
        return
    values = [numpy.float32(1.5), numpy.dtype("int64"), numpy.arange(300), numpy.arange(6.0).reshape(2, 3).T,
              numpy.array(["a", None], dtype=object), numpy.bool_(True), numpy.random.RandomState(3).get_state()]
    for source in (2, 4, 5):
        for target in (2, 4):
            back = again(driver, pickle.dumps(values, source), target)
            for a, b in zip(values[:-1], back):
                assert type(a) is type(b) and numpy.array_equal(a, b)
            assert numpy.array_equal(back[-1][1], values[-1][1])


def main():
    driver = sys.argv[1]
    r = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 7)
    check_sharing(driver)
    check_cycles(driver)
    check_long_integers(driver)
    check_python2(driver)
    check_numpy(driver)
    check_random(driver, r, 150)
    print("ok")


if __name__ == "__main__":
    main()
