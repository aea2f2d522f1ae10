"""HDF5 files. Needs an HDF5_PYTHON with h5py."""
import os
import subprocess
from pathlib import Path

from family import Family

PYTHON = os.environ.get("HDF5_PYTHON")


def made(what: str):
    def make(folder: Path, n: int) -> Path:
        path = folder / "x.h5"
        subprocess.run([PYTHON, Path(__file__).with_name("make_hdf5.py"), what, str(n), path], check=True)
        return path
    return make


def has_h5py() -> bool:
    return PYTHON is not None and subprocess.run([PYTHON, "-c", "import h5py"], capture_output=True).returncode == 0


def family(what: str, function: str, first: int, most: int = Family.most) -> Family:
    return Family("hdf5", what, first, made(function), most=most)


FAMILIES = [
    family("datasets", "datasets", 500),
    family("chunks", "chunks", 2000),
    family("deflated chunks", "deflated_chunks", 500),
    family("attributes", "attributes", 500, most=4000),  # libhdf5 looks at all others to open one: tests/RESULTS.md.
    family("elements of an attribute", "attribute_elements", 1000, most=8000),  # h5py writes 64 KiB at most.
    family("strings", "strings", 2000),
    family("nesting", "nesting", 64),
    family("hard links", "hard_links", 2000),
    family("soft links", "soft_links", 2000),
    family("virtual boxes", "virtual_boxes", 200),
    family("holes in a virtual dataset", "virtual_holes", 200),
]
if not has_h5py():
    print("hdf5: left out, HDF5_PYTHON names no Python with h5py")
    FAMILIES = []
