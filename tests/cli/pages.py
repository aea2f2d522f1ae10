"""Runs the commands of every Markdown page: pages.py SOURCE_DIR

- `console` blocks run as described in console_blocks.py; those that are marked to run elsewhere are listed.
- A command must be in such a block: an indented line that begins with the name of a program is a mistake.
- docs/formats.md links the page of every format.
- Each question that people type into a search engine has a page, whose beginning contains the words. Pages of answers
  show the output of a command, which CI runs, and have sections about problems, about time and memory, and about the tools
  that people use today.
- Each error message of the sources has a row in docs/troubleshooting.md, and each row has a message. The tables of answers
  quote only such messages.
- Every column of a table has a name, and every file of the repository that a page names exists.
- Every option after `shardctl VERB`, anywhere on a page, even within a sentence or a table, is in the verb's help.

documents.py runs docs/schemas.md and docs/layouts.md. Environment: SHARDCTL is the program.
"""
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from console_blocks import blocks, commands, make_folder, run, run_page

SOURCE = Path(sys.argv[1]).resolve()
sys.path.append(str(SOURCE / "docs/site"))
import messages  # noqa: E402
OF_DOCUMENTS = {"docs/schemas.md", "docs/layouts.md"}
HISTORY = SOURCE / "tests/RESULTS.md"  # Its lines are those of their time.
ROOMS = "apps", "cmake", "docs", "formats", "libshard", "maps", "packaging", "python", "shardtorch", "tests"
PROGRAMS = r"shardctl|nightly|torchrun|mpirun|srun|sbatch|scripts/\w+|cmake|ctest|python3?|pip|git|kubectl"


QUESTIONS = {
    "convert FSDP checkpoint to huggingface": "docs/export.md",
    "convert verl checkpoint to huggingface": "docs/export.md",
    "merge distcp": "docs/answers/merge-distcp.md",
    "consolidate sharded checkpoint": "docs/answers/merge-distcp.md",
    "merge safetensors into one file": "docs/answers/merge-safetensors.md",
    "convert bin to safetensors": "docs/answers/merge-safetensors.md",
    "zero_to_fp32 out of memory": "docs/answers/zero-to-fp32-out-of-memory.md",
    "torch_dist to hf": "docs/answers/torch-dist-to-hf.md",
    "megatron to huggingface": "docs/answers/torch-dist-to-hf.md",
    "fp8 to bf16": "docs/quantized.md",
    "dequantize gptq": "docs/quantized.md",
    "missing .metadata": "docs/answers/missing-metadata.md",
    "resume with a different number of GPUs": "docs/answers/different-number-of-gpus.md",
    "load_global_step universal checkpoint": "docs/answers/universal-checkpoint.md",
    "is my checkpoint corrupted": "docs/answers/corrupted-checkpoint.md",
    "safetensors header too large": "docs/answers/loading-errors.md",
    "PytorchStreamReader failed finding central directory": "docs/answers/loading-errors.md",
    "size mismatch for": "docs/answers/loading-errors.md",
    "merge lora without loading the model": "docs/answers/merge-lora.md",
    "inspect a model on the hub": "docs/answers/inspect-a-model-on-the-hub.md",
    "gather in s3": "docs/answers/gather-in-s3.md",
}


def pages() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=SOURCE, text=True, capture_output=True)
    found = listed.stdout.split() or [str(path.relative_to(SOURCE)) for path in SOURCE.glob("[!.b]*/**/*.md")]
    return [SOURCE / name for name in sorted(found)]


def loose_commands(path: Path) -> Iterator[str]:
    outside = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for line in re.findall(rf"^    +(?:\$ )?((?:{PROGRAMS}) .*)", outside, re.MULTILINE):
        yield f"{path.relative_to(SOURCE)}: in no console block: {line}"


@cache
def options_of(verb: str) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        work = make_folder(Path(folder), SOURCE)
        done = run(f"shardctl help {verb} --all" if verb else "shardctl --help", work)
        return set(re.findall(r"--[a-z][a-z-]*", done.stdout)) if done.returncode == 0 else set()


def unknown_options(path: Path) -> Iterator[str]:
    text = path.read_text().replace("\\\n", " ")
    spans = re.findall(r"^\$ (.*)$|`([^`\n]+)`", text, re.MULTILINE)
    for span in ("".join(each) for each in spans):
        for verb, arguments in re.findall(r"(?<![\w/-])shardctl ([a-z]+)\b([^|;&]*)", span.split(" # ")[0]):
            said = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", arguments))
            if not options_of(verb):
                yield f"{path.relative_to(SOURCE)}: there is no verb '{verb}': {span}"
            elif unknown := said - options_of(verb):
                yield f"{path.relative_to(SOURCE)}: {verb} has no option {', '.join(sorted(unknown))}: {span}"


