"""torch.distributed.checkpoint under the names that each torch has for it."""

import functools
import inspect

import torch
import torch.distributed as dist

from golden_values import expect, map_tensors

try:
    import torch.distributed.checkpoint as api
except ImportError:
    import torch.distributed._shard.checkpoint as api

FLATTENS = api.__name__ == "torch.distributed.checkpoint"  # 1.13 saves a dict in a state dict as one pickle of rank 0
FAILURES = (Exception, api.CheckpointException)  # torch's is a BaseException


def reason(error):
    """The cause in one line; a CheckpointException contains the traceback of the rank that failed."""
    lines = f"{type(error).__name__}: {error}".splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[0])


def supported(function, options):
    names = inspect.signature(function).parameters
    missing = [name for name in options if name not in names]
    if missing:
        raise NotImplementedError(f"this torch has no {', '.join(missing)}")
    return options


def save(path, full, mine, zstd=False, hf=None, use_collectives=True, **options):
    """Writes the folder; True if this torch reads the content of `full` from it."""
    if hf is not None:
        return save_hf(path, full, mine, hf)
    if zstd:
        try:
            from torch.distributed.checkpoint._extension import ZStandard
        except ImportError:
            raise NotImplementedError("this torch has no ZStandard extension") from None
        options["_extensions"] = [ZStandard()]
    writer = api.FileSystemWriter(path, **supported(api.FileSystemWriter.__init__, options))
    save_function = getattr(api, "save", api.save_state_dict)
    extra = {} if use_collectives else supported(save_function, {"use_collectives": False})
    save_function(mine, storage_writer=writer, **extra)
    if not use_collectives:
        return loads_own(path, mine)
    return dist.get_rank() != 0 or loads(api.FileSystemReader(path), full)


def save_hf(path, full, mine, options):
    try:
        from torch.distributed.checkpoint import HuggingFaceStorageReader as Reader
        from torch.distributed.checkpoint import HuggingFaceStorageWriter as Writer
    except ImportError:
        try:
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader as Reader
            from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as Writer
        except ImportError:
            raise NotImplementedError("this torch has no HuggingFaceStorageWriter") from None
    if "save_sharded" in inspect.signature(Writer.__init__).parameters:  # its name in 2.8
        options = {("save_sharded" if name == "save_distributed" else name): value for name, value in options.items()}
    api.save(mine, storage_writer=Writer(path, **supported(Writer.__init__, options)))
    dist.barrier()
    return dist.get_rank() != 0 or loads(Reader(path), full)


def loads(reader, full):
    """Reads everything back in only this process, into whole tensors."""
    try:
        from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
        from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    except ImportError:
        state = map_tensors(full, lambda name, tensor: torch.zeros_like(tensor))
        read = functools.partial(api.load_state_dict, state, reader)
    else:
        state = {}
        read = functools.partial(_load_state_dict, state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner())
    try:
        read(no_dist=True)
        return expect(state) == expect(full) or "other content"
    except FAILURES as error:
        return reason(error)


def loads_own(path, mine):
    """Without collectives a rank can load only its own files."""
    state = {name: tensor.clone() for name, tensor in mine.items()}
    for tensor in state.values():
        tensor.to_local().zero_()
    try:
        api.load(state, storage_reader=api.FileSystemReader(path))
        return all(torch.equal(state[name].to_local(), mine[name].to_local()) for name in mine) or "other content"
    except FAILURES as error:
        return reason(error)
