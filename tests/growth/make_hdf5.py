"""Writes one member of a family of HDF5 files: make_hdf5.py WHAT N FILE. For a Python that has h5py."""
import sys

import h5py
import numpy as np


def datasets(file, n):
    for i in range(n):
        file[f"model/layers/{i}/weight"] = np.uint8(1)


def chunks(file, n):
    file.create_dataset("w", data=np.arange(8 * n, dtype="u1"), chunks=(8,))


def deflated_chunks(file, n):
    file.create_dataset("w", data=np.arange(64 * n, dtype="u4"), chunks=(64,), compression="gzip", shuffle=True)


def attributes(file, n):
    for i in range(n):
        file.attrs[f"key {i}"] = i


def attribute_elements(file, n):
    file.attrs["numbers"] = np.arange(n, dtype="i8")


def strings(file, n):
    file.create_dataset("texts", data=[f"text {i}" for i in range(n)], dtype=h5py.string_dtype())


def nesting(file, n):
    group = file
    for _ in range(n):
        group = group.create_group("a")


def hard_links(file, n):
    file["w"] = np.zeros(4, "f4")
    for i in range(n):
        file[f"other/{i}"] = file["w"]


def soft_links(file, n):
    file["w"] = np.zeros(4, "f4")
    for i in range(n):
        file[f"soft {i}"] = h5py.SoftLink("/w")


def virtual_boxes(file, n):
    layout = h5py.VirtualLayout((n,), "u1")
    for i in range(n):
        layout[i] = h5py.VirtualSource(".", "w", (n,))[n - 1 - i]
    file.create_dataset("w", data=np.zeros(n, "u1"))
    file.create_virtual_dataset("v", layout)


def virtual_holes(file, n):
    layout = h5py.VirtualLayout((2 * n,), "u1")
    for i in range(n):
        layout[2 * i] = h5py.VirtualSource(".", "w", (n,))[i]
    file.create_dataset("w", data=np.zeros(n, "u1"))
    file.create_virtual_dataset("v", layout)


if __name__ == "__main__":
    with h5py.File(sys.argv[3], "w", libver="latest" if sys.argv[1].startswith("virtual") else "earliest") as made:
        globals()[sys.argv[1]](made, int(sys.argv[2]))
