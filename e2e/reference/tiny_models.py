#!/usr/bin/env python3
"""Makes tiny random models of every architecture, and the logits that `transformers` computes from them in f32.

    pip install -r requirements-tiny.txt           # in a virtual environment
    python tiny_models.py ../../inference-pod/model/tests/architectures/models

Each folder is a model as Hugging Face lays them out (`config.json`, safetensors in f32, f16 or bf16) with

- `expected.json`: token ids, and how far storing keys and values in half precision moves logits;
- `logits.f32`: little-endian f32 [tokens][vocabulary], keys and values rounded to half precision as the engine stores them;
- `states.f32` (one model): [tokens][width], the states that embeddings are pooled from.

The same seeds give the same files, up to the last bits of sums, which depend on the machine's vector width.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DynamicCache

TOKENS, VOCABULARY = 24, 61
COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    attn_implementation="eager",
)
GEMMA = dict(hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)


def rope(**parameters):
    return dict(rope_parameters=dict(rope_theta=1000.0, **parameters))


LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
LONG = dict(
    rope_type="longrope",
    short_factor=[1.0, 1.1, 1.2],
    long_factor=[1.5, 2.0, 3.0],
    original_max_position_embeddings=16,
    partial_rotary_factor=0.75,
)
# Name: (class of the configuration, what differs, dtype of the file, number of files).
MODELS = {
    "llama": ("LlamaConfig", dict(tie_word_embeddings=False, **rope(rope_type="default")), torch.float32, 2),
    "llama_3": ("LlamaConfig", dict(tie_word_embeddings=True, **rope(**LLAMA3)), torch.bfloat16, 1),
    "llama_linear": ("LlamaConfig", dict(tie_word_embeddings=True, **rope(rope_type="linear", factor=2.5)), torch.float16, 1),
    "mistral": ("MistralConfig", dict(sliding_window=9, tie_word_embeddings=False, **rope(rope_type="default")), torch.bfloat16, 1),
    "qwen2": ("Qwen2Config", dict(tie_word_embeddings=True, use_sliding_window=False, **rope(rope_type="default")), torch.bfloat16, 1),
    "qwen3_yarn": (
        "Qwen3Config",
        dict(tie_word_embeddings=True, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
        torch.float32,
        1,
    ),
    "gemma": ("GemmaConfig", dict(**GEMMA, **rope(rope_type="default")), torch.bfloat16, 1),
    "gemma2": (
        "Gemma2Config",
        dict(
            **GEMMA,
            query_pre_attn_scalar=12,
            sliding_window=7,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            **rope(rope_type="default"),
        ),
        torch.bfloat16,
        1,
    ),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            **GEMMA,
            num_hidden_layers=3,
            query_pre_attn_scalar=8,
            sliding_window=7,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", factor=2.0, rope_theta=5000.0),
                sliding_attention=dict(rope_type="default", rope_theta=100.0),
            ),
        ),
        torch.bfloat16,
        1,
    ),
    "phi3": ("Phi3Config", dict(tie_word_embeddings=False, hidden_size=32, sliding_window=11, original_max_position_embeddings=16, **rope(**LONG)), torch.bfloat16, 1),
}
STATES_OF = "qwen3_yarn"


class HalfPrecisionCache(DynamicCache):
    """Keys and values lose what half precision does not hold, as in the engine's store."""

    def update(self, keys, values, *rest, **named):
        return super().update(keys.half().float(), values.half().float(), *rest, **named)


def randomise(model, name, generator):
    """Weights that make every part matter: products keep sizes, norms and biases differ from their neutral values."""
    neutral = 0.0 if name.startswith("gemma") else 1.0
    for key, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 2:
            spread = 0.1 if "embed" in key or "lm_head" in key else 1.3 / weight.shape[1] ** 0.5
            weight.data.copy_(spread * noise)
        elif key.endswith("bias"):
            weight.data.copy_(0.3 * noise)
        else:
            weight.data.copy_(neutral + 0.2 * noise)


def tensors_of(model, dtype):
    """What the file holds; the model computes with the same rounded numbers."""
    tied = model.config.tie_word_embeddings
    state = {key: value for key, value in model.state_dict().items() if not (tied and key == "lm_head.weight")}
    rounded = {key: value.to(dtype).contiguous() for key, value in state.items()}
    model.load_state_dict({key: value.float() for key, value in rounded.items()}, strict=not tied)
    return rounded


def save(folder, tensors, files):
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = sorted(tensors), {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = {name: tensors[name] for name in names[number::files]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def make(name, folder, seed):
    class_name, changes, dtype, files = MODELS[name]
    config = getattr(transformers, class_name)(**{**COMMON, **changes})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        randomise(model, name, generator)
        tensors = tensors_of(model, dtype)
        tokens = torch.randint(3, VOCABULARY, (1, TOKENS), generator=generator)
        exact = model(tokens, use_cache=False).logits[0]
        out = model(tokens, past_key_values=HalfPrecisionCache(config=config), use_cache=True, output_hidden_states=True)
    logits = out.logits[0]
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    save(folder, tensors, files)
    moved = float((logits - exact).abs().max())
    spread = float(logits.std())
    body = {"tokens": tokens[0].tolist(), "moved_by_half_precision": moved, "standard_deviation": spread}
    (folder / "expected.json").write_text(json.dumps(body) + "\n")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    if name == STATES_OF:
        out.hidden_states[-1][0].numpy().astype("<f4").tofile(folder / "states.f32")
    print(f"{name}: logits spread {spread:.3f}, moved by half precision {moved:.2e}")


def main():
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS):
        make(name, root / name, 20261130 + seed)
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, numpy {np.__version__}"
    (root / "MADE_WITH").write_text(f"e2e/reference/tiny_models.py with {versions}\n")


if __name__ == "__main__":
    main()
