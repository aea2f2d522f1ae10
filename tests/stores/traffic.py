"""Counts the requests, round trips and bytes of the verbs at an object store (server.py), and holds the numbers that
docs/stores.md promises. With the word "table", prints them for every verb, source format and direction, as in
tests/RESULTS.md: tensors of 6 MiB, 48 MiB in all."""
import json
import pathlib
import random
import shutil
import sys
import tempfile

import client
import server
from client import safetensors_files
from reading import write_safetensors

LATENCY_S = 0.1  # A round trip is counted by the time between requests.
MEBIBYTE = 1 << 20
SHAPE = [1536, 1024]  # Numbers of float32, 6 MiB.
COUNT = 8
FINITE = bytes(i % 64 for i in range(256))  # Makes random bytes finite numbers.


class Traffic:
    """Runs commands beside the server, and counts their requests and bytes."""

    def __init__(self, served, folder):
        self.served, self.bucket, self.work = served, folder / "s3" / "bucket", folder / "work"
        self.bucket.mkdir(parents=True)
        self.work.mkdir()
        self.tool = client.Client(served, self.work)

    def count(self, *arguments, code=0, latency=LATENCY_S):
        """Runs a command. \\returns requests, round trips, and the bytes that it received, sent, and had the server copy"""
        self.served.latency = latency
        self.served.reset()
        done = self.tool.expect(code, *arguments)
        counts = {"requests": len(self.served.log), "trips": self.served.round_trips(), "received": self.served.sent,
                  "sent": self.served.received, "copied": self.served.copied, "log": list(self.served.log)}
        self.served.latency = 0.0
        return counts, done


def make_sources(t):
    """One model as a safetensors folder, as DCP of 64 ranks and as .pt: on the disk and in the bucket."""
    chance = random.Random(0)
    safetensors_files.write(t.work / "model.safetensors", {f"layers.{i}.w": ("F32", SHAPE) for i in range(COUNT)},
                            iter(lambda: chance.randbytes(MEBIBYTE).translate(FINITE), b""))
    t.tool.expect(0, "gather", "model.safetensors", "-o", "folder", "--max-shard-size", "13MB")
    t.tool.expect(0, "split", "model.safetensors", "-o", "dcp", "--ranks", "64", "--to", "dcp")
    t.tool.expect(0, "convert", "model.safetensors", "-o", "model.pt")
    for name in ("folder", "dcp"):
        shutil.copytree(t.work / name, t.bucket / name)
    shutil.copy(t.work / "model.pt", t.bucket / "model.pt")
    (t.work / "map.json").write_text(json.dumps({"schema": "shardctl.layout/1", "types": {"x": ".+"},
                                                 "rules": [{"logical": "a.{x}", "stored": "layers.{x}"}]}))


# ---- The numbers that are promised.

def check_inspect(t):
    """A checkpoint of 64 ranks: one listing and two ranges, one after the other."""
    counts, _ = t.count("inspect", "s3://bucket/dcp")
    kinds = sorted("list" if "list-type" in line else line.split()[1].rsplit("/")[-1] for line in counts["log"])
    assert counts["requests"] <= 3 and kinds.count("list") == 1, counts["log"]
    assert all("bytes=" in line for line in counts["log"] if "list-type" not in line), counts["log"]
    assert counts["received"] < MEBIBYTE, counts
    print(f"inspect of DCP of 64 ranks: {counts['requests']} requests, {counts['trips']} round trips, {counts['received']} bytes")


def check_tiny_tensors(t):
    """300 tensors in 4 files: at most 8 requests."""
    write_safetensors(t.work / "small.safetensors", {f"layers.{i}.w": 256 for i in range(300)})
    t.tool.expect(0, "reshard", "small.safetensors", "-o", t.bucket / "small", "--ranks", "4", "--to", "dcp")
    counts, _ = t.count("gather", "s3://bucket/small", "-o", "tiny.safetensors")
    assert counts["requests"] <= 8, counts["log"]
    print(f"gather of 300 small tensors: {counts['requests']} requests, {counts['trips']} round trips")


def check_pieces(t):
    """One tensor of 64 ranks: its pieces are read at one time, not one after the other."""
    safetensors_files.write(t.work / "one.safetensors", {"w": ("F32", [4096, 1024])},
                            [random.Random(1).randbytes(16 * MEBIBYTE).translate(FINITE)])
    t.tool.expect(0, "split", "one.safetensors", "-o", t.bucket / "pieces", "--ranks", "64", "--to", "dcp")
    counts, _ = t.count("cat", "s3://bucket/pieces", "w", "--max-memory", "16MiB")  # Too little to read the files whole.
    assert counts["trips"] <= 40, counts["log"]
    print(f"cat of a tensor of 64 ranks: {counts['requests']} requests, {counts['trips']} round trips")


