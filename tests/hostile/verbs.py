"""Every verb of shardctl (SHARDCTL), and its Python module, over one hostile input, and the prohibitions for every run. The module
is tried if SHARD_MODULE has a Python, and after a colon the folder with the module.

The limits (bounded.py) are those of inputs of up to 16 MB; larger inputs may take more in proportion. Exit codes are 0 to 8,
for any input.
"""
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bounded import SECONDS, SHARDCTL, WAIT_SECONDS, Ended, cost_problems

INPUT_BYTES = 16 << 20
MESSAGE_BYTES = 32 << 10
# Characters that steer a terminal or forge a line of a log; a tab and a newline are ours.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass
class Hostile:
    """Creates an input in an empty folder and returns the arguments for SRC."""
    name: str
    make: Callable[[Path], Path | list[str]]
    # Arguments of the verbs that read tensors; {in} is the folder of the input.
    options: list[str] = field(default_factory=list)
    verbs: tuple[str, ...] = ()  # None: all of them.
    codes: set[int] | None = None  # Right ones, if known; otherwise 0 to 8.
    pages: bool = True


READING = {
    "inspect": ["inspect"], "inspect --json": ["inspect", "--json"], "digest": ["digest"], "digest --json": ["digest", "--json"],
    "verify": ["verify"], "verify --json": ["verify", "--json"], "inspect --html": ["inspect", "--html", "dst/page.html"],
    "map check": ["map", "check", "hf-v5"], "repair -n": ["repair", "-n", "--json", "-o", "dst/out"],
}
WRITING = {
    "gather": ["gather", "-o", "dst/out.pt"], "split": ["split", "--ranks", "2", "-o", "dst/out"],
    "reshard": ["reshard", "--ranks", "3", "-o", "dst/out"],
    "convert": ["convert", "--to", "safetensors", "--objects", "drop", "-o", "dst/out.safetensors"],
    "export": ["export", "-o", "dst/out"], "repair": ["repair", "-o", "dst/out"],
}
COMBINING = {"average": ["average", "-o", "dst/out.pt"]}  # Given SRC twice; only to inputs that name it.
MODULE = os.environ.get("SHARD_MODULE", "").split(":")
ALWAYS = ("module",) if len(MODULE) == 2 else ()  # Even for inputs that name their verbs.
OTHERS = ("diff", "cat")
VERBS = (*READING, *OTHERS, *WRITING, *ALWAYS)
WITHOUT_OPTIONS = ("verify", "verify --json", "repair", "repair -n", "map check")


