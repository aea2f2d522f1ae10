"""Times shardctl beside s5cmd and curl on real servers of the loopback, interleaved in random order.

  stores.py SHARDCTL SERVERS [--size MIB] [--runs N] [--folder DIR] [--latency MS] [--connections N]

SERVERS is the folder that scripts/setup clients fills, .venv/stores. One safetensors file of --size MiB is read from and
written to SeaweedFS, read from nginx, and with --latency from an nginx that waits before each answer (real_servers.ECHO), or
else from the server of tests/stores, which takes much of a processor.
Each row is a whole process: the least seconds, its processor time, and its memory, or this program's if that is more.
Nothing is flushed to a disk. The ratio is that of throughputs, to the first row of the same group.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stores"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import safetensors_files  # noqa: E402
import server  # noqa: E402

PIECE = 16 << 20  # Bytes of a tensor.


def write_file(path: Path, mebibytes: int) -> None:
    count = max(1, (mebibytes << 20) // PIECE)
    names = sorted(f"layers.{i}.w" for i in range(count))  # The order in which safetensors writes them.
    block = random.Random(0).randbytes(PIECE)
    safetensors_files.write(path, {name: ("U8", [PIECE]) for name in names}, (bytes([i % 256]) + block[1:] for i in range(count)))


class Rows:
    """Commands by their names, each with an action before it that is not timed."""

    def __init__(self, runs: int, size: int):
        self.runs, self.size, self.rows = runs, size, {}

    def add(self, name: str, command: list, before=lambda: None, variables: dict | None = None) -> None:
        self.rows[name] = ([str(each) for each in command], before, {**os.environ, **(variables or {})})

    def run(self, title: str) -> None:
        """Runs all rows and forgets them."""
        best: dict[str, tuple[float, float, float]] = {}
        for _ in range(self.runs):
            for name in random.sample(list(self.rows), len(self.rows)):
                command, before, variables = self.rows[name]
                before()
                begin = time.monotonic()
                process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                said = process.stderr.read()
                _, status, used = os.wait4(process.pid, 0)
                seconds = time.monotonic() - begin
                assert status == 0, (command, said.decode())
                found = (seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
                best[name] = min(best.get(name, found), found)
        first = best[next(iter(self.rows))][0]
        print(f"\n| {title} | s | MB/s | ratio | processor s | MiB |\n|---|--:|--:|--:|--:|--:|")
        for name in self.rows:
            seconds, processor, memory = best[name]
            print(f"| {name} | {seconds:.2f} | {self.size / seconds / 1e6:.0f} | {first / seconds:.2f} | {processor:.2f} | {memory:.0f} |", flush=True)
        self.rows = {}


def of_seaweedfs(rows: Rows, shardctl: list, work: Path, connections: str) -> None:
    import real_servers

    with real_servers.seaweedfs(work / "seaweedfs") as served:
        real_servers.judge(served.url).create_bucket(Bucket="bucket")
        variables = {"AWS_ACCESS_KEY_ID": server.KEY_ID, "AWS_SECRET_ACCESS_KEY": server.SECRET, "AWS_ENDPOINT_URL": served.url,
                     "AWS_REGION": "us-east-1", "S3_ENDPOINT_URL": served.url, "AWS_EC2_METADATA_DISABLED": "true"}
        s5cmd, there, local, out = [real_servers.S5CMD], "s3://bucket/in.safetensors", work / "in.safetensors", work / "out.safetensors"
        copy = [*s5cmd, "cp", "-c", connections, "-p", "8"]
        remove = [*s5cmd, "rm", "s3://bucket/out.safetensors"]
        subprocess.run([*copy, local, there], check=True, env={**os.environ, **variables}, stdout=subprocess.DEVNULL)

        def clear():
            subprocess.run(remove, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            urllib.request.urlopen(served.vacuum).read()

        convert = [*shardctl, "convert", "-q", "--connections", connections]
        rows.add("s5cmd", [*copy, there, out], lambda: out.unlink(missing_ok=True), variables)
        rows.add("convert", [*convert, there, "-o", out, "--no-fsync"], lambda: out.unlink(missing_ok=True), variables)
        rows.add("digest", [*shardctl, "digest", "-q", "--connections", connections, there], variables=variables)
        rows.run("SeaweedFS to local")
        rows.add("s5cmd", [*copy, local, "s3://bucket/out.safetensors"], clear, variables)
        rows.add("convert", [*convert, local, "-o", "s3://bucket/out.safetensors", "--force"], clear, variables)
        rows.add("convert --checksum, s3 to s3", [*convert, there, "-o", "s3://bucket/out.safetensors", "--checksum", "xxh3", "--force"],
                 clear, variables)
        rows.add("convert in the bucket", [*convert, there, "-o", "s3://bucket/out.safetensors", "--force"], clear, variables)
        rows.run("to SeaweedFS")


def of_files(rows: Rows, shardctl: list, url: str, size: int, work: Path, connections: str, title: str) -> None:
    block, out = 4 << 20, work / "out.safetensors"
    ranges = [word for begin in range(0, size, block) for word in
              ("-r", f"{begin}-{min(size, begin + block) - 1}", "-o", "/dev/null", url, "--next")][:-1]
    options = ["-q", "--connections", connections, "--anonymous"]
    rows.add("curl", ["curl", "-s", "-f", "--parallel", "--parallel-max", connections, *ranges])
    rows.add("digest", [*shardctl, "digest", *options, url])
    rows.add("convert", [*shardctl, "convert", *options, url, "-o", out, "--no-fsync"], lambda: out.unlink(missing_ok=True))
    rows.run(title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shardctl")
    parser.add_argument("servers")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0)
    parser.add_argument("--connections", default="8")
    parser.add_argument("--folder", default="/dev/shm")
    options = parser.parse_args()
    os.environ["SHARD_STORE_SERVERS"] = os.path.abspath(options.servers)
    import real_servers

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        work = Path(name)
        write_file(work / "in.safetensors", options.size)
        size = (work / "in.safetensors").stat().st_size
        rows, shardctl = Rows(options.runs, size), [options.shardctl]
        with real_servers.nginx(work / "nginx") as served:
            os.link(work / "in.safetensors", work / "nginx/files/in.safetensors")
            of_files(rows, shardctl, f"{served.url}/in.safetensors", size, work, options.connections, "nginx")
        if options.latency and real_servers.ECHO.exists():
            with real_servers.nginx(work / "late", options.latency / 1000) as served:
                os.link(work / "in.safetensors", work / "late/files/in.safetensors")
                of_files(rows, shardctl, f"{served.url}/in.safetensors", size, work, options.connections, f"{options.latency:.0f} ms a request")
        elif options.latency:
            (work / "double/web").mkdir(parents=True)
            os.link(work / "in.safetensors", work / "double/web/in.safetensors")
            with server.Server(work / "double") as served:
                served.latency = options.latency / 1000
                of_files(rows, shardctl, f"{served.url}/web/in.safetensors", size, work, options.connections, f"{options.latency:.0f} ms a request")
        of_seaweedfs(rows, shardctl, work, options.connections)


if __name__ == "__main__":
    main()
