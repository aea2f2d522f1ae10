"""export and the folders of trainers and libraries: the files of the model, and the messages about the rest.

Environment: SHARDCTL is the program, SHARD_DATA the folder tests/data.
"""
import json
import resource
import shutil
import subprocess
import sys
import unittest

from export_support import DATA, DCP, ExportTest, names, write
from program import SHARDCTL

TRAINERS = DATA / "trainers"
CONTAINERS = TRAINERS / "containers"
LORA = TRAINERS / "lora"
RANKS = DATA / "golden/2.11.0/ranks_dtensor_r2"
NET = ["0.bias", "0.weight", "1.bias", "1.weight"]


def warnings(result: dict) -> str:
    return "\n".join(result["warnings"])


class Loaders(ExportTest):
    """The model of a folder is the set of files that its loader opens."""

    def model(self, *others: str, config: str = "{}"):
        write(self.dir / "model/model.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text(config)
        for name in others:
            write(self.dir / "model" / name, {"b": [2]})

    def test_other_weights_stay_behind_with_a_warning(self):
        self.model("consolidated.safetensors", "adapter_model.safetensors", "model.fp16.safetensors", "pytorch_model.bin", "optimizer.pt")
        (self.dir / "model/README.md").write_text("x")
        result = self.export("model", "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["a"])
        self.assertIn("skipped other weights of the folder: 'adapter_model.safetensors', 'consolidated.safetensors', ", warnings(result))
        self.assertIn("other files of the folder are not part of the checkpoint, and are not copied: 'README.md'", warnings(result))

    def test_states_of_a_trainer_are_no_weights(self):
        self.model("optimizer.pt", "rng_state_0.pth", "training_args.bin")
        text = warnings(self.export("model", "-o", "out"))
        self.assertIn("other files of the folder are not part of the checkpoint, and are not copied: 'optimizer.pt', 'rng_state_0.pth', 'training_args.bin'", text)
        self.assertNotIn("skipped other weights", text)

    def test_a_model_without_elements_is_refused(self):
        self.model()
        write(self.dir / "model/model.safetensors", {"a": [], "b": [], "norm": [1]})
        error = self.export("model", "-o", "out", code=4)
        self.assertEqual(error["message"], "2 of 3 weights have no elements: 'a', 'b'")
        self.assertEqual(error["hint"], "export the folder of the ranks' states (global_stepN), which has the weights")
        write(self.dir / "model/model.safetensors", {"a": [], "b": [2], "norm": [1]})
        self.export("model", "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["a", "b", "norm"])

    def test_files_that_an_index_lists_are_no_others(self):
        write(self.dir / "model/part.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        (self.dir / "model/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
        result = self.export("model", "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["a"])
        self.assertNotIn("part.safetensors", warnings(result))

    def test_the_folder_that_a_runs_file_names_is_read(self):
        for save in "deepspeed/stage1", "deepspeed/universal_of_stage3", "megatron/dense", "megatron_legacy/dense":
            with self.subTest(save=save):
                text = warnings(self.export(DATA / save, "-o", "out", "--force"))
                self.assertNotIn("are not part of the checkpoint", text)
        iteration = DATA / "megatron/dense/iter_0000007"
        self.assertNotIn("are not part of the checkpoint", warnings(self.export(iteration, "-o", "out", "--force")))
        gathered = self.run_it("gather", iteration, "-o", "out.pt", "--objects", "drop")
        self.assertNotIn("metadata.json", gathered.stderr)
        self.assertNotIn("not checked", self.run_it("verify", iteration).stdout)

    def test_a_variant_is_the_model_where_it_is_alone_and_loses_its_name(self):
        write(self.dir / "model/model.bf16.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        self.export("model", "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["a"])
        write(self.dir / "model/model.fp16.safetensors", {"a": [1]})
        error = self.export("model", "-o", "two", code=2)
        self.assertEqual(error["hint"], "shardctl export model/model.bf16.safetensors -o two --json, or "
                                        "shardctl export model/model.fp16.safetensors -o two --json")

    def test_a_missing_part_is_missed(self):
        write(self.dir / "model/model-00001-of-00002.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        self.assertEqual(self.export("model", "-o", "out", code=3)["kind"], "missing_file")
        write(self.dir / "model/model-00002-of-00002.safetensors", {"b": [1]})
        self.export("model", "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["a", "b"])

    def test_models_of_diffusers_keep_their_stem(self):
        vae = TRAINERS / "diffusers/vae"
        self.export(vae, "-o", "out")
        there = sorted(path.name for path in (self.dir / "out").iterdir())
        self.assertEqual(there, ["config.json", "diffusion_pytorch_model.safetensors"])
        self.run_it("diff", "out/diffusion_pytorch_model.safetensors", vae / "diffusion_pytorch_model.safetensors.index.json")
        self.export(vae, "-o", "parts", "--max-shard-size", "4KB")
        index = json.loads((self.dir / "parts/diffusion_pytorch_model.safetensors.index.json").read_text())
        self.assertTrue(all(name.startswith("diffusion_pytorch_model-0000") for name in index["weight_map"].values()))
        self.export(vae, "-o", "torch", "--to", "torch")
        self.assertTrue((self.dir / "torch/diffusion_pytorch_model.bin").exists())

    def test_a_variant_of_diffusers_is_named_by_its_file(self):
        self.export(TRAINERS / "diffusers/vae/diffusion_pytorch_model.fp16.safetensors", "-o", "out")
        self.assertTrue((self.dir / "out/diffusion_pytorch_model.safetensors").exists())

    def test_a_pipeline_is_a_line_for_each_model(self):
        for name in ("unet", "vae"):
            shutil.copytree(TRAINERS / "diffusers/vae", self.dir / "pipe" / name)
        (self.dir / "pipe/scheduler").mkdir()
        (self.dir / "pipe/scheduler/scheduler_config.json").write_text("{}")
        (self.dir / "pipe/model_index.json").write_text('{"_class_name": "P"}')
        error = self.export("pipe", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export pipe/unet -o out --json, or shardctl export pipe/vae -o out --json")

    def test_modules_of_sentence_transformers_come_along(self):
        result = self.export(TRAINERS / "sentence", "-o", "out")
        there = sorted(str(path.relative_to(self.dir / "out")) for path in (self.dir / "out").rglob("*") if path.is_file())
        self.assertEqual(there, sorted(str(path.relative_to(TRAINERS / "sentence")) for path in (TRAINERS / "sentence").rglob("*") if path.is_file()))
        self.assertEqual(result["warnings"], [])
        # A reference's files are a different model's.
        write(self.dir / "a.safetensors", {"a": [1]})
        result = self.export("a.safetensors", "-o", "other", "--hf-ref", TRAINERS / "sentence", "--no-check")
        self.assertTrue((self.dir / "other/2_Dense/config.json").exists())
        self.assertFalse((self.dir / "other/2_Dense/model.safetensors").exists())
        self.assertIn("2_Dense/model.safetensors", warnings(result))

    def test_the_output_may_be_in_the_folder_of_the_model_but_not_in_the_place_of_a_part(self):
        self.model()
        self.run_it("export", ".", "-o", "hf", folder="model")
        shutil.copytree(TRAINERS / "diffusers/vae", self.dir / "vae")
        part = "vae/diffusion_pytorch_model-00001-of-00002.safetensors"
        self.export("vae", "-o", part + "/", "--force", code=5)
        self.export("vae", "-o", "vae", "--force", code=5)
        self.assertTrue((self.dir / part).is_file())


class Runs(ExportTest):
    """The model beside other files of trainers."""

    def test_other_files_beside_the_configuration_are_named_but_not_the_source(self):
        write(self.dir / "model/weights/model.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        (self.dir / "model/notes.txt").write_text("mine")
        result = self.export("model/weights", "-o", "out")
        [others] = [each for each in result["warnings"] if "notes.txt" in each]
        self.assertNotIn("weights", others)

    def test_a_step_of_olmo_core_is_its_model(self):
        shutil.copytree(TRAINERS / "olmo", self.dir / "run")
        for source in ("run", "run/step100"):
            result = self.export(source, "-o", "out", "--force")
            self.assertEqual(result["source"], "run/step100/model_and_optim")
            self.assertEqual(names(self.dir / "out"), NET)
            self.assertEqual(result["export"]["tensors_left_out"], 4)

    def verl(self, step: int):
        actor = self.dir / f"run/global_step_{step}/actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "huggingface/config.json").write_text("{}")
        for rank in range(2):
            for kind in ("model", "optim", "extra_state"):
                shutil.copy(RANKS / f"model_world_size_2_rank_{rank}.pt", actor / f"{kind}_world_size_2_rank_{rank}.pt")
        shutil.copy(CONTAINERS / "list.pt", actor.parent / "data.pt")

    def test_a_data_loader_beside_the_model_is_none(self):
        self.verl(10)
        for source in ("run", "run/global_step_10", "run/global_step_10/actor"):
            result = self.export(source, "-o", "out", "--force")
            self.assertTrue(result["source"].endswith("actor/model_world_size_2_rank_*.pt"), result["source"])
            self.assertIn("optim_world_size_2_rank_0.pt", warnings(result))

    def test_what_is_found_is_the_source_and_not_the_folder(self):
        self.verl(10)
        write(self.dir / "run/earlier.safetensors", {"a": [1]})
        done = self.run_it("export", ".", "-o", "hfx", folder="run", code=2)
        self.assertIn("shardctl export ./global_step_10/actor/model_world_size_2_rank_*.pt -o hfx, or "
                      "shardctl export ./earlier.safetensors -o hfx", done.stderr)
        (self.dir / "run/latest_checkpointed_iteration.txt").write_text("10")
        done = self.run_it("export", ".", "-o", "hfx", folder="run")
        self.assertIn("took ./global_step_10/actor/model_world_size_2_rank_*.pt", done.stderr)
        self.assertTrue((self.dir / "run/hfx/model.safetensors").exists())

    def test_an_earlier_output_alone_is_the_source_by_its_file(self):
        write(self.dir / "run/earlier.safetensors", {"a": [1]})
        self.export("run", "-o", "run/hfx")
        self.assertEqual(names(self.dir / "run/hfx"), ["a"])

    def test_steps_in_files_of_one_folder_are_steps_and_not_ranks(self):
        for step in (10, 20):
            (self.dir / "run").mkdir(exist_ok=True)
            shutil.copy(CONTAINERS / "average.pt", self.dir / f"run/epoch=1-step={step}.ckpt")
        error = self.export("run", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export run/epoch=1-step=20.ckpt -o out --json, or "
                                        "shardctl export run/epoch=1-step=10.ckpt -o out --json")

    def test_files_of_different_names_are_no_ranks(self):
        (self.dir / "run").mkdir()
        for name in ("left.pt", "right.pt"):
            shutil.copy(CONTAINERS / "average.pt", self.dir / "run" / name)
        error = self.export("run", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export run/left.pt -o out --json, or shardctl export run/right.pt -o out --json")

    def test_torchtunes_epoch_is_the_model(self):
        epoch = self.dir / "tune/epoch_0"
        write(epoch / "model-00001-of-00001.safetensors", {"a": [1]})
        (epoch / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
        (epoch / "config.json").write_text("{}")
        shutil.copy(LORA / "adapter/adapter_model.safetensors", epoch)
        shutil.copy(LORA / "adapter/adapter_config.json", epoch)
        shutil.copy(CONTAINERS / "list.pt", epoch / "adapter_model.pt")
        (self.dir / "tune/recipe_state").mkdir()
        shutil.copy(CONTAINERS / "average.pt", self.dir / "tune/recipe_state/recipe_state.pt")
        result = self.export("tune", "-o", "out")
        self.assertEqual(result["source"], "tune/epoch_0")
        self.assertEqual(names(self.dir / "out"), ["a"])

    def test_nanotron_is_refused_by_name(self):
        write(self.dir / "10/model/a/model_weight_pp-rank-0-of-1_tp-rank-0-of-2.safetensors", {"data": [1]})
        for name in ("checkpoint_metadata.json", "model_config.json"):
            (self.dir / "10" / name).write_text("{}")
        self.assertIn("nanotron", self.export("10", "-o", "out", code=8)["message"])


class OneCheckpoint(ExportTest):
    """A folder above exactly one checkpoint is that checkpoint for every verb."""

    def test_every_verb_takes_it_and_says_so(self):
        shutil.copytree(DCP, self.dir / "run/step-10")
        (self.dir / "run/notes.txt").write_text("x")
        shutil.copy(CONTAINERS / "list.pt", self.dir / "run/rng_state.pt")
        lines = [("inspect", "run"), ("digest", "run"), ("verify", "run"), ("gather", "run", "-o", "a.pt"),
                 ("split", "run", "-o", "cut", "--ranks", "2"), ("reshard", "run", "-o", "b", "--ranks", "2"),
                 ("diff", "run", "run/step-10"), ("diff", "run/step-10", "run"), ("convert", "run", "-o", "c.pt"),
                 ("repair", "run", "-o", "rep")]
        for line in lines:
            done = self.run_it(*line)
            self.assertIn(f"shardctl: {line[0]}: took run/step-10, the only checkpoint in run", done.stderr)
        self.run_it("diff", "a.pt", DCP)
        name = json.loads(self.run_it("inspect", "run", "--json").stdout)["tensors"][0]["name"]
        self.assertEqual(self.run_it("cat", "run", name).stdout, self.run_it("cat", DCP, name).stdout)
        self.assertEqual(self.run_it("digest", "run", "-q").stderr, "")

    def test_several_are_a_line_each(self):
        for step in (10, 20):
            shutil.copytree(DCP, self.dir / f"run/step-{step}")
        error = json.loads(self.run_it("digest", "run", "--json", code=4).stdout)
        self.assertEqual(error["hint"], "shardctl digest run/step-20 --json, or shardctl digest run/step-10 --json")

    def test_a_repair_takes_it_if_it_is_damaged(self):
        cut = self.dir / "run/step-10/model.safetensors"
        write(cut, {"a": [1], "b": [2]})
        cut.write_bytes(cut.read_bytes()[:-1])
        done = self.run_it("repair", "run", "-o", "out", "--json")
        self.assertIn("shardctl: repair: took run/step-10, the only checkpoint in run", done.stderr)
        self.assertEqual([each["name"] for each in json.loads(done.stdout)["lost"]], ["b"])

    def test_a_repair_does_not_take_an_intact_one_beside_a_damaged_one(self):
        shutil.copytree(DCP, self.dir / "run/step-10")
        (self.dir / "run/step-20").mkdir()
        (self.dir / "run/step-20/model.safetensors").write_bytes(b"cut")
        error = self.json("repair", "run", "-o", "out", code=4)
        self.assertEqual(error["hint"], "shardctl repair run/step-20 -o out --json, or shardctl repair run/step-10 -o out --json")

    def test_a_file_without_tensors_is_none(self):
        (self.dir / "run").mkdir()
        shutil.copy(CONTAINERS / "average.pt", self.dir / "run/last.ckpt")
        shutil.copy(TRAINERS / "olmo/step100/no_tensors.pt", self.dir / "run/settings.pt")
        self.assertIn("took run/last.ckpt", self.run_it("digest", "run").stderr)

    def test_a_manifest_below_is_the_one_that_counts(self):
        shutil.copytree(DCP, self.dir / "run/step-10")
        (self.dir / "made").mkdir()
        self.run_it("convert", "run", "-o", "made/a", "--to", "dcp", "--checksum", "xxh3")
        self.assertIn("blocks of the manifest", self.run_it("verify", "made").stdout + self.run_it("verify", "made").stderr)


class Containers(ExportTest):
    def test_several_models_in_one_file_are_a_line_each(self):
        for name, choices in (("gan.pt", ["generator", "critic", "generator_ema"]), ("list.pt", ["0", "1"])):
            error = self.export(CONTAINERS / name, "-o", "out", code=2)
            for choice in choices:
                self.assertIn(f"--include '{choice}.**'", error["hint"])
                result = self.export(CONTAINERS / name, "-o", f"{name}-{choice}", "--include", f"{choice}.**")
                self.assertEqual(result["export"]["container"], choice)
                self.assertEqual(names(self.dir / f"{name}-{choice}"), NET)
        self.export(CONTAINERS / "gan.pt", "-o", "all", "--include", "**")
        self.assertEqual(len(names(self.dir / "all")), 12)

    def test_another_copy_is_left_out_aloud_and_can_be_chosen(self):
        for name, container, other in (("model_best.pth.tar", "state_dict", "state_dict_ema"), ("average.pt", "model", "ema_model")):
            out = name.replace(".", "-")
            result = self.export(CONTAINERS / name, "-o", out)
            self.assertEqual(result["export"]["container"], container)
            self.assertIn(f"skipped '{other}': ", warnings(result))
            self.assertIn(f"--include '{other}.**'", warnings(result))
            self.export(CONTAINERS / name, "-o", f"{out}-other", "--include", f"{other}.**")
            self.assertEqual(names(self.dir / f"{out}-other"), NET)

    def test_a_container_of_any_name_is_taken_off(self):
        result = self.export(CONTAINERS / "checkpoint_final.pth", "-o", "out")
        self.assertEqual(result["export"]["container"], "network_weights")
        self.assertEqual(names(self.dir / "out"), NET)


class Adapters(ExportTest):
    def assert_is_the_adapter(self, out: str):
        self.run_it("diff", f"{out}/adapter_model.safetensors", LORA / "adapter/adapter_model.safetensors")

    def test_an_adapter_alone_becomes_the_folder_of_peft(self):
        step = self.dir / "checkpoint-1"
        shutil.copytree(LORA / "dcp", step / "pytorch_model_fsdp_0")
        result = self.export(step, "-o", "bare")
        self.assertIn("adapter_config.json", warnings(result))
        self.assert_is_the_adapter("bare")
        shutil.copy(LORA / "adapter/adapter_config.json", step)
        (step / "config.json").write_text("{}")
        (step / "modeling_own.py").write_text("")
        (step / "tokenizer.json").write_text("{}")
        result = self.export(step, "-o", "out")
        self.assertEqual(sorted(path.name for path in (self.dir / "out").iterdir()),
                         ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json"])
        self.assertNotIn("PEFT needs", warnings(result))
        self.assert_is_the_adapter("out")

    def test_names_of_pefts_own_files_stay(self):
        self.run_it("convert", LORA / "adapter/adapter_model.safetensors", "-o", "pytorch_model_fsdp.bin")
        (self.dir / "checkpoint-1").mkdir()
        (self.dir / "pytorch_model_fsdp.bin").rename(self.dir / "checkpoint-1/pytorch_model_fsdp.bin")
        self.export("checkpoint-1", "-o", "out", "--hf-ref", LORA / "adapter")
        self.assert_is_the_adapter("out")
        self.assertTrue((self.dir / "out/adapter_config.json").exists())
        self.export(LORA / "adapter", "-o", "again")
        self.assert_is_the_adapter("again")

    def test_pefts_file_of_any_type_of_adapter_stays_one(self):
        kinds = {"IA3": "base_model.model.model.layers.0.mlp.down_proj.ia3_l", "LOHA": "base_model.model.q_proj.hada_w1_a",
                 "LN_TUNING": "base_model.model.model.norm.weight", "PROMPT_TUNING": "prompt_embeddings"}
        for kind, name in kinds.items():
            with self.subTest(kind):
                (self.dir / kind).mkdir()
                write(self.dir / kind / "adapter_model.safetensors", {name: [1, 2]})
                (self.dir / kind / "adapter_config.json").write_text(json.dumps({"peft_type": kind}))
                result = self.export(kind, "-o", f"{kind}-out")
                self.assertEqual(warnings(result), "")
                self.assertEqual(names(self.dir / f"{kind}-out", "adapter_model"), [name])
                self.assertTrue((self.dir / f"{kind}-out/adapter_config.json").exists())

    def test_an_adapter_inside_its_base_model_is_a_line_away(self):
        error = self.export(LORA / "whole.pt", "-o", "out", code=8)
        self.assertIn("then merge it into the base model with --lora", error["hint"])
        self.assertIn("--include '**lora_**' --include '**.modules_to_save.**'", error["hint"])
        self.export(LORA / "whole.pt", "-o", "out", "--include", "**lora_**", "--include", "**.modules_to_save.**")
        self.assert_is_the_adapter("out")

    def test_one_of_several_adapters_is_a_line_away(self):
        write(self.dir / "two.safetensors", {f"h.0.w.lora_{side}.{name}.weight": [1] for side in "AB" for name in ("a", "b")})
        error = self.export("two.safetensors", "-o", "out", code=2)
        self.assertIn("--exclude '**.b**', or shardctl export two.safetensors -o out", error["hint"])
        self.export("two.safetensors", "-o", "out", "--exclude", "**.b**")
        self.assertEqual(len(names(self.dir / "out", "adapter_model")), 2)

    def test_the_advice_for_many_adapters_is_short(self):
        write(self.dir / "many.safetensors", {f"h.0.w.lora_A.a{i}.weight": [1] for i in range(2000)})
        error = self.export("many.safetensors", "-o", "out", code=2)
        self.assertIn("--exclude '**.OTHER**'", error["hint"])
        self.assertLess(len(json.dumps(error)), 2000)

    def test_parts_without_an_index_beside_an_adapter_are_a_line_away(self):
        """The names of torchtune, which no loader opens without their index."""
        write(self.dir / "run/adapter_model.safetensors", {"base_model.model.q.lora_A.weight": [1], "base_model.model.q.lora_B.weight": [1]})
        for number in 1, 2:
            write(self.dir / f"run/ft-model-0000{number}-of-00002.safetensors", {f"w{number}": [1]})
        for config in "adapter_config.json", "config.json":
            (self.dir / "run" / config).write_text("{}")
            error = self.export("run", "-o", "out", code=2)
            self.assertIn("run/ft-model-*-of-00002.safetensors -o out", error["hint"])
            self.assertIn("run/adapter_model.safetensors -o out", error["hint"])
        parts = sorted((self.dir / "run").glob("ft-*"))
        self.export(*parts, "-o", "out")
        self.assertEqual(names(self.dir / "out"), ["w1", "w2"])

    def test_an_adapter_beside_a_model_is_another_thing(self):
        for name in ("model.safetensors", "adapter_model.safetensors"):
            write(self.dir / "both" / name, {"a": [1]})
        error = self.export("both", "-o", "out", code=2)
        self.assertEqual(error["hint"], "shardctl export both/model.safetensors -o out --json, or "
                                        "shardctl export both/adapter_model.safetensors -o out --json")
        (self.dir / "both/config.json").write_text("{}")
        result = self.export("both", "-o", "out")
        self.assertIn("'adapter_model.safetensors'", warnings(result))


class CopiedFiles(ExportTest):
    def test_code_of_the_folder_above_stays_there(self):
        write(self.dir / "up/ck/model.safetensors", {"a": [1]})
        (self.dir / "up/config.json").write_text("{}")
        (self.dir / "up/private.py").write_text("secret")
        result = self.export("up/ck", "-o", "out")
        self.assertEqual(result["export"]["copied"], ["config.json"])
        self.assertIn("'private.py'", warnings(result))
        done = self.run_it("export", "up/ck", "-o", "with", "--hf-ref", "up")
        self.assertIn("export: copied code: 'private.py'", done.stderr)

    def test_a_linked_folder_that_leads_elsewhere_is_refused(self):
        write(self.dir / "ck/model.safetensors", {"a": [1]})
        (self.dir / "elsewhere").mkdir()
        (self.dir / "elsewhere/config.json").write_text("{}")
        (self.dir / "elsewhere/private.py").write_text("secret")
        (self.dir / "ck/huggingface").symlink_to("../elsewhere")
        self.export("ck", "-o", "out", code=4)
        (self.dir / "ck/huggingface").unlink()
        (self.dir / "ck/hub").mkdir()
        (self.dir / "ck/hub/config.json").write_text("{}")
        (self.dir / "ck/huggingface").symlink_to("hub")
        self.export("ck", "-o", "out")

    def test_names_are_plain(self):
        write(self.dir / "model/model.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        odd = ["\x1b]0;x\x07.py", "a\nb.py", "-rf.py", "\u202e.jinja", "a b.py", "+x.py"]
        for name in [*odd, "__init__.py", "a-1.b+c=d_2.py"]:
            (self.dir / "model" / name).write_text("")
        result = self.export("model", "-o", "out")
        self.assertEqual(result["export"]["copied"], ["__init__.py", "a-1.b+c=d_2.py", "config.json"])
        self.assertIn("files with unusual characters in their names are not copied", warnings(result))

    def test_many_files_need_few_descriptors(self):
        write(self.dir / "model/model.safetensors", {"a": [1]})
        (self.dir / "model/config.json").write_text("{}")
        for number in range(300):
            (self.dir / f"model/m{number}.py").write_text(str(number))
        done = subprocess.run([SHARDCTL, "export", "model", "-o", "out"], cwd=self.dir, capture_output=True, text=True,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.dir / "out/m299.py").read_text(), "299")
        for number in range(1000):
            (self.dir / f"model/n{number}.py").write_text("")
        self.export("model", "-o", "more", code=8)

    def test_a_changed_adapter_config_is_a_changed_source(self):
        shutil.copytree(LORA / "adapter", self.dir / "adapter")
        line = ("adapter", "-o", "out", "--if-changed")
        self.assertFalse(self.export(*line)["unchanged"])
        self.assertTrue(self.export(*line)["unchanged"])
        config = self.dir / "adapter/adapter_config.json"
        config.write_text(config.read_text() + "\n")
        self.export(*line, code=5)


if __name__ == "__main__":
    sys.exit(unittest.main())
