"""The guide's training program: continues on different ranks with the same losses, and its model and optimizer are
loaded in Python, with equal logits and equal further steps.

Usage: training_with_python.py TRAINING_GUIDE SHARDCTL. Exit code 77: torch or safetensors is not installed.
"""
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from page_commands import run_as_printed

try:
    import torch
    import torch.distributed.checkpoint as dcp
    import torch.nn.functional as F
    from safetensors.torch import load_file
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

GUIDE, SHARDCTL = sys.argv[1:3]
WORDS, LENGTH, WIDTH, HEADS, HIDDEN, BLOCKS = 30, 12, 16, 4, 24, 2
torch.set_default_dtype(torch.float64)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, state):
        heads = [layer(state).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                 for layer in (self.query, self.key, self.value)]
        return self.output(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, state):
        state = state + self.attention(self.norm1(state))
        return state + self.down(F.gelu(self.up(self.norm2(state))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, text):
        state = self.tokens(text) + self.positions
        for block in self.blocks:
            state = block(state)
        return self.head(self.norm(state))


def batch(number: int) -> torch.Tensor:
    sequence = torch.arange(4).unsqueeze(1) + 4 * number
    return (sequence * 7 + torch.arange(LENGTH + 1) * (1 + sequence % 5)) % WORDS


def train(model: Transformer, optimizer: torch.optim.Optimizer, number: int) -> float:
    text = batch(number)
    loss = F.cross_entropy(model(text[:, :LENGTH]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def run_guide(ranks: int, folder: Path, first: int, last: int) -> dict:
    """The losses by step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(ranks):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                     "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        started.append(subprocess.Popen([GUIDE, folder, str(first), str(last)], env=os.environ | variables, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    ended = [(*process.communicate(timeout=600), process.returncode) for process in started]
    for output, errors, code in ended:
        assert code == 0, f"{ranks} ranks, steps {first} to {last}: {output}{errors}"
    lines = [line.split() for line in ended[0][0].splitlines()]
    return {int(line[1]): float(line[3]) for line in lines if line[0] == "step"}


class Page(unittest.TestCase):
    def test_its_commands_run_as_printed_in_an_empty_folder(self):
        page = Path(__file__).resolve().parents[2] / "docs/training.md"
        with tempfile.TemporaryDirectory(prefix="shardctl-training-") as folder:
            outputs = run_as_printed(page, Path(folder), Path(GUIDE).resolve().parent, Path(SHARDCTL).resolve())
            self.assertEqual(len(outputs), 3)
            self.assertIn("step 7 loss", outputs[0])
            self.assertIn("step 7 loss", outputs[1])
            self.assertTrue(Path(folder, "model.safetensors").exists())


class Training(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="shardctl-training-")
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.folder = Path(cls.temporary.name) / "new/run"  # The guide makes it.
        cls.losses = run_guide(4, cls.folder, 0, 8)

    def test_it_learns(self):
        self.assertEqual(sorted(self.losses), list(range(8)))
        self.assertLess(self.losses[7], 0.95 * self.losses[0])

    def test_two_ranks_go_on_with_the_same_losses(self):
        again = run_guide(2, self.folder, 4, 8)
        self.assertEqual(sorted(again), [4, 5, 6, 7])
        for step, loss in again.items():
            self.assertAlmostEqual(loss, self.losses[step], delta=1e-9)

    def test_python_has_the_same_logits(self):
        exported = self.folder / "model.safetensors"
        subprocess.run([SHARDCTL, "gather", self.folder / "step-8", "-o", exported, "--include", "model.**",
                        "--strip-prefix", "model."], check=True, capture_output=True)
        model = Transformer()
        model.load_state_dict(load_file(exported))
        saved = torch.load(self.folder / "logits.pt")
        torch.testing.assert_close(model(saved["text"]), saved["logits"], rtol=1e-10, atol=1e-10)

    def test_python_goes_on_with_model_and_optimizer(self):
        model = Transformer()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optim": optimizer_state, "step": 0}
        dcp.load(state, checkpoint_id=self.folder / "step-4", no_dist=True)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.assertEqual((state["step"], optimizer.param_groups[0]["lr"]), (4, 0.01))
        for step in range(4, 8):
            self.assertAlmostEqual(train(model, optimizer, step), self.losses[step], delta=1e-9)

    def test_cpp_goes_on_from_pythons_checkpoint(self):
        model = Transformer()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        torch.manual_seed(7)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        for step in range(4):
            train(model, optimizer, step)
        folder = self.folder / "python"
        model_state, optimizer_state = get_state_dict(model, optimizer)
        dcp.save({"model": model_state, "optim": optimizer_state}, checkpoint_id=folder / "step-4", no_dist=True)
        expected = [train(model, optimizer, step) for step in range(4, 8)]
        found = run_guide(4, folder, 4, 8)
        for step, loss in enumerate(expected, start=4):
            self.assertAlmostEqual(found[step], loss, delta=1e-9)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
