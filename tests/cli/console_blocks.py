"""The commands of Markdown pages, and their output.

- Every command of a `console` block runs in a temporary folder, ends with exit code 0 (or `# exit code N`), and prints what
  the page shows. A block `json NAME` or `yaml NAME` is a file that the commands find there; `data` is the folder tests/data.
- In a `console run` block the output is not shown, and not compared.
- The URLs of a `console served` block lead to the server of tests/stores, whose files are in the folder `served`: its buckets
  in `s3`, models of the Hub in `hub`.
- A `console elsewhere` block needs resources that a test machine lacks (several hosts, a GPU, the network), so it is not run.
- A comment `<!-- setup: COMMAND -->` is a command that readers do not see.

Environment: SHARDCTL is the program.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Fields that differ between machines and runs: only their types are compared.
VOLATILE = {"seconds", "free_bytes", "memory_bytes"}
KINDS = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
         dict: "object"}


class Command(NamedTuple):
    """A command of a page and its output. `shown` is null if its output may be anything."""
    text: str
    shown: str | None = None
    is_run: bool = True


def kind(value) -> str:
    return KINDS[type(value)]


def environment(folder: Path) -> dict[str, str]:
    drop = re.compile(r"^SHARDCTL_|RANK$|WORLD_SIZE$|MASTER_|TORCHELASTIC_|OMPI_|MV2_|PMI_|SLURM_")
    kept = {name: value for name, value in os.environ.items() if not drop.search(name)}
    return {**kept, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C"}


def make_folder(root: Path, source: Path) -> Path:
    """A folder for the commands of a page of the repository `source`, in `root`."""
    (root / "bin").mkdir()
    (root / "bin/shardctl").symlink_to(Path(os.environ["SHARDCTL"]).resolve())
    (root / "bin/nightly").symlink_to(source / "scripts/examples/nightly")
    work = root / "work"
    work.mkdir()
    (work / "data").symlink_to(source / "tests/data")
    return work


def run(command: str, work: Path, variables: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(["bash", "-c", command], cwd=work, env={**environment(work.parent), **(variables or {})}, text=True,
                          capture_output=True)


@contextlib.contextmanager
def server_for(page: str, work: Path) -> Iterator[dict[str, str]]:
    """The variables with which the program finds the server of tests/stores; none if no block needs it."""
    if not any(info == "console served" for info, _ in blocks(page)):
        yield {}
        return
    stores = str(Path(__file__).resolve().parents[1] / "stores")
    if stores not in sys.path:
        sys.path.append(stores)
    import server
    with server.Server(work / "served") as served:
        yield {"AWS_ACCESS_KEY_ID": server.KEY_ID, "AWS_SECRET_ACCESS_KEY": server.SECRET, "AWS_ENDPOINT_URL": served.url,
               "HF_ENDPOINT": served.url, "AWS_EC2_METADATA_DISABLED": "true"}


def blocks(page: str) -> list[tuple[str, str]]:
    """Info string and content of every fenced block, and of every `setup` comment."""
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$|^<!-- (setup): (.*?) -->$", page, re.MULTILINE | re.DOTALL)
    return [(info or setup, content or hidden) for info, content, setup, hidden in found]


def commands(info: str, block: str) -> Iterator[Command]:
    """The commands of a block, in order."""
    if info == "setup":
        yield Command(block)
    if info not in ("console", "console run", "console served", "console elsewhere"):
        return
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        lines = part.split("\n")
        count = next(i for i, line in enumerate(lines) if not line.endswith("\\")) + 1
        shown = "\n".join(lines[count:]).rstrip() if info in ("console", "console served") else None
        yield Command("\n".join(lines[:count]), shown, info != "console elsewhere")


def steady(value):
    """A document with kinds in place of values that differ from run to run."""
    if isinstance(value, dict):
        return {key: kind(field) if key in VOLATILE else steady(field) for key, field in value.items()}
    return [steady(item) for item in value] if isinstance(value, list) else value


def is_as_shown(shown: str | None, printed: str) -> bool:
    if shown is None or shown == printed.rstrip():
        return True
    if not shown.startswith(("{", "[{")):
        return False
    try:
        return steady(json.loads(shown)) == steady(json.loads(printed))
    except json.JSONDecodeError:
        return False


def run_page(path: Path, work: Path, printed: list[str]) -> Iterator[str]:
    """Runs a page in `work`. Yields differences from the page; adds the output of the commands to `printed`."""
    page = path.read_text()
    with server_for(page, work) as variables:
        yield from run_blocks(path.name, blocks(page), work, variables, printed)


def run_blocks(page: str, found: list[tuple[str, str]], work: Path, variables: dict[str, str], printed: list[str]) -> Iterator[str]:
    has_jq = shutil.which("jq") is not None
    for info, content in found:
        language, *name = info.split() or [""]
        if language in ("json", "yaml") and name:
            (work / name[0]).write_text(content)
        for command in commands(info, content):
            if not command.is_run or re.search(r"\b(jq|nightly) ", command.text) and not has_jq:
                print(f"{page}: not run{'' if has_jq else ', there is no jq'}: {command.text}")
                continue
            done = run(command.text, work, variables)
            printed.append(done.stdout)
            expected = int((re.findall(r"# exit code (\d+)$", command.text) or [0])[0])
            if done.returncode != expected:
                yield f"{page}: exit code {done.returncode}, not {expected}: {command.text}\n{done.stderr}"
            elif not is_as_shown(command.shown, done.stdout):
                yield f"{page}: {command.text}\n--- the page\n{command.shown}\n--- the program\n{done.stdout}"
