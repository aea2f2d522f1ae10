"""The native extension: for this package only. Addresses must be those of writable memory that outlives the call."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

_Numbers = tuple[int, ...]

class Checkpoint:
    @property
    def format(self) -> str: ...
    @property
    def format_version(self) -> str: ...
    @property
    def world_size(self) -> Optional[int]: ...
    @property
    def tensor_count(self) -> int: ...
    def metadata(self) -> dict[str, str]: ...
    def warnings(self) -> list[str]: ...
    def keys(self) -> list[str]: ...
    def find(self, name: str) -> tuple[int, int]: ...
    def tensor(self, index: int) -> tuple[str, str, tuple[int, int], _Numbers, Optional[int], Optional[str]]: ...
    def placements(self, index: int) -> Optional[tuple[str, ...]]: ...
    def chunks(
        self, index: int
    ) -> list[tuple[_Numbers, _Numbers, Optional[int], str, Optional[int], Optional[int], Optional[_Numbers]]]: ...
    def objects(self, of_class: Callable[[str], object]) -> list[tuple[str, Optional[int], Any]]: ...
    def read(self, reads: Sequence[tuple[int, Sequence[int], Sequence[int], str, int, int]]) -> int: ...

def open(
    paths: Sequence[str],
    format: str,
    map: str,
    set: Sequence[str],
    hf_ref: str,
    layout: str,
    dequantize: str,
    opaque_globals: bool,
    endpoint_url: str,
    region: str,
    anonymous: bool,
    connections: int,
    threads: int,
    max_memory: int,
) -> Checkpoint: ...
def save(
    tensors: Sequence[tuple[str, str, Sequence[int], int, int]],
    path: str,
    to: str,
    force: bool,
    sync: bool,
    manifest: bool,
    threads: int,
    max_memory: int,
) -> list[str]: ...
def address_of(memory: memoryview) -> int: ...
