"""average from outside: formats, layouts, ranks, threads, manifests, and refusals.

Environment: SHARDCTL is the program.
"""
import random
import struct
import unittest

from program import ProgramTest, read_safetensors, write_safetensors

CHANCE = random.Random(2)
SHAPES = {"layers.0.weight": [37, 41], "layers.1.weight": [400, 256], "norm.weight": [9]}


def numbers() -> dict[str, list[float]]:
    return {name: [struct.unpack("<f", struct.pack("<f", CHANCE.gauss(0, 1)))[0] for _ in range(shape[0] * (shape + [1])[1])]
            for name, shape in SHAPES.items()}


def rounded(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def weighted(sources: list[dict], weights: list[float]) -> dict[str, bytes]:
    """The sum in float32, in order."""
    result = {}
    for name in SHAPES:
        sums = [rounded(rounded(weights[0]) * each) for each in sources[0][name]]
        for source, weight in zip(sources[1:], weights[1:]):
            sums = [rounded(a + rounded(rounded(weight) * b)) for a, b in zip(sums, source[name])]
        result[name] = struct.pack(f"<{len(sums)}f", *sums)
    return result


class Average(ProgramTest):
    def setUp(self):
        super().setUp()
        self.sources = [numbers() for _ in range(3)]
        for i, source in enumerate(self.sources):
            self.write(f"s{i}.safetensors", source)

    def write(self, name: str, source: dict[str, list[float]], ids=(1, 2)) -> None:
        tensors = {key: ("F32", SHAPES[key], struct.pack(f"<{len(values)}f", *values)) for key, values in source.items()}
        write_safetensors(self.dir / name, tensors | {"ids": ("I64", [2], struct.pack("<2q", *ids))})

    def average(self, *words) -> bytes:
        self.run_it("average", *words, "-f", "-q", "-o", "out.safetensors")
        return (self.dir / "out.safetensors").read_bytes()

    def expect(self, weights: list[float], *words) -> None:
        self.average(*words)
        written = read_safetensors(self.dir / "out.safetensors")
        for name, wanted in weighted(self.sources, weights).items():
            self.assertEqual(written[name][2], wanted, name)
        self.assertEqual(written["ids"][0], "I64")

    def test_weights_are_equal_or_given_or_those_of_a_moving_average(self):
        names = [f"s{i}.safetensors" for i in range(3)]
        self.expect([1 / 3] * 3, *names)
        self.expect([0.5, 0.25, 0.25], *names, "--weights", "0.5,0.25,0.25")
        self.expect([0.9 * 0.9, 0.1 * 0.9, 0.1], *names, "--ema", "0.9")
        warned = self.run_it("average", *names, "--weights=1,-1,1.5", "-o", "sum.safetensors").stderr
        self.assertIn("add up to 1.5", warned)

    def test_bytes_are_the_same_for_any_format_threads_memory_and_ranks(self):
        self.run_it("split", "s0.safetensors", "-o", "dcp", "--ranks", 3, "-q")
        self.run_it("split", "s1.safetensors", "-o", "ranks", "--to", "torch-ranks", "--ranks", 2, "--dim", 1, "-q")
        self.run_it("gather", "s2.safetensors", "-o", "s2.pt", "-q")
        names = [f"s{i}.safetensors" for i in range(3)]
        wanted = self.average(*names)
        for options in (["-j", 1], ["-j", 5, "--max-memory", "1MiB"], ["--local-ranks", 3]):
            self.assertEqual(self.average(*names, *options), wanted, options)
        self.assertEqual(self.average("dcp", "s1.safetensors", "s2.pt", "--to", "safetensors"), wanted)
        self.run_it("average", "dcp", "ranks", "s2.pt", "-o", "mixed", "-q", "--local-ranks", 2)
        self.run_it("average", *names, "-o", "whole.safetensors", "-q")
        self.run_it("diff", "mixed", "whole.safetensors")
        found = {each["name"]: [chunk["rank"] for chunk in each["chunks"]] for each in self.json("inspect", "mixed")["tensors"]}
        self.assertEqual(found["layers.0.weight"], [0, 1, 2])

    def test_an_adapter_is_merged_into_each_source(self):
        (self.dir / "lora").mkdir()
        (self.dir / "lora/adapter_config.json").write_text(
            '{"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["layers.0"]}')
        factors = {"A": [1, 41], "B": [37, 1]}
        write_safetensors(self.dir / "lora/adapter_model.safetensors", {
            f"base_model.model.layers.0.lora_{factor}.weight": ("F32", shape, struct.pack(f"<{max(shape)}f", *range(max(shape))))
            for factor, shape in factors.items()})
        pair = ["s0.safetensors", "s1.safetensors"]
        merged = self.run_it("average", *pair, "-o", "merged.safetensors", "--lora", "lora").stderr
        self.assertEqual(merged.count("merged lora: 1 pair found, 1 used"), 2)
        for name in pair:
            self.run_it("convert", name, "-o", f"merged-{name}", "--lora", "lora", "-q")
        self.run_it("average", *(f"merged-{name}" for name in pair), "-o", "again.safetensors", "-q")
        self.run_it("diff", "merged.safetensors", "again.safetensors")
        self.run_it("diff", "merged.safetensors", "s0.safetensors", "--include", "layers.0.weight", code=1)

    def test_nothing_is_written_if_it_is_up_to_date_or_dry(self):
        line = ["average", "s0.safetensors", "s1.safetensors", "-o", "out.pt"]
        plan = self.json(*line, "--dry-run")
        self.assertEqual(plan["verb"], "average")
        self.assertFalse((self.dir / "out.pt").exists())
        self.run_it(*line, "--if-changed", "-q")
        self.assertTrue(self.json(*line, "--if-changed")["unchanged"])
        for other in (["--weights", "0.4,0.6"], ["--ema", "0.5", "--optimizer"]):
            self.run_it(*line, "--if-changed", *other, code=5)
        self.run_it("verify", "out.pt", "-q")
        self.write("s1.safetensors", self.sources[2])
        self.run_it(*line, "--if-changed", code=5)

    def test_requests_that_make_no_sense_are_usage_errors(self):
        pair = ["s0.safetensors", "s1.safetensors", "-o", "out.pt"]
        self.run_it("average", "s0.safetensors", "-o", "out.pt", code=2)
        for words in (["--weights", "1"], ["--weights", "1,x"], ["--weights", "0.5,nan"], ["--ema", "1"], ["--ema", "nan"],
                      ["--ema", "0.5", "--weights", "1,2"], ["--dtype", "int8"]):
            self.run_it("average", *pair, *words, code=2)
        self.run_it("average", "s0.safetensors", "s1.safetensors", "-o", "s1.safetensors", "--force", code=5)

    def test_other_checkpoints_are_refused_by_name(self):
        less = {name: values for name, values in self.sources[1].items() if name != "norm.weight"}
        self.write("less.safetensors", less)
        error = self.json("average", "s0.safetensors", "less.safetensors", "-o", "out.pt", code=4)
        self.assertEqual(error["tensor"], "norm.weight")
        self.run_it("average", "s0.safetensors", "less.safetensors", "-o", "out.pt", "-q", "--exclude", "norm.weight")
        self.write("ids.safetensors", self.sources[1], ids=(1, 3))
        self.assertEqual(self.json("average", "s0.safetensors", "ids.safetensors", "-o", "x.pt", code=4)["tensor"], "ids")
        write_safetensors(self.dir / "double.safetensors", {"w": ("F64", [1], struct.pack("<d", 1))})
        self.run_it("average", "double.safetensors", "double.safetensors", "-o", "x.pt", code=8)


if __name__ == "__main__":
    unittest.main()
