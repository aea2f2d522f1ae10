"""--dequantize: weights that are computed on the way, bit for bit those of the libraries that wrote or load them.

compressed-tensors and transformers are the judges. GPTQ, ModelOpt's NVFP4 and bitsandbytes, which need a GPU or a
package of their own, are a few lines of torch here.
"""
import json
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support import shardctl, shardctl_json

COMPRESSED = Path(sys.prefix) / "compressed"  # scripts/setup installs compressed-tensors there.
if COMPRESSED.is_dir():
    sys.path.append(str(COMPRESSED))
needs_compressed = unittest.skipUnless(COMPRESSED.is_dir(), f"{COMPRESSED} is not there: run scripts/setup full")
GOLDEN = Path(__file__).resolve().parents[1] / "data/quantized"
MODULE = "model.layers.0.mlp.up_proj"
E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(packed: torch.Tensor, high_first: bool = False) -> torch.Tensor:
    pair = [packed & 15, packed >> 4]
    return torch.stack(pair[::-1] if high_first else pair, -1).flatten(-2).long()


class Dequantize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shardctl-dequantize-")
        self.addCleanup(folder.cleanup)
        self.dir = Path(folder.name)
        self.random = torch.Generator().manual_seed(0)

    def noise(self, *shape) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random)

    def codes(self, dtype: torch.dtype, *shape) -> torch.Tensor:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max + 1, shape, generator=self.random, dtype=torch.int64).to(dtype)

    def float8(self, *shape) -> torch.Tensor:
        """All codes, NaN too."""
        return self.codes(torch.uint8, *shape).view(torch.float8_e4m3fn)

    def store(self, tensors: dict, quantization: dict | None) -> Path:
        model = self.dir / "model"
        model.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, model / "model.safetensors")
        (model / "config.json").write_text(json.dumps({} if quantization is None else {"quantization_config": quantization}))
        return model

    def expect(self, wanted: dict[str, torch.Tensor], model: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """In one file, with one thread and little memory, and through a sharded checkpoint."""
        name = str(dtype).removeprefix("torch.")
        shardctl("convert", model, "-o", self.dir / "out.safetensors", f"--dequantize={name}", "--force")
        shardctl("convert", model, "-o", self.dir / "small.safetensors", f"--dequantize={name}", "--force", "-j", 1,
                 "--max-memory", "1MiB")
        shardctl("split", model, "-o", self.dir / "cut", "--to", "dcp", "--mesh", "tp=3", "--place", "**=S(0)", "--force")
        (self.dir / "cut/config.json").write_text((model / "config.json").read_text())
        shardctl("gather", self.dir / "cut", "-o", self.dir / "gathered.safetensors", f"--dequantize={name}", "--force")
        for path in ("out", "small", "gathered"):
            found = load_file(self.dir / f"{path}.safetensors")
            self.assertEqual(set(found), set(wanted), path)
            for key, tensor in wanted.items():
                self.assertEqual(found[key].dtype, dtype, f"{path} {key}")
                self.assertEqual(found[key].shape, tensor.shape, f"{path} {key}")
                same = torch.eq(found[key], tensor.to(dtype)) | (torch.isnan(found[key]) & torch.isnan(tensor))
                self.assertTrue(bool(same.all()), f"{path} {key}: {(~same).sum()} of {same.numel()} differ")

    # ---- compressed-tensors.

    def compressed(self, kind: str, scheme, weight: torch.Tensor, **parameters) -> None:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig

        compressor = BaseCompressor.get_value_from_registry(kind)
        stored = compressor.compress({"weight": weight, **parameters}, scheme)
        wanted = compressor.decompress(stored, scheme)["weight"]
        config = QuantizationConfig(config_groups={"group_0": scheme}, format=kind, ignore=["lm_head"]).to_dict()
        model = self.store({f"{MODULE}.{name}": tensor for name, tensor in stored.items()},
                           json.loads(json.dumps(config, default=str)))
        self.expect({f"{MODULE}.weight": wanted}, model)

    @needs_compressed
    def test_packed_integers(self):
        from compressed_tensors.quantization import QuantizationScheme

        for bits in range(2, 9):
            for symmetric in (True, False):
                for group, rows, columns in ((32, 24, 96), (None, 40, 40)):
                    for dtype in (torch.float32, torch.bfloat16, torch.float16):
                        with self.subTest(bits=bits, symmetric=symmetric, group=group, dtype=dtype):
                            args = {"num_bits": bits, "type": "int", "symmetric": symmetric,
                                    "strategy": "group" if group else "channel", "group_size": group}
                            weight = self.noise(rows, columns)
                            groups = weight.reshape(rows, -1, group or columns)
                            scale = (groups.abs().amax(2) / (2 ** (bits - 1) - 0.5)).to(dtype)
                            parameters = {"weight_scale": scale}
                            if not symmetric:
                                half = 2 ** (bits - 1)
                                parameters["weight_zero_point"] = torch.randint(-half, half, scale.shape, generator=self.random,
                                                                                dtype=torch.int8)
                            self.compressed("pack-quantized", QuantizationScheme(targets=["Linear"], weights=args),
                                            weight.to(dtype), **parameters)

    @needs_compressed
    def test_packed_integers_with_one_scale_for_the_tensor(self):
        from compressed_tensors.quantization import QuantizationScheme

        for symmetric in (True, False):
            args = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "tensor"}
            parameters = {"weight_scale": torch.tensor([0.25])}
            if not symmetric:
                parameters["weight_zero_point"] = torch.tensor([-3], dtype=torch.int8)
            self.compressed("pack-quantized", QuantizationScheme(targets=["Linear"], weights=args), self.noise(24, 40), **parameters)

    @needs_compressed
    def test_float8(self):
        from compressed_tensors.quantization import preset_name_to_scheme

        weight = self.noise(40, 96)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            channel = (weight.abs().amax(1, keepdim=True) / 448).to(dtype)
            self.compressed("float-quantized", preset_name_to_scheme("FP8_DYNAMIC", ["Linear"]), weight.to(dtype), weight_scale=channel)
            tensor = (weight.abs().amax().reshape(1) / 448).to(dtype)
            self.compressed("float-quantized", preset_name_to_scheme("FP8", ["Linear"]), weight.to(dtype), weight_scale=tensor)
        weight = self.noise(300, 200)
        blocks = torch.nn.functional.pad(weight, (0, 56, 0, 84)).reshape(3, 128, 2, 128).abs().amax((1, 3)) / 448
        self.compressed("float-quantized", preset_name_to_scheme("FP8_BLOCK", ["Linear"]), weight, weight_scale=blocks)

    @needs_compressed
    def test_int8(self):
        from compressed_tensors.quantization import preset_name_to_scheme

        weight = self.noise(40, 96)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            self.compressed("int-quantized", preset_name_to_scheme("W8A8", ["Linear"]), weight.to(dtype),
                            weight_scale=(weight.abs().amax(1, keepdim=True) / 127.5).to(dtype))

    @needs_compressed
    def test_fp4_and_mx(self):
        from compressed_tensors.quantization import preset_name_to_scheme

        weight = self.noise(40, 96)
        scale = (weight.reshape(40, 6, 16).abs().amax(2) / 6 * 384.5).to(torch.float8_e4m3fn).float()
        self.compressed("nvfp4-pack-quantized", preset_name_to_scheme("NVFP4", ["Linear"]), weight, weight_scale=scale,
                        weight_global_scale=torch.tensor([384.5]), input_global_scale=torch.tensor([17.125]))
        for kind, preset in (("mxfp4-pack-quantized", "MXFP4"), ("mxfp8-quantized", "MXFP8")):
            with self.subTest(kind=kind):
                scale = torch.exp2(torch.floor(torch.log2(weight.reshape(40, 3, 32).abs().amax(2))) - 2)
                self.compressed(kind, preset_name_to_scheme(preset, ["Linear"]), weight, weight_scale=scale)

    @needs_compressed
    def test_awq(self):
        from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

        names = ("qweight", "scales", "qzeros")
        stored = (self.codes(torch.int32, 128, 5), (self.noise(4, 40).abs() / 50).half(), self.codes(torch.int32, 4, 5))
        code, scale, zero = AutoAWQConverter(group_size=32)._convert_gemm_module(*stored)
        wanted = (code.half().reshape(40, 4, 32) - zero.half()[..., None]) * scale[..., None]
        model = self.store({f"{MODULE}.{name}": tensor for name, tensor in zip(names, stored)},
                           {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})
        self.expect({f"{MODULE}.weight": wanted.reshape(40, 128)}, model)

    # ---- transformers and torch.

    def test_float8_blocks_as_transformers_reads_them(self):
        from transformers.integrations.finegrained_fp8 import Fp8Dequantize

        for scale in ((self.noise(2, 3).abs() / 100), (self.noise(2, 3).abs() / 100).bfloat16()):
            weight = self.float8(256, 384)
            wanted = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.bfloat16)
            model = self.store({f"{MODULE}.weight": weight, f"{MODULE}.weight_scale_inv": scale},
                               {"quant_method": "fp8", "weight_block_size": [128, 128]})
            self.expect({f"{MODULE}.weight": wanted}, model)

    def test_experts_in_one_tensor_have_blocks_of_their_own(self):
        weight, scale = self.float8(3, 256, 128), self.noise(3, 2, 1).abs()
        wanted = weight.float().reshape(3, 2, 128, 1, 128) * scale[:, :, None, :, None]
        model = self.store({"experts.down_proj": weight, "experts.down_proj_scale_inv": scale},
                           {"quant_method": "fp8", "weight_block_size": [128, 128]})
        self.expect({"experts.down_proj": wanted.reshape(3, 256, 128)}, model)

    def test_mlx(self):
        """Reads files by mlx. Like its matrix products, and unlike mlx.core.dequantize, this rounds once."""
        stored = load_file(GOLDEN / "mlx/model.safetensors")
        experts, norm = "model.layers.0.mlp.experts.gate_proj", "model.layers.0.input_layernorm.weight"
        words = stored[f"{MODULE}.weight"].view(torch.uint8).reshape(32, 8, 5).long()  # 40 bits, 8 codes.
        bits = sum(words[..., i] << 8 * i for i in range(5))
        codes = torch.stack([bits >> 5 * i & 31 for i in range(8)], -1).reshape(32, 2, 32)
        scaled = codes.float() * stored[f"{MODULE}.scales"].float()[..., None] + stored[f"{MODULE}.biases"].float()[..., None]
        blocks = E2M1[nibbles(stored[f"{experts}.weight"].view(torch.uint8))].reshape(2, 8, 2, 32)
        powers = torch.exp2(stored[f"{experts}.scales"].float() - 127)
        self.expect({f"{MODULE}.weight": scaled.reshape(32, 64), f"{experts}.weight": (blocks * powers[..., None]).reshape(2, 8, 64),
                     norm: stored[norm]}, GOLDEN / "mlx")

    def test_mlx_floats(self):
        """Reads files by mlx, whose dequantize gives these numbers in float32."""
        stored = load_file(GOLDEN / "mlx-floats/model.safetensors")
        gate, up, experts = (f"model.layers.0.mlp.{name}" for name in ("gate_proj", "up_proj", "switch_mlp.down_proj"))

        def fp4(module, scales):
            numbers = E2M1[nibbles(stored[f"{module}.weight"].view(torch.uint8))]
            return (numbers.unflatten(-1, (-1, 16)) * scales[..., None]).flatten(-2)

        def e4m3(module):
            return stored[f"{module}.scales"].view(torch.float8_e4m3fn).float()

        codes = stored[f"{up}.weight"].view(torch.float8_e4m3fn).float().unflatten(-1, (-1, 32))
        powers = torch.exp2(stored[f"{up}.scales"].float() - 127)
        largest = stored[f"{experts}.global_scale"][:, None, None] / (6 * 448)
        wanted = {gate: fp4(gate, e4m3(gate)), up: (codes * powers[..., None]).flatten(-2),
                  experts: fp4(experts, e4m3(experts) * largest)}
        self.expect({f"{module}.weight": weight for module, weight in wanted.items()}, GOLDEN / "mlx-floats")

    def test_torchao(self):
        """Reads a file by torchao, and one as it stores integers in groups with zero points."""
        stored = load_file(GOLDEN / "torchao-float8/model.safetensors")
        model = self.store({name: tensor for name, tensor in stored.items() if "._weight_" in name}, {"quant_method": "torchao"})
        self.expect({"0.weight": stored["0._weight_qdata"].float() * stored["0._weight_scale"]}, model)
        granularity = {"_type": "PerGroup", "_data": {"group_size": 32}}
        config = {"_type": "IntxWeightOnlyConfig", "_data": {"granularity": granularity}}
        codes, zeros, scales = self.codes(torch.int8, 24, 64), self.codes(torch.int8, 24, 2), self.noise(24, 2)
        wanted = (codes.float().unflatten(1, (2, 32)) - zeros.float()[..., None]) * scales[..., None]
        model = self.store({"0._weight_qdata": codes, "0._weight_scale": scales, "0._weight_zero_point": zeros},
                           {"quant_method": "torchao", "quant_type": {"default": config}})
        self.expect({"0.weight": wanted.flatten(1)}, model)

    def test_gpt_oss_as_transformers_reads_it(self):
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        blocks, scales = self.codes(torch.uint8, 4, 6, 3, 16), torch.randint(110, 140, (4, 6, 3), generator=self.random).to(torch.uint8)
        wanted = convert_moe_packed_tensors(blocks, scales)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        bias = self.noise(4, 6).bfloat16()
        model = self.store({f"{name}_blocks": blocks, f"{name}_scales": scales, f"{name}_bias": bias}, {"quant_method": "mxfp4"})
        self.expect({name: wanted, f"{name}_bias": bias}, model)

    def test_float8_blocks_as_torch_reads_them(self):
        from torch.distributed.checkpoint import load
        from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

        model = self.store({f"{MODULE}.weight": self.noise(256, 256).to(torch.float8_e4m3fn),
                            f"{MODULE}.weight_scale_inv": self.noise(2, 2).abs()}, {"quant_method": "fp8"})
        places = {f"{MODULE}.{end}": "model.safetensors" for end in ("weight", "weight_scale_inv")}
        (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        state = {f"{MODULE}.weight": torch.empty(256, 256, dtype=torch.bfloat16)}
        load(state, storage_reader=QuantizedHuggingFaceStorageReader(str(model), target_dtype=torch.bfloat16), no_dist=True)
        self.expect(state, model)

    # ---- A few lines of torch.

    def test_modelopt(self):
        packed, scale, second = self.codes(torch.uint8, 32, 24), self.float8(32, 3), torch.tensor(0.00027901)
        wanted = E2M1[nibbles(packed)].reshape(32, 3, 16) * (scale.float() * second)[..., None]
        model = self.store({f"{MODULE}.weight": packed, f"{MODULE}.weight_scale": scale, f"{MODULE}.weight_scale_2": second,
                            f"{MODULE}.input_scale": torch.tensor(1.0), "model.layers.0.self_attn.k_scale": torch.tensor(1.0)},
                           {"quant_method": "modelopt", "quant_algo": "NVFP4"})
        self.expect({f"{MODULE}.weight": wanted.reshape(32, 48)}, model)

    def test_deepseek_v4(self):
        packed = self.codes(torch.int8, 8, 32)
        scale = torch.randint(110, 140, (8, 2), generator=self.random).to(torch.uint8)
        wanted = E2M1[nibbles(packed.view(torch.uint8))].reshape(8, 2, 32) * torch.exp2(scale.float() - 127)[..., None]
        model = self.store({"layers.0.w1.weight": packed, "layers.0.w1.scale": scale.view(torch.float8_e8m0fnu)}, {"quant_method": "fp8"})
        self.expect({"layers.0.w1.weight": wanted.reshape(8, 64)}, model)

    def test_gptq(self):
        # GPTQModel's convert_gptq_v1_to_v2_format_module adds to whole words, so that zero points of 15 wrap and carry.
        first, second = {"quant_method": "gptq", "checkpoint_format": "gptq"}, {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}
        # AutoRound's qlinear_torch_zp packs zero points less 1, and its qlinear_torch as they are.
        rounds = [{"quant_method": "auto-round", "packing_format": f"auto_round{kind}"} for kind in (":auto_gptq", ":gptqmodel", "")]
        for version, add in ((first, 0x11111111), (second, 0), (rounds[0], 0x11111111), (rounds[1], 0), (rounds[2], 0)):
            for ordered in (True, False):
                with self.subTest(version=version, ordered=ordered):
                    qweight, qzeros = self.codes(torch.int32, 16, 24), self.codes(torch.int32, 4, 3)
                    scales = (self.noise(4, 24).abs() / 50).half()
                    group = torch.arange(128) // 32 if ordered else torch.randint(0, 4, (128,), generator=self.random)
                    shifts = torch.arange(0, 32, 4)
                    code = ((qweight[:, None, :] >> shifts[None, :, None]) & 15).reshape(128, 24)
                    zero = (((qzeros + add)[:, :, None] >> shifts) & 15).reshape(4, 24)
                    wanted = (scales[group] * (code - zero[group]).half()).T
                    model = self.store({f"{MODULE}.qweight": qweight, f"{MODULE}.qzeros": qzeros, f"{MODULE}.scales": scales,
                                        f"{MODULE}.g_idx": group.to(torch.int32)},
                                       {"bits": 4, "group_size": 32, **version})
                    self.expect({f"{MODULE}.weight": wanted}, model)

    def test_bitsandbytes_nf4_of_a_real_model(self):
        stored = load_file(GOLDEN / "bitsandbytes-nf4/model.safetensors")
        wanted = {}
        for name, codes in stored.items():
            if f"{name}.absmax" not in stored:
                continue
            facts = json.loads(bytes(stored[f"{name}.quant_state.bitsandbytes__nf4"].tolist()))
            absmax = stored[f"{name}.nested_quant_map"][stored[f"{name}.absmax"].long()]
            repeated = stored[f"{name}.nested_absmax"].repeat_interleave(facts["nested_blocksize"])[:absmax.numel()]
            absmax = absmax * repeated + facts["nested_offset"]
            values = stored[f"{name}.quant_map"][nibbles(codes.flatten(), high_first=True)]
            wanted[name] = (values.reshape(-1, facts["blocksize"]) * absmax[:, None]).reshape(facts["shape"])
        plain = {name: tensor for name, tensor in stored.items() if not any(name.startswith(each) for each in wanted)}
        self.assertTrue(wanted)
        self.expect({**wanted, **plain}, GOLDEN / "bitsandbytes-nf4")

    def test_bitsandbytes_int8_of_a_real_model(self):
        stored = load_file(GOLDEN / "bitsandbytes-int8/model.safetensors")
        scales = {name.removesuffix("SCB") + "weight": tensor for name, tensor in stored.items() if name.endswith("SCB")}
        self.assertTrue(scales)
        wanted = {name: tensor for name, tensor in stored.items() if not name.endswith(("SCB", "weight_format"))}
        wanted |= {name: stored[name].float() * scale[:, None] * (1 / 127) for name, scale in scales.items()}
        self.expect(wanted, GOLDEN / "bitsandbytes-int8")

    # ---- Every verb.

    def test_verbs_see_plain_weights(self):
        model = GOLDEN / "deepseek-fp8"
        names = {each["name"] for each in shardctl_json("inspect", model, "--dequantize")["tensors"]}
        self.assertIn(f"{MODULE}.weight", names)
        self.assertFalse([name for name in names if "scale" in name])
        shardctl("gather", model, "-o", self.dir / "plain.pt", "--dequantize")
        plain = torch.load(self.dir / "plain.pt")
        self.assertEqual(plain[f"{MODULE}.weight"].dtype, torch.bfloat16)
        shardctl("digest", model, "--dequantize")
        shardctl("cat", model, f"{MODULE}.weight[0:2,0:4]", "--dequantize")
        shardctl("reshard", model, "-o", self.dir / "cut", "--to", "dcp", "--ranks", 2, "--dequantize")
        shardctl("gather", model, "-o", self.dir / "ranks.pt", "--dequantize", "--local-ranks", 3)
        for path in ("cut", "ranks.pt"):
            shardctl("diff", self.dir / path, self.dir / "plain.pt")

    def test_export_makes_a_folder_that_transformers_loads_as_a_plain_model(self):
        from transformers import AutoModelForCausalLM

        for kind in ("bitsandbytes-nf4", "bitsandbytes-int8"):
            with self.subTest(kind=kind):
                out = self.dir / kind
                shardctl("export", GOLDEN / kind, "-o", out, "--dequantize=float32")
                before, after = (json.loads((path / "config.json").read_text()) for path in (GOLDEN / kind, out))
                self.assertNotIn("quantization_config", after)
                self.assertEqual({**before, "dtype": "float32"}, {**after, "quantization_config": before["quantization_config"]})
                model = AutoModelForCausalLM.from_pretrained(out)
                self.assertEqual({each.dtype for each in model.parameters()}, {torch.float32})
                self.assertTrue(bool(torch.isfinite(model(torch.arange(8)[None]).logits).all()))

    # ---- Whole models, exported and loaded.

    def export(self, config, quantization: dict, stored: dict, plain: dict) -> None:
        """A model whose weights `plain` are stored as `stored`: the export loads as if it had never been quantized."""
        from transformers import AutoModelForCausalLM

        torch.manual_seed(0)
        first = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        model, out = self.dir / "quantized", self.dir / "exported"
        first.save_pretrained(model)
        kept = {name: tensor for name, tensor in load_file(model / "model.safetensors").items() if name not in plain}
        self.assertEqual(set(kept) | set(plain), set(load_file(model / "model.safetensors")))
        save_file({**kept, **{name: tensor.contiguous() for name, tensor in stored.items()}}, model / "model.safetensors",
                  metadata={"format": "pt"})
        before = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**before, "quantization_config": quantization}))
        (model / "hf_quant_config.json").write_text("{}")
        shardctl("export", model, "-o", out, "--dequantize")
        self.assertEqual(json.loads((out / "config.json").read_text()), before)
        self.assertFalse((out / "hf_quant_config.json").exists())
        loaded, told = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        self.assertEqual([list(told[key]) for key in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[], [], []])
        self.assertIsNone(getattr(loaded.config, "quantization_config", None))
        state = loaded.state_dict()
        for name, wanted in {**kept, **plain}.items():
            self.assertEqual(state[name].dtype, torch.bfloat16, name)
            self.assertTrue(torch.equal(state[name], wanted.to(torch.bfloat16)), name)
        self.assertTrue(bool(torch.isfinite(loaded(torch.arange(8)[None]).logits).all()))
        packed = shardctl_json("verify", out, "--against", model)["packed_again"]
        self.assertEqual(packed["modules"], len(plain))
        self.assertEqual(packed["same_codes"], packed["codes"])

    def llama(self):
        from transformers import LlamaConfig

        return LlamaConfig(hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                           vocab_size=64, tie_word_embeddings=False, dtype="bfloat16")

    def linear_names(self, config) -> dict[str, tuple[int, int]]:
        """The matrices in the layers of a Llama, with their shapes."""
        from transformers import AutoModelForCausalLM

        shapes = {name: tuple(tensor.shape) for name, tensor in AutoModelForCausalLM.from_config(config).state_dict().items()}
        return {name: shape for name, shape in shapes.items() if name.endswith("_proj.weight")}

    def test_export_of_float8_blocks(self):
        config, stored, plain = self.llama(), {}, {}
        for name, (rows, columns) in self.linear_names(config).items():
            codes, scale = self.noise(rows, columns).to(torch.float8_e4m3fn), self.noise(-(-rows // 128), -(-columns // 128)).abs() / 50
            stored |= {name: codes, f"{name}_scale_inv": scale}
            repeated = scale.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
            plain[name] = codes.float() * repeated
        self.export(config, {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, stored, plain)

    @needs_compressed
    def test_export_of_packed_integers(self):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

        args = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        compressor = BaseCompressor.get_value_from_registry("pack-quantized")
        config, stored, plain = self.llama(), {}, {}
        for name, (rows, columns) in self.linear_names(config).items():
            weight = self.noise(rows, columns) / 10
            scale = (weight.reshape(rows, -1, 32).abs().amax(2) / 7).bfloat16()
            parts = compressor.compress({"weight": weight.bfloat16(), "weight_scale": scale}, scheme)
            stored |= {f"{name.removesuffix('weight')}{key}": tensor for key, tensor in parts.items()}
            plain[name] = compressor.decompress(parts, scheme)["weight"]
        whole = QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized", ignore=["lm_head", "re:.*embed.*"])
        self.export(config, json.loads(json.dumps(whole.to_dict(), default=str)), stored, plain)

    def test_export_of_gpt_oss(self):
        from transformers import GptOssConfig
        from transformers.integrations.mxfp4 import convert_moe_packed_tensors

        config = GptOssConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                              head_dim=16, vocab_size=64, num_local_experts=4, num_experts_per_tok=2, dtype="bfloat16")
        stored, plain = {}, {}
        for name, rows, columns in (("gate_up_proj", 192, 64), ("down_proj", 64, 96)):
            whole = f"model.layers.0.mlp.experts.{name}"
            blocks = self.codes(torch.uint8, 4, rows, columns // 32, 16)
            scales = torch.randint(115, 122, (4, rows, columns // 32), generator=self.random).to(torch.uint8)
            stored |= {f"{whole}_blocks": blocks, f"{whole}_scales": scales}
            plain[whole] = convert_moe_packed_tensors(blocks, scales)
        self.export(config, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, stored, plain)

    # ---- The proof: packing again with the libraries' own rules.

    @needs_compressed
    def test_verify_against_agrees_with_the_compressor(self):
        """Codes in [-7, 7] with scales of the largest weight over 7, as training with such weights leaves them."""
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig, QuantizationScheme

        scheme = QuantizationScheme(targets=["Linear"], weights={"num_bits": 4, "type": "int", "symmetric": True,
                                                                 "strategy": "group", "group_size": 32})
        compressor = BaseCompressor.get_value_from_registry("pack-quantized")
        weight = self.noise(64, 256)
        scale = (weight.reshape(64, 8, 32).abs().amax(2) / 7).bfloat16()
        stored = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        config = QuantizationConfig(config_groups={"group_0": scheme}, format="pack-quantized").to_dict()
        model = self.store({f"{MODULE}.{name}": tensor for name, tensor in stored.items()}, json.loads(json.dumps(config, default=str)))
        shardctl("convert", model, "-o", self.dir / "plain.safetensors", "--dequantize")
        packed = shardctl_json("verify", self.dir / "plain.safetensors", "--against", model)["packed_again"]
        plain = load_file(self.dir / "plain.safetensors")[f"{MODULE}.weight"]
        again = compressor.compress({"weight": plain.float(), "weight_scale": scale}, scheme)
        same = torch.equal(again["weight_packed"], stored["weight_packed"])
        self.assertTrue(same)
        largest = plain.float().reshape(64, 8, 32).abs().amax(2)
        full = (largest / scale.float()).round() >= 7
        self.assertEqual((packed["same_codes"], packed["codes"]), (64 * 256, 64 * 256))
        self.assertEqual((packed["same_scales"], packed["scales"]), (int(full.sum()), 64 * 8))
        self.assertEqual(packed["same_scales"], 64 * 8)

    # ---- Adapters that are merged into packed weights.

    def adapter(self, rows: int, columns: int, size: float) -> torch.Tensor:
        """Writes an adapter for MODULE, and for a plain module. Returns the change of MODULE in float32."""
        folder = self.dir / "adapter"
        folder.mkdir(exist_ok=True)
        a, b = self.noise(4, columns), self.noise(rows, 4) * size
        plain = {f"base_model.model.plain.lora_{x}.weight": self.noise(*shape) for x, shape in (("A", (2, 8)), ("B", (8, 2)))}
        save_file({f"base_model.model.{MODULE}.lora_A.weight": a, f"base_model.model.{MODULE}.lora_B.weight": b} | plain,
                  folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
        product = torch.zeros(rows, columns)
        for k in range(4):  # The order in which shardctl adds. Doubles make each step a fused multiply-add.
            product = (product.double() + b[:, k, None].double() * a[k].double()).float()
        return product * 2

    def check_packed_again(self, kind: str, scheme, weight: torch.Tensor, scale: torch.Tensor, half: float) -> None:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationConfig

        compressor = BaseCompressor.get_value_from_registry(kind)
        base = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        config = QuantizationConfig(config_groups={"group_0": scheme}, format=kind, ignore=["lm_head"]).to_dict()
        rest = {"other.weight": self.noise(8, 8).bfloat16(), "plain.weight": self.noise(8, 8)}
        model = self.store({f"{MODULE}.{name}": tensor for name, tensor in base.items()} | rest,
                           json.loads(json.dumps(config, default=str)))
        exact = lambda stored: compressor.decompress(dict(stored) | {"weight_scale": stored["weight_scale"].float()}, scheme)["weight"]
        plain = exact(base)
        line = ("convert", model, "-o", self.dir / "packed.safetensors", "--force", "--lora", self.dir / "adapter", "--requantize")
        for size in (0, 0.02, 3):
            change = self.adapter(*weight.shape, size)
            found = {}
            for words in ((), ("-j", 1, "--max-memory", "1MiB"), ("--local-ranks", 2)):
                shardctl(*line, *words)
                again = load_file(self.dir / "packed.safetensors")
                self.assertTrue(not found or all(torch.equal(again[name].view(torch.uint8), tensor.view(torch.uint8))
                                                 for name, tensor in found.items()), words)
                found = again
            self.assertTrue(torch.equal(found.pop("other.weight"), rest["other.weight"]))
            self.assertFalse(torch.equal(found.pop("plain.weight"), rest["plain.weight"]))
            stored = {name.removeprefix(f"{MODULE}."): tensor for name, tensor in found.items()}
            # With its scales, compressed-tensors packs the sum to the same codes.
            wanted = compressor.compress({"weight": plain + change, "weight_scale": stored["weight_scale"]}, scheme)
            self.assertEqual(stored.keys(), wanted.keys())
            for name, tensor in wanted.items():
                self.assertEqual(stored[name].dtype, base[name].dtype, name)
                self.assertTrue(torch.equal(stored[name].view(torch.uint8), tensor.view(torch.uint8)), f"{name} of {size}")
            kept = stored["weight_scale"] == base["weight_scale"]
            if size == 0:
                self.assertTrue(all(torch.equal(stored[name].view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in base.items()))
            if size == 3:  # Then no stored scale fits.
                self.assertFalse(bool(kept.any()))
                blocks = scheme.weights.block_structure or (1, scheme.weights.group_size)
                spread = lambda tensor: tensor.repeat_interleave(blocks[0], 0).repeat_interleave(blocks[1], 1)[:weight.shape[0], :weight.shape[1]]
                largest = torch.nn.functional.max_pool2d(
                    torch.nn.functional.pad((plain + change).abs(), (0, -weight.shape[1] % blocks[1], 0, -weight.shape[0] % blocks[0]))[None],
                    blocks)[0]
                self.assertTrue(torch.equal(stored["weight_scale"], (largest / half).to(scale.dtype)))
                self.assertTrue(bool(((exact(stored) - plain - change).abs() <= spread(largest) * 0.07).all()))
        self.assertEqual(shardctl_json("verify", self.dir / "packed.safetensors")["findings"], [])

    @needs_compressed
    def test_adapters_into_packed_integers_and_float8_blocks(self):
        from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme

        weight = self.noise(24, 96)
        scale = (weight.reshape(24, 3, 32).abs().amax(2) / 7.5).bfloat16()
        args = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
        self.check_packed_again("pack-quantized", QuantizationScheme(targets=["Linear"], weights=args), weight.bfloat16(), scale, 7.5)
        weight = self.noise(300, 200)
        blocks = torch.nn.functional.pad(weight, (0, 56, 0, 84)).reshape(3, 128, 2, 128).abs().amax((1, 3)) / 448
        self.check_packed_again("float-quantized", preset_name_to_scheme("FP8_BLOCK", ["Linear"]), weight, blocks, 448)

    def test_forms_that_are_not_packed_again_are_refused_by_name(self):
        self.adapter(8, 64, 1)
        line = ("convert", self.dir / "model", "-o", self.dir / "x.safetensors", "--lora", self.dir / "adapter", "--requantize")
        plain = {"plain.weight": self.noise(8, 8)}
        self.store({f"{MODULE}.weight_packed": self.codes(torch.uint8, 8, 32),
                    f"{MODULE}.weight_scale": torch.full((8, 2), 127, dtype=torch.uint8)} | plain, None)
        self.assertIn(f"cannot pack '{MODULE}.weight' again", shardctl_json(*line, code=8)["message"])
        shardctl(*line, "--dequantize", code=2)
        shardctl(*line, "--map", "hf-v5", code=2)
        shardctl(*line[:-3], "--requantize", code=2)
        self.store({f"{MODULE}.weight": self.noise(8, 64)} | plain, None)
        self.assertIn("none is quantized", shardctl_json(*line, code=2)["message"])

    def test_a_nan_exponent_fails_by_name(self):
        model = self.store({f"{MODULE}.weight_packed": self.codes(torch.uint8, 4, 16),
                            f"{MODULE}.weight_scale": torch.full((4, 1), 255, dtype=torch.uint8)}, None)
        error = shardctl_json("convert", model, "-o", self.dir / "no.safetensors", "--dequantize", code=4)
        self.assertIn(f"'{MODULE}.weight_scale'", error["message"])
        self.assertFalse((self.dir / "no.safetensors").exists())


if __name__ == "__main__":
    unittest.main()
