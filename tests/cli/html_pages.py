"""Pages of --html: each contains its verb's JSON document and nothing that a browser would load, run or treat as
markup.

tests/browser checks their display. Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import base64
import hashlib
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from program import safetensors_files, write_safetensors

HOSTILE = ["</script><img src=x onerror=alert(1)>", "<!--<script>", "a\u2028b\u2029", "\u202egnp.exe", "&lt;b&gt;", "]]>", "'\"\\"]
SINKS = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttpRequest|import\(|WebSocket|url\("


class Page(html.parser.HTMLParser):
    """The elements of a page, and the texts of its scripts and styles."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.open = (tag, dict(attributes).get("type"))
            self.texts.append((*self.open, ""))

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.texts[-1] = (*self.open, self.texts[-1][2] + data)

    def text_of(self, tag: str, kind: str | None = None) -> str:
        [text] = [text for each, its_kind, text in self.texts if (each, its_kind) == (tag, kind)]
        return text


def write_model(path: Path, data: bytes) -> None:
    tensors = {name: ("U8", [1], data[i:i + 1]) for i, name in enumerate(HOSTILE)}
    write_safetensors(path, tensors, {"</script>": "<b>"})


def finished(arguments: str, code: int, work: Path) -> subprocess.CompletedProcess:
    done = subprocess.run([os.environ["SHARDCTL"], *arguments.split()], cwd=work, capture_output=True, text=True)
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}\n{done.stderr}"
    return done


def run(arguments: str, code: int, work: Path) -> str:
    return finished(arguments, code, work).stdout


def run_for_error(arguments: str, code: int, work: Path) -> str:
    return finished(arguments, code, work).stderr


