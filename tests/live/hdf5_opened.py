"""Prints the content of a file according to h5py, as JSON. Runs in any Python with h5py."""
import json
import sys

import h5py
import numpy


def value_of(value):
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, numpy.void):
        return {"bytes": value.tobytes().hex()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value if isinstance(value, str) else value.tolist()


def main() -> None:
    found = {}
    with h5py.File(sys.argv[1], "r") as file:
        def add(path, item):
            entry = {"attributes": {name: value_of(value) for name, value in item.attrs.items()}}
            if isinstance(item, h5py.Dataset):
                entry["shape"] = item.shape
                try:
                    entry |= {"dtype": item.dtype.str, "hex": item[()].tobytes().hex()}
                except TypeError as error:  # h5py before 3.8 knows no complex numbers of 16-bit floats.
                    entry["unknown"] = str(error)
            found[path] = entry

        def walk(group, prefix):
            add(prefix or "/", group)
            for name, item in group.items():
                path = f"{prefix}/{name}"
                walk(item, path) if isinstance(item, h5py.Group) else add(path, item)

        walk(file, "")
        found["same"] = [[a, b] for a in found for b in found if a < b and file[a] == file[b]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
