"""--dequantize with the other options, from outside: ranks, threads, memory, manifests, damage, and the proof of verify.

Values are compared with libraries in tests/live/dequantize_test.py. Environment: SHARDCTL is the program, SHARD_DATA the
folder tests/data.
"""
import json
import math
import os
import random
import struct
import subprocess
import unittest
from pathlib import Path

from program import SHARDCTL, ProgramTest, Tensors, write_safetensors

MODELS = Path(os.environ["SHARD_DATA"]) / "quantized"
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I32": 4, "U32": 4, "I64": 8}
FORMS = {"fp8": "float8 with scales", "int4": "packed integers of compressed-tensors", "nvfp4": "NVFP4 of compressed-tensors",
         "gpt-oss": "MXFP4 in blocks", "gptq": "GPTQ", "awq": "AWQ", "mlx": "MLX"}
CHANCE = random.Random(1)
ROWS, COLUMNS = 320, 512


def floats(*shape: int) -> tuple[str, list[int], bytes]:
    numbers = [CHANCE.random() + 0.01 for _ in range(math.prod(shape))]
    return "F32", list(shape), struct.pack(f"<{len(numbers)}f", *numbers)


def codes(dtype: str, *shape: int, below: int = 256) -> tuple[str, list[int], bytes]:
    count = math.prod(shape) * SIZES[dtype]
    return dtype, list(shape), bytes(CHANCE.randrange(below) for _ in range(count))


def halves(*shape: int) -> tuple[str, list[int], bytes]:
    numbers = [CHANCE.random() / 16 + 0.01 for _ in range(math.prod(shape))]
    return "F16", list(shape), struct.pack(f"<{len(numbers)}e", *numbers)


