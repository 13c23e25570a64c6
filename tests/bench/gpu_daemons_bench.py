#!/usr/bin/env python3
"""Two daemons on two GPUs over loopback, through the command line, beside twice one daemon: tokens/s, predicted and measured, and where a step goes.

    ISTHMUS_BIN=build-cuda/bin tests/bench/gpu_daemons_bench.py [--devices cuda:0,cuda:1] [--samples 64,512] [--rows NAME,...] [--shape 124m]

One daemon trains GPT-2 124M (vocabulary 50304, context 1024, micro-batches of 8, bf16) on the first device; then two, a stage on each. `nodes` is printed
first: it says which card each daemon has. The ratio is to as many times one daemon as there are devices: with one card both stages are on it, and the
table says so. Tokens are random, in a .bin of two steps a pass, so that delta codecs have seen each sample when it counts. A figure is the median of the
second half of the steps. compute is the slower stage's; waits (to receive and to send), exchange and vote, encode and decode are of both stages in sum.
`overlap` is strategy.schedule overlap. --shape small is for a try on CPUs: --devices cpu,cpu.
"""
import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import harness  # noqa: E402

SHAPES = {"124m": dict(layers=12, hidden=768, heads=12, context=1024, vocabulary=50304), "xl": dict(layers=48, hidden=1600, heads=25, context=1024, vocabulary=50304),
          "wide": dict(layers=2, hidden=256, heads=4, context=64, vocabulary=50304), "small": dict(layers=4, hidden=64, heads=4, context=64, vocabulary=1000)}
MICROS = {"124m": 8, "xl": 4, "wide": 2, "small": 8}
DELTA = ("delta(quant(4))", "quant(6)")
ROWS = {  # name: (forward, backward, tied codec, changes)
    "none": ("none", "none", "none", {}),
    "bf16": ("bf16", "bf16", "bf16", {}),
    "delta": (*DELTA, "bf16", {}),
    "quant8": ("quant(8)", "quant(8)", "quant(8)", {}),
    "auto": ("auto", "auto", "auto", {}),
    "untied": (*DELTA, "bf16", {"model__tied": False}),
    "overlap": (*DELTA, "bf16", {"strategy__schedule": "overlap"}),
}
PARTS = [("compute", ["compute_s"]), ("waits", ["recv_wait_s", "send_wait_s"]), ("exchange and vote", ["sync_s"]), ("encode", ["encode_s"]), ("decode", ["decode_s"])]


def write_tokens(path, samples, shape):
    draw = random.Random(1)
    tokens = array.array("H", (draw.randrange(shape["vocabulary"]) for _ in range(samples * shape["context"] + 1)))
    if sys.byteorder == "big":
        tokens.byteswap()
    with open(path, "wb") as f:
        tokens.tofile(f)


def codec_words(codec):
    inner = codec_words(codec["inner"]) if codec.get("inner") else str(codec["bits"] or "")
    return codec["kind"] + (f"({inner})" if inner else "")


def finish(cluster, job, seconds, after):
    """Waits for the end of a submitted job and removes it: its status, and the records of the steps after so many."""
    status = cluster.wait_state({"finished", "failed", "paused", "stopped"}, job, seconds)
    if status["state"] != "finished":
        raise AssertionError(f"{job}: {status['state']}: {status.get('reason')}\n{cluster.logs()}")
    code, out, err = cluster.cli("logs", job, "--json")
    if code != 0:
        raise AssertionError(f"logs: exit {code}\n{err}")
    records = [json.loads(line) for line in out.splitlines() if line.strip()]
    cluster.cli("rm", job)
    return status, [r for r in records if int(r["step"]) > after]


def default_devices():
    try:
        cards = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.count("GPU ")
    except (OSError, subprocess.CalledProcessError):
        sys.exit("nvidia-smi lists no device on this host: give --devices")
    return ["cuda:0", "cuda:1" if cards > 1 else "cuda:0"]


