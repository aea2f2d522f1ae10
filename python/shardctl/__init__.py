"""shardctl for Python: opens, loads, inspects, verifies and compares sharded model checkpoints of every format.

    import shardctl

    checkpoint = shardctl.open("checkpoint/")
    part = checkpoint["model.embed.weight"][0:10].torch()
    shardctl.load_state_dict("checkpoint/", model)
    shardctl.save(model.state_dict(), "model.safetensors")

All functions run in this process. Without the native module, the verbs `inspect`, `digest`, `diff`, `verify` and `run` start the
program of the same name, which is part of the package. Nothing in a checkpoint is executed. The module needs no other package;
it uses numpy and torch if you ask for their arrays and tensors.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardctl import dcp as dcp  # Not in __all__, because it needs torch.
    from shardctl._checkpoint import Checkpoint, Handle, RankValues, open
    from shardctl._documents import (
        Axis,
        Box,
        Checked,
        Chunk,
        Difference,
        DifferenceCounts,
        Digest,
        Document,
        ErrorDocument,
        Export,
        File,
        Finding,
        Inspection,
        Lost,
        Mesh,
        NotRead,
        Object,
        ObjectDifference,
        PackedAgain,
        Plan,
        Progress,
        QuantizedForm,
        Rename,
        Result,
        ShapeDifference,
        Tensor,
        TensorDigest,
        TextDifference,
        ValueDifference,
        Verification,
    )
    from shardctl._errors import (
        Communication,
        Corruption,
        Exists,
        Internal,
        Interrupted,
        NotFound,
        ProgramNotFound,
        Resource,
        ShardctlError,
        Unsupported,
        Usage,
    )
    from shardctl._program import program
    from shardctl._run import run
    from shardctl._save import save
    from shardctl._state import Mismatch, load_state_dict
    from shardctl._values import Opaque
    from shardctl._verbs import diff, digest, inspect, verify

__all__ = [
    "Axis",
    "Box",
    "Checked",
    "Checkpoint",
    "Chunk",
    "Communication",
    "Corruption",
    "Difference",
    "DifferenceCounts",
    "Digest",
    "Document",
    "ErrorDocument",
    "Exists",
    "Export",
    "File",
    "Finding",
    "Handle",
    "Inspection",
    "Internal",
    "Interrupted",
    "Lost",
    "Mesh",
    "Mismatch",
    "NotFound",
    "NotRead",
    "Object",
    "ObjectDifference",
    "Opaque",
    "PackedAgain",
    "Plan",
    "ProgramNotFound",
    "Progress",
    "QuantizedForm",
    "RankValues",
    "Rename",
    "Resource",
    "Result",
    "ShapeDifference",
    "ShardctlError",
    "Tensor",
    "TensorDigest",
    "TextDifference",
    "Unsupported",
    "Usage",
    "ValueDifference",
    "Verification",
    "diff",
    "digest",
    "inspect",
    "load_state_dict",
    "open",
    "program",
    "run",
    "save",
    "verify",
]

_HOMES = {  # The modules that define the names of this one; _documents has the others. Each is imported when it is needed.
    "_checkpoint": "Checkpoint Handle RankValues open",
    "_errors": (
        "Communication Corruption Exists Internal Interrupted NotFound ProgramNotFound Resource ShardctlError "
        "Unsupported Usage"
    ),
    "_program": "program",
    "_run": "run",
    "_save": "save",
    "_state": "Mismatch load_state_dict",
    "_values": "Opaque",
    "_verbs": "diff digest inspect verify",
}


def __getattr__(name: str) -> Any:
    if name == "dcp":
        return importlib.import_module("shardctl.dcp")
    if name not in __all__:
        raise AttributeError(f"module 'shardctl' has no attribute '{name}'")
    home = next((module for module, names in _HOMES.items() if name in names.split()), "_documents")
    found = getattr(importlib.import_module(f"shardctl.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
