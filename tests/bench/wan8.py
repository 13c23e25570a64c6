#!/usr/bin/env python3
"""The links and shape of Protocol NanoGPT (github.com/PluralisResearch/ProtocolNanoGPT) with our programs: seconds a step in the steady state.

    sudo ISTHMUS_BIN=build-cuda/bin tests/bench/wan8.py [--devices cuda:0,...] [--rows bf16,quant44,...] [--rate 200Mbit] [--delay 50ms] [--steps 3] [--json FILE]

Eight daemons, a stage of one layer each, on nodes of the WAN emulator: width 1024, heads of 128, context 1024, vocabulary 50304, head and embedding apart,
512 samples (524,288 tokens) a step, each link 200 Mbit/s and --delay each way. Stages go round --devices: with fewer cards than stages they share, and wait for
each other's passes. Published there for the same: 100.48 s a step (bf16, 1F1B), 19.89 (a subspace of 160 channels).

bound: the bytes of the busier direction of the busiest boundary in a step x 8 / rate, headers included. simulated: what the plan predicted. compute is the slowest
stage's; coding, waits and the vote are of all eight stages in sum. The first step is left out; the others' median counts. Tokens are random: no figure here is one of quality.
`overlap` rows run strategy.schedule overlap, whose first step fills the pipeline and whose later ones don't. --shape small is for a try on CPUs: --devices cpu.
"""
import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import gpu_daemons_bench  # noqa: E402
import wan_bench  # noqa: E402
from wan_cluster import WanCluster  # noqa: E402

STAGES = 8
SHAPES = {  # model, samples a step, micro-batch of rows that compress
    "yardstick": (dict(layers=8, hidden=1024, heads=8, context=1024, vocabulary=50304), 512, 8),
    "small": (dict(layers=8, hidden=64, heads=4, context=64, vocabulary=1000), 32, 2),
}
QUANT, PREDICT = ("quant(4)", "quant(4, token, symmetric)"), ("predict(quant(4, token), context=3)", "predict(quant(4, token, symmetric), context=2, next)")
ROWS = {  # name: (forward, backward, schedule)
    "bf16": ("bf16", "bf16", "1f1b"),
    "quant44": (*QUANT, "1f1b"),
    "predict44": (*PREDICT, "1f1b"),
    "predict24": (PREDICT[0].replace("4", "2"), PREDICT[1], "1f1b"),
    "quant44-overlap": (*QUANT, "overlap"),
    "predict44-overlap": (*PREDICT, "overlap"),
    "predict44z": (*(f"{codec} | zstd" for codec in PREDICT), "1f1b"),
    "quant44z-overlap": (*(f"{codec} | zstd" for codec in QUANT), "overlap"),
    "predict44z-overlap": (*(f"{codec} | zstd" for codec in PREDICT), "overlap"),
}


class Bench:
    def __init__(self, args):
        self.args = args
        self.shape, self.samples, self.micro = SHAPES[args.shape]
        if args.micro:
            self.micro = args.micro
        devices = [args.devices[i % len(args.devices)] for i in range(STAGES)]
        self.cluster = WanCluster(STAGES + 1, args.rate, args.delay, mtu=9000, daemon_args=[["--device", d] for d in devices])
        gpu_daemons_bench.write_tokens(os.path.join(self.cluster.data, "tokens.bin"), (args.steps + 1) * self.samples + self.micro, self.shape)
        code, out, err = self.cluster.cli("nodes", "--wait", str(STAGES), "--timeout", "240", seconds=300)
        if code != 0:
            raise AssertionError(f"nodes: exit {code}\n{err}\n{self.cluster.logs()}")
        print(out.split("\n\n")[0], flush=True)

    def run(self, name):
        forward, backward, schedule = ROWS[name]
        path = self.cluster.job(name, data={"path": "tokens.bin", "validation_share": (self.micro + 0.5) / ((self.args.steps + 1) * self.samples + self.micro)}, **{
            **{f"model__{key}": value for key, value in self.shape.items()}, "model__tied": False,
            "recipe": {"steps": self.args.steps, "global_batch": self.samples, "micro_batch": self.micro, "learning_rate": 3e-4, "eval_samples": self.micro},
            "strategy": {"stages": STAGES, "layers_per_stage": [1] * STAGES, "nodes": [f"d{i + 1}" for i in range(STAGES)], "schedule": schedule},
            "compression": {"forward": forward, "backward": backward}, "checkpoint__every": 0, "checkpoint__keep": 1,
            **({"recipe__precision": "bf16"} if "cuda" in self.args.devices[0] else {}), **({"recipe__recompute": True} if self.args.recompute else {})})
        self.cluster.submit(path)
        return gpu_daemons_bench.finish(self.cluster, name, 1200, 1)

    def row(self, name):
        status, records = self.run(name)
        middle = lambda value: statistics.median(value(r) for r in records)
        tokens = self.samples * self.shape["context"]
        # Of the boundaries' totals, which hold validation too, the share of each direction alone is taken.
        totals = {(b["link_id"], b["direction"]): int(b["wire_bytes"]) for b in status["boundaries"]}
        wire = middle(lambda r: int(r["wire_bytes"])) / sum(totals.values())
        worst = {way: wire * max(n for (_, d), n in totals.items() if d == way) for way in ("forward", "backward")}
        bound = max(worst.values()) * 8 / wan_bench.parse_rate(self.args.rate)
        return {"row": name, "step_s": middle(lambda r: r["step_s"]), "simulated_s": status["plan"]["predicted_step_s"], "bound_s": bound,
                "bytes_a_token": [worst["forward"] / tokens, worst["backward"] / tokens], "compute_s": middle(lambda r: r["compute_s"]),
                "coding_s": middle(lambda r: r["encode_s"] + r["decode_s"]), "waits_s": middle(lambda r: r["recv_wait_s"] + r["send_wait_s"]),
                "sync_s": middle(lambda r: r["sync_s"]), "steps": len(records)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=lambda text: text.split(","), default=["cuda:0"], help="stages go round them")
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS), help=", ".join(ROWS))
    parser.add_argument("--shape", choices=SHAPES, default="yardstick")
    parser.add_argument("--rate", default="200Mbit")
    parser.add_argument("--delay", default="50ms", help="each way")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro", type=int, help="samples of a micro-batch")
    parser.add_argument("--recompute", action="store_true", help="recipe.recompute: for eight stages on a card or two, whose memory passes under way fill")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if set(args.rows) - set(ROWS) or args.steps < 2:
        parser.error(f"rows of {', '.join(ROWS)}; two steps at least")
    bench, cells, failed = Bench(args), [], False
    try:
        print("| codecs, schedule | s a step | simulated | bound | bytes a token: up, down | compute | coding | waits | vote |\n|" + "---|" * 9, flush=True)
        for name in args.rows:
            try:
                c = bench.row(name)
            except AssertionError as error:
                failed = True
                print(f"{name} failed: {error}", flush=True)
                continue
            cells.append(c)
            print(f"| {name} | {c['step_s']:.2f} | {c['simulated_s']:.2f} | {c['bound_s']:.2f} | {c['bytes_a_token'][0]:.0f}, {c['bytes_a_token'][1]:.0f} | "
                  f"{c['compute_s']:.2f} | {c['coding_s']:.2f} | {c['waits_s']:.1f} | {c['sync_s']:.1f} |", flush=True)
    finally:
        bench.cluster.close()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(cells, f)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
