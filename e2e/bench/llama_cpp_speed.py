#!/usr/bin/env python3
"""llama.cpp's speed on one GGUF file, as fast as its low-level API goes: one JSON line on standard output.

The same work as `pagoda-engine bench`: a fresh sequence of --prompt-tokens with logits of the last, then --decode-tokens
single tokens after it with logits of each; fixed tokens, no sampling. Flash attention is on, all is warmed up before the
clock starts, and the figures are medians of --repeats.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "reference"))

import llama_cpp_peer


def fixed_tokens(count, vocab_size):
    """`count` token ids spread over the vocabulary; which ones does not change the work."""
    return [(7919 * at + 1000) % vocab_size for at in range(count)]


def run(peer, tokens, prompt_tokens):
    """Seconds of the prompt and of the decoding after it."""
    peer.clear()
    began = time.perf_counter()
    for start in range(0, prompt_tokens, peer.batch_tokens):
        part = tokens[start : min(start + peer.batch_tokens, prompt_tokens)]
        last = start + len(part) == prompt_tokens
        peer.decode(part, start, len(part) - 1 if last else len(part))
    peer.synchronize()
    prefilled = time.perf_counter()
    for position in range(prompt_tokens, len(tokens)):
        peer.decode(tokens[position : position + 1], position, 0)
        peer.synchronize()
    return prefilled - began, time.perf_counter() - prefilled


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    count = arguments.prompt_tokens + arguments.decode_tokens
    peer = llama_cpp_peer.Peer(arguments.model, context_tokens=count, threads=arguments.threads, flash_attention=True)
    tokens = fixed_tokens(count, peer.vocab_size)
    warm = min(128, arguments.prompt_tokens)
    run(peer, tokens[: warm + 4], warm)
    seconds = [run(peer, tokens, arguments.prompt_tokens) for _ in range(arguments.repeats)]
    prefill = [arguments.prompt_tokens / prompt for prompt, _ in seconds]
    decode = [arguments.decode_tokens / decoding for _, decoding in seconds]
    figures = {
        "prefill_tokens_per_second": round(statistics.median(prefill), 2),
        "decode_tokens_per_second": round(statistics.median(decode), 2),
        **llama_cpp_peer.versions(),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
