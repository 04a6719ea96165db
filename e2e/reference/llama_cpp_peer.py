"""llama.cpp through the low-level API of llama-cpp-python: tokens, logits, dequantised blocks."""

import ctypes
import glob
import os

import numpy as np

import llama_cpp


def versions():
    """What ran, for the expected files' headers."""
    return {
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp_system_info": llama_cpp.llama_print_system_info().decode(),
    }


class Peer:
    """One model and one context, with llama.cpp's defaults: f16 keys and values, flash attention chosen by itself."""

    def __init__(self, path, context_tokens=4096, threads=2, batch_tokens=512, flash_attention=None, logits=True):
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context_tokens, batch_tokens, batch_tokens
        params.n_threads = params.n_threads_batch = threads
        if flash_attention is not None:
            params.flash_attn_type = 1 if flash_attention else 0
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch_tokens = batch_tokens
        self._batch = llama_cpp.llama_batch_init(batch_tokens, 0, 1)

    def close(self):
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def tokenize(self, text, parse_special):
        """Token ids of `text`; no beginning-of-sequence token is added."""
        raw = text.encode("utf-8")
        room = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), room, len(room), False, parse_special)
        if count < 0:
            raise RuntimeError(f"{-count} tokens do not fit {len(room)} places")
        return list(room[:count])

    def clear(self):
        """Forgets every token."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, tokens, start, logits_from):
        """Runs at most `batch_tokens` tokens; logits are made for those at and after index `logits_from`."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            batch.token[at] = token
            batch.pos[at] = start + at
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = 0
            batch.logits[at] = at >= logits_from
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode failed with {status}")

    def synchronize(self):
        llama_cpp.llama_synchronize(self.context)

    def all_logits(self, tokens):
        """f32 logits [len(tokens), vocab] of a fresh sequence."""
        self.clear()
        rows = []
        for start in range(0, len(tokens), self.batch_tokens):
            part = tokens[start : start + self.batch_tokens]
            self.decode(part, start, 0)
            pointer = llama_cpp.llama_get_logits(self.context)
            rows.append(np.ctypeslib.as_array(pointer, (len(part), self.vocab_size)).copy())
        return np.concatenate(rows)


def dequantise_with_ggml(type_name, raw, weights):
    """ggml's own dequantisation of raw blocks (bytes) of e.g. "q4_K" into `weights` f32 numbers."""
    pattern = os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so*")
    library = ctypes.CDLL(sorted(glob.glob(pattern))[0])
    out = np.empty(weights, np.float32)
    function = library[f"dequantize_row_{type_name}"]
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64), None
    buffer = ctypes.create_string_buffer(raw, len(raw))
    function(buffer, out.ctypes.data, weights)
    return out
