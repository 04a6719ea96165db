#!/usr/bin/env python3
"""Makes the committed files in `expected/`: what the engine's answers are compared with.

    ../fetch-model                                 # prints the model's path
    pip install -r requirements.txt                # in a virtual environment; builds llama.cpp, minutes
    python generate.py MODEL.gguf [PART ...]       # parts: dequantise tokenizer chat greedy distributions

Every part checks itself against llama.cpp before it writes, and stops where the two disagree by more than
quantised activations explain. README.md describes the files.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import jinja2
import jinja2.sandbox
import numpy as np
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import dequantise
import distributions
import llama_cpp_peer
from gguf_file import GgufFile
from llama_forward import LlamaModel, log_softmax
from tokenizer_cases import cases

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"
GREEDY_TOKENS = 32
CONTROL_TOKEN = 3


def say(text):
    print(text, file=sys.stderr, flush=True)


def write_json(name, header, body):
    """One top-level list entry a line, so that a diff shows which case changed."""
    lines = []
    for key, value in {**header, **body}.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=True) for row in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=True)}")
    (EXPECTED / name).write_text("{\n" + ",\n".join(lines) + "\n}\n")
    say(f"wrote {name}")


def require(condition, text):
    if not condition:
        sys.exit(f"error: {text}")


class Setting:
    """What the parts share: the file, the peer, the template; loaded when first needed."""

    def __init__(self, path, threads):
        self.path = path
        self.gguf = GgufFile(path)
        self.peer = llama_cpp_peer.Peer(str(path), threads=threads)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        self.header = {
            "model": {"name": self.gguf.metadata["general.name"], "sha256": digest},
            "made_with": {"numpy": np.__version__, **llama_cpp_peer.versions()},
        }
        self._model = None

    @property
    def model(self):
        if self._model is None:
            self._model = LlamaModel(self.gguf)
        return self._model

    def render(self, messages, add_generation_prompt):
        """The file's chat template, with the settings that chat templates are written for."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        meta = self.gguf.metadata
        template = environment.from_string(meta["tokenizer.chat_template"])
        tokens = meta["tokenizer.ggml.tokens"]
        return template.render(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=tokens[meta["tokenizer.ggml.bos_token_id"]],
            eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        )


def make_dequantise(setting):
    """Two random blocks of each type; this reference must agree with ggml to the bit."""
    generator = np.random.Generator(np.random.PCG64(1))
    rows = []
    for name, weights, size, convert in dequantise.TYPES.values():
        blocks = 2 if weights > 1 else 16
        raw = generator.integers(0, 256, (blocks, size), dtype=np.uint8)
        _tame_half_floats(name, raw, generator)
        mine = convert(raw).reshape(-1)
        if weights > 1:
            type_name = name.lower().replace("_k", "_K")
            theirs = llama_cpp_peer.dequantise_with_ggml(type_name, raw.tobytes(), blocks * weights)
            require(np.array_equal(mine.view(np.uint32), theirs.view(np.uint32)), f"{name} differs from ggml")
        rows.append({"type": name, "bytes": raw.tobytes().hex(), "values_f32": mine.astype("<f4").tobytes().hex()})
    write_json("dequantise.json", {"made_with": setting.header["made_with"]}, {"types": rows})


def _tame_half_floats(name, raw, generator):
    """Overwrites the random scales (and whole F32, F16 and BF16 numbers) with finite ones of a usual size."""
    places = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2]}.get(name, [0])
    if name in ("F32", "BF16"):
        number = generator.standard_normal(len(raw)).astype("<f4")
        raw[:] = number[:, None].view(np.uint8)[:, 4 - raw.shape[1] :]
        return
    for at in places:
        number = generator.standard_normal(len(raw)).astype("<f2")
        raw[:, at : at + 2] = number[:, None].view(np.uint8)


def make_tokenizer(setting):
    """llama.cpp's ids, on which the library that trained such vocabularies must agree."""
    second = _second_tokenizer(setting.gguf.metadata)
    rows = []
    for text, parse_special in cases():
        ids = setting.peer.tokenize(text, parse_special)
        second.encode_special_tokens = not parse_special
        other = second.encode(text, add_special_tokens=False).ids
        require(ids == other, f"llama.cpp makes {ids} of {text!r}, tokenizers {other}: leave the case out or say who is right")
        rows.append({"text": text, "parse_special": parse_special, "ids": ids})
    write_json("tokenizer.json", setting.header, {"cases": rows})


