"""Every writing verb writes to an object store what it writes to a disk, byte for byte. Whatever request fails or is never
sent, DST is absent or complete; a killed run is continued with --resume."""
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile

import client
import server
from server import Fault

PART = 8 << 20


def write_safetensors(path, sizes, seed=0):
    """A file of tensors with so many random bytes."""
    header, end, source = {}, 0, random.Random(seed)
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + source.randbytes(end))


def tree(path):
    """The files at a path and below it, with their bytes; a single file as "" and its manifest by its suffix."""
    found = {"/" + str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}
    for suffix in ("", ".manifest.json"):
        beside = pathlib.Path(str(path) + suffix)
        if beside.is_file():
            found[suffix] = beside.read_bytes()
    return found


class Writing:
    def __init__(self, served, folder):
        self.served, self.bucket, self.work = served, folder / "s3" / "bucket", folder / "work"
        self.bucket.mkdir(parents=True)
        self.work.mkdir()
        self.tool = client.Client(served, self.work)
        shutil.copytree(client.DATA / "demo" / "ckpt", self.work / "ckpt")
        write_safetensors(self.work / "big.safetensors", {"a": 2 * PART + 77, "b": 5, "c": PART, "d": 3 * PART - 1})
        write_safetensors(self.work / "middle.safetensors", {"a": PART + 77, "b": 5000})
        write_safetensors(self.work / "small.safetensors", {"a": 9, "b": 5})

    def expect_same(self, name, *arguments):
        """Writes locally and to the bucket, and compares."""
        self.tool.expect(0, *arguments, "-o", self.work / "local" / name)
        done = self.tool.expect(0, *arguments, "-o", f"s3://bucket/{name}")
        local, remote = tree(self.work / "local" / name), tree(self.bucket / name)
        assert local and sorted(local) == sorted(remote), (arguments, sorted(local), sorted(remote))
        for each in local:
            assert local[each] == remote[each], f"{arguments}: {each} differs"
        self.expect_clean()
        return done

    def expect_clean(self):
        assert not self.served.uploads, self.served.uploads
        assert not list(self.bucket.rglob("*.shardctl")), "a lock is left"

    def clear(self):
        for each in list(self.bucket.iterdir()):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        for name in list(self.served.uploads):
            shutil.rmtree(os.path.join(self.served.folder, "uploads", name))
        self.served.uploads.clear()
        self.served.reset()


def check_verbs(w):
    (w.work / "local").mkdir()
    w.expect_same("a.safetensors", "gather", "ckpt", "--objects", "drop")
    w.expect_same("a.pt", "gather", "ckpt")
    w.expect_same("big.pt", "convert", "big.safetensors", "--checksum", "sha256")
    w.expect_same("big.safetensors", "convert", "big.safetensors", "--checksum", "xxh3")
    w.expect_same("parts", "gather", "big.safetensors", "--max-shard-size", "9MB", "--checksum", "xxh3")
    w.expect_same("dcp", "reshard", "ckpt", "--ranks", "4")
    w.expect_same("big-dcp", "split", "big.safetensors", "--ranks", "3", "--checksum", "xxh3")
    w.expect_same("files", "convert", "ckpt", "--to", "torch-ranks", "--ranks", "2", "--as", "sharded_tensor")
    w.expect_same("model", "export", "big.safetensors")
    w.expect_same("mended.safetensors", "repair", "big.safetensors")
    w.expect_same("mean.safetensors", "average", "small.safetensors", "small.safetensors", "--dtype", "float32")
    for name in ("a.pt", "big.pt", "parts", "big-dcp"):
        w.tool.expect(0, "verify", f"s3://bucket/{name}")
    # From one bucket to the other, and on several ranks, each of which sends its own files.
    for ranks in ((), ("--local-ranks", "3")):
        for name, source in (("again.safetensors", "big-dcp"), ("again", "parts"), ("again-dcp", "big-dcp")):
            verb = ("reshard", "--ranks", "2") if "dcp" in name else ("gather", "--max-shard-size", "9MB") if name == "again" else ("gather",)
            w.expect_same(f"{len(ranks)}-{name}", verb[0], f"s3://bucket/{source}", *verb[1:], *ranks, "--checksum", "xxh3")
    google = {"GS_ACCESS_KEY_ID": server.KEY_ID, "GS_SECRET_ACCESS_KEY": server.SECRET}
    w.tool.expect(0, "convert", "small.safetensors", "-o", "gs://bucket/google.safetensors", "--endpoint-url", w.served.url, **google)


