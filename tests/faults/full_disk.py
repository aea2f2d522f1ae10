"""Disks that are really full, or read-only: exit code 6 and an unchanged destination, until there is space for
everything.

    full_disk.py SHARDCTL [--long]

A limit of file sizes (RLIMIT_FSIZE) for any user; as root also small tmpfs, ext4 and XFS, no free inodes, a quota,
a read-only mount, mount points, a folder of a different user. SIGXFSZ and SIGBUS never end the program.
"""
import argparse
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Callable

from jobs import Case, Job, World, report
from mounts import Image, can_mount, mounted, run

NOBODY = 65534
KIB = 1 << 10


class Rooms:
    """Runs jobs with a scarce resource, and collects failures."""

    def __init__(self, world: World, jobs: list[Job]) -> None:
        self.world, self.jobs = world, jobs
        self.problems: list[str] = []
        self.codes: dict[str, dict[int, int]] = {}

    def run(self, what: str, job: Job, where: Path | None, has_old: bool, codes: set[int], **how) -> int:
        case = Case(self.world, job, has_old, where)
        if "user" in how:
            os.chown(case.folder, how["user"], how["user"])
        done = case.run(**how)
        seen = self.codes.setdefault(what.split(",")[0], {})
        seen[done.returncode] = seen.get(done.returncode, 0) + 1
        if problem := case.problem(done.returncode, codes):
            self.problems.append(f"{job.name}, {what}: {problem}\n{done.stderr}")
        case.remove()
        return done.returncode

    def until_it_fits(self, what: str, steps: int, most: int, room: Callable[[int, Job], int]) -> None:
        """`room(bytes, job)` runs the job in that much; in the last step there is enough."""
        for job in self.jobs:
            codes = [room(most * step // steps, job) for step in range(1, steps + 1)]
            if codes[-1] != 0:
                self.problems.append(f"{job.name}, {what}: never fits: {codes}")


def limit_sizes(rooms: Rooms, steps: int, most: int) -> None:
    def room(bytes_: int, job: Job) -> int:
        return rooms.run(f"RLIMIT_FSIZE, {bytes_}", job, None, bytes_ % 2 == 0, {0, 6},
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_)))
    rooms.until_it_fits("RLIMIT_FSIZE", steps, most, room)


def small_tmpfs(rooms: Rooms, folder: Path, steps: int, most: int) -> None:
    def room(bytes_: int, job: Job) -> int:
        with mounted(folder / "tmpfs", "-t", "tmpfs", "-o", f"size={bytes_}", "none") as at:
            return rooms.run(f"tmpfs, {bytes_}", job, at, False, {0, 6})
    rooms.until_it_fits("tmpfs", steps, most, room)


def no_inodes(rooms: Rooms, folder: Path) -> None:
    def room(inodes: int, job: Job) -> int:
        with mounted(folder / "inodes", "-t", "tmpfs", "-o", f"size=64m,nr_inodes={inodes + 2}", "none") as at:
            return rooms.run(f"inodes, {inodes}", job, at, False, {0, 6})
    rooms.until_it_fits("inodes", 24, 24, room)


def full_images(rooms: Rooms, folder: Path, steps: int, most: int) -> None:
    """A file that uses the rest reduces the free space."""
    for kind, mebibytes in ("ext4", 64), ("xfs", 320):
        with Image(kind, folder, mebibytes) as image:
            filler = image.at / "filler"

            def room(bytes_: int, job: Job) -> int:
                info = os.statvfs(image.at)
                with filler.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, max(1, info.f_bavail * info.f_frsize - bytes_))
                code = rooms.run(f"{kind}, {bytes_}", job, image.at, False, {0, 6})
                filler.unlink()
                return code
            rooms.until_it_fits(kind, steps, 2 * most, room)


def quota(rooms: Rooms, folder: Path, steps: int, most: int) -> None:
    image = Image("xfs", folder / "quota", 320, "uquota")
    if not image.can_mount():
        print("without a quota: this kernel has none for XFS")
        return
    with image:
        def room(bytes_: int, job: Job) -> int:
            run("xfs_quota", "-x", "-c", f"limit bhard={max(4096, bytes_)} {NOBODY}", image.at)
            return rooms.run(f"quota, {bytes_}", job, image.at, False, {0, 6}, user=NOBODY)
        rooms.until_it_fits("quota", steps, 2 * most, room)


