"""Writes hostile inputs for other scripts: write_cases.py FOLDER GROUP..., each case in a folder of its own."""
import sys
from pathlib import Path

import containers
import pickles
import places

GROUPS = {"running": pickles.running, "shapes": pickles.shapes, "folders": containers.folders, "places": places.cases}


def main() -> None:
    for group in sys.argv[2:]:
        for number, case in enumerate(GROUPS[group]()):
            folder = Path(sys.argv[1], f"{group}-{number}")
            folder.mkdir(parents=True)
            case.make(folder)


if __name__ == "__main__":
    main()
