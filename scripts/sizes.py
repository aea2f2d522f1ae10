#!/usr/bin/env python3
"""Prints how long headers, sources and functions are: median, 90th percentile and the longest, by name. Run: sizes.py

A function reaches from the first line of its declaration to a `}` in column 0, so members and lambdas inside a class or a
function, and functions of one line, are not counted.
"""
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
PARTS = ("libshard", "shardtorch", "formats", "apps")  # A part without files is skipped.
LIMITS = {"headers": 120, "sources": 400, "functions": 60}  # Look again past these.
Size = tuple[int, str]


def tracked(part: str, suffix: str) -> list[pathlib.Path]:
    found = subprocess.run(["git", "ls-files", "-z", "--", part], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in found.stdout.split("\0") if name.endswith(suffix) and (ROOT / name).exists()]


def functions(path: pathlib.Path) -> list[Size]:
    found: list[Size] = []
    begin, name, inside = None, "", False  # begin: of the declaration that continues, or of the function
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


if __name__ == "__main__":
    main()
