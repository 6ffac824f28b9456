"""Holds what the tests of the command line share: running the binary, its errors and a small model of random
weights.

HADAL_BINARY names the binary (default build/cpu-release/hadal). It needs only the standard library.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

from counting import check, finish

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("HADAL_BINARY", str(ROOT / "build/cpu-release/hadal"))
TINY = ROOT / "models/hadal-tiny"
HAS_WEIGHTS = any(TINY.glob("*.safetensors"))
HAS_TOKENIZER = (TINY / "tokenizer.json").exists()

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 256,
    "intermediate_size": 256, "moe_intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 16, "n_shared_experts": 1,
    "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "vocab_size": 4096, "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def run(*words, stdin=b"", timeout=120, env=None):
    done = subprocess.run([BIN, *map(str, words)], input=stdin, capture_output=True, timeout=timeout,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8", "replace")


def error_lines(err):
    return [line for line in err.splitlines() if "error:" in line]


def expect_error(name, code, wanted, *words, stdin=b"", env=None):
    rc, out, err = run(*words, stdin=stdin, env=env)
    lines = error_lines(err)
    check(f"{name}: exit code", rc == code, f"{rc} instead of {code}: {err}")
    check(f"{name}: one line", len(lines) == 1, err)
    check(f"{name}: message", all(w in err for w in wanted), err)


def read_logits(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    count = (len(data) - 8 - size) // 4
    return header["logits"]["shape"], struct.unpack(f"<{count}f", data[8 + size:])


def make_text_model(work):
    """Makes a model of random weights with the bundled model's tokenizer, for the paths that need text."""
    model = work / "text_model"
    model.mkdir()
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(TINY / name, model)
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def make_model(work):
    """Makes a directory with nothing but the config of a small model, for --load-format dummy."""
    model = work / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    return model


def run_tests(claims):
    """Calls `claims(work, model)` with an empty directory and make_model's directory in it; returns the exit code."""
    with tempfile.TemporaryDirectory() as directory:
        work = pathlib.Path(directory)
        claims(work, make_model(work))
    return finish()