def source_of(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def check_page(path: Path, printed: str) -> None:
    text = path.read_text()
    page = Page(text)
    document = page.text_of("script", "application/json")
    assert json.loads(document) == json.loads(printed), "the page holds another document than --json prints"
    assert not re.search("[<>&\u2028\u2029\u202e]", document), "the document could be taken for markup"
    assert [tag for tag, _ in page.elements].count("script") == 2, page.elements
    assert not {tag for tag, _ in page.elements} & {"img", "iframe", "object", "embed", "link", "form", "base"}, page.elements
    assert not any(name in ("src", "srcset", "style") or name.startswith("on") for _, its in page.elements for name in its)
    assert not re.search(SINKS, page.text_of("script") + page.text_of("style")), "a sink for markup, or something loaded"
    assert set(re.findall(r"https?://[^\"' ]+", text.replace(document, ""))) == {"http://www.w3.org/2000/svg"}
    [policy] = [its["content"] for tag, its in page.elements if its.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and rules["trusted-types"] == "'none'", policy
    assert rules["script-src"] == source_of(page.text_of("script")), "the policy does not let the script run"
    assert rules["style-src"] == source_of(page.text_of("style")), "the policy does not let the style apply"


def documents(work: Path) -> None:
    run("split a.safetensors -o ckpt --ranks 2 -q", 0, work)
    os.truncate(work / "cut/__2_0.distcp", 9000)
    for arguments, code in [("inspect a.safetensors", 0), ("inspect ckpt", 0), ("inspect ckpt --include <!--*", 0), ("verify ckpt", 0),
                            ("verify cut", 1), ("diff a.safetensors b.safetensors", 1), ("diff a.safetensors ckpt", 0),
                            ("diff a.safetensors ckpt --local-ranks 2", 0), ("verify cut --local-ranks 3", 1)]:
        printed = run(f"{arguments} --json --html page.html", code, work)
        check_page(work / "page.html", printed)
        text = run(f"{arguments} -q", code, work)
        assert run(f"{arguments} -q --html page.html --force", code, work) == text, "a page changes what is printed"
        check_page(work / "page.html", printed)
        (work / "page.html").unlink()


def refusals(work: Path) -> None:
    before = sorted(path.name for path in work.iterdir())
    (work / "page.html").write_text("old")
    for verb in ("inspect a.safetensors", "verify ckpt", "diff a.safetensors b.safetensors"):
        error = json.loads(run(f"{verb} --html page.html --json", 5, work))
        assert error["schema"] == "shardctl.error/1" and "--force" in error["hint"], error
    assert (work / "page.html").read_text() == "old"
    (work / "page.html").unlink()
    run("inspect ckpt --html ckpt/page.html", 5, work)
    run("inspect ckpt --html . --force", 5, work)
    run("inspect a.safetensors --html a.safetensors --force", 5, work)
    run("inspect a.safetensors --html absent/page.html", 6, work)
    run("inspect a.safetensors --html /proc/page.html", 6, work)
    run("inspect absent --html page.html", 3, work)
    run("digest ckpt --html page.html", 2, work)
    assert sorted(path.name for path in work.iterdir()) == before, "something is left behind"


def named_files(work: Path) -> None:
    """A page never replaces a file that the command line names, under any name."""
    named = work / "named"
    (named / "reference").mkdir(parents=True)
    (named / "options.toml").write_text('color = "never"\n')
    (named / "reference/config.json").write_text("{}")
    (named / "map.json").write_text(run("map show hf-v5", 0, work))
    (named / "layout.json").write_text('{"schema": "shardctl.layout/1", "rules": []}')
    run("gather ckpt -o named/whole.safetensors --objects drop --checksum xxh3 -q", 0, work)
    one, two = "a.safetensors", "a.safetensors b.safetensors"
    for arguments, path in [
            (f"inspect {one} --config named/options.toml", "options.toml"), (f"verify {one} --config named/options.toml", "options.toml"),
            (f"diff {two} --config named/options.toml", "options.toml"), (f"inspect {one} --map named/map.json", "map.json"),
            (f"diff {two} --map named/map.json", "map.json"), (f"diff {two} --to-map named/map.json", "map.json"),
            (f"inspect {one} --layout named/layout.json", "layout.json"),
            (f"inspect {one} --map hf-v5 --hf-ref named/reference", "reference/config.json"),
            ("verify named/whole.safetensors --against named/whole.safetensors.manifest.json", "whole.safetensors.manifest.json"),
            (f"inspect {one} --log-file named/run.log -v", "run.log")]:
        if path == "run.log":
            run(arguments, 0, work)
        before = (named / path).read_bytes()
        (work / "hard.html").hardlink_to(named / path)
        (work / "soft.html").symlink_to(named / path)
        for page in (f"named/{path}", "hard.html", "soft.html"):
            error = run_for_error(f"{arguments} --html {page} --force", 5, work)
            assert path == "run.log" or f"named/{path}" in error, error
        assert path == "run.log" or (named / path).read_bytes() == before, f"{arguments}: {path} was replaced"
        (work / "hard.html").unlink()
        (work / "soft.html").unlink()
    run(f"inspect {one} --config named/options.toml --html named/page.html", 0, work)
    shutil.rmtree(named)


def signals(work: Path) -> None:
    """A run that is stopped leaves no page and nothing beside it."""
    for name in ("large", "larger"):
        safetensors_files.write(work / f"{name}.safetensors", {"w": ("U8", [8 << 30])})  # A hole.
    before = sorted(path.name for path in work.iterdir())
    process = subprocess.Popen([os.environ["SHARDCTL"], *"diff large.safetensors larger.safetensors -j 1 -q --html page.html".split()],
                               cwd=work, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    process.terminate()
    assert process.wait(30) == 143, process.returncode
    assert sorted(path.name for path in work.iterdir()) == before, "something is left behind"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_model(work / "a.safetensors", bytes(len(HOSTILE)))
        write_model(work / "b.safetensors", bytes(range(len(HOSTILE))))
        shutil.copytree(Path(os.environ["SHARD_DATA"]) / "demo/ckpt", work / "cut")
        documents(work)
        refusals(work)
        named_files(work)
        signals(work)
    return 0


sys.exit(main())
