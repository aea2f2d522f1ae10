"""Puts the program into the wheel and gives the wheel the tag of the systems that it runs on.

Environment: SHARDCTL_TREE is a folder with bin/shardctl and, unless the program is one file, lib/*.so; licences.txt has the
licences of all libraries in it. The one-file program becomes the console script, so it starts without Python. The files in
plugins go to lib/shardctl of the environment, where that program searches. A program with libraries goes into the package;
the console script is then launcher.py, which passes the path of LibTorch. A native module in native (_native.*.so) goes into
the package beside its Python modules.

The tag follows from the needs of these files: the newest version of a symbol of glibc if they need only glibc and each other,
any Linux if they need nothing, otherwise only this kind of machine (linux_ARCH). A native module binds the wheel to the version
of Python in its name, free-threaded or not; with the stable ABI (.abi3.so) to 3.12 and later.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Libraries that every system of a manylinux tag has.
SYSTEM = re.compile(r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so\.\d+|ld-linux-.*")
TORCH = re.compile(r"lib(torch|c10)(_cpu|_cuda)?\.so")  # The environment has these.
OLDEST = (2, 17)  # The oldest glibc that a tag can name on both architectures.


def readelf(file: Path) -> str:
    return subprocess.run(["readelf", "-Whd", "--version-info", str(file)], check=True, text=True,
                          stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}).stdout


def architecture(text: str) -> str:
    found = re.search(r"Machine:\s+(.*)", text)
    return "aarch64" if found and found[1] == "AArch64" else "x86_64"


def platform_tag(files: list[Path]) -> str:
    """The platform part of the tag of a wheel with these programs and libraries."""
    texts = [readelf(file) for file in files]
    arch = architecture(texts[0])
    needed: set[str] = {name for text in texts for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text)}
    foreign = {name for name in needed - {file.name for file in files}
               if not SYSTEM.fullmatch(name) and not TORCH.fullmatch(name)}
    if foreign:
        return f"linux_{arch}"
    if not needed:
        return f"manylinux_{OLDEST[0]}_{OLDEST[1]}_{arch}.musllinux_1_1_{arch}"
    versions = [(int(a), int(b)) for text in texts for a, b in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", text)]
    newest = max([OLDEST, *versions])
    return f"manylinux_{newest[0]}_{newest[1]}_{arch}"


def python_tag(modules: list[Path]) -> str:
    """The tags of Python and its ABI for a wheel with these native modules: "py3-none" if there are none."""
    if not modules:
        return "py3-none"
    if any(module.name.endswith(".abi3.so") for module in modules):
        return "cp312-abi3"
    version = re.search(r"\.cpython-(\d+)(t?)-", modules[0].name)
    if version is None:
        raise ValueError(f"{modules[0].name} does not name a version of Python")
    return f"cp{version[1]}-cp{version[1]}{version[2]}"


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        tree = Path(os.environ["SHARDCTL_TREE"]).resolve()
        files = sorted(file for folder in ("bin", "lib", "native", "plugins") for file in (tree / folder).glob("*") if file.is_file())
        build_data["pure_python"] = False
        native = [file for file in files if file.parent.name == "native"]
        build_data["tag"] = f"{python_tag(native)}-{platform_tag(files)}"
        licences = tree / "licences.txt"
        included = {str(licences): "shardctl/licences.txt"} if licences.exists() else {}
        included.update((str(file), f"shardctl/{file.name}") for file in native)
        build_data["force_include"] = included
        if (tree / "lib").exists():
            included.update((str(file), f"shardctl/{file.relative_to(tree)}") for file in files if file not in native)
            build_data["shared_scripts"] = {"launcher.py": "shardctl"}
        else:
            build_data["shared_scripts"] = {str(tree / "bin" / "shardctl"): "shardctl"}
            plugins = [file for file in files if file.parent.name == "plugins"]
            build_data["shared_data"] = {str(file): f"lib/shardctl/{file.name}" for file in plugins}


def get_build_hook() -> type:
    return Hook
