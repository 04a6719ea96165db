#!/usr/bin/env python3
"""mistral.rs's speed on one GGUF file: one JSON line on standard output.

About the work of `pagoda-engine bench`: one request of about --prompt-tokens tokens and --decode-tokens after it, with the
rates that mistral.rs itself reports. It has no way to take tokens as they are, so the prompt is text of about so many.
"""

import argparse
import json
import os
from importlib.metadata import version
from pathlib import Path

import mistralrs

WORDS = "time year people way day man thing woman life child world school state family student group".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=64)
    arguments = parser.parse_args()

    path = Path(arguments.model)
    which = mistralrs.Which.GGUF(quantized_model_id=str(path.parent), quantized_filename=path.name)
    runner = mistralrs.Runner(which=which, max_seqs=1)
    text = " ".join(WORDS[(7 * at) % len(WORDS)] for at in range(arguments.prompt_tokens))

    def ask(prompt, tokens):
        request = mistralrs.CompletionRequest(
            prompt=prompt, model="default", max_tokens=tokens, temperature=0.0, logit_bias={}
        )
        return runner.send_completion_request(request).usage

    ask("warm", 2)
    usage = ask(text, arguments.decode_tokens)
    figures = {
        "prefill_tokens_per_second": round(usage.avg_prompt_tok_per_sec, 2),
        "decode_tokens_per_second": round(usage.avg_compl_tok_per_sec, 2),
        "mistralrs": version("mistralrs"),
        "threads": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