def stored_bytes(folder: Path) -> int:
    """The size of an input, without holes."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            status = os.lstat(os.path.join(root, name))
            total += min(status.st_size, 512 * status.st_blocks + 4096)
    return total


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    """Sizes and times of all that is in a folder; links are not followed."""
    seen = {}
    for root, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(root, name)
            status = os.lstat(path)
            seen[path] = status.st_size, status.st_mtime_ns if name in files else 0
    return seen


def shown(text: bytes) -> str | None:
    """The first control character of an output, with the text around it."""
    decoded = text.decode("utf-8", "replace")
    found = STEERING.search(decoded)
    return None if found is None else ascii(decoded[max(0, found.start() - 40):found.end() + 20])


def page_problems(page: str) -> list[str]:
    """A page of --html: names of a checkpoint are in one JSON document, and cannot end it."""
    documents = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    found = []
    if len(documents) != 1 or page.count("</script") != 2:
        return [f"the page has {len(documents)} documents and {page.count('</script')} scripts that end"]
    if re.search("[<>\x00-\x09\x0b-\x1f]", documents[0]):
        found.append("the data of the page has a character that ends or steers it")
    try:
        json.loads(documents[0])
    except json.JSONDecodeError as error:
        found.append(f"the data of the page is not JSON: {error}")
    return found


class Case:
    """One input and its folder."""

    def __init__(self, hostile: Hostile, folder: Path, runner: Callable[..., Ended]):
        self.hostile, self.folder, self.run = hostile, folder, runner
        for name in ("in", "home"):
            (folder / name).mkdir()
        made = hostile.make(folder / "in")
        self.sources = [str(made)] if isinstance(made, Path) else list(map(str, made))
        self.factor = max(1.0, stored_bytes(folder / "in") / INPUT_BYTES)
        self.before = snapshot(folder / "in")
        self.tensor = "w"

    def command(self, verb: str) -> list[str]:
        options = [word.replace("{in}", str(self.folder / "in")) for word in self.hostile.options]
        options = [] if verb in WITHOUT_OPTIONS else options
        if verb == "module":
            return [MODULE[0], "-B", str(Path(__file__).with_name("read_by_module.py")), MODULE[1], *self.sources, *options]
        if verb == "diff":
            return [SHARDCTL, "diff", self.sources[0], self.sources[-1], "-j", "2"]
        if verb == "map --map":
            return [SHARDCTL, "map", "check", str(self.folder / "in" / "map.json"), *self.sources, "-j", "2"]
        if verb == "cat":
            return [SHARDCTL, "cat", *self.sources, self.tensor, "-j", "2"]
        if verb in COMBINING:
            return [SHARDCTL, *COMBINING[verb], *2 * self.sources, *options, "-j", "2"]
        words = {**READING, **WRITING}[verb]
        return [SHARDCTL, *words, *self.sources, *options, "-j", "2"]

    def try_verb(self, verb: str) -> tuple[Ended, list[str]]:
        shutil.rmtree(self.folder / "dst", ignore_errors=True)
        (self.folder / "dst").mkdir()
        ended = self.run(self.command(verb), self.folder, SECONDS * self.factor)
        if verb == "inspect --json" and ended.code == 0:
            self.learn_name()
        return ended, self.problems(verb, ended)

    def learn_name(self) -> None:
        try:
            tensors = json.loads((self.folder / "stdout").read_bytes())["tensors"]
        except (ValueError, KeyError):
            return
        if tensors and "\0" not in tensors[0]["name"] and len(tensors[0]["name"]) < 100_000:
            self.tensor = tensors[0]["name"]

    def problems(self, verb: str, ended: Ended) -> list[str]:
        err, out = ((self.folder / name).read_bytes()[:1 << 20] for name in ("stderr", "stdout"))
        if ended.code is None:
            return [f"does nothing for {WAIT_SECONDS} s"]
        found = []
        right = self.hostile.codes if self.hostile.codes is not None and verb != "module" else set(range(9))
        if ended.code not in right:
            found.append(f"exit {ended.code}: {err[:300].decode(errors='replace').strip()}")
        found += cost_problems(ended, self.factor)
        for text in (out, err):
            if (steering := shown(text)) is not None:
                found.append(f"shows {steering}")
        if len(err) > MESSAGE_BYTES:
            found.append(f"says {len(err)} bytes")
        return found + self.problems_of_files(verb, ended)

    def problems_of_files(self, verb: str, ended: Ended) -> list[str]:
        found = []
        beside = set(os.listdir(self.folder)) - {"in", "home", "dst", "stdout", "stderr"}
        if beside or os.listdir(self.folder / "home"):
            found.append(f"writes outside the destination: {sorted(beside)}")
        if snapshot(self.folder / "in") != self.before:
            found.append("changes its source")
        written = os.listdir(self.folder / "dst")
        is_half = [name for name in written if ".shardctl-" in name]
        if is_half or (ended.code != 0 and [name for name in written if name != "page.html"]):
            found.append(f"exit {ended.code} leaves {written}")
        if verb == "inspect --html" and ended.code == 0:
            found += page_problems((self.folder / "dst" / "page.html").read_text(errors="replace"))
        if verb == "repair" and ended.code == 0:
            found += self.problems_of_repaired()
        return found

    def problems_of_repaired(self) -> list[str]:
        """The output of a repair is a checkpoint, and no larger than tensors may be for the bytes of the source."""
        path = self.folder / "dst" / "out"
        kept = {name: (self.folder / name).read_bytes() for name in ("stdout", "stderr")}
        ended = self.run([SHARDCTL, "inspect", str(path), "-q"], self.folder, SECONDS * self.factor)
        message = (self.folder / "stderr").read_bytes()[:300].decode(errors="replace").strip()
        for name, content in kept.items():
            (self.folder / name).write_bytes(content)
        return [] if ended.code == 0 else [f"repairs it to what inspect refuses with {ended.code}: {message}"]


def try_case(hostile: Hostile, verbs: tuple[str, ...], runner: Callable[..., Ended]) -> Iterator[tuple[str, Ended, list[str]]]:
    """All wanted verbs of one input: name, end and problems of each. `runner` calls run() in a small process."""
    folder = Path(tempfile.mkdtemp(prefix="every-verb-"))
    try:
        case = Case(hostile, folder, runner)
        for verb in verbs:
            yield (verb, *case.try_verb(verb))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
