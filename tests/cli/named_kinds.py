"""Files of other libraries, and files that are not what their names say, are refused by name.

Environment: SHARDCTL is the program.
"""
import json
import struct
import unittest
import zipfile

from program import ProgramTest, write_safetensors

WEIGHT = {"model.layers.0.weight": ("F32", [2], struct.pack("<2f", 1, 2))}


class NamedKinds(ProgramTest):
    def test_a_model_of_stable_baselines3_is_named(self):
        with zipfile.ZipFile(self.dir / "ppo.zip", "w") as model:
            for name in ("data", "policy.pth", "policy.optimizer.pth", "pytorch_variables.pth", "_stable_baselines3_version"):
                model.writestr(name, "2.3.2")
        error = self.json("inspect", "ppo.zip", code=8)
        self.assertIn("a Stable-Baselines3 model", error["message"])
        self.assertIn("policy.pth", error["hint"])

    def test_a_flax_checkpoint_without_a_suffix_is_named(self):
        (self.dir / "run").mkdir()
        (self.dir / "run/checkpoint_100").write_bytes(b"\x82\xa4step\x64\xa6params\x81\xa6kernel\xc7\x04\x01\0\0\0\0")
        for source in ("run", "run/checkpoint_100"):
            self.assertIn("this is a Flax checkpoint", self.json("inspect", source, code=8)["message"])
        (self.dir / "run/checkpoint_100").write_bytes(b"\x82\xa4st\xffp\x64")
        self.assertNotIn("Flax", self.json("inspect", "run", code=4)["message"])

    def test_an_adapter_of_litgpt_is_found_and_named(self):
        write_safetensors(self.dir / "base.safetensors", WEIGHT)
        write_safetensors(self.dir / "final/lit_model.pth.lora", {
            f"model.layers.0.lora_{factor}": ("F32", shape, struct.pack("<2f", 1, 2)) for factor, shape in {"A": [1, 2], "B": [2, 1]}.items()})
        for adapter in ("final", "final/lit_model.pth.lora"):
            error = self.json("convert", "base.safetensors", "-o", "out.safetensors", "--lora", adapter, code=8)
            self.assertIn("an adapter of LitGPT", error["message"])
            self.assertIn("litgpt merge_lora", error["hint"])

    def test_a_config_of_olmo_core_is_not_copied(self):
        write_safetensors(self.dir / "step10/model.safetensors", WEIGHT)
        config = {"model": {"_CLASS_": "olmo_core.nn.transformer.config.TransformerConfig"}, "_CLASS_": "__main__.Config"}
        (self.dir / "step10/config.json").write_text(json.dumps(config))
        result = self.json("export", "step10", "-o", "out")
        self.assertEqual(result["export"]["copied"], [])
        self.assertIn("found no config.json of a Hugging Face model", " ".join(result["warnings"]))
        (self.dir / "step10/config.json").write_text(json.dumps({"model_type": "olmo2"}))
        self.assertEqual(self.json("export", "step10", "-o", "again")["export"]["copied"], ["config.json"])

    def test_a_web_page_among_several_files_is_named(self):
        write_safetensors(self.dir / "m/model-00001-of-00002.safetensors", WEIGHT)
        page = self.dir / "m/model-00002-of-00002.safetensors"
        page.write_text(f"<!DOCTYPE html><html><body>Sign in{' ' * 4096}</body></html>")
        for index in (None, {name: f"model-0000{i}-of-00002.safetensors" for i, name in ((1, *WEIGHT), (2, "other"))}):
            if index is not None:
                (self.dir / "m/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
            error = self.json("inspect", "m", code=4)
            self.assertIn("this is a web page", error["message"])
            self.assertEqual(error["file"], f"m/{page.name}")
            self.assertIn("this is a web page", json.dumps(self.json("verify", "m", code=1)["findings"]))


if __name__ == "__main__":
    unittest.main()
