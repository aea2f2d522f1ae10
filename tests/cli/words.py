#!/usr/bin/env python3
"""Checks that help, messages, pages and comments use the project's English (docs/glossary.md). The phrases below must not
occur in the output of help, in a string literal, in a page, or in a comment of a clean folder. Folders whose comments are
not clean yet have a limit, which may only fall."""
import ast
import fnmatch
import io
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARDCTL = os.environ["SHARDCTL"]

# Folders whose string literals are clean. A folder in this list must stay clean.
CLEAN = ["apps", "formats", "libshard", "shardtorch"]

# Phrases to avoid in help and messages: regular expressions that ignore case, each with a better wording.
FORBIDDEN = {
    r"(?<!there )\b(is|are|was|were|be) no (?!longer)[a-z]": "is not a ...",
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

# Phrases to avoid also in comments and pages.
FORBIDDEN_IN_COMMENTS = {
    r"\b(is|are) told\b": "receives, gets",
    r"\banew\b": "again, from scratch, rebuild",
    r"\b(nobody|somebody|whoever|whom)\b": "no caller, no rank, anyone, the passive",
    r"\b(lies?|lay|stands?|stood) (in|at|on|beside|behind|before|over|there|with)\b": "is in, is stored in, precedes, overlaps",
    r", else\b(?! if)": "otherwise, or",
    r"\bwhatever\b": "regardless of, any",
    r"\bgo(es)? on\b": "continue",
    r"\bwhere (nothing|none|nobody|it is|there is|they are)\b": "if, when, because",
    r"(?<!warning )(?<!message )(?<!page )\b(says|tells) (what|which|where|how|whether|that|so)\b": "records, contains, returns, documents",
    r"\bwhat (is|are|it|they) (left|wrong|there|stored|held|holds?|says?)\b": "a noun",
}
FIRST_WORD = re.compile(r"(Of|What|Where|That|As|Those)\b")  # A comment starts with a noun or a verb.

# The largest number of such comments per top folder. A folder without a limit must have none. A limit may only fall.
LIMITS = {}

# Phrases that are right in one place, with the reason.
ALLOWED = {
# (start of the location, text around the phrase): reason
}

LITERAL = re.compile(r'(?:u8|L)?"((?:[^"\\\n]|\\.)*)"')
RAW = re.compile(r'R"(\w*)\((.*?)\)\1"', re.S)
NO_COMMENT = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'', re.S)


def literals(path):
    """The string literals of a C++ source with their line numbers. Adjacent literals are joined, as the compiler does."""
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


def joined_lines(lines):
    """(line number, text) of comments, from (number, whether it is the whole line, text). Consecutive lines are joined."""
    joined, last = [], None
    for number, is_alone, text in lines:
        if is_alone and last == number - 1 and text and not text.startswith("\\"):
            joined[-1][1] += " " + text
        else:
            joined.append([number, text])
        last = number if is_alone else None
    return joined


def comments_of_cpp(text):
    text = NO_COMMENT.sub(lambda match: match[0] if match[0].startswith("//") else '""' + "\n" * match[0].count("\n"), text)
    lines = enumerate(text.split("\n"), 1)
    found = ((number, re.match(r"(.*?)///?<?(?: |$)(.*)", line)) for number, line in lines)
    return joined_lines((number, not match[1].strip(), match[2].strip()) for number, match in found if match)


def comments_of_python(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [(t.start[0], not t.line[: t.start[1]].strip(), t.string.lstrip("# ")) for t in tokens if t.type == tokenize.COMMENT]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    docs = [[node.body[0].lineno, ast.get_docstring(node)] for node in nodes if ast.get_docstring(node)]
    return joined_lines(found) + docs


def comments_of_shell(text):
    """Comments in scripts and CMake files that are whole lines. A # inside a line may have another meaning."""
    found = ((number, re.match(r"\s*#(?!!) ?(.*)", line)) for number, line in enumerate(text.split("\n"), 1))
    return joined_lines((number, True, match[1].strip()) for number, match in found if match)


def comments(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".py") or re.match(r"#!.*python", text):
        return comments_of_python(text)
    return comments_of_cpp(text) if path.endswith((".h", ".cpp", ".js")) else comments_of_shell(text)


def tracked(*patterns):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    names = listed.stdout.split() or [
        os.path.relpath(os.path.join(base, name), ROOT) for base, _, files in os.walk(ROOT) for name in files]
    return [name for name in sorted(names)
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns) and os.path.isfile(os.path.join(ROOT, name))]


