"""The ranks of torch.distributed as the group of a job of the native extension."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar
from weakref import WeakKeyDictionary

from shardctl._errors import Communication, ShardctlError, failure

if TYPE_CHECKING:
    import torch

_T = TypeVar("_T")
_TEXT_BYTES = 2048  # The space for a failure's text.
_made: Counter[bytes] = Counter()  # How many Ranks there were, by their members.
_groups: WeakKeyDictionary[Any, Ranks] = WeakKeyDictionary()  # By the process group whose ranks they are.


def default_group() -> Any:
    """The default process group of torch.distributed if there is one of several ranks; otherwise None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.group.WORLD if torch.distributed.get_world_size() > 1 else None


def together(ranks: Optional[Ranks], work: Callable[[], _T]) -> _T:
    """The result of `work`, which must not communicate, if it succeeds on all ranks. Otherwise raises on all of them. A
    collective if `ranks` is not None."""
    if ranks is None:
        return work()
    try:
        result = work()
        ranks.check_interrupt()
    except BaseException as error:  # Includes KeyboardInterrupt, because the other ranks would wait.
        ranks.agree(error)
        raise
    ranks.agree(None)
    return result


@contextlib.contextmanager
def call_of(group: Any) -> Iterator[Optional[Ranks]]:
    """The scope of a call that all ranks of a process group make together. Yields its ranks, or None if `group` is None.
    Ctrl-C ends the call on all ranks. It never ends only this rank between two steps, because the others would then wait for
    it. A second one ends this rank at once."""
    if group is None:
        yield None
        return
    interrupts: list[Callable[[], object]] = []
    with _noted_in(interrupts):
        ranks = _groups.get(group) or _groups.setdefault(group, Ranks(group))
        ranks.begin_call(interrupts)
        yield ranks


@contextlib.contextmanager
def _noted_in(interrupts: list[Callable[[], object]]) -> Iterator[None]:
    """The scope in which Ctrl-C only appends the call of its handler, if this is the main thread. The end of the scope makes a
    call that is left."""
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    if not callable(handler):
        yield
        return
    call = handler

    def note(number: int, frame: Any) -> None:
        if interrupts:
            call(number, frame)
        interrupts.append(lambda: call(number, None))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        interrupts.pop()()


