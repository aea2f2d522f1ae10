"""Fills modules and state dicts of torch from a checkpoint of any format."""

from __future__ import annotations

import bisect
import functools
import inspect
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from shardctl._checkpoint import Checkpoint, Handle, refuse_options
from shardctl._checkpoint import open as open_checkpoint
from shardctl._errors import Usage, failure, unsupported
from shardctl._memory import (
    ML_DTYPES,
    NUMPY,
    check_dense,
    dtype_name,
    is_a,
    is_held,
    is_lazy,
    is_torch,
    is_wrapper,
    new_array,
    new_tensor,
    usage,
)
from shardctl._paths import PathLike
from shardctl._sharding import boxes_of_dtensor, is_dtensor, is_sharded_tensor, own_rank
from shardctl._text import printable

if TYPE_CHECKING:
    import torch


class Mismatch(Usage, RuntimeError):
    """The names, shapes or dtypes of a checkpoint do not fit the state. Also a RuntimeError, with the text of torch."""

    def __init__(self, kind: str, missing: list[str], unexpected: list[str], mismatched: list[str]) -> None:
        self.missing: list[str] = missing
        self.unexpected: list[str] = unexpected
        self.mismatched: list[str] = mismatched
        lines = [f"Error(s) in loading state_dict for {kind}:"]
        for what, names in (("Missing", missing), ("Unexpected", unexpected)):
            if names:
                lines.append("\t" + f"{what} key(s) in state_dict: {', '.join(_quoted(name) for name in names)}. ")
        lines += ["\t" + line for line in mismatched]
        super().__init__(failure(None, 2, "invalid_argument", "\n".join(lines)))
        self._arguments = (kind, missing, unexpected, mismatched)

    def __reduce__(self) -> tuple[Any, ...]:
        return Mismatch, self._arguments

    def __str__(self) -> str:
        return self.message


def _quoted(name: str) -> str:
    return f'"{printable(name)}"'


@dataclass
class _Leaf:
    """A value of a state, and the function that replaces it."""

    name: str
    value: Any
    replace: Callable[[Any], None]
    is_extra: bool = False  # The extra state of a module, which is set as a whole even if it contains tensors.


def _is_extra(name: str) -> bool:
    return name.rpartition(".")[2] == "_extra_state"


def _leaves(value: Any, name: Optional[str], replace: Callable[[Any], None]) -> Iterator[_Leaf]:
    """The leaves of dicts, lists and tuples, by their keys and indices joined by dots. Leaves are also empty containers, sizes
    of torch, and the extra state of a module. `name` is None for a whole state."""
    if name is not None and _is_extra(name):
        yield _Leaf(name, value, replace, True)
        return
    items: Any
    if isinstance(value, Mapping) and value:
        items = value.items()
    elif isinstance(value, (list, tuple)) and value and not is_a(value, "torch", "Size"):
        items = enumerate(value)
    else:
        yield _Leaf(name or "", value, replace)
        return
    own: Any = list(value) if isinstance(value, tuple) else value

    def set_item(key: Any) -> Callable[[Any], None]:
        def put(found: Any) -> None:
            own[key] = found
            if isinstance(value, tuple):
                replace(getattr(value, "_make", tuple)(own))  # A namedtuple stays one.

        return put

    for key, each in list(items):
        yield from _leaves(each, str(key) if name is None else f"{name}.{key}", set_item(key))


def _leaves_of_module(module: torch.nn.Module, state: dict[str, Any]) -> Iterator[_Leaf]:
    """The leaves of a module's state dict. Its extra state is replaced in the module, and all others in the state dict."""
    for name, value in state.items():
        is_extra = _is_extra(name)
        replace = functools.partial(state.__setitem__, name)
        yield _Leaf(name, value, module.get_submodule(name.rpartition(".")[0]).set_extra_state if is_extra else replace, is_extra)


def _addresses(tensor: Any) -> Iterator[int]:
    """The addresses of the storages of a tensor's elements in this process."""
    if is_lazy(tensor):
        return
    if is_dtensor(tensor):
        parts = [tensor.detach().to_local()]
    elif is_sharded_tensor(tensor):
        parts = [shard.tensor for shard in tensor.local_shards()]
    else:
        parts = [tensor]
    for part in parts:
        if not is_wrapper(part) and is_held(part) and part.numel() > 0:
            yield part.untyped_storage().data_ptr()


