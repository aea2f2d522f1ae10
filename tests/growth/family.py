"""A family of growing inputs."""
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Family:
    """Inputs of one format that double in one thing."""
    format: str
    what: str  # Doubles from one member to the next.
    first: int  # Its size in the smallest member.
    make: Callable[[Path, int], Path]  # Creates a member in an empty folder. \returns the arguments for SRC.
    # Options of every verb; their bytes are also input.
    options: Callable[[int], list[str]] = field(default=lambda n: [])
    members: int = 4  # Doublings and one, in a short run.
    verbs: tuple[str, ...] = ()  # Empty: the verbs that every family is given to.
    most: int = 1 << 28  # Its size in a long run: content that compresses well is large while it is created.

    @property
    def name(self) -> str:
        return f"{self.format}: {self.what}"


def to_file(name: str, content: Callable[[int], bytes]):
    def make(folder: Path, n: int) -> Path:
        (folder / name).write_bytes(content(n))
        return folder / name
    return make


def to_folder(contents: Callable[[int], dict[str, bytes]]):
    def make(folder: Path, n: int) -> Path:
        root = folder / "ckpt"
        root.mkdir()
        for name, content in contents(n).items():
            (root / name).write_bytes(content)
        return root
    return make
