"""shardctl for Python: inspects, verifies and compares sharded model checkpoints.

A thin module over the program of the same name, which is part of the package. Every function runs one verb with `--json`
and returns its document as a dataclass; a failing verb is an exception. It needs no other package and never loads a tensor.

    import shardctl

    for tensor in shardctl.inspect("checkpoint/").tensors:
        print(tensor.name, tensor.dtype, tensor.shape)
    shardctl.run("gather", "checkpoint/", "-o", "model.safetensors")
"""

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
from shardctl._verbs import diff, digest, inspect, verify

__all__ = [
    "Axis",
    "Box",
    "Checked",
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
    "Inspection",
    "Internal",
    "Interrupted",
    "Lost",
    "Mesh",
    "NotFound",
    "NotRead",
    "Object",
    "ObjectDifference",
    "Plan",
    "ProgramNotFound",
    "Progress",
    "QuantizedForm",
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
    "program",
    "run",
    "verify",
]
