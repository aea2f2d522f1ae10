"""Checks that every test is run. A CMake file beside it must name each source, script and Python test below tests/.

Exits 1 and prints each one that no CMake file names.
"""
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
PATTERNS = ("*_test.cpp", "fuzz/fuzz_*.cpp", "cli/*.sh", "live/*_test.py", "live/*_against_*.py", "browser/*_test.py", "python/*_test.py")
HELPERS = {"cli/common.sh"}


def names_in(folder: pathlib.Path) -> set[str]:
    """Words of the CMake files of a folder; their lists name tests with or without prefix and suffix."""
    files = [*folder.glob("CMakeLists.txt"), *folder.glob("*.cmake")]
    return set(re.findall(r"[\w.]+", " ".join(file.read_text() for file in files)))


def main() -> int:
    unnamed = []
    for path in sorted(path for pattern in PATTERNS for path in TESTS.rglob(pattern)):
        short = re.sub(r"^fuzz_|_test$", "", path.stem)
        if not {path.name, path.stem, short} & names_in(path.parent):
            unnamed.append(path.relative_to(TESTS))
    unnamed = [path for path in unnamed if str(path) not in HELPERS]
    for path in unnamed:
        print(f"tests/{path}: no CMake file names it")
    return 1 if unnamed else 0


if __name__ == "__main__":
    sys.exit(main())
