#!/usr/bin/env python3
"""The operators as users of transformers see them: models that it saved go in, it loads what comes out and runs it.

  check_transformers.py ISTHMUS_MULTILEVEL

Every tensor of a coalesced model is compared with the matrices of arXiv 2404.07999 in numpy, none of our code.
Exit code 77: torch or transformers is not installed (tests/requirements.txt).
"""
import json
import os
import subprocess
import sys
import tempfile

os.environ.update(HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
try:
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
except ImportError as missing:
    print(f"{missing}: tests/requirements.txt, and python3-torch of the system")
    sys.exit(77)

PROGRAM = os.path.abspath(sys.argv[1])
HEADS, WIDTH, LAYERS = 4, 32, 4


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def saved(folder, seed, heads=HEADS, width=WIDTH, layers=LAYERS):
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=16, n_embd=width, n_head=heads, n_layer=layers))
    with torch.no_grad():  # away from zero biases and even norms
        for tensor in model.parameters():
            tensor.add_(0.2 * torch.randn_like(tensor))
    model.save_pretrained(folder, safe_serialization=True)
    return model.eval()


def loaded(folder):
    model, info = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(13).reshape(1, -1) * 7 % 61).logits


def tensors(model):
    return {name: t.detach().double().numpy() for name, t in model.state_dict().items() if not name.endswith((".attn.bias", "lm_head.weight"))}


def norm_row(x):
    return x / x.sum(1, keepdims=True)


def coalesced(large, heads=HEADS, layers=LAYERS):
    """By the matrices, weights stored in x out; groups (i, i + n) in width, neighbours in depth; ln_f takes the sum."""
    half = np.hstack([np.eye(heads // 2) / 2] * 2)  # F_out over heads
    blocks = {WIDTH: np.eye(WIDTH // heads), 4 * WIDTH: np.eye(4 * WIDTH // heads)}
    f_out = {n: np.kron(half, block) for n, block in blocks.items()}
    f_out[3 * WIDTH] = np.kron(np.eye(3), f_out[WIDTH])  # Q, K and V
    depth = np.kron(np.eye(layers // 2), [[0.5, 0.5]])
    out = {}
    for name, w in large.items():
        if not name.startswith("transformer.h."):
            out[name] = w @ f_out[WIDTH].T * (2 if ".ln_f." in name else 1)
            continue
        layer, rest = name[len("transformer.h."):].split(".", 1)
        mapped = w @ f_out[w.shape[-1]].T
        if w.ndim == 2:
            mapped = norm_row(f_out[w.shape[0]].T).T @ mapped  # F_in: inputs are summed
        for t in range(layers // 2):
            key = f"transformer.h.{t}.{rest}"
            out[key] = out.get(key, 0) + depth[t, int(layer)] * mapped
    return out


def main():
    with tempfile.TemporaryDirectory() as top:
        def at(name):
            return os.path.join(top, name)
        large = saved(at("large"), 1)

        run("coalesce", at("large"), at("small"))
        small = loaded(at("small"))
        want, got = coalesced(tensors(large)), tensors(small)
        assert sorted(want) == sorted(got)
        worst = max(np.abs(want[n] - got[n]).max() for n in want)
        assert all(want[n].shape == got[n].shape for n in want) and worst < 1e-6, worst

        run("decoalesce", at("small"), at("wide"), "--width-factor", "2")
        wide = loaded(at("wide"))
        spread = logits(small).std().item()
        error = (logits(wide) - logits(small)).abs().max().item()
        assert spread > 0.1 and error < 1e-5 * max(1, spread), (spread, error)
        run("decoalesce", at("small"), at("published"), "--width-factor", "2", "--tied", "embedding")
        published = (logits(loaded(at("published"))) - logits(small)).abs().max().item()
        assert published > 1e-2, published

        run("decoalesce", at("small"), at("grown"), "--like", at("large"))
        run("interpolate", at("large"), at("grown"), at("start"), "--alpha", "0.25")
        a, b, mixed = tensors(large), tensors(loaded(at("grown"))), tensors(loaded(at("start")))
        assert max(np.abs(0.75 * a[n] + 0.25 * b[n] - mixed[n]).max() for n in a) < 1e-6
        with open(os.path.join(at("start"), "config.json")) as f:
            assert [o["operation"] for o in json.load(f)["isthmus_multilevel"]] == ["interpolate"]

        # What transformers saves again keeps the record, and half precision is taken.
        small.half().save_pretrained(at("half"), safe_serialization=True)
        run("decoalesce", at("half"), at("up"))
        assert loaded(at("up")).config.n_layer == LAYERS
        print(f"coalesce: {worst:.1e} from the matrices; logits of spread {spread:.2f}: wider {error:.1e}, wider as published {published:.1e}")


if __name__ == "__main__":
    main()