def _takes(function: Any, name: str) -> bool:
    """Whether a function has a parameter of that name. A module's own load_state_dict may lack `strict`."""
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def _is_of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", None)).startswith("torch.")


def _is_filled_in_place(module: torch.nn.Module, state: dict[str, Any]) -> bool:
    """Whether a module has its state once the tensors of its state dict are filled. A state dict may have different memory
    (FSDP1, hooks), and a module may convert a state when it loads it, or have hooks that run before or afterwards."""
    from torch.nn import Module

    if type(module).load_state_dict is not Module.load_state_dict:
        return False
    for each in module.modules():
        is_converting = type(each)._load_from_state_dict is not Module._load_from_state_dict and not _is_of_torch(type(each))
        hooks = each._load_state_dict_pre_hooks.values()
        if is_converting or each._load_state_dict_post_hooks or not all(map(_is_of_torch, hooks)):
            return False
    own = {address for tensor in (*module.parameters(), *module.buffers()) for address in _addresses(tensor)}
    values = [value for name, value in state.items() if not _is_extra(name)]
    return all(is_torch(value) and own.issuperset(_addresses(value)) for value in values)


def _whole(found: dict[str, Any], like: Any, name: str) -> Any:
    """The value with these leaves, by their names. It has the containers of `like` if that has the same names. Otherwise, names
    are split at their dots into dicts, and into lists if the keys are 0, 1, 2, ... `name` is the value's name, for errors.
    Raises Unsupported if a name continues one of another leaf, or is nested too deeply."""
    root = [_copy_of_containers(like)]
    leaves = list(_leaves(root[0], None, lambda value: root.__setitem__(0, value)))
    if len(leaves) == len(found) and all(leaf.name in found for leaf in leaves):
        for leaf in leaves:
            leaf.replace(found[leaf.name])
        return root[0]
    try:
        return _nested(found, name)
    except RecursionError:
        message = f"cannot restore '{name}' from its parts: they are nested too deeply"
        raise unsupported(message, tensor=name) from None


def _copy_of_containers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_of_containers(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy_of_containers(each) for each in value)
    return value


def _nested(found: dict[str, Any], name: str) -> Any:
    if "" in found:
        if len(found) == 1:
            return found[""]
        other = next(rest for rest in found if rest)
        message = f"cannot restore the containers of '{name}': its part '{other}' may also belong to a longer key"
        raise unsupported(message, tensor=name)
    parts: dict[str, dict[str, Any]] = {}
    for path, value in found.items():
        key, _, rest = path.partition(".")
        parts.setdefault(key, {})[rest] = value
    values = {key: _nested(each, f"{name}.{key}") for key, each in parts.items()}
    in_order = [values.get(str(i), values) for i in range(len(values))]
    return values if any(each is values for each in in_order) else in_order


def _boxes(tensor: Any, name: str) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The boxes of a tensor that this process has: their first corners and local tensors."""
    if is_dtensor(tensor):
        yield from boxes_of_dtensor(tensor, name, f"cannot fill '{name}'")
    elif is_sharded_tensor(tensor):
        for shard in tensor.local_shards():
            yield tuple(shard.metadata.shard_offsets), shard.tensor
    else:
        yield (0,) * tensor.ndim, tensor


def _assigned(tensor: Any, dtype: str) -> Any:
    """A new tensor or array for the place of `tensor`, with the dtype of the checkpoint."""
    if not is_torch(tensor):
        return new_array(tensor.shape, dtype)
    if not is_dtensor(tensor):
        new = new_tensor(tensor.shape, dtype)
        return new if tensor.is_meta or tensor.device.type == "cpu" else new.to(tensor.device)
    from torch.distributed.tensor import DTensor

    local = tensor.detach().to_local()
    new = new_tensor(local.shape, dtype).to(tensor.device_mesh.device_type)
    return DTensor.from_local(new, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape,
                                       stride=tensor.stride())


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy whose elements a tensor of a checkpoint can have. Imports nothing."""
    return is_a(value, "numpy", "ndarray") and value.dtype.name in NUMPY | ML_DTYPES


