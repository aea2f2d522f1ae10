"""The path of the program, and its environment."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Optional

from shardctl._errors import ProgramNotFound, failure

_PACKAGE = Path(__file__).resolve().parent


def _installed() -> list[Path]:
    """The paths to which an installer may copy the program: in the package if it has libraries, otherwise in the environment
    (whose packages are in lib/python3.N/site-packages), or beside the package (pip install --target)."""
    folders = [_PACKAGE, *list(_PACKAGE.parents)[3:4], _PACKAGE.parent]
    return [folder / "bin" / "shardctl" for folder in folders]


def program() -> str:
    """The path of the program: $SHARDCTL if that is set, otherwise the one that was installed with this module. Raises
    ProgramNotFound."""
    chosen = os.environ.get("SHARDCTL")
    paths = [Path(chosen)] if chosen else _installed()
    for path in paths:
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    hint = "let SHARDCTL name the program" if chosen else "install the wheel shardctl, or let SHARDCTL name the program"
    raise ProgramNotFound(failure(None, 3, "not_found", f"cannot run '{paths[0]}': no such program", hint))


def _torch_libraries() -> Optional[Path]:
    """The folder of LibTorch in this Python, found without importing torch, and never in the working directory."""
    here = Path.cwd()
    folders = [folder for folder in sys.path if folder and Path(folder).resolve() != here]
    found = importlib.machinery.PathFinder.find_spec("torch", folders)
    places = found.submodule_search_locations if found is not None else None
    return Path(places[0]) / "lib" if places else None


def environment() -> dict[str, str]:
    """The program's environment: this process's, plus the path of LibTorch if this package has the plug-in that needs it."""
    result = dict(os.environ)
    result.pop("SHARDCTL", None)  # If it named this package's console script, that would call itself.
    if (_PACKAGE / "lib" / "libshard_gloo.so").exists():
        libraries = _torch_libraries()
        if libraries is not None:
            before = result.get("LD_LIBRARY_PATH")
            result["LD_LIBRARY_PATH"] = f"{libraries}:{before}" if before else str(libraries)
    return result
