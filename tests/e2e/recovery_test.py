"""Jobs that go on by themselves: after kill -9 with and without a spare daemon, after drain, after a coordinator that died too.

  ISTHMUS_KILLS=100 ISTHMUS_SEED=7 tests/e2e/recovery_test.py RecoveryTest.test_seeded_kills    the long proof; CI kills a few times
"""
import json
import os
import random
import unittest

from harness import Cluster, main

KILLS = int(os.environ.get("ISTHMUS_KILLS", "2"))
SEED = int(os.environ.get("ISTHMUS_SEED", "1"))
ENDS = {"finished", "paused", "failed", "stopped"}


class RecoveryTest(unittest.TestCase):
    def cluster(self, daemons):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        return cluster.start(daemons)

    def job(self, cluster, name="job", steps=100000):
        # A constant rate, so that runs of any number of steps compare.
        return cluster.job(name, recipe__steps=steps, recipe__schedule="constant", recipe__warmup_steps=5, checkpoint__every=10,
                           recovery__automatic=True)

    def holders(self, cluster):
        nodes = json.loads(cluster.cli("nodes", "--json")[1])["nodes"]
        return [n["node"]["name"] for n in nodes if n.get("job_id")]

    def recovered(self, cluster, times=1, seconds=90):
        """Waits until the job has gone on by itself so many times, and commits steps again."""
        cluster.wait_for(lambda: int(cluster.status().get("recoveries", 0)) >= times, seconds)
        step = int(cluster.status()["checkpoint_step"])
        cluster.wait_for(lambda: cluster.status()["state"] in ENDS or int(cluster.status()["step"]) > step, seconds)

    def check_whole(self, cluster):
        """Stops it; every step is there once."""
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(int(cluster.status()["step"]))))
        return losses

    def check_undisturbed(self, cluster, losses):
        """The model learnt what it learns undisturbed."""
        cluster.submit(self.job(cluster, "undisturbed", len(losses)))
        self.assertEqual(cluster.wait_state(ENDS, "undisturbed", seconds=300)["state"], "finished")
        for step, loss in cluster.losses("undisturbed").items():
            self.assertAlmostEqual(losses[step], loss, delta=1e-5, msg=f"step {step + 1}")

    def test_a_spare_takes_the_layers_of_a_daemon_that_is_killed(self):
        cluster = self.cluster(3)
        cluster.submit(self.job(cluster))
        cluster.wait_state({"running"}, step=25)
        dead = self.holders(cluster)[0]
        cluster.daemons[dead].kill()
        self.recovered(cluster)
        self.assertNotIn(dead, self.holders(cluster))
        self.assertIn("It went on by itself after an interruption 1 time", cluster.cli("status", "job")[1])
        self.check_whole(cluster)
        self.assertIn("by itself", cluster.coordinator.text())

    def test_without_a_spare_it_waits_for_the_daemon_to_come_back(self):
        cluster = self.cluster(2)
        cluster.submit(self.job(cluster))
        cluster.wait_state({"running"}, step=25)
        cluster.daemons["d1"].kill()
        status = cluster.wait_state({"pending"})
        cluster.wait_for(lambda: "waiting for daemons" in cluster.status()["reason"])
        self.assertIn("by itself", status["reason"])
        cluster.start_daemon("d1")
        self.recovered(cluster)
        self.check_whole(cluster)

    def test_the_coordinator_dies_with_a_daemon(self):
        cluster = self.cluster(2)
        cluster.submit(self.job(cluster))
        cluster.wait_state({"running"}, step=25)
        cluster.coordinator.kill()
        cluster.daemons["d1"].kill()
        cluster.start_coordinator(cluster.address)
        cluster.start_daemon("d1")
        self.recovered(cluster)
        self.check_whole(cluster)

    def test_a_drained_daemon_leaves_after_a_checkpoint_and_gets_no_job(self):
        cluster = self.cluster(3)
        cluster.submit(self.job(cluster))
        cluster.wait_state({"running"}, step=25)
        drained = self.holders(cluster)[1]
        code, out, err = cluster.cli("drain", drained)
        self.assertEqual(code, 0, err)
        self.assertIn(f"{drained} gets no job until `isthmus drain {drained} --undo`; it leaves job-1", out)
        self.recovered(cluster)
        self.assertNotIn(drained, self.holders(cluster))
        self.assertIn("alive, drained", cluster.cli("nodes")[1])
        cluster.daemons[drained].kill()  # it stays drained
        cluster.start_daemon(drained)
        cluster.wait_nodes(3)
        self.check_whole(cluster)
        named = cluster.job("named", recipe__steps=5, strategy__stages=1, strategy__nodes=[drained])
        code, _, err = cluster.cli("submit", named)
        self.assertNotEqual(code, 0)
        self.assertIn(f"{drained} is drained (isthmus drain {drained} --undo)", err)
        self.assertEqual(cluster.cli("drain", drained, "--undo")[0], 0)
        cluster.submit(named)
        self.assertEqual(cluster.wait_state(ENDS, "named")["state"], "finished")
        code, _, err = cluster.cli("drain", "nobody")
        self.assertNotEqual(code, 0)
        self.assertIn("no daemon is called 'nobody'", err)

    def test_seeded_kills(self):
        cluster = self.cluster(3)
        chance, held = random.Random(SEED), False
        cluster.submit(self.job(cluster))
        for kill in range(KILLS):
            at = int(cluster.status()["step"]) + chance.randrange(5, 60)
            status = cluster.wait_state({"running", *ENDS}, step=at, seconds=120)
            self.assertEqual(status["state"], "running", f"kill {kill}: {status}\n{cluster.logs()}")
            victim = chance.choice(sorted(cluster.daemons))
            held = held or victim in self.holders(cluster)
            cluster.daemons[victim].kill()
            cluster.start_daemon(victim)
            cluster.wait_nodes(3)
            # A spare that is killed interrupts nothing.
            cluster.wait_for(lambda: cluster.status()["state"] in {"running", *ENDS}, 90)
        cluster.wait_for(lambda: not held or int(cluster.status().get("recoveries", 0)) > 0, 90)
        step = int(cluster.status()["step"])
        cluster.wait_state({"running", *ENDS}, step=step + 5, seconds=120)
        self.check_undisturbed(cluster, self.check_whole(cluster))


if __name__ == "__main__":
    main()
