"""Uses of the public names with the types that a user sees. mypy and pyright check this file; it is never run."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import shardctl

if TYPE_CHECKING:
    from typing_extensions import assert_type


def mapping(path: Path) -> None:
    with shardctl.open(path, dequantize="bfloat16", lora={"adapter": 0.5}, set={"heads": 8}) as checkpoint:
        assert_type(checkpoint, shardctl.Checkpoint)
        assert_type(checkpoint["w"], shardctl.Handle)
        assert_type(list(checkpoint), list[str])
        assert_type([handle for handle in checkpoint.values()], list[shardctl.Handle])
        assert_type(checkpoint.objects, Mapping[str, Any])
        assert_type(checkpoint.read_into({"w": bytearray(8)}), int)
        assert_type(checkpoint.read_into([(checkpoint["w"], bytearray(8)), ("v", bytearray(8))]), int)
        assert_type(checkpoint.tensor("w", rank=1), shardctl.Handle)
        assert_type(checkpoint.world_size, Optional[int])
    shardctl.open(b"model.safetensors")
    shardctl.open(["a.pt", Path("b.pt")], threads=4)


def handles(handle: shardctl.Handle) -> None:
    assert_type(handle.shape, tuple[int, ...])
    assert_type(handle[1, ..., 2:5], shardctl.Handle)
    assert_type(handle.name, str)
    assert_type(handle.dtype, str)
    assert_type(handle.alias_of, Optional[str])
    assert_type(handle.placements, Optional[tuple[str, ...]])
    assert_type(handle.chunks, tuple[shardctl.Chunk, ...])
    assert_type(handle.chunks[0].file, str)
    assert_type([row for row in handle], list[shardctl.Handle])


def states(state: dict[str, Any]) -> None:
    shardctl.load_state_dict("checkpoint", state, strict=False, prefix="model.")
    shardctl.load_state_dict(shardctl.open("checkpoint"), state, cast=True)
    assert_type(shardctl.save(state, "model.safetensors", manifest=True), None)
    shardctl.save(state, Path("checkpoint"), like="other", force=True)


def storage() -> None:
    reader = shardctl.dcp.Reader("checkpoint", threads=2)
    writer = shardctl.dcp.Writer("checkpoint", to="dcp", force=True)
    assert_type(reader, shardctl.dcp.Reader)
    assert_type(writer, shardctl.dcp.Writer)


def verbs(path: Path) -> None:
    assert_type(shardctl.inspect(path), shardctl.Inspection)
    assert_type(shardctl.inspect(path).tensors, tuple[shardctl.Tensor, ...])
    assert_type(shardctl.digest(path).checkpoint, str)
    assert_type(shardctl.diff(path, "other", atol=1e-3), shardctl.Difference)
    assert_type(shardctl.verify(path).findings, tuple[shardctl.Finding, ...])
    assert_type(shardctl.verify(path).packed_again, Optional[shardctl.PackedAgain])
    assert_type(shardctl.run("gather", path, "-o", "x.pt"), shardctl.Result)
    assert_type(shardctl.run("gather", path, "-o", "x.pt", dry_run=True), shardctl.Plan)
    assert_type(shardctl.run("average", "a.pt", "b.pt", "-o", "x.pt"), shardctl.Result)
    assert_type(shardctl.run("cat", path, "step"), shardctl.Document)
    assert_type(shardctl.program(), str)


def errors() -> None:
    try:
        shardctl.run("gather", "checkpoint", "-o", "x.pt", progress=lambda progress: print(progress.bytes_done))
    except shardctl.Mismatch as mismatch:
        assert_type(mismatch.missing, list[str])
    except shardctl.ShardctlError as error:
        assert_type(error.file, Optional[str])
        assert_type(error.tensor, Optional[str])
        assert_type(error.expected, Optional[str])
        assert_type(error.found, Optional[str])
        assert_type(error.hint, Optional[str])
