"""Quantized models, from outside: no verb converts a tensor that has a meaning only with others.

tests/data/quantized has folders that real tools wrote; make.py beside them lists versions. Environment: SHARDCTL is the
program, SHARD_DATA the folder tests/data.
"""
import json
import math
import os
import shutil
import unittest
from pathlib import Path

from program import ProgramTest, read_safetensors, write_safetensors

MODELS = sorted(path for path in (Path(os.environ["SHARD_DATA"]) / "quantized").iterdir() if path.is_dir())
SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "U8": 1, "I8": 1, "I64": 8}


def read(path: Path) -> dict[str, tuple[str, bytes]]:
    """Names with dtypes and bytes."""
    return {name: (dtype, content) for name, (dtype, _, content) in read_safetensors(path).items()}


def write(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    """Tensors of zeros by name, with dtype and shape."""
    return write_safetensors(path, {name: (dtype, shape, bytes(SIZES[dtype] * math.prod(shape)))
                                    for name, (dtype, shape) in tensors.items()})


def is_plain(name: str) -> bool:
    """In the golden folders."""
    plain = ("embed_tokens.weight", "lm_head.weight", "norm.weight", "gate.weight", "e_score_correction_bias")
    return name.endswith(plain) or name in ("0.bias", "1.bias", "1.weight")


class Quantized(ProgramTest):
    def expect_kept(self, model: Path, output: Path, dtype: str) -> None:
        """Quantized tensors unchanged; plain ones of 32 bits as `dtype`."""
        before, after = read(model / "model.safetensors"), read(output)
        self.assertEqual(set(before), set(after))
        for name, tensor in before.items():
            if is_plain(name):
                self.assertEqual(after[name][0], dtype, name)
            else:
                self.assertEqual(after[name], tensor, name)

    def test_no_verb_converts_a_quantized_tensor(self):
        verbs = (["gather", "-o", "x.pt"], ["convert", "-o", "x.safetensors"], ["split", "--ranks", "2", "-o", "x"],
                 ["reshard", "--ranks", "2", "-o", "x", "--to", "torch-ranks"], ["digest"], ["inspect"])
        for model in MODELS:
            for verb in verbs:
                for ways in ([], ["--local-ranks", "2"]):
                    with self.subTest(model=model.name, verb=verb[0], ways=ways):
                        error = self.json(*verb, model, "--cast", "**=float64", *ways, code=8)
                        self.assertFalse(is_plain(error["tensor"]), error)
                        self.assertIn("quantized tensor", error["message"])
                        self.assertIn("=keep", error["hint"])
                        self.assertFalse((self.dir / verb[-1]).exists())
            self.run_it("diff", model, model, "--cast", "**=float64", code=8)

    def test_the_hint_leaves_quantized_modules_as_they_are(self):
        for model in MODELS:
            with self.subTest(model=model.name):
                output = f"{model.name}.safetensors"
                error = self.json("convert", model, "-o", output, "--cast", "**=bfloat16", code=8)
                self.run_hint(error["hint"])
                self.expect_kept(model, self.dir / output, "BF16")

    def test_a_module_in_parts_is_a_warning(self):
        write(self.dir / "m.safetensors", {"a.weight": ("F8_E4M3", [8, 8]), "a.weight_scale_inv": ("F32", [1, 1]), "a.bias": ("F32", [8]),
                                           "b.weight": ("F32", [1])})
        for words, has_part in ((["--include", "a.weight"], True), (["--exclude", "a.weight"], True), (["--include", "a.*"], False),
                                (["--exclude", "a.*"], False), (["--exclude", "a.bias"], False)):
            found = self.json("gather", "m.safetensors", "-o", "part.safetensors", "--force", *words)["warnings"]
            about = ["only some tensors of 1 quantized module are written, which have a meaning only together: 'a'"]
            self.assertEqual(found, about if has_part else [], words)

    def test_a_map_for_plain_weights_asks_to_dequantize(self):
        write(self.dir / "model.safetensors", {"a.weight": ("F8_E4M3", [8, 8]), "a.weight_scale_inv": ("F32", [1, 1])})
        for option, rule in (("--to-map", {"logical": "a.weight", "stored": "b"}), ("--map", {"logical": "b", "stored": "a.weight"})):
            (self.dir / "map.json").write_text(json.dumps({"schema": "shardctl.layout/1", "name": "m", "rules": [rule]}))
            error = self.json("convert", "model.safetensors", "-o", f"x{option}.safetensors", option, "map.json", code=2)
            self.assertIn("cannot map the tensor 'a.weight_scale_inv'", error["message"])
            self.assertIn("--dequantize", error["hint"])
            self.run_hint(error["hint"])
            self.assertEqual(list(read(self.dir / f"x{option}.safetensors")), ["b"])

    def test_no_hint_dequantizes_a_form_without_a_formula(self):
        (self.dir / "map.json").write_text(json.dumps({"schema": "shardctl.layout/1", "name": "m",
                                                       "rules": [{"logical": "1.weight", "stored": "b"}]}))
        write(self.dir / "quanto/model.safetensors", {"1.weight._data": ("I8", [8, 8]), "1.weight._scale": ("F32", [8, 1])})
        for name, has_hint in (("quanto", False), ("gptq", True)):
            model = next((path for path in MODELS if path.name == name), self.dir / name)
            for words, code in ((("average", model), 8), (("convert", "--to-map", "map.json"), 2)):
                error = self.json(words[0], model, *words[1:], "-o", "x.safetensors", code=code)
                self.assertEqual("--dequantize" in (error["hint"] or ""), has_hint, (name, error))

    def test_export_refuses_a_dtype_by_name_and_the_hint_leaves_modules(self):
        for model in MODELS:
            with self.subTest(model=model.name):
                error = self.json("export", model, "-o", model.name, "--dtype", "bfloat16", code=8)
                self.assertIn("quantized tensor", error["message"])
                self.assertFalse((self.dir / model.name).exists())
                self.run_hint(error["hint"])
                self.expect_kept(model, self.dir / model.name / "model.safetensors", "BF16")

    def test_export_by_the_config_leaves_modules_and_names_them(self):
        for model in MODELS:
            for ways in ([], ["--local-ranks", "2"]):
                with self.subTest(model=model.name, ways=ways):
                    result = self.json("export", model, "-o", "out", "--dtype", "auto", "--force", *ways)
                    about = [line for line in result["warnings"] if "--dtype auto leaves" in line]
                    self.assertEqual(len(about), 1, result["warnings"])
                    self.assertRegex(about[0], r"leaves \d+ tensors of \d+ quantized modules? as they are: '")
                    after = read(self.dir / "out/model.safetensors")
                    for name, tensor in read(model / "model.safetensors").items():
                        if not is_plain(name):
                            self.assertEqual(after[name], tensor, name)
                        elif not name.endswith("e_score_correction_bias"):
                            self.assertEqual(after[name][0], "BF16", name)

    def test_export_copies_the_files_about_quantization_and_names_others(self):
        for name, file in (("gptq", "quantize_config.json"), ("modelopt-nvfp4", "hf_quant_config.json")):
            model = self.dir / name
            shutil.copytree(next(path for path in MODELS if path.name == name), model)
            (model / "recipe.yaml").write_text("")
            result = self.json("export", model, "-o", f"{name}-out")
            self.assertIn(file, result["export"]["copied"])
            self.assertEqual((self.dir / f"{name}-out" / file).read_bytes(), (model / file).read_bytes())
            self.assertEqual(result["warnings"], ["other files of the folder are not part of the checkpoint, and are not copied: 'recipe.yaml'"])

    def test_one_part_of_a_quantized_model_is_judged_by_the_files_beside_it(self):
        part = write(self.dir / "hub/model-00001-of-00002.safetensors", {"a.weight": ("F8_E4M3", [4, 4]), "b.weight": ("F32", [4])})
        result = self.json("convert", part, "-o", "lone.safetensors", "--cast", "**=bfloat16")
        self.assertIn("'a.weight'", " ".join(result["warnings"]))
        configs = {"config.json": {"text_config": {"quantization_config": {"quant_method": "fp8"}}},
                   "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}, "quantize_config.json": {"bits": 8}}
        for name, config in configs.items():
            (self.dir / "hub" / name).write_text(json.dumps(config))
            error = self.json("convert", part, "-o", "no.safetensors", "--cast", "**=bfloat16", code=8)
            self.assertEqual(error["tensor"], "a.weight")
            (self.dir / "hub" / name).unlink()
        for text in ("[1]", "{", '{"quantization_config": null}'):
            (self.dir / "hub/config.json").write_text(text)
            self.run_it("convert", part, "-o", "plain.safetensors", "--force", "--cast", "**=bfloat16")

    def test_plain_tensors_of_such_names_are_converted(self):
        plain = {"norm.scale": ("F32", [4]), "norm.weight": ("F32", [4]), "prior.scales": ("F32", [4]), "prior.weight": ("F32", [4, 4]),
                 "stats.absmax": ("F32", [4]), "block.layer_scale": ("F32", [4]), "attn.k_scale": ("F32", [])}
        others = {"mask": ("U8", [4, 4]), "codes.weight": ("I8", [4, 4]), "ids": ("I64", [2])}
        write(self.dir / "plain.safetensors", {**plain, **others})
        result = self.json("convert", "plain.safetensors", "-o", "out.safetensors", "--cast", "**=bfloat16", "--cast", "codes.weight=float32")
        after = read(self.dir / "out.safetensors")
        self.assertEqual({after[name][0] for name in plain}, {"BF16"})
        self.assertEqual([after[name][0] for name in others], ["U8", "F32", "I64"])
        self.assertEqual(len(result["warnings"]), 1)
        self.assertIn("rounds them", result["warnings"][0])

    def test_integers_that_the_new_dtype_cannot_hold_are_named(self):
        write(self.dir / "a.safetensors", {"ids": ("I64", [2]), "w": ("F32", [2])})
        for ways in ([], ["--local-ranks", "2"]):
            done = self.run_it("convert", "a.safetensors", "-o", "b.safetensors", "--force", "--cast", "ids=bfloat16", *ways)
            self.assertEqual(done.stderr.count("from int64 to bfloat16, which cannot represent all of them: 'ids'"), 1, done.stderr)
            result = self.json("convert", "a.safetensors", "-o", "b.safetensors", "--force", "--cast", "ids=bfloat16", *ways)
            self.assertEqual(len(result["warnings"]), 1, result["warnings"])
        self.assertEqual(self.json("convert", "a.safetensors", "-o", "c.safetensors", "--cast", "**=bfloat16")["warnings"], [])

    def test_a_router_that_the_model_keeps_wider_stays_so(self):
        config = json.dumps({"dtype": "bfloat16"})
        write(self.dir / "hub/model.safetensors", {"up": ("BF16", [8, 8]), "router": ("F32", [2, 8])})
        (self.dir / "hub/config.json").write_text(config)
        masters = write(self.dir / "masters.safetensors", {"up": ("F32", [8, 8]), "router": ("F32", [2, 8])})
        for source in ("hub", masters):
            result = self.json("export", source, "-o", "out", "--force", "--dtype", "auto", "--hf-ref", "hub")
            self.assertIn("'router'", " ".join(result["warnings"]))
            self.assertEqual({name: tensor[0] for name, tensor in read(self.dir / "out/model.safetensors").items()},
                             {"up": "BF16", "router": "F32"})
        (self.dir / "hub/model.safetensors").unlink()
        self.json("export", masters, "-o", "narrow", "--dtype", "auto", "--hf-ref", "hub")
        self.assertEqual({tensor[0] for tensor in read(self.dir / "narrow/model.safetensors").values()}, {"BF16"})
        self.json("export", masters, "-o", "ruled", "--dtype", "bfloat16", "--hf-ref", "hub", "--cast", "router=keep")
        self.assertEqual(read(self.dir / "ruled/model.safetensors")["router"][0], "F32")

    def test_cat_converts_plain_tensors_of_a_quantized_model(self):
        model = next(path for path in MODELS if path.name == "deepseek-fp8")
        self.run_it("cat", model, "model.layers.0.input_layernorm.weight", "--cast", "**=float32")
        self.run_it("cat", model, "model.layers.0.mlp.up_proj.weight", "--cast", "**=float32", code=8)
        error = self.run_it("cat", model, "model.layers.0.mlp.up_proj.weight", "--format", "npy", code=8)
        self.assertIn("--format raw", error.stderr)


if __name__ == "__main__":
    unittest.main()
