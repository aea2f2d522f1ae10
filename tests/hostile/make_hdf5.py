"""Writes one hostile HDF5 file: make_hdf5.py WHAT N FILE. For a Python that has h5py."""
import sys

import h5py
import numpy as np


def fill(file, bits):
    """2^bits elements, of which none was written."""
    file.create_dataset("w", shape=(1 << bits,), dtype="u1")


def narrow_rows(file, bits):
    file.create_dataset("w", shape=(1 << bits, 1 << bits), dtype="u1", chunks=(1, 1 << bits))


def narrow_columns(file, bits):
    file.create_dataset("w", shape=(1 << bits, 1 << bits), dtype="u1", chunks=(1 << bits, 1))


def virtual_nothing(file, bits):
    """A virtual dataset without mappings."""
    file.create_virtual_dataset("w", h5py.VirtualLayout((1 << bits,), "u1"))


def strided(file, bits):
    """Two interleaved mappings of 2^bits elements each, of a dataset that is read interleaved as well."""
    count = 2 << bits
    file["stored"] = np.arange(count, dtype="f8")
    layout = h5py.VirtualLayout((count,), "f8")
    for part in range(2):
        layout[part::2] = h5py.VirtualSource(".", "stored", (count,))[part::2]
    file.create_virtual_dataset("w", layout)


def several(file, count):
    """A base for flipped bytes: groups, attributes, chunks, filters, texts and a virtual dataset."""
    file.attrs["epoch"] = 3
    file["plain"] = np.arange(count, dtype="f4")
    file.create_dataset("chunked", data=np.arange(8 * count, dtype="u2"), chunks=(64,), compression="gzip", shuffle=True)
    file.create_dataset("texts", data=["one", "two"], dtype=h5py.string_dtype())
    file["group/deep/w"] = np.zeros((4, 4), "f8")
    file["linked"] = h5py.SoftLink("/plain")
    layout = h5py.VirtualLayout((count,), "f4")
    layout[:] = h5py.VirtualSource(".", "plain", (count,))
    file.create_virtual_dataset("virtual", layout)


if __name__ == "__main__":
    newest = sys.argv[1] in ("virtual_nothing", "strided", "several")
    with h5py.File(sys.argv[3], "w", libver="latest" if newest else "earliest") as made:
        globals()[sys.argv[1]](made, int(sys.argv[2]))
