"""Writes a folder with a tiny random model that makes embeddings, and a tokenizer of letters: `tiny_embedder.py FOLDER`.

The weights are those of the model crate's tests; a folder as Hugging Face lays out sentence embedding models.
"""

import json
import pathlib
import shutil
import string
import sys

MODEL = pathlib.Path(__file__).parents[3] / "inference-pod/model/tests/architectures/models/qwen2"


def write(folder: pathlib.Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, folder / name)
    letters = string.ascii_lowercase + string.ascii_uppercase
    tokenizer = {
        "added_tokens": [{"id": id, "content": text, "special": True} for id, text in enumerate(("<|im_start|>", "<|im_end|>"))],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "model": {"type": "BPE", "vocab": {letter: id + 2 for id, letter in enumerate(letters)}, "merges": []},
    }
    texts = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0]['content'] }}"},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
    }
    (folder / "1_Pooling").mkdir()
    for name, text in texts.items():
        (folder / name).write_text(json.dumps(text), encoding="utf-8")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