def module(form: str, name: str) -> Tensors:
    """A weight of ROWS x COLUMNS."""
    m, n = ROWS, COLUMNS
    parts = {
        "fp8": lambda: {"weight": codes("F8_E4M3", m, n, below=127), "weight_scale_inv": floats(math.ceil(m / 128), n // 128)},
        "int4": lambda: {"weight_packed": codes("I32", m, n // 8), "weight_scale": floats(m, n // 32),
                         "weight_shape": ("I64", [2], struct.pack("<2q", m, n))},
        "nvfp4": lambda: {"weight_packed": codes("U8", m, n // 2), "weight_scale": codes("F8_E4M3", m, n // 16, below=127),
                          "weight_global_scale": ("F32", [1], struct.pack("<f", 300))},
        "gpt-oss": lambda: {"experts_blocks": codes("U8", 2, m, n // 32, 16), "experts_scales": codes("U8", 2, m, n // 32, below=130)},
        "gptq": lambda: {"qweight": codes("I32", n // 8, m), "qzeros": codes("I32", n // 128, m // 8), "scales": halves(n // 128, m),
                         "g_idx": ("I32", [n], struct.pack(f"<{n}i", *[i * 3 % (n // 128) for i in range(n)]))},
        "awq": lambda: {"qweight": codes("I32", n, m // 8), "qzeros": codes("I32", n // 64, m // 8), "scales": halves(n // 64, m)},
        "mlx": lambda: {"weight": codes("U32", m, n // 8), "scales": halves(m, n // 64), "biases": halves(m, n // 64)},
    }
    return {f"{name}.{key}": part for key, part in parts[form]().items()}


CONFIGS = {"fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
           "int4": {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
                    "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}},
           "nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "gpt-oss": {"quant_method": "mxfp4"},
           "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
           "awq": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"},
           "mlx": {"bits": 4, "group_size": 64}}


def write_model(folder: Path, form: str, layers: int = 3, name: str = "l{}.w") -> Path:
    """The codes in one file, all other parts of a module in the other one; plain tensors in both."""
    first: Tensors = {"lm_head.weight": floats(16, 8)}
    second: Tensors = {"norm.weight": floats(8)}
    for i in range(layers):
        for key, tensor in module(form, name.format(i)).items():
            is_code = key.endswith(("weight", "_packed", "_blocks"))
            (first if is_code else second)[key] = tensor
    write_safetensors(folder / "model-00001-of-00002.safetensors", first)
    write_safetensors(folder / "model-00002-of-00002.safetensors", second)
    places = {key: f"model-0000{i}-of-00002.safetensors" for i, part in ((1, first), (2, second)) for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps({"dtype": "float16", "quantization_config": CONFIGS[form]}))
    return folder


class Dequantize(ProgramTest):
    def error(self, *words, code: int) -> str:
        return self.json(*words, code=code)["message"]

    def test_bytes_are_the_same_for_any_threads_memory_and_ranks(self):
        for form in FORMS:
            with self.subTest(form=form):
                model = write_model(self.dir / form, form)
                ways = {"one": ["-j", 1], "threads": ["-j", 5], "small": ["-j", 2, "--max-memory", "1MiB"],
                        "ranks": ["--local-ranks", 3], "parts": ["--local-ranks", 3, "--local-input"]}
                for name, options in ways.items():
                    self.run_it("convert", model, "-o", f"{form}-{name}.safetensors", "--dequantize", "-q", *options)
                wanted = (self.dir / f"{form}-one.safetensors").read_bytes()
                for name in ways:
                    self.assertEqual((self.dir / f"{form}-{name}.safetensors").read_bytes(), wanted, name)

    def test_every_verb_that_reads_sees_the_same_weights(self):
        for form in FORMS:
            with self.subTest(form=form):
                model = write_model(self.dir / form, form, layers=2)
                plain = f"{form}.safetensors"
                self.run_it("gather", model, "-o", plain, "--dequantize", "-q")
                wanted = self.json("digest", plain)["checkpoint"]
                self.assertEqual(self.json("digest", model, "--dequantize")["checkpoint"], wanted)
                self.assertEqual(self.json("digest", model, "--dequantize", "--local-ranks", 2, "--local-input")["checkpoint"], wanted)
                self.run_it("diff", model, plain, "--dequantize")
                self.run_it("split", model, "-o", f"{form}-cut", "--ranks", 3, "--dequantize", "-q")
                self.run_it("reshard", f"{form}-cut", "-o", f"{form}-two", "--ranks", 2, "-q")
                self.assertEqual(self.json("digest", f"{form}-two")["checkpoint"], wanted)
                name = "l0.w.experts" if form == "gpt-oss" else "l0.w.weight"
                box = f"{name}[0:1,0:2,0:2]" if form == "gpt-oss" else f"{name}[0:2,0:2]"
                self.assertEqual(self.run_it("cat", model, box, "--dequantize").stdout, self.run_it("cat", plain, box).stdout)
                shown = self.json("inspect", model)["quantized"]
                self.assertEqual([(each["form"], each["modules"]) for each in shown], [(FORMS[form], 2)])
                self.assertEqual({each["name"] for each in self.json("inspect", model, "--dequantize")["tensors"]},
                                 {each["name"] for each in self.json("inspect", plain)["tensors"]})
                self.assertEqual(self.json("verify", model, "--dequantize")["dequantized"], 2)
                self.assertIn("dequantized: 2 weights computed", self.run_it("verify", model, "--dequantize").stdout)
                self.run_it("repair", model, "-o", f"{form}-repaired", "--dequantize", "-q")
                self.assertEqual(self.json("digest", f"{form}-repaired")["checkpoint"], wanted)

    def test_a_manifest_and_if_changed(self):
        model = write_model(self.dir / "model", "fp8")
        line = ("convert", "model", "-o", "out", "--to", "safetensors", "--dequantize", "--if-changed")
        self.assertFalse(self.json(*line)["unchanged"])
        self.assertTrue(self.json(*line)["unchanged"])
        self.assertGreater(self.json("verify", "out")["checked"]["manifest"], 0)
        other = [word + "=float32" if word == "--dequantize" else word for word in line]
        self.run_it(*other, code=5)
        self.assertFalse(self.json(*other, "--force")["unchanged"])
        config = json.loads((model / "config.json").read_text())
        self.assertIn("quantization_config", config)

    def test_packing_again_brings_all_codes_back(self):
        for form in FORMS:
            with self.subTest(form=form):
                write_model(self.dir / form, form, layers=2)
                for dtype in ("bfloat16", "float32"):
                    self.run_it("gather", form, "-o", "plain.safetensors", f"--dequantize={dtype}", "-q", "-f")
                    found = self.json("verify", "plain.safetensors", "--against", form)
                    packed = found["packed_again"]
                    self.assertEqual((packed["against"], packed["modules"]), (form, 2))
                    self.assertGreaterEqual(packed["codes"], 2 * ROWS * COLUMNS)
                    self.assertEqual(packed["same_codes"], packed["codes"], dtype)
                    self.assertEqual(self.json("verify", "plain.safetensors", "--against", form, "--local-ranks", 3)["packed_again"], packed)
                text = self.run_it("verify", "plain.safetensors", "--against", form).stdout
                self.assertIn(f"packed again as in {form}: 100 % of {packed['codes']} codes and ", text)

    def test_packing_again_finds_weights_that_changed_or_are_missing(self):
        write_model(self.dir / "model", "int4")
        self.run_it("gather", "model", "-o", "plain.safetensors", "--dequantize", "-q")
        content = bytearray((self.dir / "plain.safetensors").read_bytes())
        header = json.loads(content[8:8 + struct.unpack("<Q", content[:8])[0]])
        begin = 8 + struct.unpack("<Q", content[:8])[0] + header["l1.w.weight"]["data_offsets"][0]
        for i in range(begin, begin + 200, 2):
            content[i:i + 2] = b"\x00\x43"  # 128
        (self.dir / "plain.safetensors").write_bytes(content)
        found = self.json("verify", "plain.safetensors", "--against", "model", code=1)
        self.assertEqual([each["tensor"] for each in found["findings"]], ["l1.w.weight"])
        packed = found["packed_again"]
        self.assertGreater(packed["codes"] - packed["same_codes"], 50)
        self.assertLessEqual(packed["codes"] - packed["same_codes"], 100)
        self.run_it("gather", "plain.safetensors", "-o", "some.safetensors", "--exclude", "l0.**", "-q")
        found = self.json("verify", "some.safetensors", "--against", "model", code=1)
        self.assertEqual({(each["kind"], each["tensor"]) for each in found["findings"]},
                         {("gap", "l0.w.weight"), ("replica_mismatch", "l1.w.weight")})
        for selected in ([], ["--include", "l1.**"]):
            found = self.json("verify", "some.safetensors", "--against", "model", *selected, code=1)
            self.assertEqual(("gap", "l0.w.weight") in {(each["kind"], each["tensor"]) for each in found["findings"]}, not selected)
            self.assertEqual(found["packed_again"]["modules"], 1 if selected else 2)
        refused = self.run_it("verify", "plain.safetensors", "--against", "some.safetensors", code=8).stderr
        self.assertIn("some.safetensors: cannot pack again: no weight is quantized", refused)
        self.assertIn("hint: shardctl diff plain.safetensors some.safetensors", refused)
        self.run_it("convert", "plain.safetensors", "-o", "hashed", "--to", "dcp", "--checksum", "xxh3", "-q")
        self.assertIn("--against hashed/shardctl.manifest.json",
                      self.run_it("verify", "plain.safetensors", "--against", "hashed", code=8).stderr)
        (self.dir / "folder").mkdir()
        (self.dir / "folder/notes").write_text("no manifest")
        for unknown in "folder", "folder/notes":
            self.assertIn("hint: --against takes a manifest or a quantized checkpoint",
                          self.run_it("verify", "plain.safetensors", "--against", unknown, code=4).stderr)
        self.run_it("verify", "plain.safetensors", "--against", "absent.safetensors", code=3)

    def test_trained_quantized_releases_come_back_whole(self):
        """Codes that use their range in each block, as quantization in training leaves them."""
        tensors = module("nvfp4", "a")
        dtype, shape, content = tensors["a.weight_packed"]
        full = bytearray(content)
        full[::8] = bytes(byte & 0xF0 | 7 for byte in full[::8])
        tensors["a.weight_packed"] = dtype, shape, bytes(full)
        tensors["a.weight_scale"] = codes("F8_E4M3", ROWS, COLUMNS // 16, below=8)[:2] + (b"\x38" * (ROWS * COLUMNS // 16),)
        write_safetensors(self.dir / "model/model.safetensors", tensors)
        self.run_it("gather", "model", "-o", "plain.safetensors", "--dequantize", "-q")
        packed = self.json("verify", "plain.safetensors", "--against", "model")["packed_again"]
        self.assertEqual((packed["same_codes"], packed["same_scales"]), (ROWS * COLUMNS, ROWS * COLUMNS // 16))
        self.assertIn("100 % of 163840 codes and 100 % of 10240 scales come back",
                      self.run_it("verify", "plain.safetensors", "--against", "model").stdout)

    def test_golden_folders_come_back(self):
        for model in sorted(path for path in MODELS.iterdir() if path.is_dir()):
            with self.subTest(model=model.name):
                if model.name == "gpt-oss-mxfp4":  # Its random exponents are too large for a number.
                    continue
                self.run_it("gather", model, "-o", "plain.safetensors", "--dequantize=float32", "-q", "-f")
                packed = self.json("verify", "plain.safetensors", "--against", model)["packed_again"]
                self.assertGreater(packed["codes"], 0)
                self.assertEqual(packed["same_codes"], packed["codes"])

    def test_many_modules_need_little_memory(self):
        """Scales in a different file. The whole size is measured by tests/bench/many_modules.py."""
        codes_of, scales_of = {}, {}
        for i in range(4000):
            name = f"model.layers.{i // 50}.mlp.experts.{i % 50}.up_proj"
            codes_of[f"{name}.weight_packed"] = "I32", [32, 16], bytes(2048)
            scales_of[f"{name}.weight_scale"] = "F32", [32, 4], b"\0\0\x80\x3f" * 128
            scales_of[f"{name}.weight_shape"] = "I64", [2], struct.pack("<2q", 32, 128)
        write_safetensors(self.dir / "model/a.safetensors", codes_of)
        write_safetensors(self.dir / "model/b.safetensors", scales_of)
        places = {key: file for file, part in (("a.safetensors", codes_of), ("b.safetensors", scales_of)) for key in part}
        (self.dir / "model/model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        (self.dir / "model/config.json").write_text(json.dumps({"quantization_config": CONFIGS["int4"]}))
        process = subprocess.Popen([SHARDCTL, "gather", "model", "-o", "out.safetensors", "--dequantize", "-q", "-j", "2"], cwd=self.dir)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertLess(used.ru_maxrss >> 10, 128)
        self.assertLess(used.ru_utime + used.ru_stime, 4)
        self.assertEqual(len(self.json("inspect", "out.safetensors")["tensors"]), 4000)

    def test_repair_computes_the_weights_that_are_whole(self):
        """A file that ends too early lacks the scales of some weights."""
        tensors = {}
        for i in range(4):
            tensors |= module("fp8", f"l{i}")
        write_safetensors(self.dir / "model/model.safetensors", dict(sorted(tensors.items(), key=lambda each: "scale" in each[0])))
        path = self.dir / "model/model.safetensors"
        whole = path.read_bytes()
        self.run_it("gather", "model", "-o", "plain.safetensors", "--dequantize", "-q")
        path.write_bytes(whole[:-90])  # 12 scales of 4 bytes in each layer.
        result = self.json("repair", "model", "-o", "repaired", "--dequantize")
        lost = {each["name"] for each in result["lost"]}
        self.assertTrue({"l2.weight", "l3.weight"} <= lost, lost)
        self.assertFalse({"l0.weight", "l1.weight"} & lost, lost)
        self.assertEqual({each["name"] for each in self.json("inspect", "repaired")["tensors"]}, {"l0.weight", "l1.weight"})
        for i in range(2):
            self.assertEqual(self.run_it("cat", "repaired", f"l{i}.weight").stdout,
                             self.run_it("cat", "plain.safetensors", f"l{i}.weight").stdout)

    def test_verify_finds_every_weight_that_cannot_be_computed(self):
        tensors = {"lone.weight": codes("F8_E4M3", 4, 4), "nan.weight_packed": codes("U8", 4, 16), "nan.weight_scale": ("U8", [4, 1], b"\x7f\x7f\xff\x7f"),
                   "good.weight_packed": codes("U8", 4, 16), "good.weight_scale": ("U8", [4, 1], b"\x7f" * 4)}
        write_safetensors(self.dir / "m.safetensors", tensors)
        self.json("verify", "m.safetensors")
        found = self.json("verify", "m.safetensors", "--dequantize", code=1)
        self.assertEqual({each["tensor"] for each in found["findings"]}, {"lone.weight", "nan.weight"})
        self.assertIn("'nan.weight_scale' is NaN", " ".join(each["detail"] for each in found["findings"]))
        self.assertEqual(found["dequantized"], 2)

    def test_export_takes_schemes_and_plain_names_from_its_reference(self):
        model = write_model(self.dir / "model", "gptq")
        second = {**CONFIGS["gptq"], "checkpoint_format": "gptq_v2"}
        (model / "config.json").write_text(json.dumps({"dtype": "float16", "quantization_config": second}))
        self.run_it("gather", model, "-o", "plain.safetensors", "--dequantize", "-q")
        wanted = self.json("digest", "plain.safetensors")["checkpoint"]
        self.run_it("split", model, "-o", "cut", "--ranks", 2, "-q")  # Without config.json.
        for source in ("cut", "plain.safetensors"):
            self.run_it("export", source, "-o", "exported", "--dequantize", "--hf-ref", model, "--force", "-q")
            self.assertEqual(self.json("digest", "exported")["checkpoint"], wanted, source)
            self.assertNotIn("quantization_config", (self.dir / "exported/config.json").read_text())

    def test_export_of_plain_weights_warns_of_a_config_of_quantized_ones(self):
        write_safetensors(self.dir / "plain/model.safetensors", {"model.norm.weight": floats(4)})
        (self.dir / "plain/config.json").write_text(json.dumps({"quantization_config": CONFIGS["fp8"]}))
        about = [line for line in self.json("export", "plain", "-o", "out")["warnings"] if "quantized" in line]
        self.assertEqual(len(about), 1, about)
        self.assertTrue(about[0].endswith(" --dequantize"), about)
        result = self.json("export", "plain", "-o", "out", "--dequantize", "--force")
        self.assertEqual([line for line in result["warnings"] if "quantized" in line], [])
        self.assertEqual(json.loads((self.dir / "out/config.json").read_text()), {})
        model = write_model(self.dir / "model", "fp8")
        self.assertEqual([line for line in self.json("export", model, "-o", "two")["warnings"] if "quantized" in line], [])

    def test_statements_of_the_configuration_are_checked(self):
        model = write_model(self.dir / "model", "int4")
        weights = CONFIGS["int4"]["config_groups"]["group_0"]["weights"]
        wrong = {"'ignore'": {**CONFIGS["int4"], "ignore": ["re:l[0-9]\\.w"]},
                 "method is 'gptq'": {**CONFIGS["int4"], "quant_method": "gptq"},
                 "format is 'float-quantized'": {**CONFIGS["int4"], "format": "float-quantized"},
                 "states 8": {**CONFIGS["int4"], "config_groups": {"a": {"weights": {**weights, "num_bits": 8}}}},
                 "states 64 or 128": {**CONFIGS["int4"], "config_groups": {"a": {"weights": {**weights, "group_size": 128}},
                                                                          "b": {"weights": {**weights, "group_size": 64}}}}}
        for text, config in wrong.items():
            (model / "config.json").write_text(json.dumps({"text_config": {"quantization_config": config}}))
            self.assertIn(text, self.error("convert", model, "-o", "out.safetensors", "--dequantize", code=4))
            self.assertFalse((self.dir / "out.safetensors").exists())
        mixed = {**CONFIGS["int4"], "format": "mixed-precision",
                 "config_groups": {"a": {"format": "float-quantized", "weights": {"num_bits": 8}}, "b": {"format": "pack-quantized", "weights": weights}}}
        (model / "config.json").write_text(json.dumps({"quantization_config": mixed}))
        self.run_it("convert", model, "-o", "out.safetensors", "--dequantize", "-q")


if __name__ == "__main__":
    unittest.main()
