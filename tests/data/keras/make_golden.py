"""Writes the golden files of this folder, by Keras 3.15 with the back end of torch (pip install keras torch h5py).

legacy.h5 is a whole model in Keras' older layout: layer_names and weight_names are attributes with arrays of strings.
archive.keras is the newer one, a zip with model.weights.h5 in it.
"""
import os
import pathlib

os.environ["KERAS_BACKEND"] = "torch"
import keras  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3, name="d1"), keras.layers.Dense(1, name="d2")])
model.save(FOLDER / "legacy.h5")
model.save(FOLDER / "archive.keras")