def run(*arguments):
    return subprocess.run([SHARDCTL, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def messages():
    """(where, text) of help and of string literals."""
    general = run("--help")
    yield "--help", general
    verbs = re.findall(r"^  ([a-z]+)  +", general.split("Verbs:")[1].split("Global options")[0], flags=re.M)
    assert "inspect" in verbs and "completion" in verbs, verbs
    for verb in verbs:
        yield f"help {verb}", run("help", verb, "--all")
        yield f"{verb} --help", run(verb, "--help")
    for name in tracked("*.h", "*.cpp"):
        if name.split("/")[0] in CLEAN:
            for line, text in literals(os.path.join(ROOT, name)):
                yield f"{name}:{line}", text


def commented():
    """(where, text) of comments."""
    scripts = [name for name in tracked("scripts/*") if re.fullmatch(r"scripts/(packaging/|examples/)?\w+", name)]
    for name in [*tracked("*.h", "*.cpp", "*.py", "*.js", "*.sh", "*.cmake", "*CMakeLists.txt"), *scripts]:
        for line, text in comments(os.path.join(ROOT, name)):
            yield f"{name}:{line}", text


def pages():
    """(where, text) of pages for readers, by paragraph. The changelog and the results are skipped: they record the past."""
    for name in tracked("*.md"):
        if name in ("CHANGELOG.md", "tests/RESULTS.md") or name.startswith("tests/data"):
            continue
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text = re.sub(r"^```.*?^```", "", file.read(), flags=re.M | re.S)
        for paragraph in text.split("\n\n"):
            yield name, paragraph


def phrases(text, forbidden):
    """(surrounding text, better wording) for each phrase to avoid."""
    flat = re.sub(r"\s+", " ", text.replace("\\n", " "))
    for pattern, better in forbidden.items():
        for match in re.finditer(pattern, flat, flags=re.I):
            yield flat[max(0, match.start() - 30) : match.end() + 30], better


def in_comment(text):
    if FIRST_WORD.match(text):
        yield text[:60], "start with a noun or a verb"
    yield from phrases(text, FORBIDDEN_IN_COMMENTS)


def found_in(texts, check):
    return [
        (where, f"{where}: ...{around}... (better: {better})")
        for where, text in texts
        for around, better in check(text)
        if not any(where.startswith(place) and part in text for place, part in ALLOWED)
    ]


# The check finds the phrases that it must find.
for bad in ["'x' is no checkpoint", "put whole tensors\ntogether", "cannot look at: x", "rank 2 is not here"]:
    assert any(phrases(bad, FORBIDDEN)), bad
assert not any(phrases("x is not a checkpoint; no such file", FORBIDDEN)), "a plain sentence"
for bad in ["Of two ranks the lower one.", "Is told on rank 0.", "A file, else a folder.", "The bytes lie in one file.", "What is left."]:
    assert any(in_comment(bad)), bad
assert not any(in_comment("The lower of two ranks. If it fails, the job continues, or else it ends.")), "a plain comment"
assert comments_of_cpp('int a;  // One.\n/// Two\n/// three.\nauto b = "// no";\n') == [[1, "One."], [2, "Two three."]]
assert comments_of_python('"""One."""\na = "# no"  # Two\n') == [[2, "Two"], [1, "One."]]

wrong = [line for _, line in found_in(messages(), lambda text: phrases(text, FORBIDDEN)) + found_in(pages(), lambda text: phrases(text, FORBIDDEN_IN_COMMENTS))]
by_folder = found_in(commented(), in_comment)
counts = Counter(where.split("/")[0] for where, _ in by_folder)
if "--counts" in sys.argv:
    print(dict(counts))
for folder, count in counts.items():
    if count > LIMITS.get(folder, 0):
        wrong += [f"{folder}: {count} comments, at most {LIMITS.get(folder, 0)}:"]
        wrong += [line for where, line in by_folder if where.startswith(folder + "/")]
if wrong:
    sys.exit("FAIL: phrases to avoid (docs/glossary.md, CONTRIBUTING.md):\n" + "\n".join(wrong))
