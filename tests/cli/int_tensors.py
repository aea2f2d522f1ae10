"""Common code of the tests of model maps: tensors as lists of distinct 32-bit integers (or floats, as float32), written
and read without any library."""
import json
import os
import pathlib
import struct
import subprocess
import tempfile

SHARDCTL, FOLDER = os.environ["SHARDCTL"], tempfile.TemporaryDirectory()
WORK = pathlib.Path(FOLDER.name)


def write(path, tensors):
    """A safetensors file of {name: (shape, numbers)}."""
    header, data = {}, b""
    for name, (shape, numbers) in sorted(tensors.items()):
        is_float = bool(numbers) and isinstance(numbers[0], float)
        body = struct.pack(f"<{len(numbers)}{'f' if is_float else 'i'}", *numbers)
        header[name] = {"dtype": "F32" if is_float else "I32", "shape": shape, "data_offsets": [len(data), len(data) + len(body)]}
        data += body
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def read(path):
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + size]), content[8 + size:]
    header.pop("__metadata__", None)

    def unpacked(each):
        begin, end = each["data_offsets"]
        return list(struct.unpack(f"<{(end - begin) // 4}{'f' if each['dtype'] == 'F32' else 'i'}", data[begin:end]))

    return {name: (each["shape"], unpacked(each)) for name, each in header.items()}


def run(*words, expect=0):
    done = subprocess.run([SHARDCTL, *map(str, words)], cwd=WORK, capture_output=True, text=True, timeout=60)
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
