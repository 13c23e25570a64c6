"""Two daemons on GPUs over loopback, through the command line: boundary codecs with state, both ends compared in every step, one end moved to a
CPU and back, activations computed again. With a second card each daemon has one of its own.

    tests/gpu/daemons_test.py    ISTHMUS_BIN: the folder of programs built with CUDA; tests/gpu/run.sh sets it
"""
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Cluster, main, small_text  # noqa: E402

CODECS = [("delta(quant(4))", "quant(6)"), ("predict(quant(4))", "quant(6)"), ("delta(quant(3), cold=predict(quant(4)))", "ef(quant(6))")]
SMALL = {"model__layers": 4, "model__hidden": 128, "model__heads": 4, "model__context": 64, "recipe__global_batch": 16, "recipe__micro_batch": 4,
         "compression__check_buffers": True, "recipe__precision": "bf16"}
CARDS = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout.count("GPU ")
FIRST, SECOND = "cuda:0", "cuda:1" if CARDS > 1 else "cuda:0"


class DaemonsOnAGpu(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(text=small_text(9000))  # 9 steps a pass: most visits are warm
        self.addCleanup(self.cluster.close)
        self.cluster.start_coordinator()

    def daemons(self, *devices):
        for name, daemon in list(self.cluster.daemons.items()):
            daemon.terminate(30)
            del self.cluster.daemons[name]
        for i, device in enumerate(devices):
            self.cluster.start_daemon(f"d{i}", "--device", device)
        for daemon in self.cluster.daemons.values():
            daemon.wait_for("reference block", 120)
        self.cluster.wait_nodes(len(devices))

    def losses(self, job):
        losses = self.cluster.losses(job)
        values = [losses[step] for step in sorted(losses)]
        first, last = sum(values[:5]) / 5, sum(values[-5:]) / 5
        self.assertLess(last, first - 0.5, values)
        return values

    def test_every_kind_of_state(self):
        self.daemons(FIRST, SECOND)
        code, out, err = self.cluster.cli("nodes")
        self.assertEqual(code, 0, err)
        print(out)
        self.assertEqual(out.count(FIRST) + (out.count(SECOND) if SECOND != FIRST else 0), 2, out)
        if SECOND == FIRST:
            self.assertIn("one card: d0, d1 compute on GPU-", out)
            code, out, err = self.cluster.cli("plan", self.cluster.job("shared", **SMALL))
            self.assertEqual(code, 0, err)
            self.assertIn("card of d0, d1 (", out)
            self.assertIn("on 1/2 of its speed", out)
        for i, (forward, backward) in enumerate(CODECS):
            job = self.cluster.job(f"job{i}", recipe__steps=60, compression__forward=forward, compression__backward=backward, compression__tied="bf16", **SMALL)
            self.cluster.submit(job, "--watch")
            values = self.losses(f"job{i}")
            print(f"{forward} / {backward}: {values[0]:.4f} to {values[-1]:.4f}")

    def test_an_end_moves_to_a_cpu_and_back(self):
        codecs = {"compression__forward": CODECS[0][0], "compression__backward": "ef(quant(6))"}
        job = self.cluster.job("moved", recipe__steps=3000, strategy__layers_per_stage=[2, 2], checkpoint__every=20, **codecs, **SMALL)
        resume = []
        for devices in ((FIRST, SECOND), (FIRST, "cpu"), ("cpu", SECOND), (FIRST, SECOND)):
            self.daemons(*devices)
            begin = int(self.cluster.status("moved").get("step", 0)) if resume else 0
            self.cluster.submit(job, *resume)
            self.cluster.wait_state({"running"}, "moved", step=begin + 40)
            self.assertEqual(self.cluster.cli("stop", "moved")[0], 0)
            status = self.cluster.wait_state({"stopped", "failed"}, "moved")
            self.assertEqual(status["state"], "stopped", self.cluster.logs())
            print(f"{devices}: steps {begin} to {status['step']}")
            resume = ["--resume"]
        values = self.losses("moved")
        print(json.dumps([round(v, 4) for v in values[::20]]))

    def test_recompute_trains_as_without(self):
        """The codecs see each micro-batch once: both ends are compared in every step, and as many samples go in full as without."""
        self.daemons(FIRST, SECOND)
        runs = {}
        for name, recompute in (("kept", False), ("again", True)):
            job = self.cluster.job(name, recipe__steps=60, recipe__recompute=recompute, compression__forward=CODECS[0][0], compression__backward=CODECS[0][1],
                                   compression__tied="bf16", **SMALL)
            if recompute:
                code, out, err = self.cluster.cli("plan", job)
                self.assertEqual(code, 0, err)
                self.assertIn("recomputes: ", out)
            self.cluster.submit(job, "--watch")
            code, out, err = self.cluster.cli("logs", name, "--json")
            self.assertEqual(code, 0, err)
            records = [json.loads(line) for line in out.splitlines() if line.strip()]
            runs[name] = self.losses(name), [int(r.get("key_frames", 0)) for r in records]
        self.assertEqual(runs["kept"][1], runs["again"][1])
        for kept, again in zip(*(losses for losses, _ in runs.values())):  # bf16 sums come in another order from run to run
            self.assertAlmostEqual(again, kept, delta=0.03 * kept)


if __name__ == "__main__":
    main()
