"""The ranks of torch.distributed as the group of a job of the native extension."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from shardctl._errors import Communication, ShardctlError, failure

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")
_groups: dict[Any, Ranks] = {}  # By the process group whose ranks they are. At most one is kept.


def default_group() -> Any:
    """The default process group of torch.distributed if there is one of several ranks; otherwise None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.group.WORLD if torch.distributed.get_world_size() > 1 else None


def ranks_of(group: Any) -> Ranks:
    """The ranks of a process group, connected by gloo. A collective the first time. Later calls return the same object,
    unless it is broken."""
    known = _groups.get(group)
    if known is None or known.is_broken:
        _groups.clear()
        known = _groups[group] = Ranks(group)
    return known


def together(ranks: Optional[Ranks], work: Callable[[], _T]) -> _T:
    """The result of `work`, which must not communicate, if it succeeds on all ranks. Otherwise raises on all of them. A
    collective if `ranks` is not None."""
    if ranks is None:
        return work()
    try:
        result = work()
        ranks.check_interrupt()
    except BaseException as error:  # Includes KeyboardInterrupt: the other ranks would wait.
        ranks.agree(error)
        raise
    ranks.agree(None)
    return result


@contextlib.contextmanager
def call_of(ranks: Optional[Ranks]) -> Iterator[None]:
    """The scope of a call that all ranks make together. Ctrl-C ends its steps on all ranks, and never only this rank between
    two steps, for which the others would wait. A second one ends this rank at once."""
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if ranks is not None and in_main else None
    if ranks is None or not callable(before):
        yield
        return
    handler = before

    def note(number: int, frame: Any) -> None:
        if ranks.interrupt is not None:
            handler(number, frame)
        ranks.interrupt = lambda: handler(number, None)

    signal.signal(signal.SIGINT, note)
    try:
        yield
        ranks.check_interrupt()
    finally:
        ranks.interrupt = None
        signal.signal(signal.SIGINT, handler)


class Ranks:
    """Moves bytes between the ranks of a process group. The native extension calls the methods, in any thread. Data is in
    writable memoryviews. torch's exceptions mean that a rank is gone."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist

        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self.is_broken = False
        self.interrupt: Optional[Callable[[], object]] = None  # The handler of a Ctrl-C in the present call.
        self._members = dist.get_process_group_ranks(group)
        self._group: Any = dist.new_group(self._members, backend="gloo", use_local_synchronization=True)
        self._timeout: Optional[timedelta] = None

    def barrier(self) -> None:
        import torch.distributed as dist

        self._finish(dist.barrier(self._group, async_op=True))

    def broadcast(self, data: memoryview, root: int) -> None:
        import torch.distributed as dist

        if len(data):
            self._finish(dist.broadcast(_bytes(data), self._members[root], self._group, async_op=True))

    def all_gather(self, own: memoryview, all: memoryview) -> None:
        import torch.distributed as dist

        if len(own):
            self._finish(dist.all_gather_into_tensor(_bytes(all), _bytes(own), self._group, async_op=True))

    def exchange(self, to: Sequence[memoryview], from_: Sequence[memoryview]) -> None:
        """Sends to[i] to rank i, which receives it as its from_[own rank]."""
        import torch.distributed as dist

        from_[self.rank][:] = to[self.rank]
        works = []
        for distance in range(1, self.size):
            sender, receiver = (self.rank - distance) % self.size, (self.rank + distance) % self.size
            if len(from_[sender]):
                works.append(dist.irecv(_bytes(from_[sender]), self._members[sender], self._group))
            if len(to[receiver]):
                works.append(dist.isend(_bytes(to[receiver]), self._members[receiver], self._group))
        for work in works:
            self._finish(work)

    def set_timeout(self, seconds: float) -> None:
        """Applies to later operations."""
        self._timeout = timedelta(seconds=seconds)

    def abort(self) -> None:
        """Closes the connections, so that the other ranks notice."""
        import torch.distributed as dist

        self.is_broken = True
        with contextlib.suppress(Exception):
            dist.destroy_process_group(self._group)

    def check_interrupt(self) -> None:
        """Raises KeyboardInterrupt if there was a Ctrl-C in the present call."""
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt()

    def agree(self, failed: Optional[BaseException]) -> None:
        """Raises on all ranks if one has failed: its own exception there, and Communication elsewhere. A collective."""
        import torch.distributed as dist

        text = None if failed is None else f"{type(failed).__name__}: {failed}"
        texts: list[Optional[str]] = [None] * self.size
        try:
            dist.all_gather_object(texts, text, self._group)
        except Exception as error:
            self.abort()
            raise failed or _lost(error) from error
        if failed is not None:
            raise failed
        for rank, each in enumerate(texts):
            if each is not None:
                raise Communication(failure(None, 7, "peer", f"rank {rank} failed: {each}", rank=rank))

    def _finish(self, work: Any) -> None:
        if work is not None:
            work.wait() if self._timeout is None else work.wait(self._timeout)


def _bytes(data: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def _lost(error: Exception) -> ShardctlError:
    line = str(error).partition("\n")[0]
    return Communication(failure(None, 7, "peer", f"a rank died or does not respond: {line}"))
