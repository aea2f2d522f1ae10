"""Questions that people type into the site's search, with the page that answers each. Run with a site, it checks that the page has each
word and is in docs/faq.md: questions.py SITE
"""
import json
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "convert FSDP checkpoint to huggingface": "docs/export.html",
    "convert verl checkpoint to huggingface": "docs/export.html",
    "merge distcp": "docs/answers/merge-distcp.html",
    "consolidate sharded checkpoint": "docs/answers/merge-distcp.html",
    "merge safetensors into one file": "docs/answers/merge-safetensors.html",
    "convert bin to safetensors": "docs/answers/merge-safetensors.html",
    "zero_to_fp32 out of memory": "docs/answers/zero-to-fp32-out-of-memory.html",
    "torch_dist to hf": "docs/answers/torch-dist-to-hf.html",
    "megatron to huggingface": "docs/answers/torch-dist-to-hf.html",
    "fp8 to bf16": "docs/quantized.html",
    "dequantize gptq": "docs/quantized.html",
    "merge lora without loading the model": "docs/answers/merge-lora.html",
    "missing .metadata": "docs/answers/missing-metadata.html",
    "resume with a different number of GPUs": "docs/answers/different-number-of-gpus.html",
    "load_global_step universal checkpoint": "docs/answers/universal-checkpoint.html",
    "is my checkpoint corrupted": "docs/answers/corrupted-checkpoint.html",
    "safetensors header too large": "docs/answers/loading-errors.html",
    "PytorchStreamReader failed finding central directory": "docs/answers/loading-errors.html",
    "size mismatch for": "docs/answers/loading-errors.html",
    "inspect a model on the hub": "docs/answers/inspect-a-model-on-the-hub.html",
    "gather in s3": "docs/answers/gather-in-s3.html",
}
SECTIONS = ("what can go wrong", "time and memory", "today's tool")


def main(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())["docs"]
    answers = (SOURCE / "docs/faq.md").read_text()
    found = []
    for question, page in QUESTIONS.items():
        words = " ".join(re.sub("<[^>]+>", " ", f"{each['title']} {each['text']}") for each in index if each["location"].split("#")[0] == page).lower()
        found += [f"{page} lacks '{word}' of: {question}" for word in re.split(r"[\s_]+", question.lower()) if word not in words]
        found += [f"{page} has no section '{title}'" for title in SECTIONS if title not in words.replace("\u2019", "'").replace("&#39;", "'")]
        if page.removeprefix("docs/").removesuffix(".html") + ".md" not in answers:
            found.append(f"docs/faq.md lacks {page}")
    if found:
        sys.exit("\n".join(f"FAIL: {each}" for each in found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
