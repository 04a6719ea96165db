#!/usr/bin/env python3
"""Makes small tokenizers with Hugging Face's `tokenizers`, trained on `texts/`, and the ids it gives to the cases of `tokenizer_cases.py`.

    pip install tokenizers==0.23.3
    python tiny_tokenizers.py ../../inference-pod/text/tests/hugging_face

Each folder is what a model's folder holds of its tokenizer, `tokenizer.json` and `tokenizer_config.json`, and `cases.json`. Texts that
Unicode composition would change are left out: the engine composes nothing.
"""

import json
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_cases import cases

HERE = Path(__file__).parent
TOKENS = 700
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
CONTROL = ["<|s|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def byte_level(steps, **model):
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=TOKENS, initial_alphabet=alphabet, special_tokens=CONTROL, show_progress=False))


def pattern(regex, **model):
    split = pre_tokenizers.Split(Regex(regex), behavior="isolated")
    return byte_level([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)], **model)


def smollm():
    digits = pre_tokenizers.Digits(individual_digits=True)
    return byte_level([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


def sentence_piece(prefix):
    """Llama 2's form (`prefix`) or Gemma's: words are whole texts, spaces a character of their own, bytes for what has no token."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    # Trained with words cut at spaces, or no merge would be found twice; saved without, as those models are.
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581+[^\u2581]*|[^\u2581]+"), behavior="isolated")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=TOKENS, special_tokens=special, show_progress=False)
    learnt = json.loads(trained(tokenizer, trainer).to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=learnt["vocab"], merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "\u2581")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), replace]) if prefix else replace
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special[:3]])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False, rstrip=prefix) for text in CONTROL[1:]])
    return tokenizer


def trained(tokenizer, trainer):
    tokenizer.train([str(path) for path in sorted((HERE / "texts").glob("*.txt"))], trainer)
    return tokenizer


def with_bos(tokenizer, bos):
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))])
    return tokenizer


MAKERS = {
    "llama_3": (lambda: with_bos(pattern(LLAMA_3, ignore_merges=True), "<|s|>"), "<|s|>", "<|im_end|>"),
    "qwen_2": (lambda: pattern(QWEN_2), None, "<|im_end|>"),
    "smollm": (smollm, "<|s|>", "<|im_end|>"),
    "llama_2": (lambda: with_bos(sentence_piece(True), "<s>"), "<s>", "</s>"),
    "gemma": (lambda: with_bos(sentence_piece(False), "<s>"), "<s>", "</s>"),
}


def main():
    root = Path(sys.argv[1])
    for number, (name, (maker, bos, eos)) in enumerate(MAKERS.items()):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = maker()
        (folder / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, separators=(",", ":")) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}) + "\n")
        rows = []
        # Half of them each, the long ones not: files are to stay small.
        for text, parse_special in list(cases())[number % 2 :: 2]:
            if len(text) > 200 or unicodedata.normalize("NFC", text) != text:
                continue
            tokenizer.encode_special_tokens = not parse_special
            plain = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append({"text": text, "parse_special": parse_special, "ids": plain})
        lines = ",\n".join(" " + json.dumps(row, ensure_ascii=True) for row in rows)
        (folder / "cases.json").write_text("[\n" + lines + "\n]\n")
        print(f"{name}: {tokenizer.get_vocab_size()} tokens, {len(rows)} cases")


if __name__ == "__main__":
    main()
