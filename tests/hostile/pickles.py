"""Pickles that try to run code, to recurse, or to grow."""
import struct

from build import built, name, number, storage, tensor, text, torch_file, tuple_of
from case import ALL, READ, by_verb, everywhere, file_of, lazily

COMMAND = text("touch pwned")


def call(module: str, attribute: str, *arguments: bytes) -> bytes:
    return name(module, attribute) + tuple_of(*arguments) + b"R"


def stack_global(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def wide(count: int, item: bytes) -> bytes:
    """A list of `count` references to one value."""
    return b"](" + item + b"q\x01" + b"h\x01" * (count - 1) + b"e"


def laughing(levels: int, begin: bytes, end: bytes, between: bytes = b"") -> bytes:
    """Each level contains the one below twice: 2^levels leaves in a few hundred bytes. A list contains all levels."""
    level = b"K\x01q\x00"
    for i in range(levels):
        below = b"h" + bytes([i])
        level += begin + below + between + below + end + b"q" + bytes([i + 1])
    return b"](" + level + b"e"


def running():
    code = [
        ("os.system", call("os", "system", COMMAND), 2),
        ("posix.system by STACK_GLOBAL", stack_global("posix", "system") + COMMAND + b"\x85R", 4),
        ("nt.system", call("nt", "system", COMMAND), 2),
        ("subprocess.Popen", call("subprocess", "Popen", COMMAND), 2),
        ("eval", call("__builtin__", "eval", text("1")), 2),
        ("builtins.exec", stack_global("builtins", "exec") + COMMAND + b"\x85R", 4),
        ("builtins.__import__", call("__builtin__", "__import__", text("os")), 2),
        ("os.system as a class", name("os", "system") + b")\x81", 2),
        ("nested name", stack_global("torch", "os.system") + COMMAND + b"\x85R", 4),
        ("getattr of getattr", call("__builtin__", "getattr", call("__builtin__", "getattr", name("torch", "Tensor"),
                                                                   text("Data")), text("System")), 2),
        ("getattr of a method", call("__builtin__", "getattr", name("pathlib", "Path"), text("unlink")), 2),
        ("getattr of a dunder", call("__builtin__", "getattr", name("torch", "Size"), text("__class__")), 2),
        ("getattr of a persistent id", call("__builtin__", "getattr", storage(4), text("System")), 2),
        ("INST", b"(" + COMMAND + b"ios\nsystem\n", 2),
        ("OBJ", b"(" + name("torch", "Size") + COMMAND + b"o", 2),
        ("EXT1", b"\x82\x01" + COMMAND + b"\x85R", 2),
        ("EXT2", b"\x83\x01\x00" + COMMAND + b"\x85R", 2),
        ("EXT4", b"\x84\x01\x00\x00\x00" + COMMAND + b"\x85R", 2),
        ("PERSID", b"Pos.system\n", 2),
        ("NEXT_BUFFER", b"\x97", 5),
        ("READONLY_BUFFER", b"N\x98", 5),
        ("reduce of a string", COMMAND + b")R", 2),
        ("reduce of a call", call("torch", "Size") + b")R", 2),
    ]
    for title, body, protocol in code:
        yield everywhere(title, file_of(torch_file(body, protocol=protocol)), 4, verbs=ALL)
    yield everywhere("os.system under opaque", file_of(torch_file(b"}" + text("a") + call("os", "system", COMMAND) + b"s")),
                     0, options=["--unknown-globals", "opaque"])
    for title, stored in [
            ("a list", b"]" + text("storage") + b"aQ"), ("a number", b"K\x01Q"), ("a call", call("torch", "Size") + b"Q"),
            ("a persistent id", storage(4) + b"Q"), ("a module", tuple_of(text("module"), name("torch", "Size"), b"NN") + b"Q"),
            ("too short", tuple_of(text("storage"), name("torch", "FloatStorage")) + b"Q"),
            ("a class that is none", tuple_of(text("storage"), name("torch", "Size"), text("0"), text("cpu"), number(4)) + b"Q"),
            ("a key with a path", storage(4, key="../../data/0")), ("a negative count", storage(-1)),
            ("a count of 2^62", storage(1 << 62)), ("itself a dict", b"}Q")]:
        yield everywhere("storage that is " + title, file_of(torch_file(tensor([4], [1], stored=stored))), 4, verbs=ALL)


def shapes():
    big, huge = 1 << 32, (1 << 63) - 1
    for title, shape, strides, offset in [
            ("overflowing shape", [big, big], [1, 1], 0), ("overflowing extent", [4], [huge], 0),
            ("overflowing offset", [4], [1], huge), ("overflowing sum", [2, 2], [huge - 1, huge - 1], 0),
            ("negative shape", [-4], [1], 0), ("negative stride", [4], [-1], 3), ("negative offset", [4], [1], -1),
            ("shape without strides", [4], [], 0), ("65 dimensions", [1] * 65, [1] * 65, 0),
            ("2^40 elements out of one", [1 << 40], [0], 0), ("2^62 elements out of one", [1 << 62], [0], 0)]:
        yield everywhere(title, file_of(torch_file(tensor(shape, strides, offset))), 4, verbs=ALL)
    many = b"](" + b"".join(tensor([1 << 28], [0]) for _ in range(1000)) + b"e"
    yield everywhere("a thousand tensors of 1 GiB out of 16 bytes", file_of(torch_file(many)), 4, verbs=ALL)
    same = b"](" + tensor([1 << 18], [1], count=1 << 18) + b"q\x09" + b"h\x09" * 100_000 + b"e"
    yield everywhere("a tensor of 1 MiB under 100,000 names", file_of(torch_file(same, bytes(1 << 20))), 4, verbs=ALL)


def growing():
    yield everywhere("2^60 lists", file_of(torch_file(laughing(60, b"](", b"e"))), 4, verbs=ALL)
    yield everywhere("2^60 tuples", file_of(torch_file(laughing(60, b"(", b"t"))), 4, verbs=ALL)
    yield everywhere("2^60 tuples by DUP", file_of(torch_file(b"K\x01" + b"2\x86" * 60)), 4, verbs=ALL)
    yield everywhere("2^60 dicts", file_of(torch_file(laughing(60, b"}(K\x01", b"u", b"K\x02"))), 4)
    yield by_verb("dict key of 2^60 tuples", file_of(torch_file(b"}K\x01" + b"2\x86" * 60 + b"Ns")), inspect=0, json=0)
    key = b"K\x01"
    for _ in range(8):
        key += b"q\x010(" + b"h\x01" * 200 + b"t"
    yield everywhere("dict key of 200^8 numbers", file_of(torch_file(b"}" + key + b"Ns")), 0)
    yield everywhere("a list in itself", file_of(torch_file(b"]q\x00h\x00a")), 4, verbs=ALL)
    yield everywhere("a list in itself, twice", file_of(torch_file(b"]q\x00(h\x00h\x00e")), 4, verbs=ALL)
    yield everywhere("a dict in itself", file_of(torch_file(b"}q\x00K\x01h\x00s")), 4, verbs=ALL)
    yield everywhere("an object in its state", file_of(torch_file(
        b"}" + text("a") + name("argparse", "Namespace") + b")\x81q\x00}" + text("x") + b"h\x00sbs")), 0, 4)
    yield everywhere("a set in a set in itself", file_of(torch_file(b"}K\x01\x8fq\x00(h\x00\x90s", protocol=4)), 0, 4)
    long = text("k" * (1 << 20))
    yield everywhere("a long key above 100,000 values", lazily(lambda: torch_file(b"}" + long + wide(100_000, b"K\x01") + b"s")),
                     4, verbs=ALL)
    yield everywhere("a long text 100,000 times", lazily(lambda: torch_file(wide(100_000, long))), 4, verbs=ALL)
    frozen = b"(" + b"N" * 100_000 + b"\x91"
    yield everywhere("100,000 sets of one large set", lazily(lambda: torch_file(
        b"](" + frozen + b"q\x00" + b"\x8f(h\x00\x90" * 100_000 + b"e", protocol=4)), 0, 4)
    yield everywhere("one key 300,000 times", lazily(lambda: torch_file(b"}(" + b"K\x01N" * 300_000 + b"u")), 0)
    yield everywhere("100,000 integers of 2,000 bytes, one node", lazily(lambda: torch_file(
        wide(100_000, b"\x8b" + struct.pack("<I", 2000) + b"\x7f" * 2000))), 4)
    yield everywhere("long names of globals, opaque", lazily(lambda: torch_file(
        b"](" + text("m" * (1 << 20)) + b"q\x00" + text("n") + b"q\x01" + b"h\x00h\x01\x93" * 50_000 + b"e", protocol=4)),
        4, options=["--unknown-globals", "opaque"])


def recursing():
    deep = 5_000_000
    for title, body in [("lists", b"]" * deep + b"a" * (deep - 1)), ("tuples", b")" + b"\x85" * deep),
                        ("persistent ids", b"N" + b"Q" * deep), ("marks", b"(" * deep)]:
        yield everywhere(f"5,000,000 nested {title}", file_of(torch_file(body)), 4)
    for title, body in [("lists", b"]" * 50_000 + b"a" * 49_999), ("tuples", b")" + b"\x85" * 50_000),
                        ("calls", b")" + (b"\x85q\x00" + name("torch", "Size") + b"h\x00R") * 50_000),
                        ("states", b"N" + (b"q\x00" + name("argparse", "Namespace") + b")\x81h\x00b") * 50_000)]:
        nested = body if title in ("lists", "tuples") else b"](" + body + b"e"
        yield everywhere(f"50,000 nested {title}", file_of(torch_file(nested)), 0, 4)


def counting():
    for title, body, protocol in [
            ("LONG4 of 2^31", b"\x8b\xff\xff\xff\x7f", 2), ("LONG4 of -1", b"\x8b\xff\xff\xff\xff", 2),
            ("LONG1 past the end", b"\x8a\xff\x01", 2), ("BINUNICODE of 2^32-1", b"X\xff\xff\xff\xffabc", 2),
            ("BINUNICODE8 of 2^63", b"\x8d" + struct.pack("<Q", 1 << 63) + b"abc", 4),
            ("BINBYTES8 of 2^64-1", b"\x8e" + b"\xff" * 8, 4), ("BYTEARRAY8 of 2^40", b"\x96" + struct.pack("<Q", 1 << 40), 5),
            ("FRAME of 2^63", b"\x95" + struct.pack("<Q", 1 << 63) + b"N", 4),
            ("LONG_BINPUT of 2^32-1", b"Nr\xff\xff\xff\xff", 2), ("LONG_BINGET of 2^32-1", b"Nj\xff\xff\xff\xff", 2),
            ("PUT of a giant", b"Np" + b"9" * 1_000_000 + b"\n", 2), ("PUT of 2^63-1", b"Np9223372036854775807\n", 2),
            ("GET of a giant", b"g" + b"9" * 1_000_000 + b"\n", 2), ("INT of a giant", b"I" + b"9" * 1_000_000 + b"\n", 2),
            ("a line without an end", b"c" + b"a" * 1_000_000, 2)]:
        yield everywhere(title, file_of(torch_file(body, protocol=protocol)), 4, verbs=READ)


def cases():
    for group in running, shapes, growing, recursing, counting:
        yield from group()