class Bench:
    def __init__(self, args):
        self.shape, self.micro, self.devices, self.steps = SHAPES[args.shape], MICROS[args.shape], args.devices, args.steps
        self.trace = args.trace
        self.cluster = harness.Cluster()
        for samples in args.samples:  # two steps a pass, and one micro-batch for validation
            write_tokens(os.path.join(self.cluster.data, f"tokens{samples}.bin"), 2 * samples + self.micro, self.shape)
        self.cluster.start_coordinator()
        self.alone = {}  # samples: tokens/s of one daemon

    def start_daemons(self, count):
        for i in range(len(self.cluster.daemons), count):
            self.cluster.start_daemon(f"d{i}", "--device", self.devices[i]).wait_for("reference block", 120)
        self.cluster.wait_nodes(count)

    def plan(self, path):
        """The plan, once the links between the daemons are measured."""
        end = time.monotonic() + 180
        while True:
            code, out, err = self.cluster.cli("plan", path, "--json")
            if code == 0:
                return json.loads(out)["plan"]
            if time.monotonic() > end:
                raise AssertionError(f"plan: exit {code}\n{err}\n{self.cluster.logs()}")
            time.sleep(1)

    def run(self, name, samples, stages):
        forward, backward, tied, changes = ROWS[name]
        steps = self.steps or (24 if samples <= 128 else 8)
        job = f"{name}-{samples}-{stages}"
        path = self.cluster.job(job, data={"path": f"tokens{samples}.bin", "validation_share": (self.micro + 0.5) / (2 * samples + self.micro)}, **{
            **{f"model__{key}": value for key, value in self.shape.items()}, "recipe__steps": steps, "recipe__global_batch": samples, "recipe__micro_batch": self.micro,
            "recipe__learning_rate": 3e-4, "recipe__eval_samples": self.micro, "recipe__precision": "bf16", "strategy__stages": stages,
            "strategy__nodes": [f"d{i}" for i in range(stages)], "compression__forward": forward, "compression__backward": backward,
            "compression__tied": tied, "compression__buffer_memory_bytes": 8 << 30, "checkpoint__every": 0, "checkpoint__keep": 1, **changes})
        plan = self.plan(path)
        self.cluster.submit(path)
        if self.trace is not None:
            self.cluster.cli("trace", job, "--output", os.path.join(self.trace, f"{job}.json"), "--force")
        _, records = finish(self.cluster, job, 600, steps // 2)
        self.print_row(name, samples, stages, plan, records)

    def print_row(self, name, samples, stages, plan, records):
        forward, backward, tied, changes = ROWS[name]
        if stages > 1:  # what auto took
            link = plan["links"][0]
            forward, backward = codec_words(link["forward"]), codec_words(link["backward"])
            tied = next((codec_words(g["contribution"]) for g in plan["groups"] if g["id"].startswith("tied")), tied)
        tokens = samples * self.shape["context"]
        rate = tokens / statistics.median(r["step_s"] for r in records)
        if stages == 1:
            self.alone[samples] = rate
            what, ratio = f"one, {self.devices[0]}", ""
        else:
            cards = len(set(self.devices))
            what = f"{forward} / {backward}, {'untied' if 'model__tied' in changes else 'tied ' + tied}{', overlap' if name == 'overlap' else ''}"
            ratio = f"{rate / (cards * self.alone[samples]):.3f}" if samples in self.alone else ""
        layers = " + ".join(str(int(r["end_layer"]) - int(r.get("first_layer", 0))) for r in plan["ranks"])
        parts = [f"{1e3 * statistics.median(sum(r.get(key, 0) for key in keys) for r in records):.0f}" for _, keys in PARTS]
        print(f"| {what} | {samples} | {layers} | {tokens / plan['predicted_step_s']:.0f} | {rate:.0f} | {ratio} | {1e3 * tokens / rate:.0f} | {' | '.join(parts)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=lambda text: text.split(","), help="of the two daemons; default: the first two cards, or the only one twice")
    parser.add_argument("--samples", type=lambda text: [int(n) for n in text.split(",")], default=[64, 512], help="a step")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--shape", choices=SHAPES, default="124m")
    parser.add_argument("--steps", type=int, help="of each job [24, or 8 of more than 128 samples]")
    parser.add_argument("--trace", metavar="FOLDER", help="writes a trace of one early step of each job there (isthmus trace)")
    args = parser.parse_args()
    args.devices = args.devices or default_devices()
    if len(args.devices) != 2 or set(args.rows) - set(ROWS):
        parser.error(f"two devices, and rows of {', '.join(ROWS)}")
    cards = len(set(args.devices))
    bench, failed = Bench(args), False
    try:
        bench.start_daemons(1)
        one = f"{cards} x one daemon" if cards > 1 else "one daemon"
        head = ["forward / backward, tied", "samples a step", "layers", "predicted tokens/s", "tokens/s", f"of {one}", "ms a step"] + [name for name, _ in PARTS]
        rows = [("none", samples, 1) for samples in args.samples] + [(name, samples, 2) for name in args.rows for samples in args.samples]
        for number, (name, samples, stages) in enumerate(rows):
            bench.start_daemons(stages)
            if number == len(args.samples):  # the first one with both daemons
                print("\n" + bench.cluster.cli("nodes")[1])
                print(f"both stages are on {args.devices[0]}\n" if cards == 1 else "a card for each stage\n")
            if number in (0, len(args.samples)):
                print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
            try:
                bench.run(name, samples, stages)
            except AssertionError as error:
                failed = True
                print(f"{name}, {samples} samples a step, {stages} stages failed: {error}", flush=True)
    finally:
        bench.cluster.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
