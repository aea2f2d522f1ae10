"""safetensors files, and folders of them with an index."""
import json
from collections.abc import Callable

from build import entry, safetensors
from family import Family, to_file, to_folder


def with_names(n: int, prefix: str = "model.layers.") -> bytes:
    return safetensors({f"{prefix}{i}.weight": entry([1], i, i + 1) for i in range(n)}, bytes(n))


def with_metadata(count: int, text: str) -> bytes:
    return safetensors({"__metadata__": {f"key {i}": text for i in range(count)}, "w": entry([1], 0, 1)}, b"x")


def with_index(n: int) -> dict[str, bytes]:
    index = {"weight_map": {f"model.layers.{i}.weight": "x.safetensors" for i in range(n)}}
    return {"model.safetensors.index.json": json.dumps(index).encode(), "x.safetensors": with_names(n)}


def in_files(n: int) -> dict[str, bytes]:
    """A thousand bytes of padding each, so that a file is not only an inode."""
    names = {f"t{i}": f"part-{i}.safetensors" for i in range(n)}
    files = {file: safetensors({name: entry([1000], 0, 1000)}, bytes(1000)) for name, file in names.items()}
    return {"model.safetensors.index.json": json.dumps({"weight_map": names}).encode(), **files}


def by_number(n: int) -> bytes:
    """n names with nothing in common after their first part."""
    return safetensors({f"p{i}.w{i}": entry([1], i, i + 1) for i in range(n)}, bytes(n))


def rules(what: str, option: str, rule: Callable[[int], str], begin: tuple[str, ...] = ()) -> Family:
    """Equal numbers of rules and names; each matches few."""
    return Family("safetensors", f"{what} and names", 500, to_file("x.safetensors", by_number),
                  lambda n: [*begin, *(word for i in range(n) for word in (option, rule(i)))])


FAMILIES = [
    Family("safetensors", "names", 2000, to_file("x.safetensors", with_names)),
    Family("safetensors", "rules of --cast", 500, to_file("x.safetensors", lambda n: with_names(20)),
           lambda n: [word for i in range(n) for word in ("--cast", f"*.*.{i % 20}.*=bfloat16")]),
    Family("safetensors", "rules of --rename", 500, to_file("x.safetensors", lambda n: with_names(20)),
           lambda n: [word for i in range(n) for word in ("--rename", f"layers.{i}.w=layer{i}.w")]),
    rules("rules of --cast", "--cast", lambda i: f"p{i}.*=bfloat16"),
    rules("rules of --cast that begin alike", "--cast", lambda i: f"*.w{i}=bfloat16"),
    rules("rules of --cast for single tensors", "--cast", lambda i: f"p{i}.w{i}=bfloat16"),
    rules("rules of --rename", "--rename", lambda i: f"p{i}\\.=q{i}."),
    rules("rules of --rename from the end", "--rename", lambda i: f"w{i}$=v{i}"),
    rules("globs of --include", "--include", lambda i: f"**.w{i}"),
    rules("globs of --exclude", "--exclude", lambda i: f"p?{i}.*"),
    rules("prefixes to strip", "--strip-prefix", lambda i: f"p{i}."),
    rules("rules of --place", "--place", lambda i: f"p{i}.*=R", ("--mesh", "a=2")),
    Family("safetensors", "length of one name", 1 << 16, to_file("x.safetensors", lambda n: safetensors(
        {"n" * n: entry([1], 0, 1)}, b"x"))),
    Family("safetensors", "names and their length", 128, to_file("x.safetensors", lambda n: with_names(n, "p" * n))),
    Family("safetensors", "depth of names", 1 << 15, to_file("x.safetensors", lambda n: safetensors(
        {".".join("a" * n): entry([1], 0, 1)}, b"x"))),
    Family("safetensors", "metadata keys", 4000, to_file("x.safetensors", lambda n: with_metadata(n, "value"))),
    Family("safetensors", "length of a metadata text", 1 << 16, to_file("x.safetensors", lambda n: with_metadata(1, "\\u0001" * n))),
    Family("safetensors", "dimensions of 1", 100, to_file("x.safetensors", lambda n: safetensors(
        {f"t{i}": entry([1] * 60, i, i + 1) for i in range(8 * n)}, bytes(8 * n)))),
    Family("safetensors", "nesting", 1 << 16, to_file("x.safetensors", lambda n: safetensors(b'{"a":' * n))),
    Family("safetensors", "one name again and again", 2000, to_file("x.safetensors", lambda n: safetensors(
        b"{" + b",".join([b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'] * n) + b"}"))),
    Family("safetensors", "names in an index", 2000, to_folder(with_index)),
    Family("safetensors", "files", 64, to_folder(in_files)),
]
