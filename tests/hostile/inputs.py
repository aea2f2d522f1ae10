"""Small files that request large resources: fill values, documents of many values, signatures, patterns, names. One
of each kind.

Continuous integration tries `short()` with every verb, `long()` adds sizes and seeds.
"""
import json
import math
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import views
from build import dict_of, entry, number, pickled, safetensors, size_of, tensor, text, torch_file, torch_zip
from documents import (GOOD, KINDS, SCHEMA, entries_of, honest_file, manifest, rank_folder, with_integrity, with_keras_index)
from verbs import Hostile

PYTHON = os.environ.get("HDF5_PYTHON")
MIB = 1 << 20


def has_h5py() -> bool:
    return PYTHON is not None and subprocess.run([PYTHON, "-c", "import h5py"], capture_output=True).returncode == 0


# HDF5

def hdf5(what: str, number_of: int, name: str = "x.h5") -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        script = Path(__file__).with_name("make_hdf5.py")
        subprocess.run([PYTHON, script, what, str(number_of), folder / name], check=True)
        return folder / name
    return make


def keras_folder(what: str, number_of: int, files: int) -> Callable[[Path], Path]:
    """Copies of one file under Keras' index."""
    def make(folder: Path) -> Path:
        root = folder / "model"
        root.mkdir()
        first = hdf5(what, number_of, "a_00000.h5")(root)
        for number_of_file in range(1, files):
            shutil.copy(first, root / f"a_{number_of_file:05}.h5")
        index = {"metadata": {}, "weight_map": {"/w": [f"a_{i:05}.h5" for i in range(files)]}}
        (root / "model.weights.json").write_text(json.dumps(index))
        return root
    return make


def flipped(seed: int) -> Callable[[Path], Path]:
    """A good file with a few bytes changed. A seed that found a fault stays in SEEDS."""
    def make(folder: Path) -> Path:
        path = hdf5("several", 64)(folder)
        data, chance = bytearray(path.read_bytes()), random.Random(seed)
        for _ in range(chance.choice((1, 1, 2, 4))):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        path.write_bytes(data)
        return path
    return make


SEEDS = range(8)
FLIP_VERBS = ("inspect", "digest", "verify", "repair")


def hdf5_files(is_long: bool) -> Iterator[Hostile]:
    if not has_h5py():
        print("hdf5: left out, HDF5_PYTHON names no Python with h5py")
        return
    sizes = (33, 34, 40, 50) if is_long else (34, 50)
    for bits in sizes:
        yield Hostile(f"hdf5: 2^{bits} fill values", hdf5("fill", bits))
    yield Hostile("hdf5: a virtual dataset of 2^50 without mappings", hdf5("virtual_nothing", 50))
    yield Hostile("hdf5: 2^50 fill values under Keras' index", keras_folder("fill", 50, 1))
    for what in "narrow_rows", "narrow_columns":
        yield Hostile(f"hdf5: 2^30 fill values in {what}", hdf5(what, 15))
    for bits in (8, 12, 14, 16, 18, 20) if is_long else (14, 18):
        yield Hostile(f"hdf5: interleaved mappings of 2^{bits} elements", hdf5("strided", bits))
    for files in (50, 100, 200) if is_long else (100,):
        yield Hostile(f"hdf5: {files} files of interleaved mappings", keras_folder("strided", 12, files))
    for seed in range(420) if is_long else SEEDS:
        yield Hostile(f"hdf5: flipped bytes, seed {seed}", flipped(seed), verbs=FLIP_VERBS)


# Documents beside checkpoints

