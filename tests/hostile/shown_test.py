"""The output of shardctl (SHARDCTL) for hostile texts: no character that controls a terminal, begins a line or
reverses the text direction reaches standard output, standard error or a log, in any verb, from any position in a
format.

Texts of pickles are replaced one at a time in checkpoints of real clients, so that every position is tested. Needs
only Python's standard library.
"""
import contextlib
import itertools
import json
import os
import pickletools
import pty
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from build import dcp_metadata, entry, name, safetensors, text, torch_file, torch_zip, tuple_of
from pickles import call
from ranks import records, shard

SHARDCTL, DATA = os.environ["SHARDCTL"], Path(os.environ["SHARD_DATA"])
STEERING = "a\x1b]0;pwned\x07\x1b[31m\x7f\x85\x9b2J\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\r\tTAB\nFORGED"
SURROGATE = STEERING + "\ud800"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\udc80-\udcff]|\tTAB|\nFORGED")
OWN_COLOURS = re.compile("\x1b\\[(1;31|1|36|0)m")
TEXTS = {"BINUNICODE": b"X", "SHORT_BINUNICODE": b"\x8c"}


def encoded(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def wrong(shown: bytes, is_terminal: bool) -> str | None:
    """The first forbidden one, with its context."""
    decoded = shown.decode("utf-8", "surrogateescape")
    if is_terminal:
        decoded = OWN_COLOURS.sub("", decoded.replace("\r\n", "\n"))
    found = FORBIDDEN.search(decoded)
    return None if found is None else ascii(decoded[max(0, found.start() - 60):found.end() + 20])


def on_pipes(arguments: list, folder: Path) -> bytes:
    log = folder / "log"
    log.unlink(missing_ok=True)
    ended = subprocess.run([SHARDCTL, *arguments, "--log-file", log, "-vv"], stdin=subprocess.DEVNULL, capture_output=True,
                           cwd=folder, check=False)
    if ended.returncode not in (0, 1, 2, 3, 4, 5, 8):
        raise RuntimeError(f"exit {ended.returncode}: {ended.stderr[:300]!r}")
    return ended.stdout + b"\n" + ended.stderr + b"\n" + (log.read_bytes() if log.exists() else b"")


def on_terminal(arguments: list, folder: Path) -> bytes:
    leader, follower = pty.openpty()
    process = subprocess.Popen([SHARDCTL, *arguments], stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, cwd=folder,
                               env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed.
        while piece := os.read(leader, 1 << 16):
            shown += piece
    os.close(leader)
    process.wait()
    return shown


def texts_of(pickle: bytes) -> Iterator[tuple[int, int, str]]:
    """Begin, end and value of each text, and of each name of a class."""
    position, operations = 0, list(pickletools.genops(pickle))
    for (opcode, argument, position), following in itertools.zip_longest(operations, operations[1:]):
        end = following[2] if following else len(pickle)
        if opcode.name in TEXTS or opcode.name == "GLOBAL":
            yield position, end, opcode.name


def with_text_replaced(pickle: bytes) -> Iterator[bytes]:
    """The pickle, each time with a different text replaced. Protocol 4 frames are dropped, because lengths change."""
    pickle = re.sub(rb"\A(\x80.)\x95.{8}", rb"\1", pickle, flags=re.DOTALL)
    steering = encoded(SURROGATE)
    for begin, end, kind in texts_of(pickle):
        if kind == "GLOBAL":
            new = b"cargparse\n" + encoded(STEERING).replace(b"\n", b"") + b"\n"
        else:
            new = b"X" + struct.pack("<I", len(steering)) + steering
        yield pickle[:begin] + new + pickle[end:]


class Places:
    """Checkpoints, each with hostile text in one place: their paths, made one after the other in a folder of their own."""

    def __init__(self, root: Path):
        self.root, self.count = root, 0

    def folder(self) -> Path:
        self.count += 1
        made = self.root / str(self.count)
        made.mkdir()
        return made

    def file(self, content: bytes, called: bytes = b"x.bin") -> Path:
        path = Path(os.fsdecode(bytes(self.folder()) + b"/" + called))
        path.write_bytes(content)
        return path

    def folder_of(self, files: dict[str, bytes]) -> Path:
        made = self.folder()
        for each, content in files.items():
            (made / each).write_bytes(content)
        return made

    def by_hand(self) -> Iterator[Path]:
        one = {STEERING: entry([2], 0, 2)}
        yield self.file(safetensors(one, b"xy"))
        yield self.file(safetensors({"__metadata__": {STEERING: STEERING}, "w": entry([2], 0, 2)}, b"xy"))
        yield self.file(safetensors({"w": {"dtype": STEERING, "shape": [2], "data_offsets": [0, 2]}}, b"xy"))
        yield self.file(safetensors({"w": entry([2], 0, 2)}, b"xy"), encoded(STEERING).replace(b"/", b"") + b"\x9b.safetensors")
        shards = {"a.safetensors": safetensors({"v": entry([2], 0, 2)}, b"xy"), "b.safetensors": safetensors(one, b"xy")}
        yield self.folder_of(shards)
        yield self.folder_of({**shards, "other" + STEERING: b""})
        for entries in {"v": STEERING}, {STEERING: "a.safetensors"}, {"v": "a.safetensors", STEERING: "b.safetensors"}:
            yield self.folder_of({**shards, "model.safetensors.index.json": json.dumps({"weight_map": entries}).encode()})
        yield self.folder_of({"shard-00001-model-00001-of-00001.safetensors": shard({STEERING: {"saved_offsets": [0]}}, name=STEERING)})
        yield self.folder_of({".metadata": dcp_metadata((4,), [((0,), (4,))], [((0,), 0, STEERING, 0, 16)])})
        dtype = name("numpy", "dtype") + tuple_of(text(SURROGATE), b"\x89", b"\x88") + b"R"
        scalar = name("numpy.core.multiarray", "scalar") + tuple_of(dtype, b"U\x08" + bytes(8)) + b"R"
        values = {"numpy": scalar, "bytes": b"U\x04\x9b\x1b\x07\n", "text": text(SURROGATE), SURROGATE: b"K\x01"}
        body = b"}(" + b"".join(text(key) + value for key, value in values.items()) + b"u"
        yield self.file(torch_file(body, protocol=2))
        yield self.file(torch_file(b"}" + text("x") + call("argparse", STEERING.replace("\n", "")) + b"s"))

    def replaced(self) -> Iterator[Path]:
        for archive in DATA / "torch" / "state.pt", DATA / "golden" / "2.11.0" / "numpy.pt":
            if archive.exists():
                held = records(archive)
                data = {key: value for key, value in held.items() if key.startswith("data/")}
                for pickle in with_text_replaced(held["data.pkl"]):
                    yield self.file(torch_zip(pickle, data))
        for golden in "2.11.0/ranks_dtensor_r2", "2.11.0/ranks_sharded_r2":
            files = {path.name: path.read_bytes() for path in sorted((DATA / "golden" / golden).glob("*.pt"))}
            first = min(files)
            held = records(DATA / "golden" / golden / first)
            data = {key: value for key, value in held.items() if key.startswith("data/")}
            for pickle in with_text_replaced(held["data.pkl"]):
                yield self.folder_of({**files, first: torch_zip(pickle, data)})
        dcp = DATA / "dcp" / "four_ranks"
        files = {path.name: path.read_bytes() for path in dcp.iterdir()}
        for pickle in with_text_replaced(files[".metadata"]):
            yield self.folder_of({**files, ".metadata": pickle})


def meshes(places: Places) -> Iterator[Path]:
    """The same names of mesh axes in the files of all ranks, so that they agree."""
    golden = DATA / "golden" / "2.11.0" / "ranks_dtensor_r2"
    held = {path.name: records(path) for path in sorted(golden.glob("*.pt"))}
    for number in range(sum(1 for _ in with_text_replaced(held[min(held)]["data.pkl"]))):
        files = {}
        for called, each in held.items():
            changed = list(itertools.islice(with_text_replaced(each["data.pkl"]), number, number + 1))
            data = {key: value for key, value in each.items() if key.startswith("data/")}
            files[called] = torch_zip(changed[0] if changed else each["data.pkl"], data)
        yield places.folder_of(files)


def commands(source: Path, is_short: bool) -> Iterator[list]:
    opaque = ["--unknown-globals", "opaque"]
    yield ["inspect", source, *opaque]
    yield ["inspect", "--json", source, *opaque]
    if is_short:
        return
    yield ["inspect", "-v", source]
    yield ["digest", source]
    yield ["digest", "--json", source]
    yield ["diff", source, source, *opaque]
    for way in [], ["--json"]:
        yield ["diff", source, DATA / "demo" / "ckpt", *way]
        yield ["gather", source, "-o", source.parent / ("out" + STEERING), "-n", *way]
    yield ["gather", source, "-o", "gathered", "-f"]
    yield ["split", source, "-o", "cut", "--ranks", "2", "-n"]
    yield ["convert", source, "-o", "converted", "--to", "dcp", "-n"]
    for key in STEERING, "numpy", "bytes", "absent" + STEERING:
        yield ["cat", source, key]
        yield ["cat", source, key, "--json"]


def try_place(source: Path, is_short: bool) -> list[str]:
    problems = []
    for arguments in commands(source, is_short):
        with tempfile.TemporaryDirectory() as folder:
            words = [str(each) for each in arguments]
            for way, run in {"pipes": on_pipes, "a terminal": on_terminal}.items():
                if is_short and run is on_terminal and "--json" in words:
                    continue
                found = wrong(run(words, Path(folder)), run is on_terminal)
                if found is not None:
                    problems.append(f"{ascii(words)}, on {way}: {found}")
    return problems


def main() -> int:
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(2) as pool:
        places = Places(Path(root))
        tried = [pool.submit(try_place, place, False) for place in places.by_hand()]
        tried += [pool.submit(try_place, place, True) for place in itertools.chain(places.replaced(), meshes(places))]
        problems = list(itertools.chain.from_iterable(each.result() for each in tried))
    for problem in problems[:40]:
        print("FAIL", problem)
    print(f"{len(tried)} places, {len(problems)} problems")
    return 1 if problems or len(tried) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
