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
    def tree(
        self,
        rank: Optional[int],
        of_tensor: Callable[[int], object],
        of_class: Callable[[str], object],
        of_size: Callable[[Any], object],
    ) -> Any: ...
    def read(self, reads: Sequence[tuple[int, Sequence[int], Sequence[int], str, int, int]]) -> int: ...

def open(
    paths: Sequence[bytes],
    format: str,
    map: bytes,
    set: Sequence[str],
    hf_ref: bytes,
    layout: bytes,
    dequantize: str,
    lora: Sequence[tuple[bytes, float]],
    opaque_globals: bool,
    endpoint_url: str,
    region: str,
    anonymous: bool,
    connections: int,
    threads: int,
    max_memory: int,
) -> Checkpoint: ...
def save(
    tree: bytes,
    tensors: Sequence[tuple[Any, ...]],
    path: bytes,
    to: str,
    like: Optional[Checkpoint],
    ranks: Any,
    force: bool,
    sync: bool,
    manifest: bool,
    numbered_lists: bool,
    threads: int,
    max_memory: int,
) -> list[str]: ...
def unknown_class(pickle: bytes) -> Optional[str]: ...
def local_part(
    shape: _Numbers, mesh: Sequence[int], placements: Sequence[str], index: int
) -> tuple[_Numbers, list[tuple[_Numbers, _Numbers, _Numbers]]]: ...
def format_of_suffix(path: bytes) -> str: ...
def run(arguments: Sequence[bytes], on_line: Callable[[str], object]) -> tuple[int, str]: ...
def set_program(path: bytes) -> None: ...
def address_of(memory: memoryview) -> int: ...
