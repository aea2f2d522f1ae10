"""Ranks of real launchers and an object store (tests/stores/server.py): the bytes of one process, each part sent once. A
rank that is killed ends all: no checkpoint is visible, and the same command with --resume completes it."""
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path

import harness as h
from failure import GRACE, TIMEOUT, processes

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stores"))
import server  # noqa: E402
from writing import tree, write_safetensors  # noqa: E402

PART = 8 << 20


class Store:
    """The server's bucket, and a folder with the source and the outputs of one process."""

    def __init__(self, served: server.Server, folder: Path):
        self.served, self.bucket, self.work = served, folder / "s3" / "bucket", folder / "work"
        self.bucket.mkdir(parents=True)
        self.work.mkdir()
        self.env = {"AWS_ACCESS_KEY_ID": server.KEY_ID, "AWS_SECRET_ACCESS_KEY": server.SECRET, "AWS_ENDPOINT_URL": served.url,
                    "AWS_EC2_METADATA_DISABLED": "true"}
        write_safetensors(self.work / "model.safetensors", {f"t{i}": (5 << 20) + i * 4000 for i in range(6)})

    def run(self, launch: h.Launch, arguments: list, env: dict[str, str] | None = None) -> h.Result:
        return h.run(launch, arguments, {**self.env, **(env or {})}, self.work)

    def run_named(self, launch: h.Launch, arguments: list) -> h.Result:
        """Runs it with a region for each rank, which its signatures then name."""
        named = h.shell(f"export AWS_REGION=rank-{h.RANK_HERE}; exec")
        return h.Job(launch, [*named, h.SHARDCTL, *arguments], self.env, self.work).wait()

    def senders(self) -> set[str]:
        """The ranks that sent parts."""
        pairs = zip(self.served.log, self.served.authorizations)
        return {re.search(r"/rank-(\d+)/", text)[1] for line, (_, text) in pairs if "partNumber" in line}

    def wanted(self, arguments: list[str], name: str) -> dict[str, bytes]:
        """The files that one process writes to a disk."""
        target = self.work / "wanted" / name
        target.parent.mkdir(exist_ok=True)
        result = self.run(h.alone(), [*arguments, "-o", target, "--force"])
        assert result.code == 0, result.err
        return tree(target)

    def clear(self) -> None:
        for each in self.bucket.iterdir():
            if each.name != "source":
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        self.served.reset()

    def left(self) -> list[str]:
        return [*self.served.uploads, *map(str, self.bucket.rglob("*.shardctl"))]


def sent_parts(log: list[str]) -> list[str]:
    return [line for line in log if "partNumber" in line]


