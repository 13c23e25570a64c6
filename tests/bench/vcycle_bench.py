#!/usr/bin/env python3
"""The V-cycle of multi-level training (arXiv 2404.07999) by today's commands, against training from scratch: FLOPs, bytes and wall time to a loss.

    tests/bench/vcycle_bench.py [--phases] [--text bible.txt] [--steps 160] [--alpha 0.5] [--rate 20Mbit] [--json FILE]

A coordinator and two daemons of one thread each, as a user starts them; jobs are byte models in two stages, `--codec` at the boundary; the small one is on one host. With `--phases` the cycle is one job, whose
wall time runs from its first step on, with all that lies between phases; the planner says how many stages the small model has. Without, the same by hand:

    large for E_a steps, export, `isthmus multilevel coalesce`, small (half the width and the layers) for E_small steps from it, export,
    `decoalesce`, `interpolate` with the large one of E_a steps, train on from that; beside it the large one from scratch, with the same seed and samples.

Learning rates are constant after a warm-up, so that a loss at a step does not depend on how long the run would go on. FLOPs are three times those of the
forward pass, counted from the shapes; the operators' own cost is not FLOPs but time, and is in the wall time. Validation passes are in neither.
With `--rate` (of every link, needs root) the daemons are on the emulated network: what the boundary costs counts then. One seed says little: `--seed`.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests", "e2e")]
import harness  # noqa: E402
from wan_bench import records_of  # noqa: E402

CONTEXT, BATCH, VOCABULARY = 64, 16, 256


def model_of(layers, hidden, heads):
    return {"layers": layers, "hidden": hidden, "heads": heads, "context": CONTEXT}


def flops_a_step(model):
    """Forward and backward: three times two a parameter and token in the products, and the attention of all positions."""
    layers, hidden = model["layers"], model["hidden"]
    products = 12 * layers * hidden * hidden + VOCABULARY * hidden
    return 3 * BATCH * CONTEXT * (2 * products + 4 * layers * hidden * CONTEXT)


def since(records, record):
    """Wall time from the first step's begin to this one's end."""
    return (int(record["unix_ms"]) - int(records[0]["unix_ms"])) / 1000 + records[0]["step_s"]


class Formatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


class Loopback:
    """Two daemons on this machine; they stay from job to job."""

    def __init__(self, args, text):
        harness.BIN = args.bin
        self.cluster = harness.Cluster(text).start(2)
        self.dir = self.cluster.dir

    def run(self, path, name):
        code, out, err = self.cluster.cli("submit", path, "--watch", seconds=1800)
        if code != 0:
            sys.exit(f"{name}: exit {code}\n{out}\n{err}\n{self.cluster.logs()}")
        code, out, err = self.cluster.cli("logs", name, "--json")
        if code != 0:
            sys.exit(f"logs {name}: {err}")
        return [json.loads(line) for line in out.splitlines() if line.strip()]

    def export(self, name, folder):
        code, _, err = self.cluster.cli("export", name, folder)
        if code != 0:
            sys.exit(f"export {name}: {err}")

    def close(self):
        self.cluster.close()


class Emulated:
    """Two daemons on the WAN emulator, anew for each job (isthmus testnet)."""

    def __init__(self, args, text):
        self.args, self.temporary = args, tempfile.TemporaryDirectory(prefix="isthmus-vcycle-")
        self.dir, self.states = self.temporary.name, {}
        with open(os.path.join(self.dir, "text.txt"), "wb") as f:
            f.write(text)

    def run(self, path, name):
        run_dir = tempfile.mkdtemp(dir=self.dir)
        done = subprocess.run([f"{self.args.bin}/isthmus", "testnet", "--nodes", "2", "--delay", "10ms", "--mtu", "9000", "--rate", self.args.rate,
                               "--data-dir", self.dir, "--run-dir", run_dir, "--json", path], capture_output=True, text=True, timeout=1800)
        if done.returncode != 0:
            sys.exit(f"testnet failed ({done.returncode}) for {name}:\n{done.stderr[-3000:]}")
        self.states[name] = os.path.join(run_dir, "coordinator")
        return records_of(self.args.bin, self.states[name], name)[0]

    def export(self, name, folder):
        coordinator = subprocess.Popen([f"{self.args.bin}/isthmus-coordinator", "--listen", "127.0.0.1:0", "--http", "", "--state-dir", self.states[name]],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            words = coordinator.stdout.readline().split()
            subprocess.run([f"{self.args.bin}/isthmus", "--coordinator", words[words.index("on") + 1], "export", name, folder],
                           check=True, stdout=subprocess.DEVNULL, timeout=120)
        finally:
            coordinator.terminate()
            coordinator.wait()

    def close(self):
        self.temporary.cleanup()


class Bench:
    def __init__(self, args, cluster):
        self.args, self.cluster = args, cluster
        self.large = model_of(4, args.hidden, 4)
        self.small = model_of(2, args.hidden // 2, 2)
        self.flops = self.bytes = self.seconds = 0.0  # spent by the phases so far

    def path(self, name):
        return os.path.join(self.cluster.dir, name)

    def train(self, name, model, steps, rate, init=None, stages=2):
        """Records with what was spent until the end of each step: this run's own, after that of the phases before."""
        job = {"name": name, "seed": self.args.seed, "model": dict(model, **({"init_from": self.path(init)} if init else {})), "data": {"path": "text.txt"},
               "recipe": {"steps": steps, "global_batch": BATCH, "micro_batch": 4, "learning_rate": rate, "warmup_steps": min(20, steps),
                          "schedule": "constant", "eval_every": self.args.eval_every, "eval_samples": 64},
               "strategy": {"stages": stages}, "compression": {"forward": self.args.codec, "backward": self.args.codec}, "checkpoint": {"every": 0}}
        with open(self.path(name + ".yaml"), "w") as f:
            json.dump(job, f)  # JSON is YAML
        points, flops, sent, seconds = [], 0.0, 0.0, 0.0
        records = self.cluster.run(self.path(name + ".yaml"), name)
        alone = [int(r["wire_bytes"]) for r in records if not r.get("has_validation_loss")]  # the others hold those of a validation
        one = statistics.median(alone or [0])
        for record in records:
            flops += flops_a_step(model)
            sent += one
            seconds = since(records, record) if self.args.phases else seconds + record["step_s"]
            if record.get("has_validation_loss"):
                points.append({"step": int(record["step"]), "validation": record["validation_loss"], "flops": self.flops + flops,
                               "bytes": self.bytes + sent, "seconds": self.seconds + seconds})
        self.last = (flops, sent, seconds)
        if not points:
            sys.exit(f"{name}: no validation loss among its records")
        print(f"{name:8} {steps:5} steps  validation {points[-1]['validation']:.4f}  {flops:.2e} FLOPs  {sent / 2**20:8.1f} MiB  {seconds:7.1f} s", flush=True)
        return points

    def spend(self):
        self.flops, self.bytes, self.seconds = (a + b for a, b in zip((self.flops, self.bytes, self.seconds), self.last))

    def operate(self, *words):
        begin = time.monotonic()
        done = subprocess.run([f"{self.args.bin}/isthmus", "multilevel", *words], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"multilevel {' '.join(words)}: {done.stderr}")
        self.seconds += time.monotonic() - begin

    def phased(self):
        """The cycle as one job: its last phase's records, with what was spent since the first step."""
        a = self.args
        phases = [{"steps": a.before, "warmup_steps": min(20, a.before)},
                  {"steps": a.small, "layers": self.small["layers"], "heads": self.small["heads"], "learning_rate": a.small_learning_rate,
                   "warmup_steps": min(20, a.small)},
                  {"steps": a.steps, "warmup_steps": min(20, a.steps), "alpha": a.alpha}]
        job = {"name": "cycle", "seed": a.seed, "model": self.large, "data": {"path": "text.txt"}, "phases": phases,
               "recipe": {"global_batch": BATCH, "micro_batch": 4, "learning_rate": a.learning_rate, "schedule": "constant", "eval_every": a.eval_every, "eval_samples": 64},
               "strategy": {"stages": 2}, "compression": {"forward": a.codec, "backward": a.codec}, "checkpoint": {"every": 0}}
        with open(self.path("cycle.yaml"), "w") as f:
            json.dump(job, f)
        records = self.cluster.run(self.path("cycle.yaml"), "cycle")
        models = [self.large, self.small, self.large]
        sent_by = [statistics.median([int(r["wire_bytes"]) for r in records if int(r["phase"]) == p and not r.get("has_validation_loss")] or [0]) for p in range(3)]
        points, flops, sent = [], 0.0, 0.0
        for record in records:
            phase = int(record["phase"])
            flops += flops_a_step(models[phase])
            sent += sent_by[phase]
            if phase == 2 and record.get("has_validation_loss"):
                points.append({"step": int(record["step"]) - a.before - a.small, "validation": record["validation_loss"], "flops": flops, "bytes": sent,
                               "seconds": since(records, record)})
        print(f"{'cycle':8} {len(records):5} steps  validation {points[-1]['validation']:.4f}  {flops:.2e} FLOPs  {sent / 2**20:8.1f} MiB  {points[-1]['seconds']:7.1f} s", flush=True)
        return points

    def cycle(self):
        a = self.args
        self.train("before", self.large, a.before, a.learning_rate)
        self.spend()
        self.cluster.export("before", self.path("large"))
        self.operate("coalesce", self.path("large"), self.path("small"))
        self.train("small", self.small, a.small, a.small_learning_rate, "small", a.small_stages)
        self.spend()
        self.cluster.export("small", self.path("trained"))
        self.operate("decoalesce", self.path("trained"), self.path("grown"), "--like", self.path("large"))
        self.operate("interpolate", self.path("large"), self.path("grown"), self.path("start"), "--alpha", str(a.alpha))
        return self.train("after", self.large, a.steps, a.learning_rate, "start")