class _Loading:
    """The comparison of a state with a checkpoint, and then the reads."""

    def __init__(self, checkpoint: Checkpoint, leaves: list[_Leaf], prefix: str, assign: bool, cast: bool) -> None:
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._assign, self._cast = assign, cast
        self._rank = own_rank()
        self.missing: list[str] = []
        self.mismatched: list[str] = []
        self._reads: dict[object, tuple[Handle, Any]] = {}  # By memory. If one has several names, the last counts.
        self._values: list[tuple[_Leaf, Any]] = []
        self._extra: list[tuple[_Leaf, dict[str, Any]]] = []  # With the leaves of their values, by the rest of their names.
        self._known: set[str] = set()  # The names of these leaves.
        self._new: dict[object, Any] = {}  # With assign: new tensors by the tensor of the checkpoint.
        self.assigned: list[tuple[_Leaf, Any]] = []
        self._leaves = {leaf.name: leaf for leaf in leaves}
        for leaf in leaves:
            if leaf.is_extra:
                self._want_extra(leaf)
            elif is_torch(leaf.value) or (_is_array(leaf.value) and self._prefix + leaf.name not in checkpoint.objects):
                self._want_tensor(leaf)
            else:
                self._want_value(leaf)
        self.unread = set(self.missing)  # Names whose present values stay.

    def _find(self, name: str) -> Optional[Handle]:
        full = self._prefix + name
        return self._checkpoint._of_rank(full, self._rank) if full in self._checkpoint else None

    def _want_tensor(self, leaf: _Leaf) -> None:
        handle = self._find(leaf.name)
        if handle is None:
            self.missing.append(leaf.name)
            return
        has_no_shape = is_torch(leaf.value) and is_lazy(leaf.value)
        if not has_no_shape and leaf.value.ndim == 0 and handle.shape == (1,):
            handle = handle[0]  # Old versions of torch saved scalars so, and its load_state_dict takes them.
        if not has_no_shape and not self._fits(leaf, handle.shape, handle.dtype):
            return
        target = leaf.value
        if has_no_shape:
            target = new_tensor(handle.shape, handle.dtype if self._assign else dtype_name(leaf.value))
        elif self._assign:
            target = self._assigned(leaf.value, handle)
        if target is not leaf.value:
            self.assigned.append((leaf, target))
        for offsets, local in _boxes(target, leaf.name):
            if is_torch(local):
                check_dense(local, leaf.name)
            box = handle._with(offsets, tuple(local.shape), (True,) * len(offsets)) if offsets else handle
            self._reads[_memory_key(local)] = (box, local)

    def settle_ties(self, module: torch.nn.Module) -> None:
        """Accepts one of the names of a tied parameter for all of them, as load_model of safetensors does."""
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        tied = {name: group for group in names.values() for name in group if len(group) > 1}
        for name in [name for name in self.missing if name in tied]:
            found = next((each for each in tied[name] if each in self._leaves and each not in self.unread), None)
            if found is None:
                continue
            self.missing.remove(name)
            new = next((tensor for leaf, tensor in self.assigned if leaf.name == found), None)
            if new is not None:
                self.unread.remove(name)
                self.assigned.append((self._leaves[name], new))

    def settle_counters(self, module: torch.nn.Module) -> None:
        """Accepts a batch norm without num_batches_tracked, as torch's own load_state_dict does. Old files lack it, and it has
        no effect on evaluation."""
        from torch.nn.modules.batchnorm import _NormBase

        norms = [path for path, each in module.named_modules(remove_duplicate=False) if isinstance(each, _NormBase)]
        counters = {f"{path}.num_batches_tracked" if path else "num_batches_tracked" for path in norms}
        for name in [name for name in self.missing if name in counters]:
            self.missing.remove(name)
            if self._leaves[name].value.is_meta:
                self.unread.remove(name)
                self.assigned.append((self._leaves[name], new_tensor((), "int64").zero_()))

    def explain_missing(self) -> None:
        """Notes why names are missing that the checkpoint has, but not as tensors. Raises Unsupported for an Opaque."""
        for name in [name for name in self.missing if self._prefix + name in self._checkpoint.objects]:
            value = self._checkpoint._value(self._prefix + name, self._rank)
            self.missing.remove(name)
            self.mismatched.append(f"type mismatch for {printable(name)}: the checkpoint has a value of type "
                                   f"{type(value).__name__}, the current model has a tensor.")

    def _fits(self, leaf: _Leaf, found_shape: tuple[int, ...], found_dtype: str) -> bool:
        """Whether elements of the checkpoint fit a tensor or array of the state. Otherwise, notes why."""
        shape, dtype = tuple(leaf.value.shape), dtype_name(leaf.value)
        if shape != found_shape:
            self.mismatched.append(f"size mismatch for {printable(leaf.name)}: copying a param with shape "
                                   f"{_size(found_shape)} from checkpoint, the shape in current model is {_size(shape)}.")
            return False
        if dtype != found_dtype and not self._assign and not self._cast:
            self.mismatched.append(f"dtype mismatch for {printable(leaf.name)}: the checkpoint has {found_dtype}, the "
                                   f"current model has {dtype}; cast=True converts.")
            return False
        return True

    def _assigned(self, value: Any, handle: Handle) -> Any:
        """A new tensor; the same one for names that the checkpoint has for one tensor."""
        if is_dtensor(value):
            place: object = (value.device_mesh, tuple(value.placements))
        else:
            place = value.device if is_torch(value) else None
        key = (handle.alias_of or handle.name, handle.rank, handle.shape, place)
        if key not in self._new:
            self._new[key] = _assigned(value, handle.dtype)
        return self._new[key]

    def _want_extra(self, leaf: _Leaf) -> None:
        """The checkpoint has the value itself, or if that is a container its leaves."""
        if self._prefix + leaf.name in self._checkpoint.objects:
            self._want_value(leaf)
            return
        names = [leaf.name] if self._find(leaf.name) is not None else self._names_below(leaf.name)
        if not names:
            self._want_value(leaf)
            return
        handles = {name: self._find(name) for name in names}
        values = {name: self._checkpoint._value(self._prefix + name, self._rank) for name in names if handles[name] is None}
        self._extra.append((leaf, {name[len(leaf.name) + 1:]: values.get(name, handles[name]) for name in names}))
        self._known.update(names)

    def _names_below(self, name: str) -> list[str]:
        begin, end = (bisect.bisect_left(self._names, f"{self._prefix}{name}{after}") for after in "./")  # "/" follows ".".
        return [each[len(self._prefix):] for each in self._names[begin:end]]

    @functools.cached_property
    def _names(self) -> list[str]:
        return sorted({*self._checkpoint, *self._checkpoint.objects})

    def _want_value(self, leaf: _Leaf) -> None:
        name = self._prefix + leaf.name
        if name in self._checkpoint.objects:
            value = self._checkpoint._value(name, self._rank)
            if _is_array(leaf.value) and _is_array(value):
                if not self._fits(leaf, value.shape, dtype_name(value)):
                    return
                if not self._assign and leaf.value.flags.writeable:
                    leaf = _Leaf(leaf.name, leaf.value, functools.partial(leaf.value.__setitem__, ...))
            is_size = is_a(leaf.value, "torch", "Size") and isinstance(value, tuple)
            self._values.append((leaf, type(leaf.value)(value) if is_size else value))
        elif (handle := self._find(leaf.name)) is not None:
            self._extra.append((leaf, {"": handle}))
        elif not (isinstance(leaf.value, Mapping) and not leaf.value):  # Some formats do not store empty dicts.
            self.missing.append(leaf.name)

    def unexpected(self, leaves: list[_Leaf]) -> list[str]:
        known = {leaf.name for leaf in leaves} | self._known
        objects = self._checkpoint.objects
        root = objects.get("")
        if isinstance(root, Mapping) and not root:  # An empty state has no names.
            known.add("")
        names = [*self._checkpoint, *objects]
        own = [name[len(self._prefix):] for name in names if name.startswith(self._prefix)]
        return [name for name in own if name not in known]

    def run(self) -> None:
        for leaf, found in self._extra:  # First, because it may fail.
            read = {name: each.torch() if isinstance(each, Handle) else each for name, each in found.items()}
            self._values.append((leaf, _whole(read, leaf.value, leaf.name)))
        self._checkpoint.read_into(self._reads.values(), cast=self._cast)
        for leaf, value in self._values:
            leaf.replace(value)


