"""Writes the golden files of one process: torch.save in its forms and the Hugging Face folder of them.

Usage: write_files.py OUT_JSON, in the folder that receives the files
"""

import json
import pathlib
import sys
import traceback
import warnings

import torch

from golden_values import NEW_DTYPES, available, expect, model, module_state, of_dtype, plain

warnings.filterwarnings("ignore")


def conj_neg():
    base = torch.tensor([[1 + 2j, 3 - 4j], [-5 + 6j, 7 + 8j]], dtype=torch.complex64)
    return {
        "base": base,
        "conj": base.conj(),
        "conj_transposed": base.t().conj(),
        "neg": torch._neg_view(torch.arange(4, dtype=torch.float32)),
        "imag_of_conj": base.clone().conj().imag,
        "real_of_conj": base.clone().conj().real,
        "conj_wide": base.to(torch.complex128).conj(),
        "neg_complex": torch._neg_view(base[0].clone()),
    }


def numpy_values():
    import numpy

    return {
        "tensor": torch.arange(3),
        "scalar": numpy.float32(1.5),
        "count": numpy.int64(-7),
        "array": numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        "step": 3,
    }


def save(value, path, **options):
    torch.save(value, path, **options)
    entry = {"format": "torch", **expect(value)}
    try:
        found = expect(load(path))
    except Exception as error:
        return {**entry, "loaded_by_torch": f"{type(error).__name__}: {error}".splitlines()[0]}
    if found != expect(value):  # torch 1.13 omits the conj and neg bits, so the file differs from the saved tensors
        entry = {**entry, **found, "differs_from_saved": True}
    return {**entry, "loaded_by_torch": True}


def load(path):
    """In torch's safe mode not every class here is known."""
    return torch.load(path, **({"weights_only": False} if "weights_only" in torch.load.__doc__ else {}))


def hub():
    """Shards and index as transformers writes them."""
    values = model()
    folder = pathlib.Path("hub")
    folder.mkdir()
    parts = {"pytorch_model-00001-of-00002.bin": list(values)[:2], "pytorch_model-00002-of-00002.bin": list(values)[2:]}
    for file, names in parts.items():
        torch.save({name: values[name] for name in names}, folder / file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in values.values())
    index = {
        "metadata": {"total_size": size},
        "weight_map": {name: file for file, names in parts.items() for name in names},
    }
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    found = {name: tensor for file in parts for name, tensor in load(folder / file).items()}
    return {"format": "torch", **expect(values), "same_model": True, "loaded_by_torch": expect(found) == expect(values)}


def same_model(**options):
    return lambda path: {**save(model(), path, **options), "same_model": True}


OLD_FORM = {"_use_new_zipfile_serialization": False}
NEW = available(["complex32"] + NEW_DTYPES)
FILES = {
    "plain.pt": lambda path: save(plain(available()), path),
    "plain_p4.pt": lambda path: save(plain(available()), path, pickle_protocol=4),
    "plain_p5.pt": lambda path: save(plain(available()), path, pickle_protocol=5),
    "legacy.pt": lambda path: save(plain([name for name in available() if name not in NEW]), path, **OLD_FORM),
    "legacy_new_dtypes.pt": lambda path: save({name: of_dtype(name) for name in NEW}, path, **OLD_FORM),
    "conj_neg.pt": lambda path: save(conj_neg(), path),
    "legacy_conj_neg.pt": lambda path: save(conj_neg(), path, **OLD_FORM),
    "numpy.pt": lambda path: save(numpy_values(), path),
    "numpy_p4.pt": lambda path: save(numpy_values(), path, pickle_protocol=4),
    "module.pt": lambda path: save(module_state(), path),
    "bare.pt": lambda path: save(torch.arange(5, dtype=torch.int16), path),
    "list.pt": lambda path: save([torch.arange(3), {"a": torch.ones(2)}, 5], path),
    "model.pt": same_model(),
    "model_p4.pt": same_model(pickle_protocol=4),
    "model_legacy_p4.pt": same_model(pickle_protocol=4, **OLD_FORM),
    "model_legacy.pt": same_model(**OLD_FORM),
    "hub": lambda path: hub(),
}


def main():
    result = {"checkpoints": {}, "not_written": {}}
    for path, write in FILES.items():
        try:
            result["checkpoints"][path] = write(path)
        except Exception as error:
            traceback.print_exc()
            result["not_written"][path] = f"{type(error).__name__}: {error}".splitlines()[0]
            pathlib.Path(path).unlink(missing_ok=True)
    pathlib.Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
