"""Writes tf/ of this folder: TensorFlow's weights in two files, with h5py and the layout of transformers 4.57.

There, tf_shard_checkpoint and save_pretrained make one dataset per weight, under its name without that of the model, and
list the names in the attribute layer_names of each file. Run by Debian's python3, whose newest layout is small and read.
"""
import json
import pathlib

import h5py
import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent / "tf"
SHAPES = [{"tf_bert_model/bert/embeddings/word_embeddings/weight:0": (5, 4),
           "tf_bert_model/bert/encoder/layer_._0/attention/self/query/kernel:0": (4, 4)},
          {"tf_bert_model/bert/encoder/layer_._0/attention/self/query/bias:0": (4,),
           "tf_bert_model/bert/pooler/dense/kernel:0": (4, 4)}]

FOLDER.mkdir(exist_ok=True)
weight_map = {}
for i, shapes in enumerate(SHAPES):
    name = f"tf_model-{i + 1:05}-of-{len(SHAPES):05}.h5"
    with h5py.File(FOLDER / name, "w", libver="latest") as h:
        layers = []
        for weight, shape in shapes.items():
            layers.append(weight.split("/", 1)[1].encode())
            h.create_dataset(layers[-1].decode(), data=np.arange(np.prod(shape), dtype="f4").reshape(shape))
            weight_map[weight] = name
        h.attrs["layer_names"] = layers
size = sum(4 * int(np.prod(shape)) for shapes in SHAPES for shape in shapes.values())
(FOLDER / "tf_model.h5.index.json").write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}))
(FOLDER / "config.json").write_text(json.dumps({"model_type": "bert"}))
