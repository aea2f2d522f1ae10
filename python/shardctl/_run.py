"""Runs a verb, in this process or as the program, and reads its output."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Callable, Literal, Optional, overload

from shardctl._documents import Document, ErrorDocument, Plan, Progress, Result
from shardctl._errors import error, failure
from shardctl._extension import native_or_none
from shardctl._paths import PathLike, encoded
from shardctl._program import environment, program
from shardctl._reading import document

OnProgress = Callable[[Progress], object]
WritingVerb = Literal["split", "gather", "reshard", "convert", "export", "average", "repair"]

_KEPT_OF_STDERR = 200  # Lines.
_OF_JOBS = ("--launcher", "--rank", "--world-size", "--rdzv")  # Options of a rank that joins other processes.
_GRACE_SECONDS = 30.0  # The program may use this time to remove its staged output before it is killed.


def _environment(changes: Optional[Mapping[str, str]]) -> dict[str, str]:
    """Each call is a separate job, even inside a training rank, so the launcher's variables are ignored."""
    return {**environment(), "SHARDCTL_LAUNCHER": "none", **(changes or {})}


def _progress_of(line: str) -> Optional[Progress]:
    if not line.startswith("{"):
        return None
    try:
        found = document(json.loads(line))
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, Progress) else None


class _Stderr:
    """Calls `progress` for each line of progress, and keeps the end of all other lines."""

    def __init__(self, progress: Optional[OnProgress]) -> None:
        self._progress = progress
        self._kept: deque[str] = deque(maxlen=_KEPT_OF_STDERR)

    def add(self, line: str) -> None:
        state = _progress_of(line)
        if state is None:
            self._kept.append(line)
        elif self._progress is not None:
            self._progress(state)

    def text(self) -> str:
        return "".join(self._kept)


def _stop(child: subprocess.Popen[str]) -> None:
    """Stops the child process as a signal would, which leaves its destination unchanged."""
    child.terminate()
    try:
        child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _parsed(text: str) -> Optional[dict[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("schema"), str) else None


def _error_in(text: str) -> Optional[dict[str, Any]]:
    """The error document at the end of a text; `cat` may have begun another one before it."""
    begin = text.rfind('{"schema": "shardctl.error/')
    return _parsed(text[begin:]) if begin >= 0 else None


def _outcome(verb: str, code: int, stdout: str, stderr: str) -> Document:
    found = _parsed(stdout) or (_error_in(stdout) if code != 0 else None)
    if found is not None:
        result = document(found)
        if not isinstance(result, ErrorDocument):
            return result
        raise error(result, stderr)
    if code < 0:
        raise error(failure(verb, 128 - code, "killed", f"shardctl {verb} was killed by signal {-code}"), stderr)
    if code == 0:
        raise error(failure(verb, 8, "unsupported", f"shardctl {verb} prints no document"), stderr)
    raise error(failure(verb, code, "failed", f"shardctl {verb} ended with exit code {code}"), stderr)


def _start(command: list[str], cwd: Optional[PathLike], env: Optional[Mapping[str, str]]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env=_environment(env),
        encoding="utf-8",
        errors="replace",
    )


@overload
def run(verb: WritingVerb, *arguments: PathLike, dry_run: Literal[True], progress: Optional[OnProgress] = ...,
        cwd: Optional[PathLike] = ..., env: Optional[Mapping[str, str]] = ...) -> Plan: ...
@overload
def run(verb: WritingVerb, *arguments: PathLike, dry_run: Literal[False] = ..., progress: Optional[OnProgress] = ...,
        cwd: Optional[PathLike] = ..., env: Optional[Mapping[str, str]] = ...) -> Result: ...
@overload
def run(verb: str, *arguments: PathLike, dry_run: bool = ..., progress: Optional[OnProgress] = ...,
        cwd: Optional[PathLike] = ..., env: Optional[Mapping[str, str]] = ...) -> Document: ...


def run(verb: str, *arguments: PathLike, dry_run: bool = False, progress: Optional[OnProgress] = None,
        cwd: Optional[PathLike] = None, env: Optional[Mapping[str, str]] = None) -> Document:
    """Runs a verb with its arguments as the command line takes them, and returns the document that it prints.

    progress: is called in this thread, at most once per second and at least once for verbs that read or write elements.
        If it raises, the verb is stopped, the destination is unchanged, and the exception propagates. The last call may
        come after the verb's end, when the destination is complete.
    dry_run: returns the Plan and writes nothing (the same as the argument "--dry-run").
    cwd, env: working directory, and environment variables besides those of this process. The program is then started.
    The verb runs in this process if it can (see docs/python.md). Launcher variables (RANK, ...) are ignored unless there is
    an argument `--launcher`.

    Raises ShardctlError, of the class of the exit code. `verify` and `diff` also return a negative answer.
    """
    own = ["--json", *(["--dry-run"] if dry_run else []), *(["--progress", "json"] if progress is not None else [])]
    command = [verb, *own, *(os.fsdecode(encoded(each)) for each in arguments)]
    stderr = _Stderr(progress)
    native = _native_for(command) if cwd is None and env is None else None
    if native is None:
        code, stdout = _run_program(command, stderr, cwd, env)
    else:
        code, stdout = native.run([os.fsencode(each) for each in command], lambda line: stderr.add(line + "\n"))
    return _outcome(verb, code, stdout, stderr.text())


def _native_for(command: list[str]) -> Any:
    """The native extension if it can run the command. None if it is missing, if SHARDCTL names a program, or if the
    command joins a job of several processes."""
    if "SHARDCTL" in os.environ or any(each.partition("=")[0] in _OF_JOBS for each in command):
        return None
    return native_or_none()


def _run_program(command: list[str], stderr: _Stderr, cwd: Optional[PathLike],
                 env: Optional[Mapping[str, str]]) -> tuple[int, str]:
    """Runs the program. Returns its exit code, negative for a signal, and its standard output."""
    stdout: list[str] = []
    child = _start([program(), *command], cwd, env)
    assert child.stdout is not None and child.stderr is not None
    with child.stdout as out, child.stderr as err:
        reader = threading.Thread(target=lambda: stdout.append(out.read()), daemon=True)
        reader.start()
        try:
            for line in err:
                stderr.add(line)
            code = child.wait()
        except BaseException:  # Includes KeyboardInterrupt, which in a notebook reaches only this process.
            _stop(child)
            raise
        finally:
            reader.join()
    return code, "".join(stdout)
