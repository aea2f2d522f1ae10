"""Every writing verb writes the same bytes to an object store as to a disk. If any request fails or is never
sent, DST is absent or complete; a killed run is continued with --resume. With the word "all", every request fails in turn."""
import concurrent.futures
import filecmp
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile

import client
import server
from client import safetensors_files
from server import Fault

PART = 8 << 20
STEP = 1 if "all" in sys.argv[1:] else 4  # Distance of the requests that fail, or before which the process is killed.


def write_safetensors(path, sizes, seed=0):
    """A file of tensors with so many random bytes."""
    source = random.Random(seed)
    safetensors_files.write(path, {name: ("U8", [size]) for name, size in sizes.items()}, iter(lambda: source.randbytes(1 << 20), b""))


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
        write_safetensors(self.work / "big.safetensors", {"a": PART + 77, "b": 5, "c": PART // 2, "d": PART - 1})
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
    check_formats(w)
    # From one bucket to the other, and on several ranks, each of which sends its own files.
    for ranks in ((), ("--local-ranks", "3")):
        for name, source in (("again.safetensors", "big-dcp"), ("again", "parts"), ("again-dcp", "big-dcp")):
            verb = ("reshard", "--ranks", "2") if "dcp" in name else ("gather", "--max-shard-size", "9MB") if name == "again" else ("gather",)
            w.expect_same(f"{len(ranks)}-{name}", verb[0], f"s3://bucket/{source}", *verb[1:], *ranks, "--checksum", "xxh3")


def check_google(w):
    """gs:// with HMAC keys and with a token of OAuth: read, written, killed and continued. Its server copies no ranges."""
    keys = {"GS_ACCESS_KEY_ID": server.KEY_ID, "GS_SECRET_ACCESS_KEY": server.SECRET}
    none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "SHARDCTL_ENDPOINT_URL": w.served.url}
    wanted = w.work / "wanted.safetensors"
    w.tool.expect(0, "gather", "big.safetensors", "-o", wanted)
    for number, google in enumerate((keys, {"GOOGLE_OAUTH_ACCESS_TOKEN": server.GOOGLE_TOKEN})):
        google = {**none, **google}
        name = f"gs://bucket/google{number}"
        w.tool.expect(0, "split", "big.safetensors", "--shards", "2", "-o", name, "--checksum", "xxh3", **google)
        w.tool.expect(0, "verify", name, **google)
        w.tool.expect(5, "split", "big.safetensors", "--shards", "2", "-o", name, **google)
        w.served.reset()
        w.tool.expect(0, "gather", name, "-o", f"{name}.safetensors", **google)
        assert w.served.copied == 0 and w.served.received >= wanted.stat().st_size, (w.served.copied, w.served.received)
        assert not any("x-amz-copy-source" in line for line in w.served.log)
        assert (w.bucket / f"google{number}.safetensors").read_bytes() == wanted.read_bytes()
        w.tool.variables |= {key: value or "" for key, value in google.items()}
        command = ("gather", "big.safetensors", "-o", f"{name}-killed.safetensors")
        w.served.reset()
        w.tool.expect(0, *command)
        first_part = next(i for i, line in enumerate(w.served.log) if "partNumber" in line)
        (w.bucket / f"google{number}-killed.safetensors").unlink()
        kill(w, command, first_part + 1)
        w.tool.expect(0, "repair", f"{name}-killed.safetensors", "--uploads", holds="unfinished upload")
        w.tool.expect(0, *command, "--resume")
        assert (w.bucket / f"google{number}-killed.safetensors").read_bytes() == wanted.read_bytes()
        for key in google:
            w.tool.variables.pop(key, None)
        w.expect_clean()


def check_formats(w):
    """Formats of several files that name one another, and those whose files have sums at their ends."""
    deepspeed, megatron = client.DATA / "deepspeed", client.DATA / "megatron" / "dense_tp2"
    w.expect_same("stage3", "reshard", deepspeed / "stage3", "--ranks", "3", "--checksum", "xxh3")
    w.expect_same("universal", "convert", deepspeed / "stage1", "--to", "deepspeed-universal")
    w.expect_same("core", "reshard", megatron, "--ranks", "3", "--to", "megatron-dist")
    w.expect_same("hub", "reshard", "big.safetensors", "--ranks", "2", "--to", "dcp-hf")
    w.expect_same("whole.h5", "convert", "big.safetensors", "--checksum", "xxh3")
    w.expect_same("ranks", "split", "big.safetensors", "--ranks", "2", "--to", "hdf5")
    for name in ("stage3", "core", "whole.h5", "ranks"):
        w.tool.expect(0, "verify", f"s3://bucket/{name}")


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
    w.served.reset(Fault("PUT", "400", times=99, value="BadDigest"))
    w.tool.expect(6, *small, holds="BadDigest")
    for code in ("RequestTimeout", "BadDigest"):
        for match in ("PUT", "PUT .*partNumber", "POST .*uploadId"):
            w.served.reset(Fault(match, "400", times=2, value=code))
            w.tool.expect(0, "convert", "middle.safetensors", "-o", "s3://bucket/x.safetensors")
            assert w.served.faults[0].times == 0, (code, match)
            w.tool.expect(0, "diff", "s3://bucket/x.safetensors", "middle.safetensors")
            w.clear()
    w.served.reset(Fault("PUT", "other_checksum", times=99))
    w.tool.expect(6, *small, holds="received different bytes")
    w.served.reset()
    assert not tree(w.bucket), tree(w.bucket)
    w.tool.expect(0, *small)
    w.tool.expect(5, *small, holds=("already exists", "--force"))
    w.tool.expect(5, *small, "--dry-run", holds="already exists")
    w.tool.expect(0, *small, "--force")
    # Bodies that leave this machine without TLS are hashed: here, to a host behind a proxy.
    assert w.served.hashed == 0
    w.tool.expect(0, *small, "--force", "--endpoint-url", "http://store.example", http_proxy=w.served.url)
    assert w.served.hashed >= (w.work / "small.safetensors").stat().st_size
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
    w.tool.expect(2, "repair", "s3://bucket/x", "-o", "y", "--uploads", holds="and no -o")
    w.tool.expect(2, "repair", "s3://bucket/", "--uploads", holds="cannot list uploads: the URL is a whole bucket")
    w.served.reset(Fault("uploads", "403"))
    w.tool.expect(3, "repair", "s3://bucket/x", "--uploads", holds=("the server refuses access", "may read the bucket"))
    w.served.reset()
    w.expect_clean()
    w.clear()


def check_copies(w):
    """Between places of one server, whole runs of at least 5 MiB do not pass through the client."""
    source = w.bucket / "the source + é"
    sizes = {f"{first}{i}": 6 << 20 for first in "ab" for i in range(4)}
    write_safetensors(w.work / "whole.safetensors", sizes)
    w.tool.expect(0, "gather", "whole.safetensors", "--max-shard-size", "26MB", "-o", source)  # One file of each letter.
    whole, wanted = sum(sizes.values()), w.work / "wanted.safetensors"
    w.tool.expect(0, "gather", source, "-o", wanted)

    def gather(name, *options, code=0, **how):
        """Runs the command; returns the bytes that the client received, sent, and had the server copy."""
        faults = how.pop("faults", ())
        w.served.reset(*faults)
        done = w.tool.expect(code, "gather", f"s3://bucket/{source.name}", "-o", f"s3://bucket/{name}", *options, **how)
        counts = w.served.sent, w.served.received, w.served.copied
        if code == 0:
            there = w.bucket / name
            assert filecmp.cmp(wanted, there, shallow=False), (name, done)
            there.unlink()
        w.expect_clean()
        return counts, done

    plan = json.loads(w.tool.expect(0, "gather", f"s3://bucket/{source.name}", "-o", "s3://bucket/a.safetensors", "--json", "--dry-run").stdout)
    (received, sent, copied), done = gather("a.safetensors", "--json")
    assert copied >= whole - server.LEAST_PART and sent < 1.05 * server.LEAST_PART, (copied, sent)
    assert received < 2 * server.LEAST_PART, (received, whole)
    assert json.loads(done.stdout)["bytes_cloned"] == copied == plan["bytes_to_clone"], (done, plan)
    # Bytes that must be hashed are read, but most of them are not sent.
    (received, sent, copied), _ = gather("b.safetensors", "--checksum", "xxh3")
    (w.bucket / "b.safetensors.manifest.json").unlink()
    assert received >= whole and copied >= whole / 2 and sent < whole - copied + 10000, (received, sent, copied)
    # A server that cannot copy.
    for kind in ("501", "400"):
        counts, _ = gather("c.safetensors", "--connections", "1", faults=[Fault("PUT .*partNumber", kind)])
        assert counts[2] == 0 and counts[1] >= whole, (kind, counts)
    # A source that changes: the server compares its ETag.
    changed = max(source.glob("*.safetensors"))
    gather("e.safetensors", code=4, faults=[Fault("PUT .*partNumber", "touch", value=str(changed))], holds="changed while it was being read")


def check_copies_with_checksums(w):
    """Formats with checksums inside take those of the source. Bytes without one are read, but not all of them are sent."""
    tensors = {"a": 24 << 20, "b": 16 << 20}
    whole, large = sum(tensors.values()), w.work / "large.safetensors"
    write_safetensors(large, tensors)
    shutil.copy(large, w.bucket / "large.safetensors")
    w.tool.expect(0, "gather", large, "-o", w.bucket / "large.pt")
    w.tool.expect(0, "gather", large, "-o", w.work / "out.pt")  # The archive contains its name.
    w.tool.expect(0, "reshard", large, "-o", w.bucket / "large-dcp", "--to", "dcp", "--ranks", "2")
    w.tool.expect(0, "reshard", large, "-o", w.work / "wanted-dcp", "--to", "dcp", "--ranks", "1")
    for source, target, least, is_read in (("large.pt", "out.pt", 28 << 20, False), ("large-dcp", "out.pt", 26 << 20, False),
                                           ("large.safetensors", "out.pt", 24 << 20, True), ("large.pt", "out-dcp", 20 << 20, False)):
        verb = ("reshard", f"s3://bucket/{source}", "-o", f"s3://bucket/{target}", *(("--to", "dcp", "--ranks", "1") if target == "out-dcp" else ()))
        verb = ("gather", *verb[1:]) if target == "out.pt" else verb
        planned = json.loads(w.tool.expect(0, *verb, "--json", "--dry-run").stdout)["bytes_to_clone"]
        w.served.reset()
        cloned = json.loads(w.tool.expect(0, *verb, "--json").stdout)["bytes_cloned"]
        assert w.served.copied >= least and w.served.received <= whole - w.served.copied + 100000, (source, target, w.served.copied, w.served.received)
        assert cloned == planned == (0 if is_read else w.served.copied), (source, target, cloned, planned)
        assert (w.served.sent >= whole) if is_read else (w.served.sent < whole - least + (8 << 20)), (source, target, w.served.sent)
        there = w.bucket / target
        assert tree(there) == tree(w.work / ("wanted-dcp" if target == "out-dcp" else target)), (source, target)
        w.tool.expect(0, "verify", f"s3://bucket/{target}")
        shutil.rmtree(there) if there.is_dir() else there.unlink()


def check_shared(w):
    """Ranks share one large file: each sends parts of it. A killed run is continued by a different number of ranks."""
    tensors = {f"t{i}": (5 << 20) + i * 4000 for i in range(6)}
    large = w.work / "shared.safetensors"
    write_safetensors(large, tensors)
    for name, options in (("out.safetensors", ()), ("out.pt", ()), ("out.safetensors", ("--checksum", "xxh3")), ("out.h5", ())):
        wanted = w.work / name
        w.tool.expect(0, "gather", large, "-o", wanted, "--force", *options)
        w.served.reset()
        w.tool.expect(0, "gather", large, "-o", f"s3://bucket/{name}", "--local-ranks", "3", *options)
        parts = [line for line in w.served.log if "partNumber" in line]
        assert len(parts) == len(set(parts)) == -(-wanted.stat().st_size // (8 << 20)), parts
        assert filecmp.cmp(wanted, w.bucket / name, shallow=False), name
        w.tool.expect(0, "verify", f"s3://bucket/{name}")
        w.clear()
    command = ("gather", large, "-o", "s3://bucket/out.pt")
    kill(w, (*command, "--local-ranks", "3"), next(i for i, line in enumerate(shared_log(w, command)) if "partNumber=3" in line) + 1)
    assert not (w.bucket / "out.pt").exists()
    w.served.reset()
    w.tool.expect(0, *command, "--resume", "--local-ranks", "2")
    assert filecmp.cmp(w.work / "out.pt", w.bucket / "out.pt", shallow=False)
    w.expect_clean()


def shared_log(w, command):
    """The requests of a whole run."""
    w.served.reset()
    w.tool.expect(0, *command, "--local-ranks", "3")
    log = list(w.served.log)
    w.clear()
    return log


COMMANDS = {"folder": ("split", "middle.safetensors", "--shards", "2", "-o", "s3://bucket/out"),
            "file": ("gather", "ckpt", "-o", "s3://bucket/out.pt")}


def check_faults(w):
    """Requests fail once: so that it passes, or for good. The unit tests do this for each (object_output_test.cpp)."""
    for command, kinds in ((COMMANDS["folder"], ("lost", "inner_error", "403")), (COMMANDS["file"], ("503", "drop"))):
        w.clear()
        w.tool.expect(0, *command)
        wanted, requests = tree(w.bucket), list(w.served.log)
        for kind, after in ((kind, after) for kind in kinds for after in range(0, len(requests), STEP)):
            if kind == "inner_error" and "POST" not in requests[after]:
                continue
            w.clear()
            w.served.reset(Fault(".", kind, after=after))
            done = w.tool.run(*command)
            assert done.returncode == 0 or (kind == "403" and done.returncode == 6), (kind, after, done)
            there = tree(w.bucket)
            if kind == "403" and done.returncode == 0 and "/out.shardctl" in there:
                assert "could not be removed" in done.stderr, done
                del there["/out.shardctl"]
            assert there == (wanted if done.returncode == 0 else {}), (kind, after, sorted(there))
            assert not w.served.uploads, (kind, after, w.served.uploads)


def check_kills(w):
    """The process is killed before a request. The marker is absent or all is complete; --resume completes it."""
    command, marker = COMMANDS["folder"], "/out/model.safetensors.index.json"
    w.tool.expect(0, *command)
    wanted, requests, fewest = tree(w.bucket), len(w.served.log), w.served.received
    first_part = next(i for i, line in enumerate(w.served.log) if "partNumber" in line)
    sent, refused = fewest, 0
    for at in range(STEP // 2, requests, STEP):
        w.clear()
        kill(w, command, at)
        there = tree(w.bucket)
        assert marker not in there or all(there.get(each) == wanted[each] for each in wanted), (at, sorted(there))
        if there == wanted:
            continue
        if "/out.shardctl" in there and not refused:
            w.tool.expect(5, *command, holds="--force")
            refused += 1
        w.served.reset()
        w.tool.expect(0, *command, "--resume")
        fewest = min(fewest, w.served.received)
        assert tree(w.bucket) == wanted, at
        w.expect_clean()
    assert fewest < sent, "the parts of the killed run were sent again"
    w.clear()
    kill(w, command, first_part + 1)
    w.tool.expect(0, "repair", "s3://bucket/out", "--uploads", holds=("unfinished upload", "the lock of a run"))
    listed = json.loads(w.tool.expect(0, "repair", "s3://bucket/out", "--uploads", "--json").stdout)
    assert len(listed["uploads"]) == len(w.served.uploads) > 0 and listed["locked"] and not listed["removed"], listed
    assert json.loads(w.tool.expect(0, "repair", "s3://bucket/out", "--uploads", "--json", "--force").stdout)["removed"]
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


def run(check):
    """Runs one check with a server of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with server.Server(folder) as served:
            check(Writing(served, folder))


def main():
    # They wait more than they compute, so all run at one time.
    checks = (check_verbs, check_google, check_codes, check_copies, check_copies_with_checksums, check_shared, check_faults, check_kills)
    with concurrent.futures.ProcessPoolExecutor(len(checks)) as pool:
        for done in [pool.submit(run, check) for check in checks]:
            done.result()


if __name__ == "__main__":
    main()
