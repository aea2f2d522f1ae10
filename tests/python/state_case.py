"""Shared by the tests of states."""
import tempfile
import unittest
from pathlib import Path

import safetensors.torch
import torch


def model(seed: int = 0) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(10, 14), torch.nn.BatchNorm1d(14), torch.nn.Linear(14, 6, bias=False))


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Case(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def saved(self, state: dict, name: str = "x.safetensors") -> Path:
        path = self.folder / name
        safetensors.torch.save_file(state, path) if name.endswith("safetensors") else torch.save(state, path)
        return path