def check_copies(t):
    """Merging in the bucket: the plan for 1 GiB passes less than 1 % through the client, and such plans are kept."""
    sizes = {f"layers.{i}.w": 16 * MEBIBYTE for i in range(64)}
    write_safetensors(t.bucket / "whole" / "model.safetensors", sizes)
    plan = json.loads(t.tool.expect(0, "gather", "s3://bucket/whole", "-o", "s3://bucket/out.safetensors", "--dry-run", "--json").stdout)
    passed = sum(sizes.values()) - plan["bytes_to_clone"]
    assert passed < 0.01 * sum(sizes.values()), plan
    shutil.rmtree(t.bucket / "whole")
    counts, done = t.count("gather", "s3://bucket/folder", "-o", "s3://bucket/out.safetensors", "--json", latency=0)
    assert counts["copied"] == json.loads(done.stdout)["bytes_cloned"], (counts, done)
    whole = COUNT * 4 * SHAPE[0] * SHAPE[1]
    assert counts["sent"] + counts["copied"] < whole + 10000 and counts["sent"] < server.LEAST_PART + 10000, counts
    print(f"gather in the bucket: plan for 1 GiB passes {passed} bytes; 48 MiB: {counts['sent']} sent, {counts['copied']} copied")
    (t.bucket / "out.safetensors").unlink()


def check_streams(t):
    """Every second tensor is converted, and read in blocks. The blocks ahead do not reach into tensors that are copied unchanged."""
    shapes = {f"layers.{i}.{'copied' if i % 2 else 'cast'}": ("F32", [4096, 1024]) for i in range(16)}
    safetensors_files.write(t.bucket / "mixed.safetensors", shapes)
    whole = (t.bucket / "mixed.safetensors").stat().st_size
    counts, _ = t.count("convert", "s3://bucket/mixed.safetensors", "-o", "mixed.safetensors", "--cast", "**.cast=bfloat16", latency=0)
    assert counts["received"] < 1.2 * whole, counts
    print(f"convert of every second tensor: {counts['received'] / whole:.3f} of the bytes")


# ---- The table.

READS = {"inspect": (), "cat": ("layers.3.w",), "digest": (), "verify": (), "diff": ("model.safetensors",)}
WRITES = {  # The verb with its options, and the end of the destination's name.
    "gather": (("gather",), ".safetensors"),
    "gather to .pt": (("gather",), ".pt"),
    "split, 4 files": (("split", "--shards", "4"), ""),
    "reshard, 4 ranks": (("reshard", "--ranks", "4", "--to", "dcp"), ""),
    "convert with a map": (("convert", "--map", "map.json"), ".safetensors"),
    "convert to bfloat16": (("convert", "--cast", "**=bfloat16"), ".safetensors"),
    "export": (("export",), ""),
    "average": (("average", "model.safetensors"), ".safetensors"),
}
SOURCES = {"safetensors, 4 files": "folder", "DCP, 64 ranks": "dcp", ".pt": "model.pt"}


def cell(counts):
    sizes = "/".join(f"{counts[each] / MEBIBYTE:.1f}" for each in ("received", "sent", "copied"))
    return f"{counts['requests']}, {counts['trips']}; {sizes}"


def print_table(t):
    print("\n| verb | source | from the store | to the store | from a bucket to itself |\n|---|---|--:|--:|--:|")
    for verb, rest in READS.items():
        for title, source in SOURCES.items():
            counts, _ = t.count(verb, f"s3://bucket/{source}", *rest)
            print(f"| {verb} | {title} | {cell(counts)} | | |", flush=True)
    for title_of_verb, (words, end) in WRITES.items():
        for title, source in SOURCES.items():
            cells = []
            for of, to in ((f"s3://bucket/{source}", f"local/out{end}"), (source, f"s3://bucket/out{end}"), (f"s3://bucket/{source}", f"s3://bucket/out{end}")):
                counts, _ = t.count(words[0], of, *words[1:], "-o", to)
                cells.append(cell(counts))
                for made in (t.work / f"local/out{end}", t.bucket / f"out{end}"):
                    if made.exists():
                        shutil.rmtree(made) if made.is_dir() else made.unlink()
            print(f"| {title_of_verb} | {title} | {' | '.join(cells)} |", flush=True)
    for count in (1, 100):
        leave_uploads(t, count)
        for words, what in (((), "lists"), (("--force",), "removes")):
            counts, _ = t.count("repair", "s3://bucket/left", "--uploads", *words)
            print(f"| repair --uploads | {what} {count} uploads | | {cell(counts)} | |", flush=True)


def leave_uploads(t, count):
    for i in range(count):
        name = f"left-{i}"
        t.served.uploads[name] = {"bucket": "bucket", "key": f"left/{i}", "run": ""}
        (pathlib.Path(t.served.folder) / "uploads" / name).mkdir(parents=True)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with server.Server(folder) as served:
            t = Traffic(served, folder)
            make_sources(t)
            check_inspect(t)
            check_tiny_tensors(t)
            check_pieces(t)
            check_copies(t)
            check_streams(t)
            if "table" in sys.argv[1:]:
                (t.work / "local").mkdir()
                print_table(t)


if __name__ == "__main__":
    main()
