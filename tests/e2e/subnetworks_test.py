"""Independent subnetworks as a user runs them: slices dealt anew, a merged model that is validated, stored and exported."""
import json
import os
import unittest

from harness import Cluster, main


class SubnetworksTest(unittest.TestCase):
    def cluster(self, daemons):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def options(self, **more):
        return {**dict(strategy__stages=1, strategy__replicas=2, strategy__local_steps=5, strategy__subnetworks="units",
                       recipe__steps=100, checkpoint__every=10), **more}

    def test_the_plan_says_who_holds_what_and_refuses_what_can_not_be(self):
        cluster = self.cluster(2)
        job = cluster.job(**self.options(strategy__whole_layers=1))
        cluster.wait_for(lambda: cluster.cli("plan", job)[0] == 0)  # until all links are measured
        code, out, err = cluster.cli("plan", job)
        self.assertEqual(code, 0, err)
        for words in ("subnetworks: each replica trains a slice of the heads and hidden units, dealt anew after 5 steps",
                      "1 first and 1 last layers are whole in all", "slices that change hands", "what was learnt: its layers"):
            self.assertIn(words, out)
        for change, words in (("strategy.local_steps=1", "strategy.local_steps: '1' is not allowed"),
                              ("strategy.replicas=5", "strategy.replicas: '5' is not allowed; it must be from 2 to 4"),
                              ("strategy.subnetworks=blocks", "does not deal whole layers yet"),
                              ("strategy.whole_layers=2", "at least one layer is left to deal"),
                              ("compression.gradients=quant(4, token)", "it carries weights, too")):
            code, out, err = cluster.cli("plan", job, "--set", change)
            self.assertNotEqual(code, 0, change)
            self.assertIn(words, err)

    def test_it_learns_is_stopped_goes_on_and_is_exported(self):
        """Two chains of two stages, stopped and resumed; an ordinary process goes on from the merged model, which is exported."""
        cluster = self.cluster(4)
        options = self.options(strategy__stages=2, strategy__nodes=["d0", "d1", "d2", "d3"], strategy__layers_per_stage=[2, 2],
                               recipe__global_batch=4, recipe__micro_batch=2, recipe__steps=200, recipe__eval_every=50, checkpoint__every=0)
        job = cluster.job("parts", **options)
        cluster.submit(job)
        cluster.wait_state({"running"}, "parts", step=12)
        self.assertEqual(cluster.cli("stop", "parts")[0], 0)
        status = cluster.wait_state({"stopped"}, "parts")
        self.assertEqual(int(status["checkpoint_step"]) % 5, 0)
        self.assertLess(int(status["checkpoint_step"]), 200)
        stopped = int(status["checkpoint_step"])
        cluster.submit(job, "--resume")
        cluster.wait_state({"finished"}, "parts")
        losses = cluster.losses("parts")
        self.assertEqual(sorted(losses), list(range(200)))
        self.assertLess(sum(losses[s] for s in range(190, 200)), 0.75 * sum(losses[s] for s in range(10)))
        records = [json.loads(line) for line in cluster.cli("logs", "parts", "--json")[1].splitlines() if line.strip()]
        validations = {int(r["step"]): r["validation_loss"] for r in records if r.get("has_validation_loss")}
        self.assertLessEqual({50, 100, 150, 200} - set(validations), {stopped}, "a stop alone ends without one")
        self.assertLess(validations[200], losses[0])
        self.assertEqual(cluster.cli("checkpoints", "parts", "--verify")[0], 0)
        folder = os.path.join(cluster.dir, "model")
        code, out, err = cluster.cli("export", "parts", folder)
        self.assertEqual(code, 0, err)
        # One ordinary process trains on from the checkpoint, and begins where the merged model is.
        cluster.submit(cluster.job("parts", **{**options, "strategy__subnetworks": "none", "strategy__replicas": 1, "strategy__local_steps": 1,
                                               "strategy__stages": 1, "strategy__nodes": ["d0"], "strategy__layers_per_stage": [4],
                                               "recipe__steps": 201, "recipe__learning_rate": 1e-9, "recipe__eval_every": 1}),
                       "--resume", "--accept-changes", "--wait")
        cluster.wait_state({"finished"}, "parts")
        last = json.loads(cluster.cli("logs", "parts", "--json")[1].splitlines()[-1])
        self.assertLess(abs(last["validation_loss"] - validations[200]), 1e-4 * validations[200])
        code, out, err = cluster.cli("generate", folder, "The river ", "--tokens", "8", "--greedy")
        self.assertEqual(code, 0, err)

    def test_kill_minus_9_in_mid_round_and_a_resume_with_other_slices(self):
        cluster = self.cluster(3)
        options = self.options(strategy__replicas=3, recipe__global_batch=6, recipe__steps=4000, strategy__local_steps=7, checkpoint__every=14)
        cluster.submit(cluster.job(**options))
        cluster.wait_state({"running"}, step=30, stored=True)
        cluster.daemons["d1"].kill()
        status = cluster.wait_state({"paused"}, seconds=60)
        self.assertIn("d1", status["reason"])
        at = int(status["checkpoint_step"])
        self.assertGreaterEqual(at, 14)
        self.assertEqual(at % 7, 0)
        cluster.wait_nodes(2)
        cluster.submit(cluster.job(**{**options, "strategy__replicas": 2}), "--resume", "--accept-changes")
        cluster.wait_state({"running"}, step=at + 20)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        status = cluster.wait_state({"stopped"})
        self.assertEqual(int(status["checkpoint_step"]) % 7, 0)
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(max(losses) + 1)), "a step is missing from the log")


if __name__ == "__main__":
    main()
