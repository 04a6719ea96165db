#!/usr/bin/env python3
"""Makes `expected/gemma3.json` and `gemma3.bin`: what Gemma-3-270M thinks of a text, by the NumPy reference and by llama.cpp.

    python generate_gemma3.py "$(../fetch-model gemma3)"     # the environment of requirements.txt
"""

import json
import sys
from pathlib import Path

import numpy as np

import distributions
from gemma3_forward import Gemma3Model
from generate import EXPECTED, HERE, Setting, require, say
from llama_forward import log_softmax

# More than the window of 512, so that it matters.
POSITIONS = 640


def main():
    path = Path(sys.argv[1])
    setting = Setting(path, threads=2)
    bos = setting.gguf.metadata["tokenizer.ggml.bos_token_id"]
    text = (HERE / "texts" / "opticks.txt").read_text(encoding="utf-8")
    ids = [bos] + setting.peer.tokenize(text, False)[:POSITIONS]
    reference = log_softmax(Gemma3Model(setting.gguf).logits(ids[:-1]))
    theirs = log_softmax(setting.peer.all_logits(ids[:-1]))
    kl = float(np.mean(np.sum(np.exp(reference) * (reference - theirs), axis=1)))
    agreement = float(np.mean(reference.argmax(axis=1) == theirs.argmax(axis=1)))
    own, other = perplexity(reference, ids), perplexity(theirs, ids)
    say(f"perplexity {own:.4f}, llama.cpp {other:.4f}, mean KL {kl:.6f}, top-1 agreement {agreement:.4f}")
    require(kl < 0.05, "llama.cpp and this reference are further apart than quantised activations explain")
    form = distributions.compact(reference, top=24, samples=8)
    distributions.write(EXPECTED / "gemma3.bin", form)
    form = distributions.read(EXPECTED / "gemma3.bin")
    estimated = distributions.mean_kl(form, theirs)
    say(f"llama.cpp's mean KL by the compact form: {estimated:.6f}")
    gaps = np.sort(reference, axis=1)[:, -2:]
    body = {
        **setting.header,
        "text": "texts/opticks.txt",
        "ids": ids,
        "perplexity": own,
        "best": reference.argmax(axis=1).tolist(),
        "gap": [round(float(gap), 4) for gap in gaps[:, 1] - gaps[:, 0]],
        "log_probs": [round(float(row[id]), 6) for row, id in zip(reference, ids[1:])],
        "compact_form": {"file": "gemma3.bin"},
        "llama_cpp": {"perplexity": other, "mean_kl": estimated, "mean_kl_full": kl, "top1_agreement": agreement},
    }
    (EXPECTED / "gemma3.json").write_text(json.dumps(body) + "\n")


def perplexity(log_probs, ids):
    return float(np.exp(-np.mean([row[id] for row, id in zip(log_probs, ids[1:])])))


if __name__ == "__main__":
    main()
