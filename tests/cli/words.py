#!/usr/bin/env python3
"""Help and messages keep to the project's English (docs/glossary.md): none of the phrases below occurs in what shardctl
prints as help, or in a string literal of the folders that are clean."""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARDCTL = os.environ["SHARDCTL"]

# Folders whose string literals have been read; a folder that is added stays clean.
CLEAN = ["apps", "formats", "libshard", "shardtorch"]

# What is wrong, as a regular expression without regard to case, and what to write instead.
FORBIDDEN = {
    r"(?<!there )\b(is|are|was|were|be) no [a-z]": "is not a ...",
    r"\bleast of \d": "best of N",
    r"\bput(s|ting)? (whole )?\w* ?together\b": "assemble",
    r"\bthe disk has it\b": "fsync",
    r"\b(is|are) (not )?here\b": "is (not) available",
    r"\b(is|are) there twice\b": "appears twice",
    r"\b(too|so) little\b": "too small",
    r"\blook(s|ed)? (at:|into|at)\b": "stat, read, inspect",
    r"\bhas not enough\b": "not enough ...",
    r"\bshall\b": "must, or the present tense",
    r"\blose(s)? (this|the|its|a) prefix\b": "remove this prefix",
    r"\bsay it\b": "pass it explicitly",
    r"\bsay(s)? (aloud|otherwise)\b": "state, name",
    r"\bmistake in shardctl\b": "bug in shardctl",
    r"\bof the needed\b": "exactly the bytes it needs",
    r"^of an? \w+ what\b": "subject, verb, object",
    r"\bruns nothing\b": "never executes anything",
    r"\bthat may be used\b": "available",
    r"\bis what no\b": "... is not a ...",
    r"\bin its place there is\b": "found ... instead",
    r"\b(same as another|untied)\b": "tied tensors, separate copies",
    r"\bmeetings?\b(?!/)": "overlap",
    r"\bcomplaints?\b": "finding",
}

# A phrase that is right in one place, and why.
ALLOWED = {
    # (where, text that holds the phrase): reason
}

LITERAL = re.compile(r'(?:u8|L)?"((?:[^"\\\n]|\\.)*)"')
RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.S)


def literals(path):
    """The string literals of a C++ source with their line numbers; neighbours, which the compiler joins, are one."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = RAW.sub(lambda match: '""' + "\n" * match.group(0).count("\n"), text)
    text = re.sub(r"'(?:[^'\\\n]|\\.)'", "' '", text)
    text = re.sub(r"//[^\n]*|^#include[^\n]*", "", text, flags=re.M)
    joined, end = [], -1
    for match in LITERAL.finditer(text):
        if end >= 0 and text[end : match.start()].strip() == "":
            joined[-1][1] += match.group(1)
        else:
            joined.append([text.count("\n", 0, match.start()) + 1, match.group(1)])
        end = match.end()
    return joined


def sources(folder):
    for base, _, files in os.walk(os.path.join(ROOT, folder)):
        yield from (os.path.join(base, name) for name in sorted(files) if name.endswith((".h", ".cpp")))


def run(*arguments):
    return subprocess.run([SHARDCTL, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def texts():
    """(where, text) of all that is held to the list."""
    general = run("--help")
    yield "--help", general
    verbs = re.findall(r"^  ([a-z]+)  +", general.split("Verbs:")[1].split("Global options")[0], flags=re.M)
    assert "inspect" in verbs and "completion" in verbs, verbs
    for verb in verbs:
        yield f"help {verb}", run("help", verb)
        yield f"{verb} --help", run(verb, "--help")
    for folder in CLEAN:
        for path in sources(folder):
            for line, text in literals(path):
                yield f"{os.path.relpath(path, ROOT)}:{line}", text


def forbidden_in(text):
    flat = re.sub(r"\s+", " ", text.replace("\\n", " "))
    for pattern, better in FORBIDDEN.items():
        for match in re.finditer(pattern, flat, flags=re.I):
            yield flat[max(0, match.start() - 30) : match.end() + 30], better


# The check itself sees what it is there for.
for bad in ["'x' is no checkpoint", "put whole tensors\ntogether", "cannot look at: x", "rank 2 is not here"]:
    assert any(forbidden_in(bad)), bad
assert not any(forbidden_in("x is not a checkpoint; no such file")), "a plain sentence"

found = [
    f"{where}: ...{around}... (better: {better})"
    for where, text in texts()
    for around, better in forbidden_in(text)
    if not any(where.startswith(place) and part in text for place, part in ALLOWED)
]
if found:
    sys.exit("FAIL: phrases that the glossary does not want:\n" + "\n".join(found))
