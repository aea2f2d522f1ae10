"""Holds docs/sharded-tensor-tests.md against the tests: rows_of_docs.py SOURCE_DIR

Every row ST-001 to ST-064 and UP-01 to UP-10 has a test of its name, in the files that the table names and in no other;
every row API-01 to API-63 and HN-001 to HN-071 has a mark and names existing tests; the counts of marks are right; the
names that the table of the harness gives are in its sources.
"""
import re
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1])
DOCS = (SOURCE / "docs/sharded-tensor-tests.md").read_text()
ROWS = [f"ST-{number:03}" for number in range(1, 65)] + [f"UP-{number:02}" for number in range(1, 11)]
MARKED = [f"API-{number:02}" for number in range(1, 64)] + [f"HN-{number:03}" for number in range(1, 72)]
MARKS = ("full", "partial", "not run", "none")
EVERYWHERE = ("HN-001", "HN-002", "HN-005", "HN-009", "HN-037")  # Used by every test, or empty.
TEST = re.compile(r"^(?:SHARD_RANKS_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
TESTS = {path: TEST.findall(path.read_text()) for path in sorted((SOURCE / "tests/shardtorch").glob("*_test.cpp"))}


def cells(row: str) -> list[str]:
    found = re.findall(rf"^\| {row} \|(.*)\|$", DOCS, re.MULTILINE)
    return found[0].split(" | ") if len(found) == 1 else []


def named(cell: str) -> list[str]:
    return re.findall(r"`(\w+)", cell)


def files_by_row() -> dict[str, list[str]]:
    files = {row: [] for row in ROWS}
    for path, tests in TESTS.items():
        parts = {part for _, test in tests for part in test.split("_")}
        for row in ROWS:
            if row.replace("-", "") in parts:
                files[row].append(path.name.removesuffix("_test.cpp"))
    return files


def wrong_rows() -> list[str]:
    said = {row: named(cells(row)[-1]) if cells(row) else [] for row in ROWS}
    return [f"{row}: the docs name {said[row]}, its tests are in {files}" for row, files in files_by_row().items()
            if not files or files != said[row]]


def missing_tests() -> list[str]:
    there = {f"{suite}.{test}" for tests in TESTS.values() for suite, test in tests}
    said = {row: re.findall(r"`(\w+\.\w+)`", cells(row)[-1]) if cells(row) else [] for row in MARKED}
    unnamed = [f"{row} names no test" for row in MARKED if not said[row] and row not in EVERYWHERE]
    return unnamed + [f"{row}: there is no test {name}" for row in MARKED for name in said[row] if name not in there]


def wrong_marks() -> list[str]:
    marks = {row: cells(row)[-2] if len(cells(row)) > 2 else "" for row in MARKED}
    unknown = [f"{row} has the mark '{mark}'" for row, mark in marks.items() if mark not in MARKS]
    wrong = []
    for mark in MARKS:
        counts = [str(sum(row.startswith(prefix) and its == mark for row, its in marks.items())) for prefix in ("API", "HN")]
        said = [cell.strip() for cell in cells(mark)[-2:]]
        if said != counts:
            wrong.append(f"'{mark}': the docs count {said}, the tables have {counts}")
    return unknown + wrong


def missing_names() -> list[str]:
    paths = [*(SOURCE / "tests/support/distributed").iterdir(), *(SOURCE / "shardtorch/sharded_tensor").glob("*.h")]
    harness = "\n".join(path.read_text() for path in paths)
    rows = [row for row in MARKED if row.startswith("HN")]
    missing = [f"{row} is not in the docs" for row in rows if len(cells(row)) != 4]
    return missing + [f"{row}: there is no {name}" for row in rows for name in named(cells(row)[1])
                      if name not in harness and name != "_should_stop_test_suite"]


mistakes = wrong_rows() + missing_tests() + wrong_marks() + missing_names()
print("\n".join(mistakes))
sys.exit(1 if mistakes else 0)