def check_codes(w):
    small = ("convert", "small.safetensors", "-o", "s3://bucket/x.safetensors")
    w.tool.expect(0, *small, "--dry-run")
    assert not tree(w.bucket) and w.served.received == 0
    w.tool.expect(6, *small, AWS_SECRET_ACCESS_KEY="wrong", holds="SignatureDoesNotMatch")
    w.tool.expect(6, *small, "--anonymous", holds="drop --anonymous")
    w.tool.expect(6, *small[:3], "s3://absent/x.safetensors", holds="no such bucket")
    w.tool.expect(8, *small[:3], "hf://org/x", holds="writing to hf:// is not supported")
    w.tool.expect(2, *small[:3], "s3://bucket", "--to", "safetensors", holds="a whole bucket")
    w.tool.expect(2, *small, "--local-output", holds="--local-output needs a local path")
    w.served.conditions = False
    w.tool.expect(8, *small, holds="does not support conditional writes")
    w.served.conditions = True
    w.served.reset(Fault("PUT", "other_checksum", times=99))
    w.tool.expect(6, *small, holds="received other bytes")
    w.served.reset()
    assert not tree(w.bucket), tree(w.bucket)
    w.tool.expect(0, *small)
    w.tool.expect(5, *small, holds=("already exists", "--force"))
    w.tool.expect(5, *small, "--dry-run", holds="already exists")
    w.tool.expect(0, *small, "--force")
    w.tool.expect(5, "convert", "s3://bucket/x.safetensors", "-o", "s3://bucket/x.safetensors", "--force", holds="is the source")
    w.tool.expect(0, "reshard", "ckpt", "-o", "s3://bucket/dcp", "--ranks", "2")
    w.tool.expect(0, "reshard", "ckpt", "-o", "s3://bucket/dcp", "--ranks", "1", "--force", holds=".metadata is removed first")
    assert not (w.bucket / "dcp" / "__1_0.distcp").exists()
    w.tool.expect(0, "gather", "ckpt", "-o", "s3://bucket/c.pt", "--if-changed")
    w.tool.expect(0, "gather", "ckpt", "-o", "s3://bucket/c.pt", "--if-changed", holds="up to date")
    (w.bucket / "y.safetensors.shardctl").write_text("another")
    w.tool.expect(5, *small[:3], "s3://bucket/y.safetensors", holds=("another run is writing there", "--force"))
    w.tool.expect(0, *small[:3], "s3://bucket/y.safetensors", "--force")
    w.tool.expect(2, "repair", "ckpt", "--uploads", holds="--uploads needs one URL")
    w.expect_clean()
    w.clear()


COMMANDS = {"folder": ("split", "middle.safetensors", "--shards", "2", "-o", "s3://bucket/out"),
            "file": ("gather", "ckpt", "-o", "s3://bucket/out.pt")}


def check_faults(w):
    """Each request fails once, so that it passes or for good."""
    for command in COMMANDS.values():
        w.clear()
        w.tool.expect(0, *command)
        wanted, requests = tree(w.bucket), len(w.served.log)
        for kind in ("lost", "drop", "503", "inner_error"):
            for after in range(requests):
                if kind == "inner_error" and "POST" not in w.served.log[-requests + after]:
                    continue
                w.clear()
                w.served.reset(Fault(".", kind, after=after))
                w.tool.expect(0, *command)
                assert tree(w.bucket) == wanted, (kind, after, sorted(tree(w.bucket)))
                w.expect_clean()
        for after in range(requests):
            w.clear()
            w.served.reset(Fault(".", "403", after=after))
            done = w.tool.run(*command)
            assert done.returncode in (0, 6), (after, done)
            assert tree(w.bucket) == (wanted if done.returncode == 0 else {}) or list(w.bucket.glob("*.shardctl")), after
            assert "Traceback" not in done.stderr and (done.returncode == 0 or not w.served.uploads), (after, w.served.uploads)


def check_kills(w):
    """The process is killed before each request. The marker is absent or all is complete; --resume completes it."""
    for command, marker in ((COMMANDS["folder"], "/out/model.safetensors.index.json"), (COMMANDS["file"], "/out.pt")):
        w.clear()
        w.tool.expect(0, *command)
        wanted, requests, sent = tree(w.bucket), len(w.served.log), w.served.received
        fewest = sent
        for at in range(requests):
            w.clear()
            kill(w, command, at)
            there = tree(w.bucket)
            assert marker not in there or all(there.get(each) == wanted[each] for each in wanted), (at, sorted(there))
            if there == wanted:
                continue
            if any(each.endswith(".shardctl") for each in there):
                w.tool.expect(5, *command, holds="--force")
            w.served.reset()
            w.tool.expect(0, *command, "--resume")
            fewest = min(fewest, w.served.received)
            assert tree(w.bucket) == wanted, at
            w.expect_clean()
        assert fewest < sent or sent < PART, "the parts of the killed run were sent again"
    w.clear()
    kill(w, COMMANDS["folder"], 12)
    w.tool.expect(0, "repair", "s3://bucket/out", "--uploads", holds=("unfinished upload", "the lock of a run"))
    assert w.served.uploads
    w.tool.expect(0, "repair", "s3://bucket/out", "--uploads", "--force")
    w.expect_clean()


def kill(w, command, at):
    """Runs a command until the server receives that request."""
    w.served.reset()
    process = subprocess.Popen([client.SHARDCTL, *command], cwd=w.work, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={"PATH": os.environ["PATH"], "HOME": str(w.work), **w.tool.variables})
    w.served.on_stop = lambda: os.kill(process.pid, signal.SIGKILL)
    w.served.stops_at = at
    process.wait(60)
    w.served.stops_at = None
    assert process.returncode == -signal.SIGKILL, (at, process.returncode)


def main():
    for check in (check_verbs, check_codes, check_faults, check_kills):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            with server.Server(folder) as served:
                check(Writing(served, folder))


if __name__ == "__main__":
    main()
