"""export, from outside: the files that it finds, copies and refuses. tests/live/export_test.py has trainers' own
output.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import os
import shutil
import sys
import unittest

from export_support import DCP, ExportTest, dtypes, names, write


class Export(ExportTest):
    def test_a_reference_that_is_not_the_folder_of_the_config_is_explained(self):
        write(self.dir / "a.safetensors", {"w": [1, 2]})
        self.hub()
        snapshot = self.dir / "cache/models--org--name/snapshots/abc"
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot.parent / "older").mkdir()
        (snapshot.parent.parent / "refs").mkdir()
        (snapshot.parent.parent / "refs/main").write_text("abc")
        for reference, meant in [("hub/config.json", "hub"), ("cache/models--org--name", "cache/models--org--name/snapshots/abc"),
                                 ("cache", "cache/models--org--name/snapshots/abc")]:
            error = self.export("a.safetensors", "-o", "out", "--hf-ref", reference, code=3)
            self.assertTrue(error["hint"].endswith(f"a.safetensors -o out --json --hf-ref {meant}"), error["hint"])
        error = self.export("a.safetensors", "-o", "out", "--hf-ref", "cache/models--org--name/snapshots", code=3)
        self.assertIn("--hf-ref DIR", error["hint"])

    def test_files_of_the_reference_come_along_and_weights_do_not(self):
        write(self.dir / "a.safetensors", {"w": [1, 2]})
        hub = self.hub()
        copied = ["added_tokens.json", "additional_chat_templates/tool.jinja", "bpe.codes", "chat_template.jinja", "config.json",
                  "generation_config.json", "merges.txt", "modeling_x.py", "normalizer.json", "qwen.tiktoken",
                  "special_tokens_map.json", "spiece.model", "tiktoken.model", "tokenizer.json", "tokenizer.model",
                  "tokenizer_config.json", "vocab.json"]
        others = ["model.safetensors", "pytorch_model.bin", "optimizer.pt", "trainer_state.json", "README.md", ".hidden.py",
                  "model.safetensors.index.json.bak", "consolidated.pth"]
        for name in copied + others:
            (hub / name).parent.mkdir(exist_ok=True)
            (hub / name).write_text(name)
        write(hub / "model.safetensors", {"w": [0, 0]})
        (hub / "config.json").write_text("{}")
        os.symlink(hub / "vocab.json", hub / "vocab.txt")
        result = self.export("a.safetensors", "-o", "out", "--hf-ref", "hub")
        self.assertEqual(sorted(result["export"]["copied"]), sorted([*copied, "vocab.txt"]))
        there = sorted(str(path.relative_to(self.dir / "out")) for path in (self.dir / "out").rglob("*") if path.is_file())
        self.assertEqual(there, sorted([*copied, "vocab.txt", "model.safetensors"]))
        for name in copied:
            self.assertEqual((self.dir / "out" / name).read_bytes(), (hub / name).read_bytes())
        self.assertFalse((self.dir / "out/vocab.txt").is_symlink())
        self.assertEqual({file["path"] for file in result["files"]}, {*copied, "vocab.txt", "model.safetensors"})

    def test_a_folder_of_open_clip_may_have_only_its_own_config(self):
        (self.dir / "clip").mkdir()
        write(self.dir / "clip/open_clip_model.safetensors", {"visual.proj": [1, 2], "logit_scale": [3]})
        write(self.dir / "epoch_1.safetensors", {"module.visual.proj": [4, 5], "module.logit_scale": [6]})
        for name in ("open_clip_config.json", "tokenizer.json"):
            (self.dir / "clip" / name).write_text('{"model_cfg": {}}')
        self.export("clip", "-o", "out")
        self.export("epoch_1.safetensors", "-o", "tuned", "--hf-ref", "clip")
        for out in ("out", "tuned"):
            self.assertEqual(sorted(os.listdir(self.dir / out)), ["model.safetensors", "open_clip_config.json", "tokenizer.json"])
            self.assertEqual(names(self.dir / out), ["logit_scale", "visual.proj"])

    def test_names_and_shapes_are_those_of_the_reference_or_all_differences_are_listed(self):
        write(self.dir / "a.safetensors", {"a": [1], "b": [1, 2], "d": [1]})
        write(self.hub() / "model.safetensors", {"a": [1], "b": [1], "c": [1]})
        error = self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", code=4)
        self.assertEqual(error["details"], ["missing: c", "unexpected: d", "shape: b: expected [1], found [2]"])
        self.assertIn("--no-check, for example if these are the names of transformers 5 in memory", error["hint"])
        self.assertFalse((self.dir / "out").exists())
        self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", "--no-check")

    def test_the_reference_is_the_weights_that_its_loader_opens(self):
        write(self.dir / "a.safetensors", {"a": [1]})
        write(self.dir / "b.safetensors", {"b": [1]})
        hub = self.hub()
        write(hub / "model.safetensors", {"a": [1]})
        for other in ("consolidated", "adapter_model", "model.fp16"):
            write(hub / f"{other}.safetensors", {"a": [1, 2], other: [1]})
        self.assertTrue(self.export("a.safetensors", "-o", "out", "--hf-ref", "hub")["export"]["checked"])
        self.export("b.safetensors", "-o", "no", "--hf-ref", "hub", code=4)

    def test_a_reference_may_have_only_the_index_of_its_weights(self):
        write(self.dir / "a.safetensors", {"a": [1]})
        hub, parts = self.hub(), [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
        (hub / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}))
        self.assertFalse(self.export("a.safetensors", "-o", "out", "--hf-ref", "hub")["export"]["checked"])
        write(hub / parts[0], {"a": [1]})
        error = self.export("a.safetensors", "-o", "no", "--hf-ref", "hub", code=3)
        self.assertEqual(error["file"], f"hub/{parts[1]}")
        self.assertTrue(error["hint"].endswith("--no-check"), error["hint"])

    def test_a_reference_that_git_lfs_did_not_fetch_is_named(self):
        write(self.dir / "a.safetensors", {"a": [1]})
        (self.hub() / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
        warned = self.run_it("export", "a.safetensors", "-o", "out", "--hf-ref", "hub").stderr
        self.assertIn("names and shapes are not compared with hub/model.safetensors", warned)

    def test_the_hint_strips_what_all_names_begin_with(self):
        write(self.dir / "a.safetensors", {"net.a": [1], "net.b": [1]})
        write(self.hub() / "model.safetensors", {"a": [1], "b": [1]})
        error = self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", code=4)
        self.assertTrue(error["hint"].endswith("--strip-prefix net."), error["hint"])
        self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", "--strip-prefix", "net.")
        self.assertEqual(names(self.dir / "out"), ["a", "b"])

    def test_the_hint_excludes_all_that_the_reference_lacks(self):
        write(self.dir / "a.safetensors", {f"module.l.{i}.{name}": [1] for i in (0, 1) for name in ("q", "rotary_emb.inv_freq")})
        write(self.hub() / "model.safetensors", {"l.0.q": [1], "l.1.q": [1]})
        error = self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", code=4)
        self.assertIn("--exclude 'module.l.*.rotary_emb.inv_freq'; --no-check", error["hint"])
        self.export("a.safetensors", "-o", "out", "--hf-ref", "hub", "--exclude", "module.l.*.rotary_emb.inv_freq")
        self.assertEqual(names(self.dir / "out"), ["l.0.q", "l.1.q"])

    def test_an_outer_module_is_told_by_the_reference_or_the_type(self):
        write(self.dir / "bert.safetensors", {"model.bert.a": [1], "model.own.b": [1]})
        write(self.hub() / "model.safetensors", {"bert.a": [1], "own.b": [1]})
        self.export("bert.safetensors", "-o", "by-names", "--hf-ref", "hub")
        self.assertEqual(names(self.dir / "by-names"), ["bert.a", "own.b"])
        write(self.hub() / "model.safetensors", {"model.bert.a": [1], "model.own.b": [1]})
        self.export("bert.safetensors", "-o", "as-they-are", "--hf-ref", "hub")
        self.assertEqual(names(self.dir / "as-they-are"), ["model.bert.a", "model.own.b"])
        (self.dir / "hub/model.safetensors").unlink()
        for kind, wanted in (("bert", ["bert.a", "own.b"]), ("llama", ["model.bert.a", "model.own.b"])):
            self.hub(json.dumps({"model_type": kind}))
            self.export("bert.safetensors", "-o", kind, "--hf-ref", "hub")
            self.assertEqual(names(self.dir / kind), wanted)
        write(self.dir / "blip.safetensors", {"model.qformer.a": [1], "model.vision_model.b": [1]})
        self.hub('{"model_type": "blip-2"}')
        self.export("blip.safetensors", "-o", "blip", "--hf-ref", "hub")
        self.assertEqual(names(self.dir / "blip"), ["qformer.a", "vision_model.b"])

    def test_names_of_transformers_5_are_a_map_away(self):
        write(self.dir / "neox.safetensors", {"gpt_neox.a": [1], "lm_head.weight": [1]})
        write(self.hub('{"model_type": "gpt_neox"}') / "model.safetensors", {"gpt_neox.a": [1], "embed_out.weight": [1]})
        error = self.export("neox.safetensors", "-o", "out", "--hf-ref", "hub", code=4)
        self.assertTrue(error["hint"].endswith("--map hf-v5"), error["hint"])
        self.export("neox.safetensors", "-o", "out", "--hf-ref", "hub", "--map", "hf-v5")
        self.assertEqual(names(self.dir / "out"), ["embed_out.weight", "gpt_neox.a"])

    def test_names_of_other_frameworks_are_a_map_away(self):
        parts = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
                 "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
                 "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
        ends = {"model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}
        pairs = ends | {f"model.layers.0.{old}": f"layers.0.{new}" for old, new in parts.items()}
        write(self.dir / "titan.safetensors", {f"{name}.weight": [2, 2] for name in pairs.values()})
        write(self.hub('{"num_attention_heads": 1}') / "model.safetensors", {f"{name}.weight": [2, 2] for name in pairs})
        error = self.export("titan.safetensors", "-o", "out", "--hf-ref", "hub", code=4)
        self.assertTrue(error["hint"].endswith("--map torchtitan:llama3"), error["hint"])
        self.export("titan.safetensors", "-o", "out", "--hf-ref", "hub", "--map", "torchtitan:llama3")
        self.assertEqual(names(self.dir / "out"), sorted(f"{name}.weight" for name in pairs))

    def test_two_models_of_accelerate_are_two_lines(self):
        for name in ("model", "model_1"):
            write(self.dir / f"saved/{name}.safetensors", {"a": [1]})
        error = self.export("saved", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export saved/model.safetensors -o out --json, or "
                         "shardctl export saved/model_1.safetensors -o out --json")
        self.export("saved/model_1.safetensors", "-o", "out")

    def test_tied_weights_are_stored_once_where_they_are_equal(self):
        self.hub('{"time_step_limit": [0.0, Infinity], "text_config": {"tie_word_embeddings": true}}')  # Python's form.
        write(self.dir / "a.safetensors", {"lm_head.weight": [1, 2], "model.embed_tokens.weight": [1, 2]})
        self.assertEqual(self.export("a.safetensors", "-o", "out", "--hf-ref", "hub")["export"]["tied"], ["lm_head.weight"])
        self.assertEqual(names(self.dir / "out"), ["model.embed_tokens.weight"])
        write(self.dir / "b.safetensors", {"lm_head.weight": [1, 3], "model.embed_tokens.weight": [1, 2]})
        self.assertEqual(self.export("b.safetensors", "-o", "no", "--hf-ref", "hub", code=4)["tensor"], "lm_head.weight")
        self.hub('{"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}}')
        self.export("b.safetensors", "-o", "untied", "--hf-ref", "hub")
        self.assertEqual(names(self.dir / "untied"), ["lm_head.weight", "model.embed_tokens.weight"])

    def test_dtypes_are_kept_named_or_the_configs(self):
        write(self.dir / "a.safetensors", {"w": [1, 2]})
        self.hub('{"dtype": "bfloat16"}')
        for word, dtype in (("keep", "F32"), ("auto", "BF16"), ("float16", "F16")):
            self.export("a.safetensors", "-o", word, "--hf-ref", "hub", "--dtype", word)
            self.assertEqual(dtypes(self.dir / word), {dtype})
        self.hub('{"dtype": "bfloat16", "torch_dtype": "float16"}')  # transformers read the first.
        self.export("a.safetensors", "-o", "both", "--hf-ref", "hub", "--dtype", "auto")
        self.assertEqual(dtypes(self.dir / "both"), {"BF16"})
        self.hub()
        self.assertIn("name the dtype", self.export("a.safetensors", "-o", "no", "--hf-ref", "hub", "--dtype", "auto", code=2)["hint"])
        self.export("a.safetensors", "-o", "no", "--dtype", "auto", code=2)
        self.export("a.safetensors", "-o", "no", "--dtype", "bf17", code=2)
        write(self.dir / "q.safetensors", {"w": [1, 2]}, "F8_E4M3")
        self.export("q.safetensors", "-o", "no", "--dtype", "bfloat16", code=8)

    def test_a_config_of_another_dtype_is_warned_of(self):
        write(self.dir / "a.safetensors", {"w": [1.0]})
        self.hub('{"dtype": "bfloat16"}')
        for word, warns in (("keep", False), ("auto", False), ("bfloat16", False), ("float16", True)):
            done = self.run_it("export", "a.safetensors", "-o", word, "--hf-ref", "hub", "--dtype", word)
            self.assertEqual("contains bfloat16; loaders that follow it will convert the float16 weights" in done.stderr, warns, done.stderr)

    def test_what_it_cannot_export_it_refuses_with_a_code(self):
        write(self.dir / "lora.safetensors", {"base_model.model.a.lora_A.weight": [1], "base_model.model.a.weight": [1]})
        self.assertIn("merge", self.export("lora.safetensors", "-o", "no", code=8)["hint"])
        write(self.dir / "two.safetensors", {"module.a": [1], "_orig_mod.a": [1]})
        self.assertEqual(self.export("two.safetensors", "-o", "no", code=2)["kind"], "duplicate_name")
        self.export("two.safetensors", "-o", "out", "--exclude", "module.**")
        self.assertEqual(names(self.dir / "out"), ["a"])
        write(self.dir / "a.safetensors", {"w": [1]})
        self.export("a.safetensors", "-o", "no.safetensors", code=2)
        self.export("a.safetensors", "-o", "no", "--to", "dcp", code=2)
        self.export("a.safetensors", "-o", "no", "--hf-ref", "absent", code=3)
        self.export("absent", "-o", "no", code=3)
        (self.dir / "hub").mkdir()
        (self.dir / "hub/config.json").write_text("{")
        self.export("a.safetensors", "-o", "no", "--hf-ref", "hub", code=4)
        self.assertFalse((self.dir / "no").exists())

    def test_a_checkpoint_below_is_taken_and_named(self):
        shutil.copytree(DCP, self.dir / "run/checkpoint-20/pytorch_model_fsdp_0")
        shutil.copytree(DCP, self.dir / "run/checkpoint-20/optimizer_0")
        (self.dir / "run/checkpoint-20/config.json").write_text("{}")
        done = self.run_it("export", "run/checkpoint-20", "-o", "out", "--objects", "drop", "--exclude", "complex*")
        self.assertIn("export: took run/checkpoint-20/pytorch_model_fsdp_0", done.stderr)
        self.assertTrue((self.dir / "out/config.json").exists())
        self.export("run", "-o", "out2", "--exclude", "complex*")
        self.run_it("digest", "run", code=4)

    def test_two_candidates_are_two_lines_and_a_tracker_decides(self):
        for step in (20, 40):
            shutil.copytree(DCP, self.dir / f"run/global_step_{step}/model")
        error = self.export("run", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export run/global_step_40/model -o out --json, or "
                                        "shardctl export run/global_step_20/model -o out --json")
        (self.dir / "run/latest_checkpointed_iteration.txt").write_text("20")
        self.assertEqual(self.export("run", "-o", "out", "--exclude", "complex*")["source"], "run/global_step_20/model")

    def test_a_dry_run_says_what_it_found_and_writes_nothing(self):
        write(self.dir / "model/model.safetensors", {"_orig_mod.a": [1], "_orig_mod.b": [1]})
        (self.dir / "model/huggingface").mkdir()
        (self.dir / "model/huggingface/config.json").write_text("{}")
        shown = self.run_it("export", "model", "-o", "out", "--dry-run").stdout
        for text in ("source      model", "reference   model/huggingface", "renamed     2 tensors", "_orig_mod.a -> a",
                     "config.json", "model.safetensors"):
            self.assertIn(text, shown)
        plan = self.export("model", "-o", "out", "--dry-run")
        self.assertEqual(plan["export"]["renames"], [{"from": "_orig_mod.a", "to": "a"}, {"from": "_orig_mod.b", "to": "b"}])
        self.assertFalse((self.dir / "out").exists())

    def test_ranks_write_the_same_bytes(self):
        self.hub('{"tie_word_embeddings": true}')
        (self.dir / "hub/tokenizer.json").write_text("x" * 3_000_000)
        write(self.dir / "a.safetensors", {"module.lm_head.weight": [1, 2] * 500, "module.model.embed_tokens.weight": [1, 2] * 500,
                                           "module.b": [3] * 999})
        self.export("a.safetensors", "-o", "one", "--hf-ref", "hub", "--max-shard-size", "4KB")
        one = {path.name: path.read_bytes() for path in (self.dir / "one").iterdir()}
        self.assertEqual(len(one), 5)
        for out, options in (("three", []), ("parts", ["--local-input"])):
            self.run_it("export", "a.safetensors", "-o", out, "--hf-ref", "hub", "--max-shard-size", "4KB", "--local-ranks", 3, *options)
            self.assertEqual(one, {path.name: path.read_bytes() for path in (self.dir / out).iterdir()})

    def test_an_unchanged_export_is_left_alone(self):
        write(self.dir / "a.safetensors", {"w": [1]})
        hub = self.hub()
        line = ("a.safetensors", "-o", "out", "--hf-ref", "hub", "--if-changed")
        self.assertFalse(self.export(*line)["unchanged"])
        self.assertTrue(self.export(*line)["unchanged"])
        self.run_it("verify", "out")
        (hub / "config.json").write_text('{"a": 1}')
        self.export(*line, code=5)
        self.assertFalse(self.export(*line, "--force")["unchanged"])

    def test_the_output_may_not_be_the_reference(self):
        write(self.dir / "a.safetensors", {"w": [1]})
        self.hub()
        self.export("a.safetensors", "-o", "hub", "--hf-ref", "hub", "--force", code=5)
        self.export("a.safetensors", "-o", "hub/inside", "--hf-ref", "hub")


if __name__ == "__main__":
    sys.exit(unittest.main())