class Ranks:
    """Moves bytes between the ranks of a process group. The native extension calls the methods, in any thread. Data is in
    writable memoryviews. torch's exceptions mean that a rank is gone."""

    def __init__(self, group: Any) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        self._c10d: Any = distributed_c10d
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._interrupts: list[Callable[[], object]] = []  # Ctrl-C in the present call, not yet handled.
        self._timeout: Optional[timedelta] = None
        self._call = self._connected_in = 0  # Numbers of calls, which are the same on all ranks.
        self._backend: Any = None
        members = repr(dist.get_process_group_ranks(group)).encode()
        _made[members] += 1  # A later group of the same ranks needs other keys.
        name = f"shardctl/{hashlib.sha1(members, usedforsecurity=False).hexdigest()}/{_made[members]}"
        self._store: Any = self._c10d.PrefixStore(name, self._c10d._get_default_store())

    def begin_call(self, interrupts: list[Callable[[], object]]) -> None:
        """Begins a call without a timeout. `interrupts` receives the function to call on Ctrl-C. Connects the ranks in
        the first call and in the first one after a loss."""
        self._call += 1
        self._interrupts, self._timeout = interrupts, None
        if self._backend is not None and not self._store.check([self._closed_key()]):
            return
        self._backend = None
        try:
            self._connect()
        except BaseException:
            self.abort()
            raise

    def _connect(self) -> None:
        """Meets the other ranks in the store, and connects a backend that only this object uses. (A group of
        new_group(use_local_synchronization=True) could not be replaced after a loss, since the next one would find its keys in
        the store, and it needs as many groups on each rank.)"""
        store = self._c10d.PrefixStore(str(self._call), self._store)
        store.set(f"here/{self.rank}", "")
        end = time.monotonic() + self._c10d.default_pg_timeout.total_seconds()
        while not store.check([f"here/{rank}" for rank in range(self.size)]):
            self.check_interrupt()
            if self._store.check([self._closed_key(self._call)]) or time.monotonic() > end:
                raise _lost("the ranks could not be connected")
            time.sleep(0.005)
        self._backend = self._c10d.ProcessGroupGloo(store, self.rank, self.size)
        self._connected_in = self._call

    def _closed_key(self, call: Optional[int] = None) -> str:
        """Exists in the store once a rank has closed the present connections, or has closed them in this call."""
        return f"{self._connected_in}/closed" + ("" if call is None else f"/{call}")

    def barrier(self) -> None:
        self._run(lambda backend: backend.barrier(self._timed(self._c10d.BarrierOptions())).wait())

    def broadcast(self, data: memoryview, root: int) -> None:
        def run(backend: Any) -> None:
            options = self._timed(self._c10d.BroadcastOptions())
            options.rootRank = root
            backend.broadcast([_bytes(data)], options).wait()

        if len(data):
            self._run(run)

    def all_gather(self, own: memoryview, all: memoryview) -> None:
        def run(backend: Any) -> None:
            backend._allgather_base(_bytes(all), _bytes(own), self._timed(self._c10d.AllgatherOptions())).wait()

        if len(own):
            self._run(run)

    def exchange(self, to: Sequence[memoryview], from_: Sequence[memoryview]) -> None:
        """Sends to[i] to rank i, which receives it as its from_[own rank]."""
        from_[self.rank][:] = to[self.rank]

        def run(backend: Any) -> None:
            works = []
            for distance in range(1, self.size):
                sender, receiver = (self.rank - distance) % self.size, (self.rank + distance) % self.size
                if len(from_[sender]):
                    works.append(backend.recv([_bytes(from_[sender])], sender, 0))
                if len(to[receiver]):
                    works.append(backend.send([_bytes(to[receiver])], receiver, 0))
            for work in works:
                work.wait() if self._timeout is None else work.wait(self._timeout)

        self._run(run)

    def set_timeout(self, seconds: float) -> None:
        """Applies to later operations."""
        self._timeout = timedelta(seconds=seconds)

    def abort(self) -> None:
        """Closes the connections, so that the other ranks notice."""
        backend, self._backend = self._backend, None
        with contextlib.suppress(Exception):
            self._store.set(self._closed_key(self._call), "")
            self._store.set(self._closed_key(), "")
        if backend is not None:
            with contextlib.suppress(Exception):
                backend.abort()

    def check_interrupt(self) -> None:
        """Raises KeyboardInterrupt if there was a Ctrl-C in the present call."""
        if self._interrupts:
            self._interrupts.pop()()

    def agree(self, failed: Optional[BaseException]) -> None:
        """Raises on all ranks if one has failed: its own exception there, and Communication elsewhere. A collective."""
        own = "" if failed is None else f"{type(failed).__name__}: {failed}"
        padded = bytearray(own.encode(errors="replace")[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0"))
        texts = bytearray(self.size * _TEXT_BYTES)
        try:
            self.all_gather(memoryview(padded), memoryview(texts))
        except Exception as error:
            raise failed or _lost(str(error).partition("\n")[0]) from error
        if failed is not None:
            raise failed
        for rank in range(self.size):
            text = texts[rank * _TEXT_BYTES:(rank + 1) * _TEXT_BYTES].rstrip(b"\0").decode(errors="ignore")
            if text:
                raise Communication(failure(None, 7, "peer", f"rank {rank} failed: {text}", rank=rank))

    def _timed(self, options: Any) -> Any:
        """Options of a collective, which then ends by itself. A mere wait would give up while it uses the caller's memory."""
        if self._timeout is not None:
            options.timeout = self._timeout
        return options

    def _run(self, operation: Callable[[Any], None]) -> None:
        """Calls `operation` with the backend. If it fails, closes the connections at once, because a message that is still
        expected would be written to the caller's memory."""
        if self._backend is None:
            raise RuntimeError("the connections are closed")
        try:
            operation(self._backend)
        except BaseException:
            self.abort()
            raise


def _bytes(data: memoryview) -> torch.Tensor:
    import torch

    return torch.frombuffer(data, dtype=torch.uint8)


def _lost(why: str) -> ShardctlError:
    return Communication(failure(None, 7, "peer", f"a rank died or does not respond: {why}"))
