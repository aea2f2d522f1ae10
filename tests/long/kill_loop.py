"""Kills shardctl at random moments: the destination must be the old checkpoint, the new one, or (without an old) absent.

    kill_loop.py SHARDCTL [ROUNDS]

Each round runs `split --ranks` of a 64 MiB file, sometimes over an existing destination with --force, and sends SIGKILL,
SIGTERM or SIGINT after a random delay. Afterwards the destination's digest is compared, and a further run without a kill
must succeed and leave no temporary sibling behind. Prints how often each end was seen.
"""
import collections
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def write_safetensors(path: Path, seed: int, tensors: int, size: int) -> None:
    block = random.Random(seed).randbytes(size)
    header = {f"w{i}": {"dtype": "U8", "shape": [size // 64, 64], "data_offsets": [i * size, (i + 1) * size]} for i in range(tensors)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + block * tensors)


def main() -> None:
    tool, rounds = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(os.environ.get("SHARD_SEED", time.time_ns()))
    print(f"SHARD_SEED={seed}")
    chance = random.Random(seed)
    seen: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        digests = {}
        for name in "old", "new":
            write_safetensors(work / f"{name}.safetensors", len(name) + ord(name[0]), 32, 2 << 20)

        def digest(path: Path) -> str:
            done = subprocess.run([tool, "digest", "--json", path], capture_output=True, check=True)
            return json.loads(done.stdout)["checkpoint"]

        digests = {name: digest(work / f"{name}.safetensors") for name in ("old", "new")}
        destination = work / "out" / "dst"
        destination.parent.mkdir()

        def split(name: str, *options: str) -> list[str]:
            return [tool, "split", str(work / f"{name}.safetensors"), "-o", str(destination), "--ranks", "3", "-q", *options]

        start = time.perf_counter()
        subprocess.run(split("old"), check=True)
        whole = time.perf_counter() - start
        for _ in range(rounds):
            with_old = chance.random() < 0.5
            subprocess.run(["rm", "-rf", destination], check=True)
            if with_old:
                subprocess.run(split("old"), check=True)
            how = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
            process = subprocess.Popen(split("new", *(["--force"] if with_old else [])), stderr=subprocess.DEVNULL)
            time.sleep(chance.random() * whole * 1.2)
            process.send_signal(how)
            code = process.wait()
            found = digest(destination) if destination.exists() else None
            end = {digests["old"]: "old", digests["new"]: "new", None: "absent"}[found]
            assert end in (("old", "new") if with_old else ("absent", "new")), (end, with_old)
            assert end == "new" or code != 0, f"exit {code} but the destination is {end}"
            # A signal that comes before main has begun ends the process in the plain way, which shells see as 128 + n too.
            assert how == signal.SIGKILL or code in (0, 128 + how, -how), f"{how.name}: exit {code}"
            if how != signal.SIGKILL:
                assert [p.name for p in destination.parent.iterdir() if p.name != "dst"] == [], "a handled signal left files"
            seen[f"{how.name}: {end}"] += 1
        subprocess.run(split("new", "--force"), check=True)
        left = [p.name for p in destination.parent.iterdir() if p.name != "dst"]
        assert left == [], f"temporary siblings left behind: {left}"
    print(dict(sorted(seen.items())))


if __name__ == "__main__":
    main()