def documents(is_long: bool) -> Iterator[Hostile]:
    """Read without any option."""
    size = (15 if is_long else 2) * MIB
    for title, one in {"{}": b"{}", "0": b"0", "short rules": b'{"match":"a"}'}.items():
        rules = b",".join([one] * (size // (len(one) + 1)))
        yield Hostile(f"layout.json beside rank files, of {title}", lambda folder, rules=rules: rank_folder(folder, rules))

    def integrity(folder: Path) -> Path:
        with_integrity(folder, entries_of(KINDS[5], KINDS[5].honest, size))
        return folder / "m"
    yield Hostile("integrity.json of absent files", integrity)

    def stated(folder: Path) -> Path:
        root = folder / "m"
        root.mkdir()
        (root / "model.safetensors").write_bytes(GOOD)
        count = size // len(honest_file(0))
        (root / "shardctl.manifest.json").write_bytes(manifest(folder, b",".join(map(honest_file, range(count)))))
        return root
    yield Hostile("a manifest of absent files of 0 bytes", stated)

    def keras(folder: Path) -> Path:
        with_keras_index(folder, entries_of(KINDS[6], KINDS[6].honest, size))
        return folder / "model.weights.json"
    yield Hostile("Keras' index of absent files", keras)


MAP_VERBS = ("gather", "export", "split", "convert", "digest", "inspect", "diff", "reshard")


def map_document(**parts) -> bytes:
    return json.dumps({"schema": "shardctl.layout/1", **parts}).encode()


def with_map(document: Callable[[], bytes], names: Callable[[], list[str]] = lambda: ["a"]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "map.json").write_bytes(document())
        header = {name: entry([1], i, i + 1) for i, name in enumerate(names())}
        (folder / "m.safetensors").write_bytes(safetensors(header, bytes(len(header))))
        return folder / "m.safetensors"
    return make


def indexes(count: int) -> bytes:
    return map_document(index={f"i{i}": {"count": 1 << 20} for i in range(count)}, rules=[])


def states(rules: int, count: int, length: int = 1) -> bytes:
    return map_document(rules=[{"logical": f"a{i}" + "x" * length, "stored": f"b{i}"} for i in range(rules)],
                        states=[{"name": f"s{i}", "key": f"s{i}.{{key}}"} for i in range(count)])


def variables(count: int) -> bytes:
    found = {f"v{i}": {"from": f"stored#(?:a|b)*a(?:a|b){{{8 + i % 8}}}c{i}"} for i in range(count)}
    return map_document(vars=found, rules=[{"match": ".*"}])


def slow_rules(count: int) -> bytes:
    return map_document(rules=[{"match": f"(?:a|b)*a(?:a|b){{{8 + i % 8}}}c{i}"} for i in range(count)] + [{"match": ".*"}])


def long_name(length: int = MIB) -> list[str]:
    chance = random.Random(5)
    return ["".join(chance.choices("ab", k=length))]


def many_names(count: int, length: int) -> list[str]:
    chance = random.Random(6)
    return ["".join(chance.choices("ab", k=length)) for _ in range(count)]


def maps(is_long: bool) -> Iterator[Hostile]:
    """Documents for --map, from strangers."""
    def case(name: str, document: Callable[[], bytes], names: Callable[[], list[str]] = lambda: ["a"]) -> Hostile:
        return Hostile(f"map: {name}", with_map(document, names), ["--map", "{in}/map.json"],
                       ("map --map", "gather", "convert") if not is_long else ("map --map", *MAP_VERBS))
    yield case("256 indexes of 2^20", lambda: indexes(256))
    yield case("2 indexes of 2^20", lambda: indexes(2))
    yield case("1000 rules in 1000 states", lambda: states(1000, 1000))
    yield case("4000 rules in 4000 states", lambda: states(4000, 4000))
    yield case("200 rules in 300 states", lambda: states(200, 300))
    yield case("60 long rules in 1000 states", lambda: states(60, 1000, 4000))
    yield case("250 variables of slow patterns, a name of 1 MB", lambda: variables(250), long_name)
    yield case("250 variables of slow patterns, 1 MB of names of 4 KB", lambda: variables(250), lambda: many_names(256, 4000))
    yield case("2000 rules of slow patterns, a name of 1 MB", lambda: slow_rules(2000), long_name)
    yield case("2000 rules of slow patterns, 1 MB of names of 500 bytes", lambda: slow_rules(2000), lambda: many_names(2000, 500))
    yield case("1000 rules of large patterns", lambda: map_document(rules=[{"match": f"x{{0,1000}}{i}"} for i in range(1000)]))
    yield case("a template of 100,000 placeholders", lambda: map_document(rules=[
        {"logical": "".join(f"{{a{i}}}." for i in range(100_000)), "stored": "b"}]))
    yield case("a word of 1 MB in 1000 names", lambda: map_document(
        vars={"v": {"word": "w" * MIB}}, rules=[{"logical": f"a{i}{{v}}{{v}}", "stored": f"b{i}{{v}}"} for i in range(1000)]))
    for title, one in {"{}": b"{}", "0": b"0", "short rules": b'{"match":"a"}', "numbers": b"12"}.items():
        size = (15 if is_long else 4) * MIB
        yield case(f"a list of {title}", lambda one=one, size=size: b"{" + SCHEMA + b',"rules":[' +
                   b",".join([one] * (size // (len(one) + 1))) + b"]}")
    yield case("YAML of short rules", lambda: b"schema: shardctl.layout/1\nrules:\n" + b"- {match: a}\n" * 300_000)
    yield case("a list of 1,000,000 sizes", lambda: map_document(
        rules=[{"logical": ["a", "b"], "stored": "c", "concat": {"dim": 0, "sizes": [12] * 1_000_000}}]))


# Zips, patterns of DeepSpeed, views

def signatures(signature: bytes, size: int) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "x.pt").write_bytes(signature * (size // len(signature)))
        return folder / "x.pt"
    return make


def zips(is_long: bool) -> Iterator[Hostile]:
    for signature in b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08":
        verbs = () if is_long else ("repair", "inspect")
        yield Hostile(f"a .pt of {signature!r}", signatures(signature, (16 if is_long else 4) * MIB), verbs=verbs)


def mapping(items) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in items) + b"u"


def joined_save(patterns: list[str], names: Callable[[], list[str]]) -> Callable[[Path], Path]:
    """A save of DeepSpeed's ZeRO for two tensor-parallel ranks, joined by its patterns."""
    def make(folder: Path) -> Path:
        root = folder / "ckpt"
        root.mkdir()
        all_names = names()
        rules = dict_of(tp_replicated_parameter_patterns=b"](" + b"".join(map(text, patterns)) + b"e")
        shapes = b"](" + mapping((each, size_of([2])) for each in all_names) + b"e"
        config = dict_of(zero_optimization=dict_of(stage=number(2)))
        model = dict_of(module=b"}", param_shapes=shapes, dp_world_size=number(1), mp_world_size=number(2), ds_config=config,
                        universal_checkpoint_info=rules)
        flat = tensor([2 * len(all_names)], [1], 0, 2 * len(all_names))
        zero = dict_of(zero_stage=number(2), partition_count=number(1), single_partition_of_fp32_groups=b"](" + flat + b"e",
                       base_optimizer_state=dict_of(state=b"}", param_groups=b"]"))
        optimizer = torch_file(dict_of(optimizer_state_dict=zero), bytes(8 * len(all_names)))
        for rank in range(2):
            (root / f"mp_rank_{rank:02}_model_states.pt").write_bytes(torch_file(model))
            (root / f"zero_pp_rank_0_mp_rank_{rank:02}_optim_states.pt").write_bytes(optimizer)
        return root
    return make


def deepspeed(is_long: bool) -> Iterator[Hostile]:
    slow = [f"(?:a|b)*a(?:a|b){{{8 + i % 8}}}c{i}" for i in range(256)]
    yield Hostile("deepspeed: 256 slow patterns, a name of 1 MB", joined_save(slow, long_name))
    yield Hostile("deepspeed: 256 slow patterns, 1 MB of names", joined_save(slow, lambda: many_names(500, 2000)))
    large = [f"x{{0,1000}}{i}" for i in range(256)]
    yield Hostile("deepspeed: 256 large patterns", joined_save(large, lambda: many_names(500, 100)))


def names(is_long: bool) -> Iterator[Hostile]:
    """Names that end scripts, steer terminals, forge lines or leave folders."""
    all_names = ["</script><script>alert(1)</script>", "<!--<script>", "@script@", "@document@", "__proto__", "constructor",
                 "\u2028", "\u2029", "\x1b[31m", "\x1b]0;x\x07", "a\nFORGED", "a\tb", "\x7f", "\u202e", "../../x", "/etc/x", "a\\b",
                 "\"'`", "&lt;&amp;"]
    content = safetensors({name: entry([1], i, i + 1) for i, name in enumerate(all_names)}, bytes(len(all_names)))

    def make(folder: Path) -> Path:
        (folder / "x.safetensors").write_bytes(content)
        return folder / "x.safetensors"
    yield Hostile("19 names in a safetensors file", make)
    body = mapping((name, tensor([1], [1])) for name in [*all_names, "a\0b"])

    def torch(folder: Path) -> Path:
        (folder / "x.pt").write_bytes(torch_zip(pickled(body), {"data/0": bytes(16)}))
        return folder / "x.pt"
    yield Hostile("20 names in a torch file", torch)


def expanded(is_long: bool) -> Iterator[Hostile]:
    for bits in (50, 34, 29):
        yield Hostile(f"dcp: 2^{bits} floats out of one", views.expanded_item(1 << bits, 1))

    def torch(folder: Path) -> Path:
        (folder / "x.pt").write_bytes(torch_zip(pickled(mapping([("w", tensor([1 << 50], [0], count=1))])), {"data/0": bytes(4)}))
        return folder / "x.pt"
    yield Hostile("torch: 2^50 floats out of one", torch)

    def huge_header(folder: Path) -> Path:
        (folder / "x.safetensors").write_bytes(struct.pack("<Q", 1 << 63) + b"{}")
        return folder / "x.safetensors"
    yield Hostile("safetensors: a header of 2^63 bytes", huge_header)


# Quantized weights

COMPUTING = ("gather", "digest", "convert", "diff", "split", "inspect")


def quantized(is_long: bool) -> Iterator[Hostile]:
    """Weights that are computed: matrices of one row or column, widths of one bit, statements of a configuration."""
    sizes = {"F8_E4M3": 1, "U8": 1, "F16": 2, "F32": 4, "I32": 4}
    size = (15 if is_long else 4) * MIB

    def case(name: str, config: dict, tensors: Callable[[], dict[str, tuple[str, list[int]]]]) -> Hostile:
        def make(folder: Path) -> Path:
            root = folder / "m"
            root.mkdir()
            header, end = {}, 0
            for key, (dtype, shape) in tensors().items():
                begin, end = end, end + sizes[dtype] * math.prod(shape)
                header[key] = entry(shape, begin, end, dtype)
            (root / "model.safetensors").write_bytes(safetensors(header, bytes(end)))
            (root / "config.json").write_text(json.dumps({"quantization_config": config}))
            return root
        return Hostile(f"quantized: {name}", make, ["--dequantize=float32"], COMPUTING if is_long else ("gather", "diff"))

    def float8(count: int) -> dict[str, tuple[str, list[int]]]:
        return {key: each for i in range(count) for key, each in
                {f"m{i}.weight": ("F8_E4M3", [1, 1]), f"m{i}.weight_scale": ("F32", [1])}.items()}
    words = size // 4
    yield case("codes of 2 bits in one column", {"quant_method": "gptq", "bits": 2}, lambda: {
        "a.qweight": ("I32", [words, 1]), "a.qzeros": ("I32", [1, 1]), "a.scales": ("F16", [1, 1])})
    yield case("codes of 4 bits in two columns, a group for each row", {"quant_method": "gptq", "bits": 4}, lambda: {
        "a.qweight": ("I32", [words // 20, 2]), "a.qzeros": ("I32", [words // 20 * 8, 1]), "a.scales": ("F16", [words // 20 * 8, 2]),
        "a.g_idx": ("I32", [words // 20 * 8])})
    yield case("codes of 1 bit in one row", {"quant_method": "compressed-tensors", "num_bits": 1, "group_size": 32}, lambda: {
        "a.weight_packed": ("I32", [1, words // 2]), "a.weight_scale": ("F16", [1, words // 2])})
    yield case("codes of 7 bits in one column", {"quant_method": "compressed-tensors", "num_bits": 7, "group_size": 1}, lambda: {
        "a.weight_packed": ("I32", [words // 2, 1]), "a.weight_scale": ("F32", [words // 2, 1])})
    yield case("rows of two codes", {}, lambda: {"a.weight_packed": ("U8", [size // 2, 1]), "a.weight_scale": ("U8", [size // 2, 1])})
    yield case("experts of one row", {}, lambda: {"a.w_blocks": ("U8", [size // 17, 1, 1, 16]), "a.w_scales": ("U8", [size // 17, 1, 1])})
    yield case("blocks of one number", {"weight_block_size": [1, 1]}, lambda: {
        "a.weight": ("F8_E4M3", [1 << 10, size >> 13]), "a.weight_scale_inv": ("F32", [1 << 10, size >> 13])})
    yield case("many modules", {"quant_method": "fp8"}, lambda: float8(size // 160))
    yield case("a list of plain modules", {"ignore": [f"a{i}" for i in range(size // 16)]}, lambda: float8(2))
    yield case("slow patterns of plain modules", {"ignore": [f"re:(?:a|b)*a(?:a|b){{{8 + i % 8}}}c{i}" for i in range(2000)]}, lambda: {
        f"{name}{i}.{end}": each for i, name in enumerate(many_names(200, 2000)) for end, each in
        (("weight", ("F8_E4M3", [1, 1])), ("weight_scale", ("F32", [1])))})
    yield case("large patterns of plain modules", {"ignore": [f"re:x{{0,1000}}{i}" for i in range(1000)]}, lambda: float8(1000))
    yield case("schemes", {f"g{i}": {"bits": 4, "group_size": i} for i in range(size // 64)}, lambda: {
        f"m{i}.{end}": each for i in range(5000) for end, each in (("weight_packed", ("I32", [1, 2])), ("weight_scale", ("F16", [1, 2])))})


def computed(is_long: bool) -> Iterator[Hostile]:
    """Untrusted adapters, and averages of checkpoints with much metadata."""
    count = (200 if is_long else 20) * 1000

    def header(shapes: dict[str, list[int]]) -> bytes:
        entries, end = {}, 0
        for name, shape in shapes.items():
            entries[name] = entry(shape, end, end + 4 * math.prod(shape), "F32")
            end += 4 * math.prod(shape)
        return safetensors(entries, bytes(end))

    def case(name: str, base: dict[str, list[int]], adapter: dict[str, list[int]], config: dict) -> Hostile:
        def make(folder: Path) -> Path:
            (folder / "a").mkdir()
            (folder / "a/adapter_model.safetensors").write_bytes(header(adapter))
            (folder / "a/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 1} | config))
            (folder / "x.safetensors").write_bytes(header(base))
            return folder / "x.safetensors"
        return Hostile(f"lora: {name}", make, ["--lora", "{in}/a"], COMPUTING if is_long else ("gather",))

    def pair(module: str, rank: int, out: int, width: int) -> dict[str, list[int]]:
        return {f"{module}.lora_A.weight": [rank, width], f"{module}.lora_B.weight": [out, rank]}
    side = 1 << (11 if is_long else 10)
    yield case("factors of full rank", {"m.weight": [side, side]}, pair("m", side // 2, side, side), {})
    yield case("magnitudes of long rows", {"m.weight": [4, side * 64]}, pair("m", 8, 4, side * 64) | {"m.lora_magnitude_vector": [4]},
               {"use_dora": True})
    yield case("pairs without a module", {"w": [1]}, {key: each for i in range(count // 20) for key, each in pair(f"m{i}", 1, 1, 1).items()}, {})
    yield case("slow patterns", {f"{name}.weight": [1, 1] for name in many_names(100, 1000)},
               {key: each for name in many_names(100, 1000) for key, each in pair(name, 1, 1, 1).items()},
               {"alpha_pattern": {f"(?:a|b)*a(?:a|b){{{8 + i % 8}}}c{i}": 2 for i in range(500)}})
    yield case("nested layers", {"m.weight": [1, 1]}, pair("m" + ".base_layer" * 1000, 1, 1, 1), {})

    def many(folder: Path) -> Path:
        (folder / "x.safetensors").write_bytes(header({f"m{i}": [1] for i in range(count)}))
        return folder / "x.safetensors"
    yield Hostile("average: many tensors", many, [], ("average",))


GROUPS = (hdf5_files, documents, maps, zips, deepspeed, names, expanded, quantized, computed)


def all_inputs(is_long: bool) -> Iterator[Hostile]:
    for group in GROUPS:
        yield from group(is_long)