def _size(shape: tuple[int, ...]) -> str:
    return f"torch.Size({list(shape)})"


def _memory_key(tensor: Any) -> object:
    if not is_torch(tensor):
        return (tensor.__array_interface__["data"][0], tuple(tensor.shape), tensor.strides) if tensor.size > 0 else id(tensor)
    if tensor.is_meta or tensor.numel() == 0:
        return id(tensor)
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))


def load_state_dict(source: Union[PathLike, Sequence[PathLike], Checkpoint],
                    target: Union[torch.nn.Module, MutableMapping[str, Any]], *, strict: bool = True,
                    assign: bool = False, cast: bool = False, prefix: str = "", **options: Any) -> Any:
    """Fills a module or a (nested) state dict from a checkpoint of any format and layout, in place.

    A DTensor or ShardedTensor, as FSDP2 and tensor parallelism have them, receives only the pieces of this rank. Ranks
    need not call it together. Names, shapes and dtypes are compared before anything is changed.

    strict: missing and unexpected names are errors. Otherwise they are only returned.
    assign: puts new tensors, with the dtypes of the checkpoint, in the place of the present ones, as for modules on the
        device "meta".
    cast: converts elements to the dtypes of the present tensors.
    prefix: the part of the checkpoint's names before the state's own: "model.".
    options: those of open().
    Returns a tuple (missing_keys, unexpected_keys), like torch's load_state_dict.
    Raises Mismatch, which is also a RuntimeError with torch's text.
    """
    refuse_options(source, options)
    if not isinstance(source, Checkpoint):
        with open_checkpoint(source, **options) as checkpoint:
            return _load(checkpoint, target, strict, assign, cast, prefix)
    return _load(source, target, strict, assign, cast, prefix)


