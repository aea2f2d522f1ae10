"""Reduces a library's interface, as abidw writes it, to the declarations in installed headers: abi_public.py
HEADERS <ALL >PUBLIC

A symbol is public if it is in the namespace shard and each part of its name is a word of some header in the folder
HEADERS. Others stay in the file without their symbol, so that abidiff does not compare them.
"""
import re
import subprocess
import sys
from pathlib import Path

NAME = re.compile(r"^(?:vtable for |typeinfo for )?shard::([\w:~]+)")


def main() -> int:
    words = set(re.findall(r"\w+", " ".join(path.read_text() for path in Path(sys.argv[1]).rglob("*.h"))))
    lines = sys.stdin.read().split("\n")
    symbols = sorted({name for line in lines for name in re.findall(r"<elf-symbol name='([^']+)'", line)})
    names = subprocess.run(["c++filt"], input="\n".join(symbols), text=True, capture_output=True, check=True).stdout.split("\n")
    matched = {symbol: NAME.match(name) for symbol, name in zip(symbols, names)}
    public = {symbol for symbol, name in matched.items() if name and set(re.findall(r"\w+", name[1])) <= words}
    for line in lines:
        symbol = re.search(r"<elf-symbol name='([^']+)'", line)
        if symbol and symbol[1] not in public:
            continue
        reference = re.search(r" elf-symbol-id='([^'@]+)[^']*'", line)
        print(line if not reference or reference[1] in public else line.replace(reference[0], ""))
    return 0


sys.exit(main())
