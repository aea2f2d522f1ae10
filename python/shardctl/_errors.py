"""Failures as exceptions: a class for each exit code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from shardctl._documents import ErrorDocument
from shardctl._text import printable


class ShardctlError(Exception):
    """A verb failed. `code` is the exit code and `kind` the word that scripts may branch on; both are part of
    shardctl's contract, the texts are for people. `stderr` is the end of the program's standard error."""

    def __init__(self, document: ErrorDocument, stderr: str = "") -> None:
        super().__init__(document, stderr)
        self.document = document
        self.verb: Optional[str] = document.verb
        self.code: int = document.code
        self.kind: str = document.kind
        self.message: str = document.message
        self.file: Optional[str] = document.file
        self.tensor: Optional[str] = document.tensor
        self.rank: Optional[int] = document.rank
        self.expected: Optional[str] = document.expected
        self.found: Optional[str] = document.found
        self.hint: Optional[str] = document.hint
        self.details: tuple[str, ...] = document.details
        self.stderr = stderr

    def __str__(self) -> str:
        """The message with its file and hint; names come from files, so control characters are escaped."""
        text = self.message
        if self.file is not None and self.file not in text:
            text = f"{self.file}: {text}"
        if self.expected is not None:
            text += f" (expected {self.expected}{f', found {self.found}' if self.found else ''})"
        lines = [printable(text)]
        if self.hint is not None:
            lines.append(f"hint: {printable(self.hint)}")
        return "\n".join(lines)


class Usage(ShardctlError):
    """Exit code 2: bad usage, a bad layout document, a name clash after renaming."""


class NotFound(ShardctlError):
    """Exit code 3: the input is not found or not readable."""


class ProgramNotFound(NotFound):
    """The shardctl program was not found."""


class Corruption(ShardctlError):
    """Exit code 4: the input is damaged, contradictory, of unknown format, or refused for safety."""


class Exists(ShardctlError):
    """Exit code 5: the output exists and `--force` is not given, or source and output overlap."""


class Resource(ShardctlError):
    """Exit code 6: disk full, memory limit, output not writable."""


class Communication(ShardctlError):
    """Exit code 7: launch or communication failure: a rank died or stopped responding."""


class Unsupported(ShardctlError):
    """Exit code 8: a valid request that this build or format does not support."""


class Internal(ShardctlError):
    """Exit code 70: a bug in shardctl."""


class Interrupted(ShardctlError):
    """Exit codes 129, 130 and 143: ended by SIGHUP, SIGINT or SIGTERM."""


_CLASSES: Mapping[int, type[ShardctlError]] = {
    2: Usage,
    3: NotFound,
    4: Corruption,
    5: Exists,
    6: Resource,
    7: Communication,
    8: Unsupported,
    70: Internal,
    129: Interrupted,
    130: Interrupted,
    143: Interrupted,
}


def error(document: ErrorDocument, stderr: str = "") -> ShardctlError:
    """The exception for a failure, of the class of its exit code."""
    return _CLASSES.get(document.code, ShardctlError)(document, stderr)


def failure(verb: Optional[str], code: int, kind: str, message: str, hint: Optional[str] = None, *,
            file: Optional[str] = None, tensor: Optional[str] = None, rank: Optional[int] = None, expected: object = None,
            found: object = None) -> ErrorDocument:
    """A failure for which the program printed no error document."""
    facts = {"file": file, "tensor": tensor, "rank": rank, "expected": None if expected is None else str(expected),
             "found": None if found is None else str(found), "hint": hint}
    json = {"schema": "shardctl.error/1", "verb": verb, "code": code, "kind": kind, "message": message, **facts}
    return ErrorDocument("shardctl.error/1", json, verb, code, kind, message, **facts)  # type: ignore[arg-type]


def unsupported(message: str, hint: Optional[str] = None, *, tensor: Optional[str] = None, expected: object = None,
                found: object = None) -> Unsupported:
    """The exception for a valid request that this build or format does not support."""
    return Unsupported(failure(None, 8, "unsupported", message, hint, tensor=tensor, expected=expected, found=found))


_NATIVE: Mapping[str, int] = {  # Exit codes by the names of the library's codes.
    "invalid_argument": 2,
    "not_found": 3,
    "corruption": 4,
    "exists": 5,
    "resource": 6,
    "peer": 7,
    "unsupported": 8,
    "interrupted": 130,
}


def native_error(name: str, kind: str, message: str, why: Optional[str], file: Optional[str], tensor: Optional[str],
                 rank: Optional[int], expected: Optional[str], found: Optional[str], hint: Optional[str]) -> ShardctlError:
    """The exception for an error of the native extension."""
    text = message if why is None else f"{message}: {why}"
    return error(failure(None, _NATIVE.get(name, 70), kind, text, hint, file=file, tensor=tensor, rank=rank,
                         expected=expected, found=found))
