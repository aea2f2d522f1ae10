"""Paths as the native extension and the program take them."""

from __future__ import annotations

import os
import re
from typing import Union

from shardctl._memory import usage

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


def encoded(path: PathLike) -> bytes:
    """The bytes of a path. Raises Usage for a URL that was made a Path, which keeps only one of the two slashes."""
    text = os.fsdecode(path)
    changed = re.match("(s3|gs|hf|https?):/(?!/)", text) if isinstance(path, os.PathLike) else None
    if changed is not None and not os.path.lexists(changed[1] + ":"):
        raise usage("a URL cannot be a Path, which drops one of its slashes", f"{changed[1]}://", text,
                    hint=f"give it as a text: '{changed[1]}://{text[changed.end():]}'")
    return os.fsencode(text)
