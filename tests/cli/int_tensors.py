"""Common code of the tests of model maps: tensors as lists of distinct 32-bit integers (or floats, as float32), written
and read without any library."""
import json
import pathlib
import struct
import subprocess
import tempfile

from program import SHARDCTL, read_safetensors, write_safetensors

FOLDER = tempfile.TemporaryDirectory()
WORK = pathlib.Path(FOLDER.name)


def write(path, tensors):
    """A safetensors file of {name: (shape, numbers)}."""
    def packed(shape, numbers):
        is_float = bool(numbers) and isinstance(numbers[0], float)
        return "F32" if is_float else "I32", shape, struct.pack(f"<{len(numbers)}{'f' if is_float else 'i'}", *numbers)

    write_safetensors(path, {name: packed(*tensor) for name, tensor in sorted(tensors.items())})


def read(path):
    return {name: (shape, list(struct.unpack(f"<{len(content) // 4}{'f' if dtype == 'F32' else 'i'}", content)))
            for name, (dtype, shape, content) in read_safetensors(path).items()}


def run(*words, expect=0):
    done = subprocess.run([SHARDCTL, *map(str, words)], cwd=WORK, capture_output=True, text=True)
    assert done.returncode == expect, f"{words}: {done.returncode}, expected {expect}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def numbers(count, first=[1]):
    first[0] += count
    return list(range(first[0] - count, first[0]))


def rows(tensor):
    (count, width), values = tensor
    return [values[i * width:(i + 1) * width] for i in range(count)]


def of_rows(all_rows):
    return [len(all_rows), len(all_rows[0])], [n for row in all_rows for n in row]


def document(name, **keys):
    (WORK / name).write_text(json.dumps({"schema": "shardctl.layout/1", "name": name, **keys}))
    return name
