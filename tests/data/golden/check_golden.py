#!/usr/bin/env python3
"""Compares the content of the golden files as shardctl reads it with the record of the torch that wrote them.

Usage: SHARDCTL=PROGRAM check_golden.py [--format FORMAT] [VERSION...]

FORMAT: torch, dcp, dcp-hf or torch-ranks (default all). Python's standard library only.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIMPLE = ("NoneType", "bool", "int", "float", "str")


def shardctl(verb, path, *options):
    """The JSON document of a verb, or the error's lines as text."""
    command = [os.environ["SHARDCTL"], verb, str(path), "--json", "-j", "1", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return f"{verb} ended with {done.returncode}: " + " ".join(done.stderr.split())
    return json.loads(done.stdout)


def differences(what, expected, found):
    """Entries of one list that the other lacks; both may contain a name once per rank."""
    missing = collections.Counter(expected) - collections.Counter(found)
    extra = collections.Counter(found) - collections.Counter(expected)
    return [f"{what} expected {entry}" for entry in sorted(missing, key=str)] + [
        f"{what} found    {entry}" for entry in sorted(extra, key=str)
    ]


def keys(entries, *fields):
    return [json.dumps([entry.get(field) for field in fields]) for entry in entries]


def check_inspect(path, entry, content):
    found = shardctl("inspect", path)
    if isinstance(found, str):
        return [found]
    mismatches = [] if found["format"] == entry["format"] else [f"format is {found['format']}, not {entry['format']}"]
    fields = ("name", "rank", "dtype", "shape")
    mismatches += differences("tensor", keys(content["tensors"], *fields), keys(found["tensors"], *fields))
    simple = [value for value in found["objects"] if value["type"] in SIMPLE]
    fields = ("name", "rank", "type", "value")
    return mismatches + differences("object", keys(content["objects"], *fields), keys(simple, *fields))


def checkpoint_digest(tensors):
    """The digest of a checkpoint by its definition: one line a tensor, sorted by name."""
    lines = (f"{t['name']}\t{t['dtype']}\t{','.join(map(str, t['shape']))}\t{t['sha256']}\n".encode() for t in tensors)
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def check_digest(path, content):
    """Also the checkpoint's own digest, which same models have in common."""
    found = shardctl("digest", path, "--algorithm", "sha256")
    if isinstance(found, str):
        return [found], None
    tensors = content["tensors"]
    fields = ("name", "dtype", "shape")
    mismatches = differences("digest", keys(tensors, *fields, "sha256"), keys(found["tensors"], *fields, "digest"))
    if not any("rank" in t for t in tensors) and found["checkpoint"] != checkpoint_digest(tensors):
        mismatches.append(f"checkpoint digest {found['checkpoint']}, by definition {checkpoint_digest(tensors)}")
    return mismatches, found["checkpoint"]


def check(path, entry, content):
    mismatches, checkpoint = check_digest(path, content)
    return check_inspect(path, entry, content) + mismatches, checkpoint


def collect(versions, form):
    """(path, entry, content) of the wanted checkpoints."""
    for version in versions:
        expected = json.loads((HERE / version / "expected.json").read_text())
        for name, entry in expected["checkpoints"].items():
            if form in (None, entry.get("group", entry["format"])):
                yield HERE / version / name, entry, expected["contents"][entry["content"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=("torch", "dcp", "dcp-hf", "torch-ranks"))
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    arguments = parser.parse_args()
    versions = arguments.versions or sorted(path.parent.name for path in HERE.glob("*/expected.json"))
    work = list(collect(versions, arguments.format))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda item: check(*item), work))
    same = collections.Counter(digest for (_, entry, _), (_, digest) in zip(work, results) if entry.get("same_model"))
    common = same.most_common(1)[0][0] if same else None
    wrong = 0
    for (path, entry, _), (mismatches, digest) in zip(work, results):
        if entry.get("same_model") and digest != common:
            mismatches.append(f"checkpoint digest of the common model is {digest}, elsewhere {common}")
        wrong += bool(mismatches)
        for mismatch in mismatches:
            print(f"{path.relative_to(HERE)}: {mismatch}")
    print(
        f"{len(work)} checkpoints of {len(versions)} versions, {sum(same.values())} of the common model: {wrong} wrong"
    )
    sys.exit(1 if wrong or not work else 0)


if __name__ == "__main__":
    main()
