"""The native extension of this package, which an installation may lack."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any, Optional

from shardctl._errors import ProgramNotFound, Unsupported, unsupported
from shardctl._program import program


def _this_python() -> str:
    """The kind and version of this Python, which decide whether an extension fits."""
    kind = "free-threaded Python" if "t" in sys.abiflags else "Python"
    return f"{kind} {sys.version_info.major}.{sys.version_info.minor}"


@functools.cache
def native() -> Any:
    """The native extension. Raises Unsupported if this installation lacks it."""
    try:
        extension: Any = importlib.import_module("shardctl._native")
    except ImportError as error:
        hint = "build it with CMake, or install a wheel for this Python; inspect() and run() work without it"
        message = f"this installation of shardctl has no native module for {_this_python()}: {error}"
        raise unsupported(message, hint) from error
    try:
        extension.set_program(os.fsencode(program()))
    except ProgramNotFound:  # Only some formats need it.
        pass
    return extension


def native_or_none() -> Optional[Any]:
    """The native extension, or None if this installation lacks it."""
    try:
        return native()
    except Unsupported:
        return None
