"""Times HDF5 files against cp and h5py, interleaved in random order in one run. Needs h5py and numpy.

    hdf5.py --shardctl build/release/apps/shardctl/shardctl [--size MiB] [--chunk KiB] [--runs N] [--work FOLDER] [--threads N]

Three files contain the same --size MiB of float32 in 4 matrices: contiguous, in chunks with gzip(1), and in chunks with shuffle
and gzip(1); chunks are square blocks of about --chunk KiB. Each row is a whole process:

  gather contiguous | gzip | shuffle+gzip     shardctl from that file to safetensors
  h5py reads contiguous | gzip | shuffle+gzip each dataset into memory and to a plain file
  gather to h5                                shardctl from safetensors to a contiguous .h5
  h5py writes                                 the same from the mapped safetensors file

`x cp` is the ratio of minima, to cp of the contiguous file: the bytes that every row writes. cp runs twice; if
the two differ by more than 5 % the run is void. Inputs are hot, nothing is fsynced, outputs are removed and the disk is synced
outside the timed region. A row whose first run fails is skipped, with its message.
"""
import argparse
import itertools
import random
import shutil
import statistics
import sys
from pathlib import Path

import h5py
import numpy

from verbs import run, safetensors_files

FILTERS = {"contiguous": {}, "gzip": {"compression": "gzip", "compression_opts": 1},
           "shuffle+gzip": {"compression": "gzip", "compression_opts": 1, "shuffle": True}}
MATRICES = 4

READ = """
import h5py, sys
with h5py.File(sys.argv[1]) as file, open(sys.argv[2], 'wb') as out:
    for name in file: file[name][...].tofile(out)
"""
WRITE = """
import h5py, json, numpy, struct, sys
size, = struct.unpack('<Q', open(sys.argv[1], 'rb').read(8))
header = json.loads(open(sys.argv[1], 'rb').read(8 + size)[8:])
with h5py.File(sys.argv[2], 'w') as file:
    for name, info in header.items():
        file[name] = numpy.memmap(sys.argv[1], '<f4', 'r', 8 + size + info['data_offsets'][0], tuple(info['shape']))
"""


def make_files(work: Path, size: int, chunk: int) -> None:
    """Weights as of a network: normal, small; gzip leaves about nine tenths of them."""
    side = round((size / 4 / MATRICES) ** 0.5 / 64) * 64
    block = max(16, round((chunk / 4) ** 0.5))
    matrix = numpy.random.default_rng(1).standard_normal((side, side), dtype=numpy.float32) * 0.02
    for name, options in FILTERS.items():
        chunks = {} if not options else {"chunks": (min(block, side), min(block, side)), **options}
        with h5py.File(work / f"{name}.h5", "w") as file:
            for i in range(MATRICES):
                file.create_dataset(f"w{i}", data=matrix, **chunks)
    safetensors_files.write(work / "all.safetensors", {f"w{i}": ("F32", matrix.shape) for i in range(MATRICES)},
                            itertools.repeat(matrix.tobytes()))


def contenders(shardctl: Path, work: Path, threads: str) -> dict[str, str]:
    out, options = work / "out", f"-q --no-fsync {threads}"
    cp = f"cp {work}/contiguous.h5 {out}/copy.h5"
    rows = {"cp": cp, "cp (A/A)": cp}
    for name in FILTERS:
        rows[f"gather {name}"] = f"{shardctl} gather {work}/{name}.h5 -o {out}/new.safetensors {options}"
        rows[f"h5py reads {name}"] = f"{sys.executable} {work}/read.py {work}/{name}.h5 {out}/new"
    rows["gather to h5"] = f"{shardctl} gather {work}/all.safetensors -o {out}/new.h5 {options}"
    rows["h5py writes"] = f"{sys.executable} {work}/write.py {work}/all.safetensors {out}/new.h5"
    return rows


def measure(rows: dict[str, str], work: Path, runs: int) -> dict[str, list[dict]]:
    samples: dict[str, list[dict]] = {name: [] for name in rows}
    for _ in range(runs):
        for name in random.sample(list(samples), len(samples)):
            out = work / "out"
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            try:
                samples[name].append(run(rows[name], work, sync=True))
            except SystemExit as failure:
                print(f"left out: {failure}", file=sys.stderr)
                del samples[name]
    shutil.rmtree(work / "out")
    return samples


def print_table(samples: dict[str, list[dict]], size: int) -> None:
    least = {name: min(each["wall"] for each in rows) for name, rows in samples.items()}
    control = least["cp (A/A)"] / least["cp"]
    print(f"{size} MiB, {len(samples['cp'])} runs, A/A {control:.2f}{'' if 0.95 <= control <= 1.05 else ' (VOID)'}\n")
    print("| contender | min s | median s | x cp | CPU s | RSS MiB |\n|---|--:|--:|--:|--:|--:|")
    for name, rows in samples.items():
        print(f"| {name} | {least[name]:.3f} | {statistics.median(each['wall'] for each in rows):.3f} | "
              f"{least[name] / least['cp']:.2f} | {min(each['cpu'] for each in rows):.2f} | "
              f"{max(each['rss'] for each in rows):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardctl", required=True, type=Path)
    parser.add_argument("--size", type=int, default=1024, help="MiB of elements (default 1024)")
    parser.add_argument("--chunk", type=int, default=1024, help="KiB of a chunk (default 1024)")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--threads", type=int, help="of shardctl (default: its own)")
    parser.add_argument("--work", type=Path, default=Path("/tmp/shardctl-hdf5"))
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    make_files(args.work, args.size << 20, args.chunk << 10)
    (args.work / "read.py").write_text(READ)
    (args.work / "write.py").write_text(WRITE)
    threads = "" if args.threads is None else f"-j {args.threads}"
    print_table(measure(contenders(args.shardctl.resolve(), args.work, threads), args.work, args.runs), args.size)
    shutil.rmtree(args.work)


if __name__ == "__main__":
    main()
