"""Reads a hostile source by the Python module, as a script would: read_by_module.py FOLDER SOURCE... [OPTIONS OF A VERB], where
FOLDER contains the module. Exits with the code of the error's class, or 70 after an exception of another kind."""
import argparse
import sys
import traceback

TENSORS, LARGEST = 64, 16 << 20


def options_of(words: list[str]) -> tuple[list[str], dict]:
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", nargs="+")
    for name in ("map", "hf-ref", "layout", "dequantize", "unknown-globals"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--from", dest="format")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--lora", action="append", default=[])
    found = vars(parser.parse_known_args(words)[0])
    found["set"] = dict(each.partition("=")[::2] for each in found["set"])
    found["lora"] = {path: float(weight or 1) for path, _, weight in (each.partition("=") for each in found["lora"])}
    return found.pop("sources"), {name: value for name, value in found.items() if value}


def read(sources: list[str], options: dict) -> None:
    import shardctl

    with shardctl.open(sources, threads=2, **options) as checkpoint:
        print(repr(checkpoint.format), len(checkpoint.metadata), len(checkpoint.warnings))
        names = list(checkpoint)
        print(len(names), len(checkpoint.objects))
        for name in names[:TENSORS]:
            first, last = checkpoint._opened().find(name)
            handle = checkpoint[name] if last - first == 1 else checkpoint.tensor(name, checkpoint._opened().tensor(first)[4])
            assert len(handle.chunks) >= 0 and handle.size >= 0 and handle.placements != ()
            part = handle[:1] if handle.ndim and handle.nbytes > LARGEST else handle
            if part.nbytes <= LARGEST:
                part.read_into(bytearray(part.nbytes))


def main() -> int:
    sys.path.insert(0, sys.argv[1])
    import shardctl

    try:
        read(*options_of(sys.argv[2:]))
    except shardctl.ShardctlError as error:
        print(error, file=sys.stderr)
        return error.code
    except MemoryError:
        return 6
    except Exception:
        traceback.print_exc()
        return 70
    return 0


if __name__ == "__main__":
    sys.exit(main())