def check_shared(checks: h.Checks, store: Store, launch: h.Launch, ranks: int, name: str, *options: str) -> None:
    """One object from a local file: all ranks send parts of it."""
    arguments = ["gather", "model.safetensors", *options]
    wanted = store.wanted(arguments, name)
    result = store.run_named(launch, [*arguments, "-o", f"s3://bucket/{name}"])
    what = f"gather to {name} {' '.join(options)}, {launch.name}"
    if checks.that(result.code == 0, f"{what}: exit 0", result):
        checks.that(tree(store.bucket / name) == wanted, f"{what}: the bytes of one process", result)
        parts = sent_parts(store.served.log)
        checks.that(len(set(parts)) == len(parts) == -(-len(wanted[""]) // PART), f"{what}: each part is sent once: {parts}")
        checks.that(store.left() == [], f"{what}: left: {store.left()}", result)
        checks.that(store.senders() == set(map(str, range(ranks))), f"{what}: ranks {store.senders()} sent parts", result)
        checks.that(result.err.count("wrote") == 1, f"{what}: told once", result)
    store.clear()


def check_verb(checks: h.Checks, store: Store, launch: h.Launch, name: str, *arguments: str) -> None:
    """From the bucket to a disk and to the bucket, where the server may copy."""
    wanted = store.wanted(list(arguments), name)
    for target, there in (("local", store.work / "local" / name), ("s3://bucket", store.bucket / name)):
        result = store.run(launch, [*arguments, "-o", f"{target}/{name}"])
        what = f"{arguments[0]} s3:// to {target}/{name}, {launch.name}"
        if checks.that(result.code == 0, f"{what}: exit 0", result):
            checks.that(tree(there) == wanted, f"{what}: the bytes of one process", result)
            parts = sent_parts(store.served.log)
            checks.that(len(parts) == len(set(parts)), f"{what}: each part is sent once: {parts}")
            checks.that(store.left() == [], f"{what}: left: {store.left()}", result)
    shutil.rmtree(store.work / "local")
    (store.work / "local").mkdir()
    store.clear()


def process_of(mark: str, rank: int) -> int:
    """The process of a rank, by its environment."""
    for pid, exe in processes(mark).items():
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        if Path(exe).name == "shardctl" and {f"RANK={rank}", f"OMPI_COMM_WORLD_RANK={rank}"} & set(words):
            return pid
    raise RuntimeError(f"rank {rank} does not run")


def check_killed(checks: h.Checks, store: Store, launch: h.Launch, rank: int, after: h.Launch | None) -> None:
    """A rank is killed while parts are sent. \\param after  the launch that continues; None: the uploads are removed."""
    command = ["gather", "model.safetensors", "-o", "s3://bucket/out.pt", "--timeout", str(TIMEOUT)]
    what = f"rank {rank} killed, {launch.name}"
    store.run(launch, command)
    before = next(i for i, line in enumerate(store.served.log) if "partNumber" in line)
    store.clear()
    mark = f"SHARD_TEST_JOB={uuid.uuid4()}"
    killed = []

    def kill() -> None:
        store.served.stops_at = None
        killed.append(time.monotonic())
        os.kill(process_of(mark, rank), signal.SIGKILL)

    store.served.stops_at, store.served.on_stop = before + 2, kill
    job = h.Job(launch, [h.SHARDCTL, *command], {**store.env, **dict([mark.split("=")])}, store.work)
    result = job.wait(60)
    if not checks.that(bool(killed), f"{what}: it came to the parts", result):
        return
    seconds = time.monotonic() - killed[0]
    checks.that(result.code not in (0, 124), f"{what}: fails", result)
    checks.that(seconds < TIMEOUT + GRACE, f"{what}: all end, after {seconds:.1f} s", result)
    checks.that(not processes(mark), f"{what}: a process is left", result)
    checks.that(not (store.bucket / "out.pt").exists(), f"{what}: nothing is visible", result)
    left = len(store.served.uploads)
    print(f"  {what}: exit {result.code} after {seconds:.1f} s, {left} uploads left", flush=True)
    if after is None:
        listed = store.run(h.alone(), ["repair", "s3://bucket/out.pt", "--uploads", "--json"])
        checks.that(listed.code == 0 and len(json.loads(listed.out)["uploads"]) == left, f"{what}: repair lists them", listed)
        removed = store.run(h.alone(), ["repair", "s3://bucket/out.pt", "--uploads", "--force"])
        checks.that(removed.code == 0 and store.left() == [], f"{what}: repair removes them, but {store.left()}", removed)
    else:
        store.served.reset()
        resumed = store.run(after, [*command, "--resume"])
        name = f"{what}, --resume by {after.name}"
        if checks.that(resumed.code == 0, f"{name}: exit 0", resumed):
            checks.that(tree(store.bucket / "out.pt") == store.wanted(["gather", "model.safetensors"], "out.pt"), f"{name}: the bytes", resumed)
            checks.that(store.left() == [], f"{name}: left: {store.left()}", resumed)
    store.clear()


def check_interrupted(checks: h.Checks, store: Store, launch: h.Launch) -> None:
    """A signal to the launcher: the ranks end, and the uploads are removed, if the launcher gives them the time."""
    store.served.latency = 0.2
    job = h.Job(launch, [h.SHARDCTL, "gather", "model.safetensors", "-o", "s3://bucket/out.pt"], store.env, store.work)
    end = time.monotonic() + 60
    while not sent_parts(list(store.served.log)) and time.monotonic() < end:
        time.sleep(0.02)
    job.process.terminate()
    result = job.wait(60)
    store.served.latency = 0.0
    is_there = (store.bucket / "out.pt").exists()
    checks.that(result.code not in (0, 124), f"interrupted, {launch.name}: fails", result)
    checks.that(store.left() == [] and not is_there, f"interrupted, {launch.name}: left: {store.left()}, visible: {is_there}", result)
    store.clear()


def main() -> None:
    h.require_launchers()
    checks = h.Checks()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server.Server(folder) as served:
            store = Store(served, folder)
            (store.work / "local").mkdir()
            made = store.run(h.alone(), ["split", "model.safetensors", "--to", "dcp", "--ranks", "4", "-o", "s3://bucket/source"])
            assert made.code == 0, made.err
            store.served.reset()
            check_shared(checks, store, h.torchrun(3), 3, "out.safetensors")
            check_shared(checks, store, h.torchrun(2), 2, "out.pt", "--checksum", "xxh3")
            check_shared(checks, store, h.mpirun(3, "mpi"), 3, "out.pt")
            check_shared(checks, store, h.mpirun(2, "gloo"), 2, "out.safetensors", "--checksum", "xxh3")
            check_verb(checks, store, h.torchrun(2), "out.safetensors", "gather", "s3://bucket/source")
            check_verb(checks, store, h.mpirun(3, "mpi"), "dcp", "reshard", "s3://bucket/source", "--ranks", "3")
            check_verb(checks, store, h.mpirun(2, "gloo"), "parts", "gather", "s3://bucket/source", "--to", "safetensors", "--shards", "3")
            check_killed(checks, store, h.torchrun(2), 1, h.mpirun(3, "mpi"))
            check_killed(checks, store, h.torchrun(2), 0, h.alone())
            check_killed(checks, store, h.mpirun(2, "mpi"), 1, None)
            check_killed(checks, store, h.mpirun(2, "gloo"), 0, h.torchrun(2))
            check_interrupted(checks, store, h.torchrun(2))
            h.check_nothing_left(checks, store.work)
    checks.end()


if __name__ == "__main__":
    main()
