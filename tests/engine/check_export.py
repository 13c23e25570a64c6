#!/usr/bin/env python3
"""An independent reader of exported models: numpy computes the logits in double and compares them with the engine's.

  check_export.py DIR [TOLERANCE]     DIR has model.safetensors, config.json and expected.safetensors (tokens, logits)
  check_export.py --run PROGRAM       lets PROGRAM write such DIRs first, of a tied head and of one of its own

Reads with the safetensors package where it is installed, else by the format's definition; loads the export with transformers
where that is installed. Exit code 77: numpy is not installed.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("numpy is not installed (tests/requirements.txt, or apt-get install python3-numpy)")
    sys.exit(77)


def read_by_definition(path):
    types = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    with open(path, "rb") as f:
        raw = f.read()
    (length,) = struct.unpack_from("<Q", raw)
    header, data = json.loads(raw[8:8 + length]), raw[8 + length:]
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[e["data_offsets"][0]:e["data_offsets"][1]], types[e["dtype"]]).reshape(e["shape"])
            for name, e in header.items()}


def read(path):
    mine = read_by_definition(path)
    try:
        from safetensors.numpy import load_file
    except ImportError:
        print("safetensors is not installed: read by the format's definition")
        return mine
    theirs = load_file(path)
    assert sorted(mine) == sorted(theirs), "the safetensors package sees other tensors"
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(mine[name], tensor, name)
    return theirs


def norm(x, weight, bias, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * weight + bias


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def attention(x, get, heads):
    samples, positions, hidden = x.shape
    qkv = x @ get("attn.c_attn.weight") + get("attn.c_attn.bias")
    q, k, v = (t.reshape(samples, positions, heads, hidden // heads).transpose(0, 2, 1, 3) for t in np.split(qkv, 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(hidden // heads)
    scores = np.where(np.tril(np.ones((positions, positions), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(samples, positions, hidden)
    return out @ get("attn.c_proj.weight") + get("attn.c_proj.bias")


def logits(config, tensors, tokens):
    wte = tensors["transformer.wte.weight"]
    epsilon = config["layer_norm_epsilon"]
    x = wte[tokens] + tensors["transformer.wpe.weight"][:tokens.shape[1]]
    for layer in range(config["n_layer"]):
        def get(name, prefix=f"transformer.h.{layer}."):
            return tensors[prefix + name]
        x = x + attention(norm(x, get("ln_1.weight"), get("ln_1.bias"), epsilon), get, config["n_head"])
        h = gelu(norm(x, get("ln_2.weight"), get("ln_2.bias"), epsilon) @ get("mlp.c_fc.weight") + get("mlp.c_fc.bias"))
        x = x + h @ get("mlp.c_proj.weight") + get("mlp.c_proj.bias")
    head = wte if config["tie_word_embeddings"] else tensors["lm_head.weight"]
    return norm(x, tensors["transformer.ln_f.weight"], tensors["transformer.ln_f.bias"], epsilon) @ head.T


def check_transformers(directory, expected, tolerance):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError:
        print("transformers is not installed: the export is not loaded with it")
        return
    model, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        got = model.eval()(torch.from_numpy(expected["tokens"].copy())).logits.numpy()
    error = float(np.abs(got - expected["logits"]).max())
    print(f"transformers: largest difference {error:.2e}")
    assert error < tolerance, f"logits of transformers differ by {error}"


def check(directory, tolerance):
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    tensors = {k: v.astype(np.float64) for k, v in read(os.path.join(directory, "model.safetensors")).items()}
    assert config["model_type"] == "gpt2" and config["activation_function"] == "gelu_new"
    assert tensors["transformer.wte.weight"].shape == (config["vocab_size"], config["n_embd"])
    assert tensors["transformer.wpe.weight"].shape == (config["n_positions"], config["n_embd"])
    own_head = not config["tie_word_embeddings"]
    assert ("lm_head.weight" in tensors) == own_head, sorted(tensors)
    assert len(tensors) == 2 + 12 * config["n_layer"] + 2 + own_head, sorted(tensors)
    expected = read(os.path.join(directory, "expected.safetensors"))
    got = logits(config, tensors, expected["tokens"])
    spread = float(np.std(expected["logits"]))
    error = float(np.abs(got - expected["logits"]).max())
    print(f"{len(tensors)} tensors, logits {got.shape}, spread {spread:.3f}, largest difference {error:.2e}")
    assert spread > 0.05, "the logits say nothing"
    assert error < tolerance, f"logits differ by {error}"
    check_transformers(directory, expected, tolerance)


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--run":
        for head in [], ["untied"]:
            with tempfile.TemporaryDirectory() as directory:
                subprocess.run([sys.argv[2], directory] + head, check=True)
                check(directory, 1e-5)  # fp32 against double, logits of order 1
    else:
        check(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e-4)
    return 0


if __name__ == "__main__":
    sys.exit(main())
