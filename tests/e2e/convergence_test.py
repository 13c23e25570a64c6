"""AQ-SGD's promise through real daemons (arXiv 2206.01299, section 4): over several epochs, small activation deltas learn what fp32 learns.

Forty epochs over 64 samples, a GPT of three stages, three seeds; the figure is the mean loss of the last two epochs.
"""
import json
import statistics
import unittest

from harness import Cluster, main, small_text

CODECS = {
    "fp32": ("none", "none"),
    "direct-fw2bw4": ("quant(2)", "quant(4)"),
    "delta-fw2bw4": ("delta(quant(2))", "quant(4)"),
    "delta-fw3bw6": ("delta(quant(3))", "quant(6)"),
    "delta-fw4bw8": ("delta(quant(4))", "quant(8)"),
}
CONTEXT, HIDDEN, SAMPLES, BATCH, EPOCHS = 32, 32, 64, 16, 40
STEPS = EPOCHS * SAMPLES // BATCH


class ConvergenceTest(unittest.TestCase):
    def check_traffic(self, cluster, name, job):
        """A codec that only ever sent key frames would learn what fp32 learns too. A delta sends each sample in full once, at each of the
        two boundaries, in the first epoch; from then on a step has so many bytes fewer as its bits say. Returns the bytes of the last step."""
        code, out, err = cluster.cli("logs", job, "--json")
        self.assertEqual(code, 0, err)
        records = [json.loads(line) for line in out.splitlines() if line.strip()]
        self.assertEqual(len(records), STEPS, job)
        delta, cold = name.startswith("delta"), SAMPLES // BATCH
        self.assertEqual([r["key_frames"] for r in records], [2 * BATCH if delta else 0] * cold + [0] * (STEPS - cold), job)
        wire = [int(r["wire_bytes"]) for r in records]
        if delta:
            bits = int(CODECS[name][0][len("delta(quant("):-2])
            in_full = 2 * BATCH * CONTEXT * HIDDEN * 4
            self.assertGreater(wire[cold - 1] - wire[cold], 0.95 * in_full * (1 - bits / 32), job)
            self.assertLess(max(wire[cold:]), 1.01 * wire[cold], job)
        return wire[-1]

    def test_deltas_learn_what_fp32_learns(self):
        cluster = Cluster(text=small_text(SAMPLES * CONTEXT + 1))
        self.addCleanup(cluster.close)
        cluster.start(3)
        means, wire = {}, {}
        for name, (forward, backward) in CODECS.items():
            for seed in (1, 2, 3):
                job = f"{name}-{seed}"
                cluster.submit(cluster.job(job, seed=seed, model__layers=3, model__hidden=HIDDEN, model__context=CONTEXT, data__validation_share=0,
                                           recipe__steps=STEPS, recipe__global_batch=BATCH, recipe__micro_batch=8,
                                           recipe__learning_rate=1e-3, recipe__eval_samples=0, strategy__stages=3,
                                           compression__forward=forward, compression__backward=backward,
                                           compression__check_buffers=True, checkpoint__every=0))
                cluster.wait_state({"finished"}, job)
                losses = cluster.losses(job)
                self.assertEqual(len(losses), STEPS, job)
                wire[name] = self.check_traffic(cluster, name, job)
                last = 2 * SAMPLES // BATCH
                means[name, seed] = statistics.mean(losses[step] for step in range(STEPS - last, STEPS))
        for name in CODECS:
            print(name, " ".join(f"{means[name, seed]:.4f} ({100 * (means[name, seed] / means['fp32', seed] - 1):+.2f} %)"
                                 for seed in (1, 2, 3)), flush=True)
        self.assertLess(wire["delta-fw2bw4"], 1.02 * wire["direct-fw2bw4"])
        for seed in (1, 2, 3):
            self.assertLess(means["delta-fw2bw4", seed], means["direct-fw2bw4", seed], seed)
            self.assertLess(means["delta-fw3bw6", seed], 1.01 * means["fp32", seed], seed)
            self.assertLess(means["delta-fw4bw8", seed], 1.01 * means["fp32", seed], seed)


if __name__ == "__main__":
    main()
