"""Draws the pictures of the pages as SVG files: pictures.py FOLDER

They have the width of a telephone, and the colours of the reader's theme. scripts/site draws them; docs/images has the same
files for readers of the repository, which cli_site compares.
"""
import sys
from pathlib import Path

WIDTH = 480
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.small { font-size: 12px; } .middle { text-anchor: middle; } .code { font-family: ui-monospace, monospace; font-size: 12px; }
.box { fill: #f6f8fa; stroke: #57606a; } .line { fill: none; stroke: #57606a; stroke-width: 1.5; } .dotted { stroke-dasharray: 3 4; } .head { fill: #57606a; }
.c0 { fill: #b6d4fe; stroke: #57606a; } .c1 { fill: #a6e9d5; stroke: #57606a; } .c2 { fill: #ffe0a3; stroke: #57606a; } .c3 { fill: #f1c0e8; stroke: #57606a; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .box { fill: #30363d; stroke: #8b949e; } .line { stroke: #8b949e; } .head { fill: #8b949e; }
.c0 { fill: #1f4b8e; } .c1 { fill: #12634e; } .c2 { fill: #7a5300; } .c3 { fill: #74356a; } }"""


def box(x: float, y: float, width: float, height: float, label: str = "", kind: str = "box", words: str = "") -> str:
    text = f'<text class="middle {words}" x="{x + width / 2:g}" y="{y + height / 2 + 5:g}">{label}</text>' if label else ""
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>{text}'


def text(x: float, y: float, label: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{label}</text>'


def arrow(*points: tuple[float, float], kind: str = "") -> str:
    """A line through the points, with a head at its end."""
    (before_x, before_y), (x, y) = points[-2:]
    if before_y == y:
        side = 7 if before_x < x else -7
        head = f"{x:g},{y:g} {x - side:g},{y - 4:g} {x - side:g},{y + 4:g}"
    else:
        side = 7 if before_y < y else -7
        head = f"{x:g},{y:g} {x - 4:g},{y - side:g} {x + 4:g},{y - side:g}"
    line = " ".join(f"{each[0]:g},{each[1]:g}" for each in points)
    return f'<polyline class="line {kind}" points="{line}"/><polygon class="head" points="{head}"/>'


def slices(x: float, y: float, count: int, height: float = 48) -> str:
    """A tensor of a height in as many slices, in the colours of four ranks."""
    each = height / count
    return "".join(box(x, y + i * each, 56, each, kind=f"c{i % 4}") for i in range(count))


def files() -> tuple[int, str]:
    """A tensor of 50 rows over 4 ranks, a file for each."""
    parts = [text(20, 22, "model.embed.weight", "code"), text(290, 22, "data/demo/ckpt/", "code")]
    for rank in range(4):
        first, y = 13 * rank, 34 + 34 * rank
        parts += [box(20, y, 150, 34, f"rows {first} to {min(first + 12, 49)}", f"c{rank}"), text(186, y + 22, f"rank {rank}"),
                  arrow((236, y + 17), (284, y + 17)), box(290, y + 3, 170, 28, f"__{rank}_0.distcp", f"c{rank}", "code")]
    parts += [box(290, 178, 170, 28, ".metadata", words="code"), text(20, 196, "the place of every slice:"), arrow((186, 192), (284, 192), kind="dotted")]
    return 216, "".join(parts)


def verbs() -> tuple[int, str]:
    """Each verb: the slices or files before and after it."""
    rows = [("gather", slices(120, 0, 4), slices(290, 0, 1), "whole tensors"), ("split", slices(120, 0, 1), slices(290, 0, 4), "a slice per rank"),
            ("reshard", slices(120, 0, 4), slices(290, 0, 6), "other slices"),
            ("convert", box(120, 8, 80, 32, "model.pt", words="code"), box(290, 8, 150, 32, "model.safetensors", words="code"), "")]
    parts = []
    for i, (verb, before, after, words) in enumerate(rows):
        parts.append(f'<g transform="translate(0 {10 + 62 * i})">{text(20, 29, verb)}{before}{arrow((212, 24), (278, 24))}{after}{text(358, 29, words, "small")}</g>')
    return 262, "".join(parts)


def mesh() -> tuple[int, str]:
    """Eight ranks of a mesh dp=2,tp=4, coloured by the quarter of the rows that a rank stores."""
    parts = [text(100 + 90 * tp, 22, f"tp={tp}", "middle") for tp in range(4)]
    for dp in range(2):
        parts.append(text(8, 56 + 48 * dp, f"dp={dp}"))
        parts += [box(58 + 90 * tp, 32 + 48 * dp, 84, 40, f"rank {4 * dp + tp}", f"c{tp}") for tp in range(4)]
    parts += [text(58, 150, "R over dp: ranks of one column store the same rows", "small"), text(58, 170, "S(0) over tp: each column stores a quarter of the rows", "small")]
    return 182, "".join(parts)


def pipeline() -> tuple[int, str]:
    """From source files and a layout to the destination."""
    names = [("source files", 10, 10), ("Reader", 10, 70), ("source catalog", 10, 130), ("layout", 330, 70), ("target catalog", 330, 130), ("planner", 170, 130),
             ("tiles", 170, 190), ("executor", 170, 250), ("staged files", 170, 310), ("commit", 330, 310), ("destination", 330, 370)]
    parts = [box(x, y, 140, 36, name) for name, x, y in names]
    parts += [arrow((80, 46), (80, 70)), arrow((80, 106), (80, 130)), arrow((400, 106), (400, 130)), arrow((150, 148), (170, 148)), arrow((330, 148), (310, 148)),
              arrow((240, 166), (240, 190)), arrow((240, 226), (240, 250)), arrow((240, 286), (240, 310)), arrow((310, 328), (330, 328)), arrow((400, 346), (400, 370)),
              arrow((10, 28), (4, 28), (4, 268), (170, 268), kind="dotted"), text(70, 262, "bytes", "small")]
    return 416, "".join(parts)


PICTURES = {"files": files, "verbs": verbs, "mesh": mesh, "pipeline": pipeline}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        height, shapes = draw()
        shapes = shapes.replace("><", ">\n<")
        (folder / f"{name}.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">\n'
                                            f"<style>{STYLE}</style>\n{shapes}\n</svg>\n")


main(Path(sys.argv[1]))
