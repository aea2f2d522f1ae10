"""safetensors both ways: shardctl reads files of the real library, which loads shardctl's output."""
import json
import unittest

import torch
from safetensors.torch import load_file, save_file

from support import SAFETENSORS_DTYPES, LiveTest, assert_same_tensors, noise, shardctl, shardctl_json


def state() -> dict[str, torch.Tensor]:
    tensors = {f"dtype.{str(d).removeprefix('torch.')}": noise((3, 5), d, i) for i, d in enumerate(SAFETENSORS_DTYPES)}
    return tensors | {"scalar": noise((), torch.float32), "empty": noise((0, 4), torch.int64), "ünïcode.名": noise((7,)),
                      "big": noise((300, 257), torch.bfloat16), 'quote"\\back': noise((2, 2))}


class Safetensors(LiveTest):
    def test_gather_of_one_file_is_the_bytes_that_the_reference_writer_makes(self):
        save_file(state(), self.dir / "in.safetensors", {"format": "pt"})
        shardctl("gather", self.dir / "in.safetensors", "-o", self.dir / "out.safetensors")
        self.assertEqual((self.dir / "out.safetensors").read_bytes(), (self.dir / "in.safetensors").read_bytes())

    def test_split_into_shards_loads_whole(self):
        save_file(state(), self.dir / "in.safetensors", {"author": "me"})
        shardctl("split", self.dir / "in.safetensors", "-o", self.dir / "out", "--shards", 3)
        index = json.loads((self.dir / "out/model.safetensors.index.json").read_text())
        found = {}
        for file in sorted(set(index["weight_map"].values())):
            found |= load_file(self.dir / "out" / file)
        self.assertEqual(len(set(index["weight_map"].values())), 3)
        assert_same_tensors(self, found, state())

    def test_folder_with_index_gathers_to_torch(self):
        save_file(state(), self.dir / "in.safetensors")
        shardctl("split", self.dir / "in.safetensors", "-o", self.dir / "parts", "--max-shard-size", "60KB")
        shardctl("gather", self.dir / "parts", "-o", self.dir / "out.pt")
        assert_same_tensors(self, torch.load(self.dir / "out.pt", weights_only=True), state())

    def test_metadata_is_kept_and_format_added(self):
        save_file({"w": noise((2, 2))}, self.dir / "in.safetensors", {"author": "me"})
        shardctl("gather", self.dir / "in.safetensors", "-o", self.dir / "out.safetensors")
        self.assertEqual(shardctl_json("inspect", self.dir / "out.safetensors")["metadata"], {"author": "me", "format": "pt"})

    def test_inspect_names_every_place(self):
        save_file(state(), self.dir / "in.safetensors")
        content = (self.dir / "in.safetensors").read_bytes()
        wanted = state()
        for tensor in shardctl_json("inspect", self.dir / "in.safetensors")["tensors"]:
            chunk = tensor["chunks"][0]
            found = content[chunk["byte_offset"] : chunk["byte_offset"] + chunk["byte_length"]]
            value = wanted[tensor["name"]]
            self.assertEqual(found, value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")

    def test_cast_follows_torch(self):
        save_file({"w": noise((64, 64), torch.float32, 3)}, self.dir / "in.safetensors")
        shardctl("gather", self.dir / "in.safetensors", "-o", self.dir / "out.safetensors", "--cast", "**=bfloat16")
        found = load_file(self.dir / "out.safetensors")["w"]
        wanted = noise((64, 64), torch.float32, 3).to(torch.bfloat16)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


class HuggingFace(LiveTest):
    def test_transformers_loads_the_split_model(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=97)
        model = LlamaForCausalLM(config)
        model.save_pretrained(self.dir / "in")
        shardctl("split", self.dir / "in", "-o", self.dir / "out", "--max-shard-size", "100KB")
        config.save_pretrained(self.dir / "out")
        loaded = LlamaForCausalLM.from_pretrained(self.dir / "out")
        assert_same_tensors(self, dict(loaded.state_dict()), dict(model.state_dict()))

    def test_hub_loads_the_split_state(self):
        from huggingface_hub import load_state_dict_from_file, load_torch_model

        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        save_file(model.state_dict(), self.dir / "in.safetensors")
        shardctl("split", self.dir / "in.safetensors", "-o", self.dir / "out", "--shards", 2)
        fresh = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        load_torch_model(fresh, self.dir / "out", strict=True)
        assert_same_tensors(self, dict(fresh.state_dict()), dict(model.state_dict()))
        shardctl("gather", self.dir / "out", "-o", self.dir / "one.safetensors")
        assert_same_tensors(self, load_state_dict_from_file(self.dir / "one.safetensors"), dict(model.state_dict()))


if __name__ == "__main__":
    unittest.main()
