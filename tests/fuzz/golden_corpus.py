"""Seeds from the golden files of several versions of torch: golden_corpus.py CORPUS GOLDEN. Standard library only."""
import sys
import zipfile
from pathlib import Path

from make_corpus_parts import part, put

RANKS = [("1.13.1", "ranks_sharded_r2"), ("2.15.0", "ranks_sharded_r2"), ("2.2.2", "ranks_dtensor_r2"),
         ("2.11.0", "ranks_dtensor_r2"), ("2.15.0", "ranks_dtensor_r2"), ("2.15.0", "ranks_strided_r2"),
         ("2.15.0", "ranks_differ_r2")]
METADATA = [("1.13.1", "dcp_plain_r2"), ("2.2.2", "dcp_sharded_r4"), ("2.4.1", "dcp_plain_r2"), ("2.15.0", "dcp_plain_r2"),
            ("2.15.0", "dcp_zstd_r2"), ("2.15.0", "dcp_strided_r4")]
FILES = [("1.13.1", "model"), ("1.13.1", "model_legacy"), ("2.15.0", "model_legacy_p4"), ("2.15.0", "numpy_p4"),
         ("2.15.0", "conj_neg"), ("2.15.0", "legacy_conj_neg")]
MODEL, OPTIMIZER = "*model_states.pt", "*rank_{}_mp_rank_00_optim_states.pt"
STATES = [MODEL, OPTIMIZER.format(0), OPTIMIZER.format(1)]
DEEPSPEED = [("stage1_frozen", STATES), ("stage2_robin", STATES), ("stage3", STATES),
             ("universal_of_stage1", [MODEL, "optimizer_state.pt", "a.weight/fp32.pt", "a.weight/step.pt"]),
             ("universal_of_stage3", [MODEL, "optimizer_state.pt", "a.weight/fp32.pt", "a.weight/exp_avg.pt"])]
KINDS = [0, 0, 1, 2, 3]  # See fuzz_deepspeed.cpp.


def pickle_in(file: Path) -> bytes:
    with zipfile.ZipFile(file) as archive:
        return next(archive.read(name) for name in archive.namelist() if name.endswith("/data.pkl"))


def header_of(file: Path) -> bytes:
    data = file.read_bytes()
    return data[8:8 + int.from_bytes(data[:8], "little")]


def main(corpus: Path, golden: Path) -> None:
    for version, name in RANKS:
        first, second = sorted((golden / version / name).glob("*.pt"))[:2]
        put(corpus, "rank_file", f"{version}-{name}", part(pickle_in(first)) + pickle_in(second))
    for version, name in METADATA:
        put(corpus, "dcp_metadata", f"{version}-{name}", (golden / version / name / ".metadata").read_bytes())
    for version, name in FILES:
        file = golden / version / f"{name}.pt"
        put(corpus, "torch_file", f"{version}-{name}", file.read_bytes())
        if zipfile.is_zipfile(file):
            put(corpus, "torch_pickle", f"{version}-{name}", b"\0" + pickle_in(file))
    for number, (name, files) in enumerate(DEEPSPEED):
        pickles = [pickle_in(next((golden.parent / "deepspeed" / name).glob(f"**/{file}"))) for file in files]
        put(corpus, "deepspeed", name, bytes([KINDS[number]]) + b"".join(part(data) for data in pickles))
    for name in "dcp_hf_r2", "dcp_hf_dtypes_r2":
        first, second = sorted((golden / "2.15.0" / name).glob("*.safetensors"))[:2]
        put(corpus, "dcp_hf", name, part(header_of(first)) + header_of(second))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
