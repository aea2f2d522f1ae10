"""The native module with the real torch, numpy and safetensors. Environment: SHARDCTL is the program; PYTHONPATH contains
the folder with the package and its native module."""
import hashlib
import io
import json
import math
import mmap
import multiprocessing
import os
import pickle
import re
import shutil
import unittest
from multiprocessing import shared_memory
from pathlib import Path
from random import Random
from unittest import mock

import numpy
import safetensors
import safetensors.torch
import torch
from torch.testing._internal.two_tensor import TwoTensor

import shardctl
from shardctl._memory import memory_of
from native_case import CHECKPOINT, DATA, GOLDEN, SANITIZED, Case


class Mapping(Case):
    def test_it_is_a_mapping_of_names(self) -> None:
        with shardctl.open(CHECKPOINT) as found:
            self.assertEqual((found.format, found.world_size, len(found)), ("dcp", 4, len(list(found.keys()))))
            self.assertEqual(list(found), sorted(found))
            self.assertIn("model.norm.weight", found)
            self.assertNotIn("model.norm", found)
            self.assertIn(found, {found})
            self.assertTrue(found == found and found != shardctl.open(CHECKPOINT))
            with self.assertRaises(KeyError):
                found["none"]
            handle = found["model.norm.weight"]
            self.assertEqual((handle.name, handle.dtype, handle.shape, handle.nbytes), ("model.norm.weight", "bfloat16", (16,), 32))
        with self.assertRaisesRegex(ValueError, "closed"):
            handle.torch()

    def test_every_handle_is_true(self) -> None:
        with shardctl.open(self.saved({"empty": torch.zeros(0, 2), "number": torch.tensor(0.0)})) as found:
            self.assertEqual([name for name in ("empty", "none", "number") if found.get(name)], ["empty", "number"])

    def test_chunks_and_placements_are_those_of_inspect(self) -> None:
        for path in (CHECKPOINT, GOLDEN / "dcp_mesh_r4", GOLDEN / "ranks_dtensor_r4", GOLDEN / "model.pt"):
            with shardctl.open(path) as found:
                for tensor in shardctl.inspect(path).tensors:
                    handle = found[tensor.name] if tensor.rank is None else found.tensor(tensor.name, tensor.rank)
                    self.assertEqual((handle.chunks, handle.placements, handle.alias_of),
                                     (tensor.chunks, tensor.placements, tensor.alias_of), f"{path} {tensor.name}")

    def test_objects_are_python_values(self) -> None:
        with shardctl.open(CHECKPOINT) as found:
            self.assertEqual((found.objects["step"], found.objects["lr"]), (1000, shardctl.inspect(CHECKPOINT).objects[0].value))
        values = {"none": None, "big": 2 ** 80, "real": 1.5, "text": "\u00e9", "bytes": b"\xff", "truth": True, "empty": {}}
        torch.save(values, self.folder / "x.pt")
        with shardctl.open(self.folder / "x.pt") as found:
            self.assertEqual(dict(found.objects), values)

    def test_metadata_is_that_of_the_file(self) -> None:
        safetensors.torch.save_file({"w": torch.zeros(1)}, self.folder / "x.safetensors", {"format": "pt", "k": "v"})
        self.assertEqual(shardctl.open(self.folder / "x.safetensors").metadata, {"format": "pt", "k": "v"})

    def test_tensors_of_ranks_are_read_by_rank(self) -> None:
        with shardctl.open(GOLDEN / "ranks_differ_r2") as found:
            with self.assertRaisesRegex(shardctl.Usage, "rank=N"):
                found["rng"]
            self.assertFalse(torch.equal(found.tensor("rng", 0).torch(), found.tensor("rng", 1).torch()))
            with self.assertRaises(shardctl.NotFound):
                found.tensor("rng", 7)


    def test_paths_are_those_of_pythons_own_open(self) -> None:
        path = self.saved({"w": torch.arange(3)})
        strange = os.fsencode(self.folder) + b"/caf\xe9.safetensors"
        os.rename(path, strange)
        for each in (strange, os.fsdecode(strange), Path(os.fsdecode(strange)), [strange]):
            with shardctl.open(each) as found:
                self.assertEqual(found["w"].numpy().tolist(), [0, 1, 2])
        self.assertIn("caf\\udce9", repr(found))
        self.assertEqual(shardctl.inspect(strange).tensors[0].name, "w")
        shardctl.save({"w": torch.ones(2)}, strange, force=True)
        self.assertEqual(shardctl.open(strange)["w"].shape, (2,))
        with self.assertRaises(shardctl.NotFound) as absent:
            shardctl.open(strange + b"x")
        self.assertEqual(absent.exception.file, os.fsdecode(strange + b"x"))
        for work in (shardctl.open, shardctl.inspect, lambda url: shardctl.save({"w": torch.ones(2)}, url)):
            with self.assertRaisesRegex(shardctl.Usage, r"expected s3://, found s3:/b/x.pt\)\n.*'s3://b/x.pt'"):
                work(Path("s3://b/x.pt"))
        for wrong, kind in (("x\0.pt", ValueError), (5, TypeError), (None, TypeError), ([None], TypeError), (io.BytesIO(), TypeError),
                            ({"x.pt": 1}, TypeError)):
            with self.assertRaises(kind):
                shardctl.open(wrong)

    def test_a_pickled_one_is_opened_again(self) -> None:
        with shardctl.open(self.saved({"w": torch.arange(6)}), threads=2) as found:
            again, part = pickle.loads(pickle.dumps((found, found["w"][2:4])))
            self.assertEqual((part.shape, part.numpy().tolist()), ((2,), [2, 3]))
            again.read_into([(part, bytearray(16))])
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                self.assertEqual(pool.map(total, [found["w"], found["w"][:2]]), [15, 1])
        with self.assertRaisesRegex(ValueError, "closed"):
            pickle.dumps(found)

    def test_it_stays_that_of_the_folder_in_which_it_was_opened(self) -> None:
        self.addCleanup(os.chdir, os.getcwd())
        for folder, value in ("here", 1), ("there", 2):
            (self.folder / folder / "saved").mkdir(parents=True)
            state = {"w": torch.full((3,), value)}
            self.saved(state, f"{folder}/x.safetensors")
            self.saved(state, f"{folder}/saved/model.safetensors")
            torch.save({**state, "step": value}, self.folder / folder / "x.pt")
            for name, form in ("dcp", "dcp"), ("x.h5", "hdf5"):
                shardctl.save({**state, "step": value}, self.folder / folder / name, to=form)
        for source in "x.safetensors", "x.pt", "dcp", "saved", "./saved/", "../here/x.pt", "x.h5", ["x.safetensors"]:
            os.chdir(self.folder / "here")
            with shardctl.open(source) as found:
                os.chdir(self.folder / "there")
                self.assertEqual(found["w"].chunks[0].sizes, (3,))
                self.assertEqual(found.objects.get("step", 1), 1)
                for each in found["w"], pickle.loads(pickle.dumps(found["w"])):
                    self.assertEqual(each.numpy().tolist(), [1, 1, 1], source)
        for name in "map.json", "map.yaml":
            os.chdir(self.folder / "here")
            Path(name).write_text('{"schema": "shardctl.layout/1", "rules": [{"logical": "v", "stored": "w"}]}')
            with shardctl.open("x.safetensors", map=name) as found:
                pickled = pickle.dumps(found["v"])
            os.chdir(self.folder / "there")
            self.assertEqual(pickle.loads(pickled).numpy().tolist(), [1, 1, 1], name)
        os.chdir(self.folder / "here")
        with shardctl.open("x.safetensors") as found:
            os.chdir("/")
            os.truncate(self.folder / "here/x.safetensors", 8)
            with self.assertRaises(shardctl.Corruption) as changed:
                found["w"].numpy()
        self.assertEqual(changed.exception.file, "x.safetensors")

    def test_a_pickled_handle_is_that_of_its_name(self) -> None:
        with shardctl.open(self.saved({"w": torch.arange(6), "x": torch.zeros(6)})) as found:
            pickled = pickle.dumps(found["w"][1:3])
        self.saved({"a": torch.zeros(6, dtype=torch.int64), "w": torch.arange(6)})
        self.assertEqual(pickle.loads(pickled).numpy().tolist(), [1, 2])
        for changed in ({"x": torch.arange(6)}, {"w": torch.arange(7)}, {"w": torch.zeros(6)}):
            self.saved(changed)
            with self.assertRaisesRegex(shardctl.Corruption, "the checkpoint changed after it was pickled"):
                pickle.loads(pickled)
        with shardctl.open(GOLDEN / "ranks_differ_r2") as found:
            self.assertEqual(pickle.loads(pickle.dumps(found.tensor("rng", 1))).rank, 1)

    def test_a_forked_process_reads_on(self) -> None:
        with shardctl.open(CHECKPOINT) as found:
            INHERITED[:] = [found]
            with multiprocessing.get_context("fork").Pool(2) as pool:
                self.assertEqual(pool.map(digest_of_inherited, list(found)), [digest_of_inherited(name) for name in found])


