"""Codec states outlive a session: a job that is stopped or killed and resumed goes on as if it had not been."""
import json
import os
import time
import unittest

from harness import Cluster, main, small_text

# Runs are compared bit by bit, so they have one cut: the planner's own follows what steps of the job before took.
CODECS = {"compression__forward": "delta(quant(3))", "compression__backward": "ef(quant(4))", "compression__check_buffers": True,
          "strategy__layers_per_stage": [2, 2]}


class StateTest(unittest.TestCase):
    def cluster(self):
        cluster = Cluster(text=small_text(2600))  # 9 steps a pass: most visits are warm
        self.addCleanup(cluster.close)
        return cluster.start(2)

    def records(self, cluster, job):
        code, out, err = cluster.cli("logs", job, "--json")
        self.assertEqual(code, 0, err)
        return {int(r["step"]): r for r in map(json.loads, out.splitlines())}

    def states(self, cluster, name):
        root = os.path.join(cluster.dir, name, "codec-state")
        return {job: sorted(os.listdir(os.path.join(root, job))) for job in os.listdir(root)} if os.path.isdir(root) else {}

    def whole(self, cluster, steps):
        cluster.submit(cluster.job("whole", recipe__steps=steps, **CODECS))
        cluster.wait_state({"finished"}, "whole")
        return self.records(cluster, "whole")

    def compare(self, cluster, whole, job):
        parts = self.records(cluster, job)
        self.assertEqual(sorted(parts), sorted(whole))
        for step in whole:
            self.assertEqual(parts[step]["loss"], whole[step]["loss"], f"step {step}\n{cluster.logs()}")
        self.assertEqual(sum(int(r.get("key_frames", 0)) for r in parts.values()),
                         sum(int(r.get("key_frames", 0)) for r in whole.values()))

    def test_a_stopped_job_goes_on_as_if_it_had_not_been_stopped(self):
        cluster = self.cluster()
        whole = self.whole(cluster, 120)
        self.assertGreater(int(whole[1]["key_frames"]), 0)
        cluster.submit(cluster.job("parts", recipe__steps=120, **CODECS))
        for step in (20, 60):
            cluster.wait_state({"running"}, "parts", step=step)
            self.assertEqual(cluster.cli("stop", "parts")[0], 0)
            status = cluster.wait_state({"stopped"}, "parts")
            self.assertLess(int(status["step"]), 120)
            cluster.submit(cluster.job("parts", recipe__steps=120, **CODECS), "--resume")
        cluster.wait_state({"finished"}, "parts")
        self.compare(cluster, whole, "parts")
        for d in ("d0", "d1"):
            self.assertIn("goes on", cluster.daemons[d].text())
            for files in self.states(cluster, d).values():
                self.assertLessEqual(len(files), 2 * 2 + 2)  # two steps of two directions, and of the tied gradient

    def test_killed_daemons_go_on_from_the_last_checkpoint(self):
        cluster = self.cluster()
        steps = 400
        whole = self.whole(cluster, steps)
        cluster.submit(cluster.job("killed", recipe__steps=steps, **CODECS))
        cluster.wait_state({"running"}, "killed", step=22, stored=True)
        for name in ("d0", "d1"):
            cluster.daemons[name].kill()
        cluster.wait_state({"paused"}, "killed")
        for name in ("d0", "d1"):
            cluster.start_daemon(name)
        cluster.wait_nodes(2)
        if cluster.status("killed")["state"] == "paused":
            cluster.submit(cluster.job("killed", recipe__steps=steps, **CODECS), "--resume")
        cluster.wait_state({"finished"}, "killed")
        text = "".join(d.text() for d in cluster.daemons.values())
        self.assertIn("codec states of checkpoint", text)
        losses = {step: r["loss"] for step, r in self.records(cluster, "killed").items()}
        self.assertEqual(sorted(losses), sorted(whole))
        if " new" not in text:  # else the kill came while the last checkpoint's states were being saved
            self.assertEqual(losses, {step: r["loss"] for step, r in whole.items()})

    def test_a_lost_disk_costs_the_state_alone(self):
        cluster = self.cluster()
        cluster.submit(cluster.job("lost", recipe__steps=120, **CODECS))
        cluster.wait_state({"running"}, "lost", step=20)
        self.assertEqual(cluster.cli("stop", "lost")[0], 0)
        cluster.wait_state({"stopped"}, "lost")
        root = os.path.join(cluster.dir, "d1", "codec-state")
        for job, files in self.states(cluster, "d1").items():
            for name in files:
                with open(os.path.join(root, job, name), "r+b") as f:
                    f.seek(60)
                    f.write(b"\xff\x00\xff")
        cluster.submit(cluster.job("lost", recipe__steps=120, **CODECS), "--resume")
        cluster.wait_state({"finished"}, "lost")
        self.assertIn("is of no use", cluster.daemons["d1"].text())
        self.assertIn("new, the peer has no state", cluster.daemons["d0"].text())
        self.assertIn("new, not here", cluster.daemons["d1"].text())


if __name__ == "__main__":
    main()
