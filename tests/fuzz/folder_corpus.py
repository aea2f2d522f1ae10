"""Writes seeds of folders whose files agree, as far as to the bytes: folder_corpus.py CORPUS. Only Python's standard library."""
import io
import sys
import zipfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS / "growth"), str(TESTS / "hostile")]

import of_megatron
from build import built, dcp_metadata, dict_of, number, pickled, tensor
from make_corpus_parts import part, put
from of_dcp import arguments, sharded_objects


def pickle_in(file: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("data.pkl"))


def stages() -> list[bytes]:
    """Two stages of one layer each."""
    args = built("argparse", "Namespace", dict_of(num_layers=number(2), num_experts=number(0), tensor_model_parallel_size=number(1),
                                                  pipeline_model_parallel_size=number(2)))
    model = of_megatron.keyed([(of_megatron.NORM.format(0), tensor([1], [1]))])
    return [pickled(dict_of(args=args, checkpoint_version=number(3), model=model, optimizer=b"}"))] * 2


def ranks(kind: int, files: list[dict[str, bytes]]) -> bytes:
    models = [part(pickle_in(each["model_optim_rng.pt"])) for each in files]
    optimizer = files[0].get("distrib_optim.pt")
    return bytes([kind]) + b"".join(models) + (pickle_in(optimizer) if optimizer else b"")


def without_lengths(metadata: bytes) -> bytes:
    """An item ends with its file then; the zips that the targets make are not as long as those of torch."""
    return metadata.replace(b"length", b"extent")


def chunks(*files: str) -> bytes:
    """The metadata of a tensor with 4 elements in each file."""
    boxes = [([4 * i], [4]) for i in range(len(files))]
    places = [([4 * i], i, file, 0, 0) for i, file in enumerate(files)]
    return part(without_lengths(dcp_metadata([4 * len(files)], boxes, places)))


def dist(files: dict[str, bytes]) -> bytes:
    """A folder with one item."""
    common = pickle_in(files["common.pt"]) if "common.pt" in files else b""
    data = next(content for name, content in files.items() if name.endswith(".distcp"))
    return b"\3" + part(without_lengths(files[".metadata"])) + part(common) + pickle_in(data)


def main(corpus: Path) -> None:
    item = pickled(tensor([4], [1]))
    put(corpus, "dcp_folder", "chunks", chunks("__0_0.distcp", "__1_0.distcp") + part(item) + item)
    put(corpus, "verify", "dcp-chunk", b"\2" + chunks("__0_0.distcp") + item)
    put(corpus, "megatron", "tensor_parallel", ranks(0, of_megatron.layers_of_two(2)))
    put(corpus, "megatron", "stages", b"\1" + b"".join(map(part, stages())))
    for name, make in {"packed": of_megatron.packed, "experts": of_megatron.experts, "groups": of_megatron.groups,
                       "flat": of_megatron.flat}.items():
        put(corpus, "megatron", name, ranks(2, make(2)))
    put(corpus, "megatron", "dist_objects", dist(sharded_objects(1)))
    put(corpus, "megatron", "dist_common", dist(arguments(3)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