def unlisted_formats() -> Iterator[str]:
    text = (SOURCE / "docs/formats.md").read_text()
    for page in sorted(SOURCE.glob("formats/*/README.md")):
        if f"(../{page.relative_to(SOURCE)})" not in text:
            yield f"docs/formats.md does not link {page.relative_to(SOURCE)}"


def unanswered_questions() -> Iterator[str]:
    for question, name in QUESTIONS.items():
        beginning = re.sub(r"\s", "", (SOURCE / name).read_text().split("\n## ")[0].lower())
        if missing := [word for word in re.findall("[a-z0-9]+", question.lower()) if word not in beginning]:
            yield f"{name}: '{question}' does not find it: its beginning lacks {', '.join(missing)}"
    questions = (SOURCE / "docs/faq.md").read_text()
    for page in {*QUESTIONS.values(), *(str(path.relative_to(SOURCE)) for path in SOURCE.glob("docs/answers/*.md"))}:
        text = (SOURCE / page).read_text()
        if not any(command.shown for info, block in blocks(text) for command in commands(info, block)):
            yield f"{page} shows no output of a command"
        headings = " ".join(re.findall(r"^## (.*)", text, re.MULTILINE)).lower()
        for heading in ("what can go wrong", "time and memory", "today's tool"):
            if heading not in headings:
                yield f"{page} has no section '{heading}'"
        if f"({page.removeprefix('docs/')})" not in questions:
            yield f"docs/faq.md does not link {page}"


def unnamed_columns(path: Path) -> Iterator[str]:
    """Tables that a screen reader cannot read out, because a column has no name."""
    for header in re.findall(r"^(\|.*\|)\n\|[-: |]+\|$", path.read_text(), re.MULTILINE):
        if re.search(r"\| *\|", header):
            yield f"{path.name}: a column has no name: {header}"


def absent_files(path: Path) -> Iterator[str]:
    """Files with a folder of the repository in their path. Names in capitals stand for others."""
    for span in re.findall(r"`([^`\n]+)`", path.read_text()):
        for name in re.findall(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[a-z\d_./-]+\.[a-z]+(?![\w*/{{-])", span):
            if not (SOURCE / name).exists():
                yield f"{path.relative_to(SOURCE)}: {name} does not exist"


def unexplained_messages() -> Iterator[str]:
    rows = messages.rows_of((SOURCE / "docs/troubleshooting.md").read_text())
    found = messages.messages(SOURCE)
    yield from messages.mistakes(found, rows)
    for page in SOURCE.glob("docs/answers/*.md"):
        for cell in re.findall(r"^\| ([^|]*) \|", page.read_text(), re.MULTILINE):
            for part in (part for part in re.findall("`([^`]+)`", cell) if part.count(" ") > 1):
                if not any(messages.occurs(part, message.text) for message in found):
                    yield f"{page.name}: no error of the sources contains: {part}"
    # A message of a new folder, one through a helper, and a row whose message is gone are detected.
    code = 'Error wrong(const std::string& why) {\n  return Error(ErrorCode::kPeer, why);\n}\nthrow wrong(fmt::format("{:.1f} of {}", a)); // "no"\n'
    new = [*messages.messages_of("formats/new/a.cpp", code, messages.helpers_of(code, {}))]
    gone = messages.Row(["no source has ... this"], None, "", "")
    for detected in ([*messages.mistakes([*found, *new], rows)], [*messages.mistakes(found, [*rows, gone])]):
        if len(detected) != 1:
            yield f"the check of messages finds {detected}"
    if new != [messages.Message(7, "formats/new/a.cpp", "{} of {}")]:
        yield f"messages of a source are read as {new}"


def main() -> int:
    mistakes = [*unlisted_formats(), *unanswered_questions(), *unexplained_messages()]
    for path in pages():
        mistakes += loose_commands(path)
        mistakes += unnamed_columns(path)
        mistakes += [*unknown_options(path), *absent_files(path)] if path != HISTORY else []
        if str(path.relative_to(SOURCE)) not in OF_DOCUMENTS:
            with tempfile.TemporaryDirectory() as folder:
                mistakes += run_page(path, make_folder(Path(folder), SOURCE), [])
    for mistake in mistakes:
        print(mistake)
    return 1 if mistakes else 0


sys.exit(main())
