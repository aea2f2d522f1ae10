"""How seeds are written."""
from pathlib import Path


def put(folder: Path, target: str, name: str, data: bytes) -> None:
    (folder / target).mkdir(parents=True, exist_ok=True)
    (folder / target / name).write_bytes(data)


def part(data: bytes) -> bytes:
    """See take_part in target.h."""
    return len(data).to_bytes(2, "little") + data