def may_not_write(rooms: Rooms, folder: Path) -> None:
    place = folder / "read-only"
    place.mkdir()
    for job in rooms.jobs:
        for has_old in False, True:
            case = Case(rooms.world, job, has_old, place)
            case.folder.chmod(0o755)
            done = case.run(user=NOBODY)
            if problem := case.problem(done.returncode, {6}):
                rooms.problems.append(f"{job.name}, a folder of another user: {problem}\n{done.stderr}")
            run("mount", "--bind", place, place)
            run("mount", "-o", "remount,bind,ro", place)
            done = case.run()
            if problem := case.problem(done.returncode, {6}):
                rooms.problems.append(f"{job.name}, a read-only mount: {problem}\n{done.stderr}")
            run("umount", place)
            case.remove()


def over_mounts(rooms: Rooms, folder: Path) -> None:
    """Nothing replaces a mount point, and files that are mounted inside an old folder are not removed with it."""
    place = folder / "mounts"
    place.mkdir()
    for job in rooms.jobs:
        for is_inside in (False, True) if job.to == "dst" else (False,):
            case = Case(rooms.world, job, True, place)
            at = case.destination / "volume" if is_inside else case.destination
            if is_inside:
                at.mkdir()
                (at / "kept").write_bytes(b"kept")
            case.before = case.output()
            run("mount", "--bind", at, at)
            done = case.run()
            problem = case.problem(done.returncode, {5})
            if done.returncode == 5 and "mount point" not in done.stderr:
                problem = problem or "the reason is missing"
            if problem:
                rooms.problems.append(f"{job.name}, a mount point{' inside' if is_inside else ''}: {problem}\n{done.stderr}")
            for line in Path("/proc/self/mounts").read_text().splitlines():  # If it moved, it has a different name.
                if line.split()[1].startswith(f"{case.folder}/"):
                    run("umount", "-l", line.split()[1])
            case.remove()


def in_a_lower_layer(rooms: Rooms, folder: Path) -> None:
    """An old folder in the image of a container cannot be renamed. A file can."""
    layers, place = folder / "layers", folder / "container"
    place.mkdir()
    for job in rooms.jobs:
        case = Case(rooms.world, job, True, place)
        with mounted(layers, "-t", "tmpfs", "none"):
            (layers / "upper").mkdir()
            (layers / "work").mkdir()
            options = f"lowerdir={place},upperdir={layers}/upper,workdir={layers}/work"
            if run("mount", "-t", "overlay", "-o", options, "overlay", place, code=None).returncode != 0:
                return print("without a container: overlayfs cannot be mounted")
            done = case.run()
            problem = case.problem(done.returncode, {6} if job.to == "dst" else {0})
            if done.returncode == 6 and "image of this container" not in done.stderr:
                problem = problem or "the hint is missing"
            run("umount", place)
        if problem:
            rooms.problems.append(f"{job.name}, an old output in a lower layer: {problem}\n{done.stderr}")
        case.remove()


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("tool")
    options.add_argument("--long", action="store_true")
    chosen = options.parse_args()
    steps, size = (24, 2 << 20) if chosen.long else (3, 256 * KIB)
    most = 3 * size
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        folder.chmod(0o755)
        world = World(chosen.tool, folder / "world", size)
        named = ("split dcp", "convert safetensors", "gather torch")
        rooms = Rooms(world, world.jobs if chosen.long else [job for job in world.jobs if job.name in named])
        limit_sizes(rooms, steps, most)
        if reason := can_mount():
            print(f"without mounts of its own: {reason}")
        else:
            small_tmpfs(rooms, folder, steps, most)
            may_not_write(rooms, folder)
            over_mounts(rooms, folder)
            in_a_lower_layer(rooms, folder)
            if chosen.long:
                no_inodes(rooms, folder)
                full_images(rooms, folder, steps, most)
                quota(rooms, folder, steps, most)
    for what, codes in rooms.codes.items():
        print(f"{what}: " + ", ".join(f"exit {code} {count}" for code, count in sorted(codes.items())))
    return report(rooms.problems, f"{len(rooms.problems)} problems")


if __name__ == "__main__":
    sys.exit(main())
