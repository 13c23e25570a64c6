"""A running job whose link gets slow, and quick again: it takes other codecs each time, by itself."""
import os
import unittest

from harness import main
from wan_cluster import WanCluster


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
class FollowTest(unittest.TestCase):
    def codecs(self, cluster):
        link = cluster.status()["plan"]["links"][0]
        return link["forward"], link["backward"]

    def moved(self, cluster, times, seconds):
        """Waits until it has taken a new plan so many times, and commits steps under it."""
        cluster.wait_for(lambda: int(cluster.status().get("moves", 0)) >= times, seconds)
        cluster.wait_for(lambda: cluster.status()["state"] == "running")
        step = int(cluster.status()["step"])
        cluster.wait_for(lambda: int(cluster.status()["step"]) > step + 2)

    def test_codecs_follow_a_link_down_and_up_again(self):
        cluster = WanCluster(3, "100Mbit", "2ms")
        self.addCleanup(cluster.close)
        self.assertEqual(cluster.cli("nodes", "--wait", "2", "--timeout", "90")[0], 0)
        # Frames of 512 KiB as fp32, and so little to compute for them that at 1 Mbit/s 2 bits forwards are worth their price of 6 % of a
        # step down to 3 GFLOP/s a host: then the way back gains more than the least that a move must. Gradients are never in the way.
        cluster.submit(cluster.job(model={"layers": 2, "hidden": 64, "heads": 4, "context": 128}, recipe__steps=100000, recipe__global_batch=128,
                                   recipe__micro_batch=16, compression={"min_bits": 2, "backward": "lowrank(1)"}, checkpoint__every=0,
                                   strategy__nodes=["d1", "d2"],  # in this order: the way that is seen to be slow first is not avoided
                                   recovery__follow=True))
        cluster.wait_state({"running"}, step=10)
        quick = self.codecs(cluster)
        cluster.set("n1", "n2", "--rate", "1Mbit")
        self.moved(cluster, 1, 240)
        slow = self.codecs(cluster)
        self.assertNotEqual(slow, quick)
        words = cluster.cli("status", "job")[1]
        self.assertRegex(words, r"Links: link b0 \(d\d -> d\d\) carries [\d.]+ [kM]bit/s, where [\d.]+ Mbit/s were measured")
        self.assertIn("a new plan is taken: a step costs", words)
        self.assertIn("It took another plan for its links 1 time", words)
        cluster.set("n1", "n2", "--rate", "100Mbit")
        self.moved(cluster, 2, 480)  # a slow link is looked at again after 30 s, then 60, 120, ...
        self.assertNotEqual(self.codecs(cluster), slow)
        self.assertEqual(cluster.cli("stop", "job")[0], 0)
        status = cluster.wait_state({"stopped"})
        self.assertEqual(int(status.get("recoveries", 0)), 0)
        self.assertEqual(sorted(cluster.losses()), list(range(int(status["step"]))))
        self.assertIn("a new plan is taken: a step costs", cluster.programs[1].text())


if __name__ == "__main__":
    main()