def total(handle: shardctl.Handle) -> int:
    return int(handle.numpy().sum())


def bytes_that_were_read() -> int:
    """By this process, by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


INHERITED: list[shardctl.Checkpoint] = []


def digest_of_inherited(name: str) -> str:
    memory = bytearray(INHERITED[0][name].nbytes)
    INHERITED[0][name].read_into(memory)
    return hashlib.sha256(memory).hexdigest()


class Slices(Case):
    def test_they_are_those_of_safetensors(self) -> None:
        path = self.saved({"w": torch.randn(7, 5, 3), "v": torch.arange(20, dtype=torch.int16)})
        keys = [(slice(2, 5),), (slice(None), slice(1, 2)), (3,), (slice(-3, None), 4, slice(0, 2)), (Ellipsis, slice(1, 3)),
                (slice(6, 2),), (-1, Ellipsis)]
        with safetensors.safe_open(path, "pt") as client, shardctl.open(path) as found:
            whole = client.get_tensor("w")
            for key in keys:
                self.assertTrue(torch.equal(found["w"][key].torch(), whole[key]), key)
                self.assertEqual(found["w"][key].shape, tuple(whole[key].shape))
                numpy.testing.assert_array_equal(found["w"][key].numpy(), whole[key].numpy())
            for key in keys[:2]:
                self.assertTrue(torch.equal(found["w"][key].torch(), client.get_slice("w")[key]))
            self.assertTrue(torch.equal(found["w"][2:6][1:3, 4].torch(), whole[2:6][1:3, 4]))

    def test_they_read_only_what_is_asked(self) -> None:
        path = self.saved({"experts": torch.randn(256, 64, 64)})
        with shardctl.open(path) as found:
            part = found["experts"][17]
            memory = bytearray(part.nbytes)
            self.assertEqual(found.read_into([(part, memory)]), 64 * 64 * 4)

    def test_one_expert_of_a_quantized_stack_reads_only_its_bytes(self) -> None:
        weights, scales = torch.randint(0, 100, (256, 256, 256), dtype=torch.uint8).view(torch.float8_e4m3fn), torch.rand(256, 2, 2)
        self.saved({"mlp.experts.up_proj": weights, "mlp.experts.up_proj_scale_inv": scales}, "model.safetensors")
        config = {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}
        (self.folder / "config.json").write_text(json.dumps(config))
        with shardctl.open(self.folder, dequantize="float32") as found:
            expert = torch.zeros(256, 256)
            before = bytes_that_were_read()
            found.read_into([(found["mlp.experts.up_proj"][17], expert)])
            taken = bytes_that_were_read() - before
        blocks = scales[17].repeat_interleave(128, 0).repeat_interleave(128, 1)
        self.assertTrue(torch.equal(expert, weights[17].float() * blocks))
        self.assertLess(taken - (256 * 256 + 4 * 4), 200)  # Also those that tell the number.

    def test_arrays_and_masks_are_no_indices(self) -> None:
        with shardctl.open(self.saved({"w": torch.arange(6.).reshape(3, 2)})) as found:
            for key in (numpy.int64(1), numpy.array(1), torch.tensor(1)):
                self.assertEqual(found["w"][key].numpy().tolist(), [2, 3])
            for key in (True, numpy.bool_(True), torch.tensor(True), torch.tensor([1]), numpy.array([1]), [1], None, 1.0, "w",
                        numpy.array([True, False, True])):
                with self.assertRaisesRegex(TypeError, "an index is an integer, a slice or '...', not "):
                    found["w"][key]

    def test_random_ones_are_those_of_numpy(self) -> None:
        random = Random(1)
        arrays = {str(i): numpy.arange(math.prod(shape)).reshape(shape)
                  for i, shape in enumerate([(), (5,), (0,), (2, 0, 3), (3, 4, 5)])}
        path = self.saved({name: torch.from_numpy(array) for name, array in arrays.items()})

        def key() -> object:
            begin, end = (random.choice([None, random.randrange(-7, 7), 10 ** 30, -(10 ** 30)]) for _ in "be")
            return random.choice([random.randrange(-6, 6), slice(begin, end), slice(begin, end, 1), Ellipsis])

        with shardctl.open(path) as found:
            for _ in range(1000):
                name, keys = random.choice(list(arrays)), tuple(key() for _ in range(random.randrange(4)))
                try:
                    wanted = arrays[name][keys]
                except IndexError:
                    with self.assertRaises(IndexError):
                        found[name][keys]
                    continue
                numpy.testing.assert_array_equal(found[name][keys].numpy(), wanted, strict=True)

    def test_wrong_ones_are_refused_like_those_of_arrays(self) -> None:
        with shardctl.open(self.saved({"w": torch.zeros(4, 2)})) as found:
            for key, kind in (((4,), IndexError), ((0, 0, 0), IndexError), ((slice(0, 4, 2),), ValueError),
                              ((Ellipsis, Ellipsis), IndexError), ((True,), TypeError), ((None,), TypeError), (([1],), TypeError)):
                with self.assertRaises(kind):
                    found["w"][key]
            self.assertEqual([row.shape for row in found["w"]], [(2,)] * 4)
            with self.assertRaises(TypeError):
                iter(found["w"][0, 0])


class Formats(Case):
    def check(self, path: Path, **options: str) -> int:
        digest = shardctl.digest(path, algorithm="sha256", options=[f"--{name}={value}" for name, value in options.items()])
        with shardctl.open(path, **options) as found:
            names = list(found)
            for tensor in digest.tensors:
                first, last = found._opened().find(tensor.name)
                if last - first > 1:
                    continue
                handle = found[tensor.name]
                self.assertEqual((handle.dtype, handle.shape), (tensor.dtype, tensor.shape), f"{path} {tensor.name}")
                memory = bytearray(handle.nbytes)
                handle.read_into(memory)
                self.assertEqual(hashlib.sha256(memory).hexdigest(), tensor.digest, f"{path} {tensor.name}")
            self.assertEqual(names, sorted({tensor.name for tensor in digest.tensors}))
        return len(names)

    def test_every_golden_checkpoint_has_the_elements_of_digest(self) -> None:
        paths = [path for path in sorted(GOLDEN.iterdir()) if path.name != "expected.json"]
        self.assertGreater(sum(self.check(path) for path in paths), 300)

    def test_deepspeed_megatron_and_hdf5(self) -> None:
        for path in (DATA / "deepspeed/stage1", DATA / "deepspeed/stage3", DATA / "hdf5/h5py316-filters.h5"):
            self.assertGreater(self.check(path), 0, path)

    def test_dtypes_are_those_of_torch(self) -> None:
        names = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 complex64 " \
                "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2".split()
        raw = torch.randint(0, 2, (64,), dtype=torch.uint8)
        tensors = {name: raw.view(torch.bool) if name == "bool" else raw.view(getattr(torch, name)) for name in names}
        path = self.saved({name: tensor.clone() for name, tensor in tensors.items()})
        with shardctl.open(path) as found:
            for name, tensor in tensors.items():
                read = found[name].torch()
                self.assertEqual((read.dtype, read.shape), (tensor.dtype, tensor.shape), name)
                self.assertTrue(torch.equal(read.view(torch.uint8), tensor.view(torch.uint8)), name)

    def test_a_dtype_that_numpy_lacks_names_a_way(self) -> None:
        with shardctl.open(self.saved({"w": torch.zeros(2, dtype=torch.bfloat16)})) as found:
            try:
                import ml_dtypes
            except ImportError:
                with self.assertRaisesRegex(shardctl.Unsupported, "bfloat16\nhint: install ml_dtypes"):
                    found["w"].numpy()
            else:
                self.assertEqual(found["w"].numpy().dtype, ml_dtypes.bfloat16)

    def test_dlpack_and_arrays_are_exported(self) -> None:
        tensors = {"a": torch.randn(3, 2), "b": torch.randn(4).bfloat16()}
        with shardctl.open(self.saved(tensors)) as found:
            self.assertTrue(torch.equal(torch.from_dlpack(found["a"]), tensors["a"]))
            self.assertTrue(torch.equal(torch.from_dlpack(found["b"][1:3]), tensors["b"][1:3]))
            numpy.testing.assert_array_equal(numpy.from_dlpack(found["a"]), tensors["a"].numpy())
            with self.assertRaises(BufferError):
                torch.from_dlpack(found["a"], copy=False)
            numpy.testing.assert_array_equal(numpy.asarray(found["a"]), tensors["a"].numpy())
            with mock.patch.dict("sys.modules", {"numpy": None}):
                self.assertTrue(torch.equal(torch.from_dlpack(found["a"]), tensors["a"]))

    def test_maps_and_dequantization_are_those_of_the_program(self) -> None:
        for path in sorted((DATA / "quantized").iterdir()):
            if path.is_dir() or path.suffix == ".safetensors":
                try:
                    self.check(path, dequantize="float32")
                except shardctl.Unsupported as refused:
                    with self.assertRaisesRegex(shardctl.Unsupported, re.escape(refused.message)):
                        shardctl.open(path, dequantize="float32")


    def test_adapters_are_those_of_the_program(self) -> None:
        base = self.saved({"m.q.weight": torch.randn(6, 4), "m.norm.weight": torch.randn(4)})
        adapter = self.folder / "adapter"
        adapter.mkdir()
        safetensors.torch.save_file({f"base_model.model.m.q.lora_{side}.weight": torch.randn(*shape)
                                     for side, shape in (("A", (2, 4)), ("B", (6, 2)))}, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 4}')
        for lora, word in ((adapter, adapter), ([adapter], adapter), ({adapter: 0.5}, f"{adapter}=0.5")):
            wanted = shardctl.digest(base, algorithm="sha256", options=["--lora", str(word)])
            with shardctl.open(base, lora=lora) as found:
                for tensor in wanted.tensors:
                    self.assertEqual(hashlib.sha256(found[tensor.name].numpy().tobytes()).hexdigest(), tensor.digest)
        with self.assertRaises(shardctl.Usage):
            shardctl.open(base, lora={adapter: math.inf})
        with self.assertRaises(shardctl.NotFound):
            shardctl.open(base, lora=self.folder / "none")
        with self.assertRaisesRegex(shardctl.Usage, "bfloat16, float16 or float32, found int8"):
            shardctl.open(base, dequantize="int8")


class Into(Case):
    def setUp(self) -> None:
        super().setUp()
        self.wanted = torch.randn(8, 4)
        self.opened = shardctl.open(self.saved({"w": self.wanted}))
        self.addCleanup(self.opened.close)

    def test_it_fills_memory_that_the_caller_has(self) -> None:
        parameter = torch.nn.Parameter(torch.zeros(8, 4))
        address = parameter.data_ptr()
        self.assertIs(self.opened["w"].torch(into=parameter), parameter)
        self.assertEqual(parameter.data_ptr(), address)
        self.assertTrue(torch.equal(parameter, self.wanted))
        array = numpy.zeros((3, 4), numpy.float32)
        self.opened["w"][2:5].numpy(into=array)
        numpy.testing.assert_array_equal(array, self.wanted[2:5].numpy())
        shared = shared_memory.SharedMemory(create=True, size=128)
        self.opened["w"].read_into(shared.buf[:128])
        self.assertEqual(bytes(shared.buf[:128]), self.wanted.numpy().tobytes())
        shared.close(), shared.unlink()
        with mmap.mmap(-1, 128) as memory:
            self.opened["w"].read_into(memory)
            self.assertEqual(memory[:], self.wanted.numpy().tobytes())

    def test_it_fills_what_is_not_contiguous(self) -> None:
        whole = torch.zeros(4, 16)
        self.opened["w"].torch(into=whole.t()[::2])
        self.assertTrue(torch.equal(whole.t()[::2], self.wanted))
        self.assertEqual(whole.t()[1::2].abs().sum(), 0)

    def test_memory_beside_a_target_is_bounded(self) -> None:
        beside: list[int] = []

        def counted(part: torch.Tensor) -> object:
            memory = memory_of(part)
            beside.append(0 if memory.finish is None else memory.nbytes)
            return memory

        target = torch.zeros(4, 8).t()  # Rows of 16 bytes.
        with mock.patch("shardctl._checkpoint._MOST_BESIDE", 16), mock.patch("shardctl._checkpoint.memory_of", counted):
            self.opened["w"].read_into(target)
        self.assertTrue(torch.equal(target, self.wanted))
        self.assertEqual(max(beside), 8)

    def test_memory_that_does_not_fit_is_refused_and_unchanged(self) -> None:
        for target, expected, found in ((torch.zeros(4, 8), "[8, 4]", "[4, 8]"), (torch.zeros(8, 4).half(), "float32", "float16"),
                                        (bytearray(127), "128", "127")):
            with self.assertRaises(shardctl.Usage) as refused:
                self.opened["w"].read_into(target)
            self.assertEqual((refused.exception.tensor, refused.exception.expected, refused.exception.found), ("w", expected, found))
        for target in (bytes(128), numpy.zeros((8, 8), numpy.float32)[:, ::2], torch.zeros(8, 4, device="meta"), 5,
                       torch.zeros(8, 4).to_sparse(), TwoTensor(torch.zeros(8, 4), torch.zeros(8, 4))):
            with self.assertRaises(shardctl.Usage):
                self.opened["w"].read_into(target)

    def test_freed_or_shared_memory_is_refused(self) -> None:
        for kept in (0, 64):
            freed = torch.zeros(8, 4)
            freed.untyped_storage().resize_(kept)
            with self.assertRaisesRegex(shardctl.Usage, "no memory of its own"):
                self.opened["w"].read_into(freed)
            with self.assertRaisesRegex(shardctl.Usage, "cannot save 'freed'"):
                shardctl.save({"freed": freed}, self.folder / "y.safetensors")
        nested = torch.nested.nested_tensor([torch.zeros(1)])
        with self.assertRaisesRegex(shardctl.Usage, "cannot save 'nested'"):
            shardctl.save({"nested": nested}, self.folder / "y.pt")
        with self.assertRaises(shardctl.Usage):
            self.opened["w"].read_into(nested)
        with self.assertRaises(RuntimeError):  # An error of torch: elements share their memory.
            self.opened["w"].read_into(torch.zeros(1, 4).expand(8, 4))

    def test_a_handle_is_read_only_by_its_own_checkpoint(self) -> None:
        other = shardctl.open(self.saved({"a": torch.zeros(8, 4), "w": torch.ones(8, 4)}, "y.safetensors"))
        with self.assertRaisesRegex(shardctl.Usage, "does not belong to"):
            self.opened.read_into([(other["a"], bytearray(128))])

    def test_autograd_notices_that_a_tensor_was_filled(self) -> None:
        weight = torch.nn.Parameter(torch.ones(8, 4))
        product = (weight * weight).sum()
        self.opened["w"].read_into(weight)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            product.backward()
        with torch.inference_mode():
            self.opened["w"].read_into(torch.zeros(8, 4))

    def test_a_cast_is_that_of_torch(self) -> None:
        target = torch.zeros(8, 4, dtype=torch.bfloat16)
        self.opened["w"].read_into(target, cast=True)
        self.assertTrue(torch.equal(target, self.wanted.bfloat16()))


@unittest.skipIf(SANITIZED, "sanitizers cost time and memory")
class Errors(Case):
    def test_they_have_a_class_and_facts(self) -> None:
        with self.assertRaises(shardctl.NotFound) as absent:
            shardctl.open(self.folder / "none")
        self.assertEqual((absent.exception.code, absent.exception.file), (3, str(self.folder / "none")))
        path = self.saved({"w": torch.zeros(64)})
        path.write_bytes(path.read_bytes()[:-8])
        with self.assertRaises(shardctl.Corruption) as cut:
            shardctl.open(path)
        self.assertEqual((cut.exception.kind, cut.exception.file), ("truncated", str(path)))
        with self.assertRaisesRegex(shardctl.NotFound, "no such file or folder"):
            shardctl.open(f"{path}/")
        for empty in "", b"", [path, ""]:
            with self.assertRaisesRegex(shardctl.Usage, "a source is an empty string\nhint: check the variable"):
                shardctl.open(empty)
        with self.assertRaisesRegex(shardctl.Usage, "hf_ref= needs a model map"):
            shardctl.open(path, hf_ref=self.folder)
        shutil.copytree(CHECKPOINT, self.folder / "ckpt")
        part = self.folder / "ckpt/__1_0.distcp"
        with shardctl.open(self.folder / "ckpt") as found:
            os.truncate(part, part.stat().st_size - 4096)
            with self.assertRaises(shardctl.Corruption) as later:
                found["model.embed.weight"].torch()
        self.assertEqual(later.exception.file, str(part))
        with self.assertRaises(shardctl.Usage) as unknown:
            shardctl.open(CHECKPOINT, map="hf-none")
        self.assertIn("neither a built-in map nor a file", str(unknown.exception))
        with self.assertRaises(shardctl.Usage):
            shardctl.open(CHECKPOINT, dequantize="float33")
        for name, value, kind in (("max_memory", 64e6, "float"), ("threads", "4", "str"), ("connections", [], "list")):
            with self.assertRaisesRegex(TypeError, f"^{name} is an integer, not {kind}$"):
                shardctl.open(CHECKPOINT, **{name: value})
        shardctl.open(CHECKPOINT, lora=None, map=None, threads=numpy.int64(2), anonymous=numpy.bool_(False)).close()

    def test_a_file_that_changed_is_refused(self) -> None:
        path = self.saved({"w": torch.zeros(64)})
        with shardctl.open(path) as found:
            found["w"].numpy()
        found = shardctl.open(path)
        self.saved({"w": torch.ones(128)})
        with self.assertRaises(shardctl.Corruption):
            found["w"].numpy()

    def test_a_pickle_is_not_executed(self) -> None:
        class Evil:
            def __reduce__(self) -> tuple:
                return os.system, (f"touch {marker}",)

        marker = self.folder / "executed"
        torch.save({"w": torch.zeros(2), "evil": Evil()}, self.folder / "x.pt")
        with self.assertRaises(shardctl.Corruption) as refused:
            shardctl.open(self.folder / "x.pt")
        self.assertIn('unknown_globals="opaque"', str(refused.exception.hint))
        with shardctl.open(self.folder / "x.pt", unknown_globals="opaque") as found:
            self.assertIsInstance(found.objects["evil"], shardctl.Opaque)
        self.assertFalse(marker.exists())


if __name__ == "__main__":
    unittest.main()
