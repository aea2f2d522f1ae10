#!/usr/bin/env python3
"""Prints how long headers, sources and functions are: median, 90th percentile and the longest, by name. Then files per
1,000 lines, and headers that one file includes (the header's own source not counted), with and without tests. Run: sizes.py

A function reaches from the first line of its declaration to a `}` in column 0, so members and lambdas inside a class or a
function, and functions of one line, are not counted.
"""
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("libshard", "shardtorch", "formats", "apps")  # A part without files is skipped.
LIMITS = {"headers": 120, "sources": 600, "functions": 60}  # Look again past these.
Size = tuple[int, str]


def tracked(part: str, suffix: str) -> list[pathlib.Path]:
    found = subprocess.run(["git", "ls-files", "-z", "--", part], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in found.stdout.split("\0") if name.endswith(suffix) and (ROOT / name).exists()]


def functions(path: pathlib.Path) -> list[Size]:
    found: list[Size] = []
    begin, name, inside = None, "", False  # begin: first line of the declaration or function
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if inside:
            if line.startswith("}"):
                if line == "}":
                    found.append((number - begin + 1, f"{path.relative_to(ROOT)}:{begin} {name}"))
                begin, name, inside = None, "", False
        elif not line or line.startswith(("#", "//", "}", "namespace", 'extern "C" {')):
            begin, name = None, ""
        else:
            begin = begin or number
            if not name and (match := re.search(r"([\w:~]+|operator\W+)\(", line)):
                name = match[1]
            inside = line.endswith("{")
            if line.endswith((";", "}")):
                begin, name = None, ""
    return found


def lengths(paths: list[pathlib.Path]) -> list[Size]:
    return [(len(path.read_text().splitlines()), str(path.relative_to(ROOT))) for path in paths]


def row(part: str, kind: str, sizes: list[Size]) -> str:
    sizes = sorted(sizes)
    counts = [count for count, _ in sizes]
    longest = "; ".join(f"{count} `{name}`" for count, name in reversed(sizes[-3:]))
    median, p90 = round(statistics.median(counts)), counts[min(len(counts) - 1, len(counts) * 9 // 10)]
    over = sum(count > LIMITS[kind] for count in counts)
    return f"| {part} | {kind} | {len(counts)} | {median} | {p90} | {over} over {LIMITS[kind]} | {longest} |"


def doors(name: str, parts: tuple[str, ...]) -> str:
    """A row about the number of files: many short ones are as hard to follow as one long one."""
    headers, sources = ([path for part in parts for path in tracked(part, suffix)] for suffix in (".h", ".cpp"))
    lines = sum(count for count, _ in lengths(headers + sources))
    users: dict[str, set[pathlib.Path]] = {}
    for path in (each for top in PARTS for suffix in (".h", ".cpp", ".cu") for each in tracked(top, suffix)):
        for header in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            if path != (ROOT / header).with_suffix(".cpp"):
                users.setdefault(header, set()).add(path)
    lonely = {str(header.relative_to(ROOT)) for header in headers if len(users.get(str(header.relative_to(ROOT)), ())) == 1}
    tests = "".join(path.read_text() for suffix in (".h", ".cpp") for path in tracked("tests", suffix))
    untested = lonely - set(re.findall(r'^#include "([^"]+)"', tests, re.MULTILINE))
    files = len(headers) + len(sources)
    return f"| {name} | {files} | {lines} | {1000 * files / max(lines, 1):.1f} | {len(lonely)} of {len(headers)} | {len(untested)} |"


def main() -> None:
    totals: dict[str, list[Size]] = {kind: [] for kind in LIMITS}
    print("| part | what | count | median | p90 | long | longest |\n|---|---|--:|--:|--:|--:|---|")
    for part in PARTS:
        headers, sources = tracked(part, ".h"), tracked(part, ".cpp")
        found = {"headers": lengths(headers), "sources": lengths(sources),
                 "functions": [size for path in headers + sources for size in functions(path)]}
        for kind, sizes in found.items():
            totals[kind] += sizes
            if sizes:
                print(row(part, kind, sizes))
    for kind, sizes in totals.items():
        print(row("all", kind, sizes))
    print("\n| part | files | lines | files per 1,000 lines | headers with one user | and no test |\n|---|--:|--:|--:|--:|--:|")
    for part in PARTS:
        print(doors(part, (part,)))
    print(doors("all", PARTS))


if __name__ == "__main__":
    main()
