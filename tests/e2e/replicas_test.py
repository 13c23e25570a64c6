"""Replicas as a user runs them: several chains of stages that train one model beside each other."""
import json
import os
import unittest

from harness import Cluster, main


class ReplicasTest(unittest.TestCase):
    def cluster(self, daemons):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def test_any_cut_gives_the_same_losses(self):
        cluster = self.cluster(4)
        names = ["d0", "d1", "d2", "d3"]
        runs = {}
        for stages in (1, 2):
            name = f"r2-s{stages}"
            # Named daemons and one micro-batch a replica: shares follow measured speed otherwise, and with them the samples.
            cluster.submit(cluster.job(name, strategy__stages=stages, strategy__replicas=2, strategy__nodes=names[:2 * stages],
                                       recipe__global_batch=4, recipe__micro_batch=2), "--wait")
            status = cluster.wait_state({"finished"}, name)
            runs[name] = cluster.losses(name)
            self.assertEqual(len(runs[name]), 20)
            links = {b["link_id"] for b in status["boundaries"]}
            self.assertEqual(links, {"g0-1"} if stages == 1 else {"b0.0", "b0.1", "g0-1", "g0-2", "g0-3", "g1-2", "g1-3", "g2-3"})
        for step, loss in runs["r2-s1"].items():
            self.assertLess(abs(loss - runs["r2-s2"][step]), 1e-5 * loss, f"step {step}")

    def compare(self, cluster, job):
        """The plan stands beside those that others would make on these daemons, priced alike."""
        code, out, err = cluster.cli("plan", job, "--compare", "--json")
        self.assertEqual(code, 0, err)
        plans = {plan["strategy"]: plan for plan in json.loads(out)["plans"]}
        self.assertEqual(list(plans), ["equal split", "genetic", "random", "no compression", "planner"])
        for plan in plans.values():
            self.assertEqual(plan["refusal"], "")
            self.assertEqual(len(plan["stages"]), 4)
            self.assertGreaterEqual(plan["times_ours"], 0.9, out)
        self.assertGreater(plans["random"]["tried"], 100)
        code, out, err = cluster.cli("plan", job, "--compare")
        self.assertEqual(code, 0, err)
        self.assertIn("TIMES OURS", out)

    def test_the_plan_says_who_holds_what_and_what_they_exchange(self):
        cluster = self.cluster(4)
        job = cluster.job(strategy__stages=2, strategy__replicas=2, compression__gradients="ef(quant(8, token))")
        code, out, err = cluster.cli("plan", job)
        self.assertEqual(code, 0, err)
        self.assertIn("2 replicas x 2 stages", out)
        for word in ("REPLICA", "SAMPLES", "SENT", "gradients: tied embedding", "replica 1, stage 0", "so that all end at about the same time", "buckets: the gradients of "):
            self.assertIn(word, out)
        self.compare(cluster, job)
        self.optimus(cluster)
        code, out, err = cluster.cli("plan", job, "--set", "strategy.replicas=3")
        self.assertNotEqual(code, 0)
        self.assertIn("3 replicas x 2 stages need 6 daemons; 4 are free", err)
        code, out, err = cluster.cli("plan", job, "--set", "compression.gradients=predict(quant(4))")
        self.assertNotEqual(code, 0)
        self.assertIn("compression.gradients", err)

    def optimus(self, cluster):
        """compress/OPTIMUS.md: gradients of an epilogue by lep, those of replicas by PowerSGD on one stage of two."""
        job = cluster.job("optimus", strategy__stages=2, strategy__replicas=2, recipe__steps=40, checkpoint__every=0, recipe__micro_batch=1,
                          compression__backward="lep(lowrank(4))", compression__backward_when="epilogue",
                          compression__gradients="lowrank(4)", compression__gradient_stages=1)
        code, out, err = cluster.cli("plan", job)
        self.assertEqual(code, 0, err)
        for words in ("lep(lowrank(4)) (epilogue)", "in the epilogue alone, the last", "gradients of a step go by lep(lowrank(4)), the others as fp32",
                      "with error feedback, as PowerSGD has it -> ef(lowrank(4)), on 1 of 2 stages (compression.gradient_stages)"):
            self.assertIn(words, out)
        cluster.submit(job)
        cluster.wait_state({"finished"}, "optimus")
        losses = cluster.losses("optimus")
        self.assertEqual(len(losses), 40)
        self.assertLess(sum(losses[s] for s in range(35, 40)), 0.85 * sum(losses[s] for s in range(5)))
        code, out, err = cluster.cli("logs", "optimus", "--json")
        errors = json.loads(out.splitlines()[-1])["lazy_errors"]
        self.assertEqual(sorted(e["link_id"] for e in errors), ["b0.0", "b0.1"])
        self.assertTrue(all(0 < e["relative_error"] <= 1 and abs(e.get("cosine", 0)) <= 1 for e in errors), errors)
        self.assertIn("lep cosine ", cluster.cli("logs", "optimus")[1])

    def test_local_steps_agree_now_and_then(self):
        cluster = self.cluster(4)
        options = dict(strategy__stages=2, strategy__replicas=2, strategy__local_steps=5, recipe__steps=43, checkpoint__every=12,
                       recipe__eval_every=10, compression__gradients="quant(4, token, symmetric)")
        job = cluster.job(**options)
        code, out, err = cluster.cli("plan", job)
        self.assertIn("local steps: each replica trains by itself, and after 5 steps all agree", out)
        self.assertIn("what was learnt: tied embedding", out)
        cluster.submit(job)
        status = cluster.wait_state({"finished"})
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(43)))
        self.assertLess(sum(losses[s] for s in range(38, 43)), 0.85 * sum(losses[s] for s in range(5)))
        records = [json.loads(line) for line in cluster.cli("logs", "job", "--json")[1].splitlines() if line.strip()]
        validated = [int(r["step"]) for r in records if r.get("has_validation_loss")]
        self.assertEqual(validated, [10, 20, 30, 40, 43])
        between = sum(int(b["wire_bytes"]) for b in status["boundaries"] if b["link_id"] in ("g0-2", "g1-3"))
        inside = sum(int(b["raw_bytes"]) for b in status["boundaries"] if b["link_id"] in ("g0-1", "g2-3"))
        self.assertLess(between, inside, "nine agreements of four bits take more than 43 exchanges of the tied embedding")
        # A checkpoint is of agreed weights: 12 is due at 15, and stored there.
        code, out, _ = cluster.cli("checkpoints", "job", "--json")
        steps = {int(c["step"]) for c in json.loads(out)["checkpoints"]}
        self.assertTrue(steps <= {15, 25, 40, 43}, steps)
        self.assertIn(43, steps)
        # It goes on from there, with another number of daemons.
        cluster.submit(cluster.job(**{**options, "strategy__stages": 1, "recipe__steps": 60}), "--resume", "--accept-changes", "--wait")
        status = cluster.wait_state({"finished"})
        self.assertEqual(int(status["step"]), 60)

    def test_local_steps_go_on_as_if_they_had_not_been_stopped(self):
        """Each replica has its own moments back, to the bit."""
        cluster = self.cluster(4)
        options = dict(strategy__stages=2, strategy__replicas=2, strategy__local_steps=5, strategy__nodes=["d0", "d1", "d2", "d3"],
                       strategy__layers_per_stage=[2, 2], recipe__global_batch=4, recipe__micro_batch=2, recipe__steps=200, checkpoint__every=0,
                       recipe__eval_samples=0, compression__gradients="none")
        cluster.submit(cluster.job("whole", **options), "--wait")
        cluster.wait_state({"finished"}, "whole")
        job = cluster.job("parts", **options)
        cluster.submit(job)
        cluster.wait_state({"running"}, "parts", step=20)
        self.assertEqual(cluster.cli("stop", "parts")[0], 0)
        status = cluster.wait_state({"stopped"}, "parts")
        at = int(status["checkpoint_step"])
        self.assertLess(at, 200)
        root = os.path.join(cluster.dir, "coordinator", "checkpoints", status["job_id"], f"step-{at:08d}", "stage-001")
        self.assertEqual(sorted(os.listdir(root)), ["optimizer.safetensors", "replica-001-optimizer.safetensors", "replica-001-state.json",
                                                    "state.json", "weights.safetensors"])
        cluster.submit(job, "--resume")
        cluster.wait_state({"finished"}, "parts")
        self.assertEqual(cluster.losses("parts"), cluster.losses("whole"))
        self.assertEqual(cluster.cli("checkpoints", "parts", "--verify")[0], 0)

    def test_a_frozen_second_moment_takes_momentum_of_few_bits(self):
        """recipe.optimizer quantized_adam: exact gradients, then few bits; stopped after the freeze, it goes on to the bit."""
        cluster = self.cluster(4)
        # A layer a stage: no buckets, whose number follows measured speed, and with it what a lossy codec makes of a gradient.
        options = dict(model__layers=2, strategy__stages=2, strategy__replicas=2, strategy__nodes=["d0", "d1", "d2", "d3"], strategy__layers_per_stage=[1, 1],
                       recipe__global_batch=4, recipe__micro_batch=2, recipe__steps=200, recipe__optimizer="quantized_adam",
                       recipe__optimizer_warmup=20, recipe__eval_samples=0, checkpoint__every=0,
                       compression__gradients="ef(quant(4, token, symmetric))", compression__tied="ef(quant(8, token, symmetric))")
        job = cluster.job("whole", **options)
        code, out, err = cluster.cli("plan", job)
        for words in ("optimiser: quantized_adam: 20 steps of AdamW on exact gradients", "momentum: its layers", "momentum: tied embedding"):
            self.assertIn(words, out)
        code, out, err = cluster.cli("plan", job, "--set", "strategy.replicas=1")
        self.assertNotEqual(code, 0)
        self.assertIn("strategy.replicas: '1' is not allowed; it must be 2 or more with recipe.optimizer quantized_adam", err)
        cluster.submit(job)
        cluster.wait_state({"finished"}, "whole")
        losses = cluster.losses("whole")
        self.assertLess(sum(losses[s] for s in range(195, 200)), 0.8 * sum(losses[s] for s in range(5)))
        records = [json.loads(line) for line in cluster.cli("logs", "whole", "--json")[1].splitlines() if line.strip()]
        sent = {int(r["step"]): int(r.get("wire_bytes", 0)) for r in records}
        self.assertLess(3 * sent[150], sent[10], "momentum in 4 and 8 bits, beside activations in fp32")
        job = cluster.job("parts", **options)
        cluster.submit(job)
        cluster.wait_state({"running"}, "parts", step=40)
        self.assertEqual(cluster.cli("stop", "parts")[0], 0)
        status = cluster.wait_state({"stopped"}, "parts")
        self.assertLess(int(status["checkpoint_step"]), 200)
        cluster.submit(job, "--resume")
        cluster.wait_state({"finished"}, "parts")
        self.assertEqual(cluster.losses("parts"), losses)
        # One replica is left: AdamW takes over its moments.
        alone = {**options, "strategy__replicas": 1, "strategy__nodes": ["d0", "d1"], "recipe__steps": 210, "recipe__optimizer": "adamw"}
        del alone["recipe__optimizer_warmup"]
        cluster.submit(cluster.job("parts", **alone), "--resume", "--accept-changes", "--wait")
        self.assertEqual(int(cluster.wait_state({"finished"}, "parts")["step"]), 210)

    def test_fragments_cross_while_training_goes_on(self):
        cluster = self.cluster(2)
        options = dict(strategy__stages=1, strategy__replicas=2, strategy__local_steps=8, strategy__fragments=2, strategy__fragment_delay=2,
                       recipe__steps=44, checkpoint__every=20, compression__gradients="ef(quant(4, token, symmetric))")
        job = cluster.job(**options)
        code, out, err = cluster.cli("plan", job)
        for words in ("streaming local steps: each replica trains by itself, and in 8 steps all agree", "on 2 fragments, layers 2 apart",
                      "while up to 2 steps go on", "what was learnt: its layers, in 2 parts"):
            self.assertIn(words, out)
        code, out, err = cluster.cli("plan", job, "--set", "strategy.fragment_delay=4")
        self.assertNotEqual(code, 0)
        self.assertIn("strategy.fragment_delay: '4' is not allowed", err)
        cluster.submit(job)
        cluster.wait_state({"finished"})
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(44)))
        self.assertLess(sum(losses[s] for s in range(39, 44)), 0.85 * sum(losses[s] for s in range(5)))
        records = [json.loads(line) for line in cluster.cli("logs", "job", "--json")[1].splitlines() if line.strip()]
        sent = {int(r["step"]): int(r.get("wire_bytes", 0)) for r in records}
        self.assertTrue(all(sent[s] > 0 for s in (4, 8, 12, 44)), sent)
        self.assertEqual(sent[7], 0, "nothing is under way between two fragments")
        # 20 is due at the end of a round, 24, where all agree.
        steps = {int(c["step"]) for c in json.loads(cluster.cli("checkpoints", "job", "--json")[1])["checkpoints"]}
        self.assertEqual(steps, {24, 40, 44})
        cluster.submit(cluster.job(**{**options, "recipe__steps": 60}), "--resume", "--accept-changes", "--wait")
        self.assertEqual(int(cluster.wait_state({"finished"})["step"]), 60)

    def test_a_killed_replica_pauses_the_job_and_the_others_go_on_from_the_checkpoint(self):
        cluster = self.cluster(4)
        options = dict(strategy__stages=2, strategy__replicas=2, recipe__steps=3000, checkpoint__every=10,
                       compression__forward="quant(8)", compression__backward="quant(8)", compression__gradients="quant(8, token, symmetric)")
        cluster.submit(cluster.job(**options), "--wait")
        cluster.wait_state({"running"}, step=25, stored=True)
        status = json.loads(cluster.cli("status", "job", "--json")[1])
        self.assertEqual(int(status["generation"]), 1)
        cluster.daemons["d2"].kill()
        status = cluster.wait_state({"paused"}, seconds=60)
        self.assertIn("d2", status["reason"])
        at = int(status["checkpoint_step"])
        self.assertGreaterEqual(at, 10)
        cluster.wait_nodes(3)
        # Three are left: three replicas of one stage.
        cluster.submit(cluster.job(**{**options, "strategy__stages": 1, "strategy__replicas": 3}), "--resume", "--wait")
        cluster.wait_state({"running"}, step=at + 20)
        code, out, _ = cluster.cli("status", "job")
        self.assertIn("REPLICA", out)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        cluster.wait_state({"stopped"})
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(max(losses) + 1)), "a step is missing from the log")
        early, late = [losses[s] for s in range(5)], [losses[s] for s in sorted(losses)[-5:]]
        self.assertLess(sum(late), 0.9 * sum(early))


if __name__ == "__main__":
    main()
