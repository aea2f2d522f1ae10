"""Memory and time of --dequantize on models of many modules, whose scales are in different files.

  many_modules.py SHARDCTL [--modules N] [--size GIB] [--limit MIB] [--folder DIR]

Creates an INT4 model with N modules whose codes have --size GIB. They are holes of sparse files, so a model needs no
space. Times `inspect` and `inspect --dequantize` (the matching), then `digest` and `gather`. --limit, as root: in a cgroup
with so much memory, page cache included.
"""

import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
from memory import Group

COLUMNS, GROUP, FILES = 4096, 32, 16
SIZES = {"I32": 4, "BF16": 2, "I64": 8}


def write(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    """Contents repeat, or are holes if they are empty."""
    header, end = {}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = SIZES[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for (_, _, content), each in zip(tensors.values(), header.values()):
            begin, stop = each["data_offsets"]
            file.seek(8 + len(text) + begin)
            if content:
                file.write(content * ((stop - begin) // len(content)))
        file.truncate(8 + len(text) + end)


def make(folder: Path, modules: int, rows: int) -> None:
    places = {}
    for part in range(FILES):
        codes, scales = {}, {}
        for i in range(part, modules, FILES):
            name = f"model.layers.{i // 256}.mlp.experts.{i % 256}.up_proj"
            codes[f"{name}.weight_packed"] = "I32", [rows, COLUMNS // 8], b""
            scales[f"{name}.weight_scale"] = "BF16", [rows, COLUMNS // GROUP], b"\x80\x3f"
            scales[f"{name}.weight_shape"] = "I64", [2], struct.pack("<2q", rows, COLUMNS)
        for file, tensors in ((f"codes-{part}.safetensors", codes), (f"scales-{part}.safetensors", scales)):
            write(folder / file, tensors)
            places |= {key: file for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    weights = {"num_bits": 4, "type": "int", "group_size": GROUP, "strategy": "group", "symmetric": True}
    (folder / "config.json").write_text(json.dumps({"quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"],
        "config_groups": {"group_0": {"weights": weights}}}}))


def run(command: list, group: Group | None) -> None:
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=group and group.enter)
    _, status, used = os.wait4(process.pid, 0)
    print(f"| {command[1]}{' --dequantize' if '--dequantize' in command else ''} | {time.monotonic() - before:.2f} | "
          f"{used.ru_utime + used.ru_stime:.2f} | {used.ru_maxrss >> 10} |", flush=True)
    if status != 0:
        sys.exit(f"failed: {command}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shardctl")
    parser.add_argument("--modules", type=int, default=20_000)
    parser.add_argument("--size", type=float, default=8)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--no-gather", action="store_true", help="do not write the plain weights")
    options = parser.parse_args()
    rows = max(1, int(options.size * (1 << 31)) // (COLUMNS * options.modules))
    group = Group(options.limit) if options.limit else None
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model, out = Path(folder) / "model", Path(folder) / "out"
        model.mkdir()
        make(model, options.modules, rows)
        print(f"{options.modules} modules of {rows} x {COLUMNS}\n\n| verb | s | cpu s | MiB |\n|---|--:|--:|--:|")
        run([options.shardctl, "inspect", model], group)
        run([options.shardctl, "inspect", model, "--dequantize"], group)
        run([options.shardctl, "digest", model, "--dequantize"], group)
        if not options.no_gather:
            run([options.shardctl, "gather", model, "--dequantize", "--no-fsync", "-q", "-o", out], group)
    if group:
        group.remove()


if __name__ == "__main__":
    main()
