"""The error messages in the sources, and the table of docs/troubleshooting.md that explains them.

A message is the text of an `Error(ErrorCode::k..., TEXT)`, or of a call of a function that returns or throws such an error.
{} takes the place of everything that is not a literal. A row of the table explains messages in one of two ways:

- by text: the first cell contains parts of messages in backticks, with ... for what varies. Each must occur in a source.
- by origin: the first cell ends with a comment such as `<!-- 4 formats/hdf5 formats/dcp -->`: an exit code, and folders
  or files of sources.

tests/cli/pages.py checks that each message has a row; the site shows every message below the table (hooks.py).
"""
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FOLDERS = ("apps", "libshard", "formats", "shardtorch")
EXIT_CODES = {"InvalidArgument": 2, "NotFound": 3, "Corruption": 4, "Exists": 5, "Resource": 6, "Peer": 7, "Unsupported": 8,
              "Interrupted": 130, "Internal": 70}
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# A function that builds an error from its arguments: its name and the beginning of its body.
HELPER = re.compile(r"(?:\bError|\[\[noreturn\]\] (?:static |inline )*void|\bauto) (\w+)(?: = \[[^\]]*\])?\(([^;{]{0,300})\) (?:const )?(?:-> Error )?\{")


class Message(NamedTuple):
    code: int
    path: str
    text: str


class Row(NamedTuple):
    """`origin` is a code and beginnings of paths; rows by text have none."""
    texts: list[str]
    origin: tuple[int, tuple[str, ...]] | None
    cause: str
    remedy: str


def arguments(source: str, at: int) -> list[str]:
    """The arguments of a call, whose bracket is at `at`."""
    found, depth, begin = [], 0, at + 1
    for match in re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'|[][(){},]').finditer(source, at):
        if match[0] in ("(", "[", "{"):
            depth += 1
        elif match[0] in (")", "]", "}"):
            depth -= 1
        if depth == 0 or depth == 1 and match[0] == ",":
            found.append(source[begin:match.start()])
            begin = match.end()
        if depth == 0:
            break
    return found


def text_of(expression: str) -> str:
    """The literals of an expression, with {} for the parts between them."""
    parts, end = [], 0
    for match in LITERAL.finditer(expression):
        parts += ["{}"] if parts and expression[end:match.start()].strip() else []
        parts.append(re.sub(r"\{[^{}]*\}", "{}", match[1].replace('\\"', '"')))
        end = match.end()
    return "".join(parts)


def messages_of(path: str, source: str, helpers: dict[str, int]) -> Iterator[Message]:
    """The messages of a source. `helpers` are the functions that it may call, with the exit codes of their errors."""
    source = re.sub(r"^\s*//.*", "", source, flags=re.MULTILINE)
    for match in re.finditer(r"[({][^(){},;]*ErrorCode::k(\w+),", source):
        if text := text_of((arguments(source, match.start()) + [""])[1]):
            yield Message(EXIT_CODES[match[1]], path, text)
    for match in re.finditer(rf"\b({'|'.join(helpers) or '$.'})(\()", source):
        if " " in (text := text_of(", ".join(arguments(source, match.start(2))))):  # Single words are names of things.
            yield Message(helpers[match[1]], path, text)


def helpers_of(source: str, known: dict[str, int]) -> dict[str, int]:
    """The functions of a source that build an error from a text. They may call `known` ones."""
    found: dict[str, int] = {}
    for match in HELPER.finditer(source):
        body = source[match.end():].split("\n}\n")[0][:1500]
        codes = [EXIT_CODES[name] for name in re.findall(r"ErrorCode::k(\w+)\W", body)]
        codes += [code for name, code in {**known, **found}.items() if re.search(rf"\b{name}\(", body)]
        if codes and re.search("string|char", match[2]):
            found[match[1]] = codes[0]
    return found


