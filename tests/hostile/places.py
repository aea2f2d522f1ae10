"""Names that lead elsewhere, and files that are none."""
import json
import os
import socket
from pathlib import Path

from build import dcp_metadata, entry, safetensors, sparse, tensor
from case import ALL, everywhere, file_of, files_of

GOOD = safetensors({"a": entry([4], 0, 4)}, b"abcd")
INDEX = json.dumps({"weight_map": {"a": "x.safetensors"}}).encode()


def linked(target: str, name: str = "x.safetensors"):
    def make(folder: Path) -> Path:
        (folder / name).symlink_to(target)
        return folder / name
    return make


def fifo(name: str, **beside: bytes):
    """A folder with a FIFO, which blocks a process that opens it carelessly."""
    def make(folder: Path) -> Path:
        root = files_of(beside)(folder)
        os.mkfifo(root / name)
        return root
    return make


def folder_link(folder: Path) -> Path:
    """A folder whose sub-folder is a link out of it, named by the metadata."""
    (folder / "secret").mkdir()
    (folder / "secret" / "x.distcp").write_bytes(b"secret")
    root = files_of({".metadata": dcp_metadata([4], [([0], [4])], [([0], 0, "out/x.distcp", 0, 6)]), "__0_0.distcp": b""})(folder)
    (root / "out").symlink_to("../secret")
    return root


def in_folder(folder: Path) -> Path:
    return folder / "x.safetensors"


def made_folder(folder: Path) -> Path:
    in_folder(folder).mkdir()
    return in_folder(folder)


def bound_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(in_folder(folder)))
    return in_folder(folder)


def unreadable(folder: Path) -> Path:
    in_folder(folder).write_bytes(GOOD)
    in_folder(folder).chmod(0)
    return in_folder(folder)


def terabyte(begin: bytes):
    def make(folder: Path) -> Path:
        sparse(in_folder(folder), 1 << 40, begin)
        return in_folder(folder)
    return make


def whole_terabyte(folder: Path) -> Path:
    size = (1 << 40) - 1000
    header = json.dumps({"a": entry([size], 0, size)}).encode().ljust(992)
    sparse(in_folder(folder), 1 << 40, len(header).to_bytes(8, "little") + header)
    return in_folder(folder)


def many_links(folder: Path) -> Path:
    root = files_of({"model.safetensors.index.json": INDEX})(folder)
    (root / "x.safetensors").symlink_to("y.safetensors")
    (root / "y.safetensors").symlink_to("x.safetensors")
    return root


def cases():
    yield everywhere("a link to itself", linked("x.safetensors"), 3, verbs=ALL)
    yield everywhere("a link to nothing", linked("absent"), 3, verbs=ALL)
    yield everywhere("a link to /dev/zero", linked("/dev/zero"), 3, verbs=ALL)
    yield everywhere("a link to /dev/tty", linked("/dev/tty"), 3)
    yield everywhere("a link to a folder that links back", lambda folder: linked(".", "x")(folder) / "x" / "x", 3, 4)
    yield everywhere("/proc/self/mem", lambda folder: Path("/proc/self/mem"), 3, 4)
    yield everywhere("/dev/stdin", lambda folder: Path("/dev/stdin"), 3, 4)
    yield everywhere("an index whose file is a loop of links", many_links, 3, verbs=ALL)
    yield everywhere("a FIFO", lambda folder: fifo("x.safetensors")(folder) / "x.safetensors", 3, verbs=ALL)
    for name in "x.safetensors", "x.pt", "pytorch_model.bin", ".metadata", "x.distcp", "__0_0.distcp":
        yield everywhere(f"a folder with a FIFO named {name}", fifo(name), 3, 4, verbs=ALL)
    yield everywhere("an index that names a FIFO", fifo("x.safetensors", **{"model.safetensors.index.json": INDEX}), 3, verbs=ALL)
    yield everywhere("a dcp item in a FIFO", fifo("__0_0.distcp", **{".metadata": dcp_metadata(
        [4], [([0], [4])], [([0], 0, "__0_0.distcp", 0, 100)])}), 3, 4, verbs=ALL)
    yield everywhere("a socket", bound_socket, 3)
    yield everywhere("a folder named as a file", made_folder, 3, 4, verbs=ALL)
    yield everywhere("a folder link out of a dcp checkpoint", folder_link, 4, verbs=ALL)
    yield everywhere("an empty file", file_of(b"", "x.safetensors"), 4, verbs=ALL)
    yield everywhere("an empty torch file", file_of(b""), 4, verbs=ALL)
    if os.geteuid() != 0:
        yield everywhere("a file that may not be read", unreadable, 3, verbs=ALL)
    yield everywhere("1 TiB of zeros", terabyte(b""), 4, verbs=ALL)
    yield everywhere("1 TiB behind the largest header", terabyte((100_000_000).to_bytes(8, "little") + b"{"), 4)
    yield everywhere("one tensor of 1 TiB", whole_terabyte, 0)