def first_below(points, loss):
    return next((p for p in points if p["validation"] <= loss), None)


def compare(scratch, cycle):
    """What each took to losses that scratch had on its way."""
    rows = []
    print(f"\n{'validation':>10} {'scratch step':>12} {'after step':>10} {'FLOPs':>8} {'bytes':>8} {'wall time':>9}   of the cycle, beside scratch")
    best = float("inf")
    for p in scratch:
        if p["validation"] >= best or p["step"] < scratch[-1]["step"] / 4:
            continue
        best = p["validation"]
        q = first_below(cycle, best)
        row = {"validation": best, "scratch": p, "cycle": q}
        rows.append(row)
        if q is None:
            print(f"{best:10.4f} {p['step']:12} {'not reached':>10}")
        else:
            print(f"{best:10.4f} {p['step']:12} {q['step']:10} " + " ".join(f"{100 * (q[k] / p[k] - 1):+{w}.1f}%" for k, w in (("flops", 7), ("bytes", 7), ("seconds", 8))))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Formatter)
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "bin"))
    parser.add_argument("--text", help="a text file [sentences of a small grammar]")
    parser.add_argument("--hidden", type=int, default=128, help="width of the large model; the small one has half of it")
    parser.add_argument("--steps", type=int, default=160, help="of the run from scratch and of the last phase")
    parser.add_argument("--before", type=int, default=10, help="E_a, of the large model before it is coalesced")
    parser.add_argument("--small", type=int, default=160, help="E_small")
    parser.add_argument("--small-stages", type=int, default=1, help="stages of the small model: 1 needs no network")
    parser.add_argument("--alpha", type=float, default=0.5, help="weight of the small model's weights")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--small-learning-rate", type=float, default=2e-3)
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--codec", default="bf16")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", help="of every link, such as 20Mbit: on the WAN emulator")
    parser.add_argument("--phases", action="store_true", help="the cycle as one job with phases")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.bin = os.path.abspath(args.bin)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what it started
    text = open(args.text, "rb").read() if args.text else harness.small_text(2_000_000)
    cluster = (Emulated if args.rate else Loopback)(args, text)
    try:
        bench = Bench(args, cluster)
        scratch = bench.train("scratch", bench.large, args.steps, args.learning_rate)
        cycle = Bench(args, cluster).phased() if args.phases else Bench(args, cluster).cycle()
    finally:
        cluster.close()
    rows = compare(scratch, cycle)
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"args": vars(args), "scratch": scratch, "cycle": cycle, "rows": rows}, f, indent=1)


if __name__ == "__main__":
    main()
