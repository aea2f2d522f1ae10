"""A hostile case."""
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

READ = ("inspect", "json")
ALL = ("inspect", "json", "digest", "gather")


@dataclass
class Case:
    """Creates its input in an empty folder and returns the arguments for SRC."""
    name: str
    make: Callable[[Path], Path | list[str]]
    codes: dict[str, set[int]]  # Exit codes that are right, by verb.
    options: list[str] = field(default_factory=list)
    says: str = ""  # Text of the error, if the exit code is not 0.
    address_space: int = 8 << 30  # Mostly only so that a fault does not take the machine with it.


def everywhere(name: str, make, *codes: int, verbs=READ, options=()) -> Case:
    """One answer for every request."""
    return Case(name, make, {verb: set(codes) for verb in verbs}, list(options))


def by_verb(name: str, make, options=(), **codes) -> Case:
    return Case(name, make, {verb: {code} if isinstance(code, int) else set(code) for verb, code in codes.items()},
                list(options))


def file_of(content: bytes, name: str = "x.pt"):
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name
    return make


def lazily(content: Callable[[], bytes], name: str = "x.pt"):
    """The same as file_of, for contents so large that they should not all exist at once."""
    def make(folder: Path) -> Path:
        (folder / name).write_bytes(content())
        return folder / name
    return make


def files_of(contents: dict[str, bytes]):
    """A folder of files."""
    def make(folder: Path) -> Path:
        root = folder / "ckpt"
        root.mkdir()
        for name, content in contents.items():
            (root / name).write_bytes(content)
        return root
    return make