def _load(checkpoint: Checkpoint, target: Any, strict: bool, assign: bool, cast: bool, prefix: str) -> Any:
    from torch.nn import Module
    from torch.nn.modules.module import _IncompatibleKeys

    is_module = isinstance(target, Module)
    if not is_module and not isinstance(target, (Mapping, list, tuple)):
        raise usage("cannot fill such a state", "a module or a state dict", type(target).__name__)
    state: Any = target.state_dict() if is_module else target
    leaves = list(_leaves_of_module(target, state) if is_module else _leaves(state, None, _no_root))
    loading = _Loading(checkpoint, leaves, prefix, assign, cast)
    unexpected = loading.unexpected(leaves)
    if is_module:
        loading.settle_ties(target)
        loading.settle_counters(target)
    if strict:
        loading.explain_missing()
    is_wrong = loading.mismatched or (strict and (loading.missing or unexpected))
    if is_wrong:
        kind = type(target).__name__
        raise Mismatch(kind, loading.missing if strict else [], unexpected if strict else [], loading.mismatched)
    loading.run()
    for leaf, tensor in loading.assigned:
        leaf.replace(tensor)
    if is_module and (assign or not _is_filled_in_place(target, state)):
        if assign:
            _tie_parameters(target, state)
        for name in [name for name in state if _is_extra(name) or name in loading.unread]:
            del state[name]
        options = {"strict": False} if _takes(target.load_state_dict, "strict") else {}
        target.load_state_dict(state, **options, **({"assign": True} if assign else {}))  # Old overrides lack it.
    return _IncompatibleKeys(loading.missing, unexpected)


def _tie_parameters(module: torch.nn.Module, state: dict[str, Any]) -> None:
    """Makes one parameter of the names of a state dict that have one new tensor, if they are one parameter of the module."""
    from torch.nn import Parameter

    made: dict[tuple[int, int], Any] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in state:
            key = (id(parameter), id(state[name]))
            if key not in made:
                made[key] = Parameter(state[name], requires_grad=parameter.requires_grad)
            state[name] = made[key]


def _no_root(_: Any) -> None:
    raise unsupported("a state is a dict with at least one entry")