def _second_tokenizer(meta):
    """The same vocabulary in Hugging Face's `tokenizers`, with SmolLM's pre-tokenizer."""
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    control = [token for token, kind in zip(tokens, kinds) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def make_chat(setting):
    rows = []
    for chat in json.loads((HERE / "chats.json").read_text()):
        text = setting.render(chat["messages"], chat["add_generation_prompt"])
        rows.append({**chat, "rendered": text, "ids": setting.peer.tokenize(text, True)})
    write_json("chat.json", setting.header, {"chats": rows})


def make_greedy(setting):
    """GREEDY_TOKENS tokens of each prompt, going on past the end-of-turn token."""
    rows = []
    for prompt in json.loads((HERE / "prompts.json").read_text()):
        text = prompt["text"] if "text" in prompt else setting.render(prompt["chat"], True)
        ids = setting.peer.tokenize(text, True)
        steps = _greedy_steps(setting.model, ids)
        tokens = [step["token"] for step in steps]
        theirs = setting.peer.all_logits(ids + tokens)[len(ids) - 1 : -1]
        agreeing = [int(row.argmax()) == step["token"] for row, step in zip(theirs, steps)]
        rows.append({"name": prompt["name"], "text": text, "ids": ids, "steps": steps, "llama_cpp_agrees_on": sum(agreeing)})
        say(f"greedy: {prompt['name']}: llama.cpp agrees on {sum(agreeing)} of {len(steps)}")
        wide = [same for same, step in zip(agreeing, steps) if step["gap"] > 0.2]
        require(sum(wide) >= 0.9 * len(wide), f"llama.cpp differs at many clear steps of {prompt['name']}")
    write_json("greedy.json", setting.header, {"prompts": rows})


def _greedy_steps(model, ids):
    sequence, steps, feed = model.sequence(), [], ids
    for _ in range(GREEDY_TOKENS):
        logits = sequence.extend(feed, logits_for="last")[-1]
        best, second = np.argsort(-logits, kind="stable")[:2]
        steps.append({"token": int(best), "runner_up": int(second), "gap": round(float(logits[best] - logits[second]), 5)})
        feed = [int(best)]
    return steps


def make_distributions(setting):
    text = (HERE / "texts" / "opticks.txt").read_text(encoding="utf-8")
    ids = setting.peer.tokenize(text, False)
    say(f"distributions: {len(ids)} tokens")
    reference = log_softmax(setting.model.sequence().extend(ids[:-1]))
    theirs = log_softmax(setting.peer.all_logits(ids[:-1]))
    form = distributions.compact(reference)
    distributions.write(EXPECTED / "distributions.bin", form)
    form = distributions.read(EXPECTED / "distributions.bin")
    full, estimated = distributions.full_mean_kl(reference, theirs), distributions.mean_kl(form, theirs)
    say(f"distributions: llama.cpp's mean KL is {full:.6f}, {estimated:.6f} by the compact form")
    require(full < 0.05, "llama.cpp and this reference are further apart than quantised activations explain")
    require(abs(estimated / full - 1) < 0.03, "the compact form misses the full KL by more than 3 %")
    next_ids = ids[1:]
    own = _scores(reference, next_ids)
    body = {
        "text": "texts/opticks.txt",
        "ids": ids,
        "perplexity": own["perplexity"],
        "log_probs": [round(float(x), 6) for x in own["log_probs"]],
        "compact_form": {"file": "distributions.bin", "accuracy": _accuracy(reference, theirs)},
        "float64": _float64_check(setting, ids, reference),
        "llama_cpp": {
            "perplexity": _scores(theirs, next_ids)["perplexity"],
            "mean_kl": estimated,
            "mean_kl_full": full,
            "top1_agreement": float(np.mean(reference.argmax(axis=1) == theirs.argmax(axis=1))),
        },
    }
    write_json("distributions.json", setting.header, body)


def _scores(log_probs, next_ids):
    chosen = log_probs[np.arange(len(next_ids)), next_ids]
    return {"log_probs": chosen, "perplexity": float(np.exp(-chosen.mean()))}


def _accuracy(reference, theirs):
    """How far the compact form's mean KL lies from the full one, relative, over twenty other random draws."""
    full = distributions.full_mean_kl(reference, theirs)
    estimates = [distributions.mean_kl(distributions.compact(reference, seed=seed), theirs) for seed in range(20)]
    errors = np.array(estimates) / full - 1
    return {"draws": 20, "mean_relative_error": float(errors.mean()), "largest_relative_error": float(np.abs(errors).max())}


def _float64_check(setting, ids, reference):
    """The first 512 positions with every matrix product in f64: what f32 roundings contribute."""
    count = 512
    precise = log_softmax(LlamaModel(setting.gguf, np.float64).sequence().extend(ids[:count]))
    ours = reference[:count]
    kl, difference = distributions.full_mean_kl(precise, ours), float(np.abs(precise - ours).max())
    require(difference < 1e-2, f"f32 and f64 log-probabilities differ by {difference}: is this BLAS sound?")
    return {"positions": count, "mean_kl_of_f32": kl, "largest_log_prob_difference": difference}


PARTS = {
    "dequantise": make_dequantise,
    "tokenizer": make_tokenizer,
    "chat": make_chat,
    "greedy": make_greedy,
    "distributions": make_distributions,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[[], *PARTS])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    EXPECTED.mkdir(exist_ok=True)
    setting = Setting(arguments.model, arguments.threads)
    for part in arguments.parts or PARTS:
        PARTS[part](setting)


if __name__ == "__main__":
    main()
