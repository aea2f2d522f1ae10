"""The reading verbs as functions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Optional, TypeVar

from shardctl._documents import Difference, Digest, Document, Inspection, Verification
from shardctl._paths import PathLike
from shardctl._run import OnProgress, run

_D = TypeVar("_D", bound=Document)


def _each(texts: Iterable[str]) -> Iterable[str]:
    """The texts; one text is not a sequence of characters."""
    return (texts,) if isinstance(texts, str) else texts


def _selected(include: Iterable[str], exclude: Iterable[str], options: Iterable[str]) -> list[PathLike]:
    globs = {"include": _each(include), "exclude": _each(exclude)}
    return [*(f"--{name}={glob}" for name, each in globs.items() for glob in each), *_each(options)]


def _read(kind: type[_D], verb: str, options: Iterable[PathLike], sources: Iterable[PathLike],
          progress: Optional[OnProgress] = None) -> _D:
    found = run(verb, *options, "--", *sources, progress=progress)
    if not isinstance(found, kind):
        raise TypeError(f"shardctl {verb} printed a document '{found.schema}'")
    return found


def inspect(*sources: PathLike, include: Iterable[str] = (), exclude: Iterable[str] = (),
            options: Iterable[str] = ()) -> Inspection:
    """The content of a checkpoint, with the file and offset of its bytes. Reads only metadata.

    sources: a file, a folder, or several files of one checkpoint.
    include, exclude: a glob of names, or several: `*` stays inside one dotted part, `**` crosses.
    options: any other options of the verb, as on the command line.
    """
    return _read(Inspection, "inspect", _selected(include, exclude, options), sources)


def digest(*sources: PathLike, algorithm: str = "xxh3_128", include: Iterable[str] = (), exclude: Iterable[str] = (),
           options: Iterable[str] = (), progress: Optional[OnProgress] = None) -> Digest:
    """One hash per tensor and one for the checkpoint ("xxh3_128" or "sha256"), the same for every format and layout."""
    own = [f"--algorithm={algorithm}", *_selected(include, exclude, options)]
    return _read(Digest, "digest", own, sources, progress)


def diff(a: PathLike, b: PathLike, *, atol: Optional[float] = None, rtol: Optional[float] = None, ulp: Optional[int] = None,
         equal_nan: bool = False, max_diffs: Optional[int] = None, include: Iterable[str] = (), exclude: Iterable[str] = (),
         options: Iterable[str] = (), progress: Optional[OnProgress] = None) -> Difference:
    """The differences in content between two checkpoints of any formats and layouts; exact unless a tolerance is given.

    atol, rtol: elements are equal if |a - b| <= atol + rtol * |b|. ulp: or if they are at most this
    many representable numbers apart. max_diffs: the largest number of entries in each list.
    """
    numbers = {"atol": atol, "rtol": rtol, "ulp": ulp, "max-diffs": max_diffs}
    own = [f"--{name}={value}" for name, value in numbers.items() if value is not None]
    own += ["--equal-nan"] if equal_nan else []
    return _read(Difference, "diff", [*own, *_selected(include, exclude, options)], (a, b), progress)


def verify(*sources: PathLike, against: Optional[PathLike] = None, options: Iterable[str] = (),
           progress: Optional[OnProgress] = None) -> Verification:
    """Reads every byte and returns all problems. The result is true if none of them is an error.

    against: a manifest to compare with, or a quantized checkpoint of which this one has the plain weights.
    """
    own = [] if against is None else [f"--against={os.fsdecode(against)}"]
    return _read(Verification, "verify", [*own, *_each(options)], sources, progress)
