"""Ranks on one host, and a process that is none of them: strangers.py GROUP_PROGRAM. Needs torch, whose store it speaks to."""
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

try:
    from torch.distributed import TCPStore
except ImportError:
    print("SKIPPED: no torch here")
    sys.exit(77)

PROGRAM = sys.argv[1]
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # The form of proc(5): net/tcp, net/tcp6.
LISTENS = "0A"


def environment(rank: int, folder: Path, port: int = 0) -> dict[str, str]:
    """Open MPI's, for rank `rank` of two on this host; an address only with a port."""
    variables = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                 "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "job", "OMPI_MCA_orte_precondition_transports": "secret",
                 "OMPI_MCA_orte_jobfam_session_dir": str(folder)}
    if port:
        variables |= {"MASTER_ADDR": socket.gethostname(), "MASTER_PORT": str(port)}
    return os.environ | variables


def start(rank: int, folder: Path, port: int = 0) -> subprocess.Popen:
    return subprocess.Popen([PROGRAM, "gloo"], env=environment(rank, folder, port), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def listening_at(process: subprocess.Popen) -> list[str]:
    """The local addresses of the process's listening sockets, ADDRESS:PORT in hexadecimal."""
    folder = Path(f"/proc/{process.pid}")
    inodes = set()
    for link in (folder / "fd").iterdir():
        try:
            inodes.add(os.readlink(link))
        except FileNotFoundError:
            continue
    lines = [line.split() for table in ("tcp", "tcp6") for line in (folder / "net" / table).read_text().splitlines()[1:]]
    return [line[1] for line in lines if line[3] == LISTENS and f"socket:[{line[9]}]" in inodes]


def wait_until(is_so, seconds: float = 30):
    end = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > end:
            raise SystemExit("FAILED: nothing happens")
        time.sleep(0.02)
    return found


def require(is_so: bool, what: str) -> None:
    if not is_so:
        raise SystemExit(f"FAILED: {what}")


def end_well(ranks: list[subprocess.Popen]) -> None:
    for rank in ranks:
        output = rank.communicate()[0].decode()
        require(rank.returncode == 0, f"a rank ended with {rank.returncode}: {output}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def by_address(folder: Path) -> None:
    port = free_port()
    first = start(0, folder, port)
    addresses = wait_until(lambda: listening_at(first))
    require(all(each.split(":")[0] in LOOPBACK for each in addresses), f"rank 0 listens at {addresses}")
    stranger = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    for key in "/shardctl/job/", "/":
        stranger.add(key + "number", 1)
        stranger.set(key + "came/1", "y")
        stranger.set(key + "all", "y")
    time.sleep(0.5)
    require(first.poll() is None, "a stranger was counted as a rank")
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
    begin = time.monotonic()
    end_well([first, start(1, folder, port)])
    seconds = time.monotonic() - begin
    begin, port = time.monotonic(), free_port()
    end_well([start(rank, folder, port) for rank in range(2)])
    alone = time.monotonic() - begin
    require(seconds < 4 + 3 * alone, f"idle connections cost: the job took {seconds:.1f} s, without them {alone:.1f} s")
    for each in idle:
        each.close()
    print(f"ok: at {addresses[0]}, 50 idle connections, a stranger in the store: {seconds:.1f} s")


def by_file(folder: Path) -> None:
    first = start(0, folder)
    file = wait_until(lambda: next(iter(folder.glob("*.port")), None))
    require(stat.S_IMODE(file.stat().st_mode) == 0o600, f"the port file has the mode {stat.S_IMODE(file.stat().st_mode):o}")
    port, token = file.read_text().split()
    require(len(set(token)) > 4 and len(token) == 32, f"the token is '{token}'")
    addresses = wait_until(lambda: listening_at(first))
    require(all(each.split(":")[0] in LOOPBACK for each in addresses), f"rank 0 listens at {addresses}")
    stranger = TCPStore("127.0.0.1", int(port), is_master=False, wait_for_workers=False)
    stranger.add("/shardctl/job/number", 1)
    stranger.set("/shardctl/job/all", "y")
    time.sleep(0.5)
    require(first.poll() is None, "a stranger was counted as a rank")
    end_well([first, start(1, folder)])
    require(not list(folder.glob("*.port*")), "the port file stays")
    print("ok: by a file")


def main() -> None:
    for job in by_address, by_file:
        with tempfile.TemporaryDirectory() as folder:
            job(Path(folder))


if __name__ == "__main__":
    main()