def messages(root: Path) -> list[Message]:
    """All messages of the sources below `root`, without duplicates."""
    sources = {str(path.relative_to(root)): path.read_text() for folder in FOLDERS for extension in ("h", "cpp")
               for path in sorted(root.glob(f"{folder}/**/*.{extension}"))}
    included = {path: re.findall(r'^#include "([^"]+)"', source, re.MULTILINE) for path, source in sources.items()}
    for path in (path for path in sources if path.endswith(".cpp")):
        included[path] += included.get(path.removesuffix("cpp") + "h", [])  # Its own header's too.
    declared = {path: set(re.findall(r"\b(?:Error|\[\[noreturn\]\] void) (\w+)\(", source))
                for path, source in sources.items() if path.endswith(".h")}
    helpers: dict[str, dict[str, int]] = {path: {} for path in sources}
    for _ in range(2):  # A helper may call one of a header.
        for path, source in sources.items():
            known = {name: code for header in included[path] for name, code in helpers.get(header, {}).items()}
            helpers[path] = helpers_of(source, known)
        beside: dict[str, dict[str, int]] = {}
        for path in (path for path in sources if path.endswith(".cpp")):
            beside.setdefault(path.rpartition("/")[0], {}).update(helpers[path])
        for path, names in declared.items():  # A header has the helpers that it declares and sources beside it define.
            helpers[path] |= {name: code for name, code in beside.get(path.rpartition("/")[0], {}).items() if name in names}
    found: dict[Message, None] = {}
    for path, source in sources.items():
        known = {name: code for header in included[path] for name, code in helpers.get(header, {}).items()}
        found |= dict.fromkeys(messages_of(path, source, known | helpers[path]))
    return list(found)


def rows_of(page: str) -> list[Row]:
    """The rows of all tables of the page that have three cells, without headings."""
    rows = []
    for line in re.findall(r"^\| (.*) \|$", page, re.MULTILINE):
        cells = re.split(r"(?<!\\) \| ", line)
        if len(cells) == 3 and cells[0] != "message":
            origin = re.search(r"<!-- (\d+) (.*) -->", cells[0])
            texts = [] if origin else re.findall(r"`([^`]+)`", cells[0])
            rows.append(Row(texts, (int(origin[1]), tuple(origin[2].split())) if origin else None, *cells[1:]))
    return rows


@cache
def pattern_of(part: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, part.split("..."))))


def occurs(part: str, text: str) -> bool:
    return pattern_of(part).search(text) is not None


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def row_of(message: Message, rows: list[Row]) -> Row | None:
    """The row that explains a message: one by text, or else one by origin."""
    for row in rows:
        if any(occurs(part, message.text) for part in row.texts):
            return row
    return next((row for row in rows if row.origin and row.origin[0] == message.code
                 and any(is_below(message.path, folder) for folder in row.origin[1])), None)


def mistakes(found: list[Message], rows: list[Row]) -> Iterator[str]:
    """Messages without a row, and parts of rows that fit no message."""
    for message in found:
        if row_of(message, rows) is None:
            yield f"docs/troubleshooting.md has no row for exit code {message.code} of {message.path}: {message.text}"
    for part in (part for row in rows for part in row.texts):
        if not any(occurs(part, message.text) for message in found):
            yield f"docs/troubleshooting.md: no error of the sources contains: {part}"
    for code, folders in (row.origin for row in rows if row.origin):
        if not any(message.code == code and any(is_below(message.path, folder) for folder in folders) for message in found):
            yield f"docs/troubleshooting.md: there is no error with exit code {code} in {' '.join(folders)}"
        for folder in folders:
            if "/" not in folder or not any(is_below(message.path, folder) for message in found):
                yield f"docs/troubleshooting.md: {folder} is a top folder or has no errors"


def list_of(found: list[Message], rows: list[Row]) -> str:
    """Markdown with every message below the cause and the remedy of its row, each row a section, so that a search finds it."""
    lines = ["## Every message", "", "`{}` is a name, a number or another text."]
    row_of_each = [rows.index(row_of(message, rows)) for message in found]
    for number, row in enumerate(rows):
        texts = sorted({message.text.strip(" :") for message, place in zip(found, row_of_each) if place == number})
        lines += ["", f"### {row.cause[0].upper()}{row.cause[1:]}", "", f"{row.remedy}:", "", *(f"- `{text}`" for text in texts)] if texts else []
    return "\n".join(lines) + "\n"
