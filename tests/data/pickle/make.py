"""Writes classes.txt: a pickle of each class of DeepSpeed, Megatron-Core and Python that checkpoints contain as plain data.

Stand-ins with the same module, name, base and attributes take the place of the real classes, so that neither package is
needed; the pickles are the same. One line each: the class, a word for how it is pickled, protocol 2 in hexadecimal.
"""
import argparse
import enum
import io
import pathlib
import pickle
import signal
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent


def stand_in(cls, module):
    """Lets pickle find `cls` as module.Name."""
    cls.__module__ = module
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        sys.modules.setdefault(".".join(names[:depth]), types.ModuleType(".".join(names[:depth])))
    setattr(sys.modules[module], cls.__name__, cls)
    return cls


def plain(module, name, **attributes):
    """An object whose attributes are in its __dict__, as of an ordinary class or a dataclass."""
    made = stand_in(type(name, (), {}), module)()
    made.__dict__.update(attributes)
    return made


def member(module, name, base, key, value):
    return stand_in(base(name, {key: value}), module)[key]


def by_getattr(value):
    """How enum members are pickled by name: getattr(Class, 'member'), as some Pythons do."""
    class ByName(pickle._Pickler):
        def save(self, each, save_persistent_id=True):
            if each is value:
                return self.save_reduce(getattr, (type(value), value.name), obj=each)
            return super().save(each, save_persistent_id)

    out = io.BytesIO()
    ByName(out, 2).dump(value)
    return out.getvalue()


CORE = "megatron.core"
ENUMS = [
    member("deepspeed.runtime.zero.config", "ZeroStageEnum", enum.IntEnum, "optimizer_states", 1),
    member(f"{CORE}.enums", "ModelType", enum.Enum, "encoder_or_decoder", 1),
    member(f"{CORE}.rerun_state_machine", "RerunDiagnostic", enum.Enum, "CORRECT_RESULT", "correct_result"),
    member(f"{CORE}.rerun_state_machine", "RerunMode", enum.Enum, "DISABLED", "disabled"),
    member(f"{CORE}.rerun_state_machine", "RerunState", enum.Enum, "NOT_RUNNING_YET", 0),
    member(f"{CORE}.transformer.enums", "AttnBackend", enum.Enum, "flash", 1),
    member(f"{CORE}.transformer.enums", "CudaGraphModule", enum.Enum, "attn", 1),
    member(f"{CORE}.transformer.enums", "CudaGraphScope", enum.Enum, "full_iteration", 1),
    member(f"{CORE}.transformer.enums", "InferenceCudaGraphScope", enum.Enum, "block", 2),
    signal.Signals.SIGTERM,
]
SCALER = {"cur_scale": 65536.0, "dynamic": True, "cur_iter": 7, "last_overflow_iter": -1, "dtype": None}
OBJECTS = [
    argparse.Namespace(num_layers=2, swiglu=True),
    io.BytesIO(b"\x80state\x00"),
    pathlib.PosixPath("/data/model"),
    plain("deepspeed.checkpoint.universal_checkpoint", "SubparamShape", patterns=["a.*"], shape=(2, 3), partition_dim=0),
    plain("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler", **SCALER),
    plain("deepspeed.runtime.fp16.loss_scaler", "LossScaler", cur_scale=1, dynamic=False),
    plain("deepspeed.utils.tensor_fragment", "fragment_address", numel=12, start=4),
    plain(f"{CORE}.optimizer.optimizer_config", "OptimizerConfig", optimizer="adam", lr=1e-4, clip_grad=1.0),
    plain(f"{CORE}.optimizer", "OptimizerConfig", optimizer="adam"),
    types.SimpleNamespace(step=3, name="x"),
]


class Generator:
    """torch._C.Generator, whose state is a tensor; here without one."""

    def __reduce__(self):
        return type(self), ("cpu",)


CLASSES = [stand_in(type("UInt32DType", (), {}), "numpy.dtypes")]


def lines():
    generator = stand_in(Generator, "torch._C")()
    for value in [*ENUMS, *OBJECTS, generator]:
        pickled = pickle.dumps(value, 2)
        yield f"{type(value).__module__}.{type(value).__qualname__} object {pickled.hex()}"
    for value in ENUMS:
        yield f"{type(value).__module__}.{type(value).__qualname__} member {by_getattr(value).hex()}"
    for cls in CLASSES:
        yield f"{cls.__module__}.{cls.__qualname__} class {pickle.dumps(cls, 2).hex()}"


def main():
    HERE.joinpath("classes.txt").write_text("\n".join(lines()) + "\n")


if __name__ == "__main__":
    main()
