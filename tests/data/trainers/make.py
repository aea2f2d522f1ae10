"""Writes the folders and files of this folder with the real libraries: python make.py [FOLDER]

They came of torch 2.11.0, transformers 5.23.0, peft 0.21.2, diffusers 0.42.1 and sentence-transformers 6.2.0.

  containers/  training states with a model under a key of its own: a GAN, a list of two, an average of torch.optim.swa_utils,
               and by formula those of nnU-Net (checkpoint_final.pth) and timm (model_best.pth.tar)
  lora/        a tiny Llama (base), PEFT's own save of an adapter of it (adapter), the same adapter as DCP in the names of the
               live model (dcp), and the whole live model (whole)
  olmo/        a step of OLMo-core, by formula: the model and its optimizer as DCP beside the states of two ranks and a file without tensors
  diffusers/   a tiny autoencoder in parts and as its fp16 variant
  sentence/    a tiny BERT of sentence-transformers with the modules Pooling and Dense
"""
import json
import random
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.optim.swa_utils import AveragedModel


def net(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))


def make_containers(out):
    out.mkdir()
    first, second, third = (net(seed) for seed in range(3))
    optimizer = torch.optim.SGD(first.parameters(), 0.1, momentum=0.9)
    first(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"generator": first.state_dict(), "critic": second.state_dict(), "generator_ema": third.state_dict(),
                "optimizer_generator": optimizer.state_dict(), "step": 5}, out / "gan.pt")
    torch.save([first.state_dict(), second.state_dict()], out / "list.pt")
    average = AveragedModel(first)
    average.update_parameters(second)
    torch.save({"model": first.state_dict(), "ema_model": average.state_dict(), "opt": optimizer.state_dict()}, out / "average.pt")
    torch.save({"network_weights": {f"_orig_mod.{name}": each for name, each in first.state_dict().items()},
                "optimizer_state": optimizer.state_dict(), "grad_scaler_state": {"scale": 65536.0}, "current_epoch": 5,
                "init_args": {"fold": 0}, "trainer_name": "nnUNetTrainer"}, out / "checkpoint_final.pth")
    torch.save({"epoch": 3, "arch": "resnet18", "state_dict": first.state_dict(), "optimizer": optimizer.state_dict(),
                "amp_scaler": {"scale": 1.0}, "state_dict_ema": second.state_dict(), "metric": 0.77}, out / "model_best.pth.tar")


def make_lora(out):
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                                        num_key_value_heads=1, vocab_size=8, tie_word_embeddings=False))
    base.save_pretrained(out / "base")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"],
                                            base_model_name_or_path="base"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(out / "adapter")
    (out / "adapter/README.md").unlink()
    whole = model.state_dict()
    trained = {name: each for name, each in whole.items() if "lora_" in name or "modules_to_save" in name}
    dcp.save({"model_state": {"model": trained}}, checkpoint_id=out / "dcp", no_dist=True)
    torch.save({"model": whole}, out / "whole.pt")


def make_olmo(out):
    step = out / "step100"
    (step / "train").mkdir(parents=True)
    state = net(0).state_dict()
    optim = {f"{name}.exp_avg": torch.zeros_like(each) for name, each in state.items()}
    dcp.save({"model": state, "optim": optim}, checkpoint_id=step / "model_and_optim", no_dist=True)
    for rank in range(2):
        torch.save({"global_step": 100, "data_loader": {"epoch": 1}, "rng": {"python": random.getstate()[0], "cpu": torch.arange(8, dtype=torch.uint8)}},
                   step / f"train/rank{rank}.pt")
    torch.save({"global_step": 100, "seed": 0}, step / "no_tensors.pt")
    (step / ".metadata.json").write_text(json.dumps({"version": "v3"}))
    (step / "config.json").write_text(json.dumps({"model": {"d_model": 4}}))


def make_diffusers(out):
    from diffusers import AutoencoderTiny

    torch.manual_seed(0)
    model = AutoencoderTiny(encoder_block_out_channels=(4,), decoder_block_out_channels=(4,), num_encoder_blocks=(1,), num_decoder_blocks=(1,),
                            latent_channels=2)
    model.save_pretrained(out / "vae", max_shard_size="4KB")
    model.half().save_pretrained(out / "vae", variant="fp16")


def make_sentence(out):
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(0)
    plain = out.parent / "bert"
    plain.mkdir()
    (plain / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]))
    BertTokenizer(str(plain / "vocab.txt")).save_pretrained(plain)
    BertModel(BertConfig(vocab_size=7, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
                         max_position_embeddings=8)).save_pretrained(plain)
    word = models.Transformer(str(plain))
    SentenceTransformer(modules=[word, models.Pooling(4), models.Dense(4, 2)]).save(str(out))
    (out / "README.md").unlink(missing_ok=True)
    shutil.rmtree(plain)


def main():
    out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for make in (make_containers, make_lora, make_olmo, make_diffusers, make_sentence):
        folder = out / make.__name__.removeprefix("make_")
        shutil.rmtree(folder, ignore_errors=True)
        make(folder)


main()
