"""Networks that are not as their addresses say: one way only, the same address twice, paths that drop large packets."""
import json
import os
import time
import unittest

from harness import Cluster, main
from wan_cluster import WanCluster


class PathsTest(unittest.TestCase):
    def cluster(self, *args, kind=Cluster):
        cluster = kind(*args)
        self.addCleanup(cluster.close)
        return cluster

    def test_a_daemon_that_only_dials_takes_part(self):
        cluster = self.cluster()
        cluster.start_coordinator()
        cluster.start_daemon("open")
        cluster.start_daemon("closed", "--advertise", "127.0.0.1:9")  # nobody listens there
        cluster.wait_nodes(2)
        job = cluster.job(strategy__nodes=["open", "closed"], recipe__steps=5)
        cluster.submit(job)  # it waits until the way that works is measured, too
        cluster.wait_state({"finished"})
        plan = cluster.status()["plan"]
        self.assertTrue(all(link.get("upper_dials") for link in plan["links"]), plan["links"])

    def test_a_second_daemon_at_an_address_is_refused_naming_both(self):
        cluster = self.cluster().start(1)
        address = json.loads(cluster.cli("nodes", "--json")[1])["nodes"][0]["node"]["address"]
        second = cluster.start_daemon("d1", "--advertise", address)
        self.assertEqual(second.process.wait(60), 5, second.text())
        self.assertIn("d1", second.text())
        self.assertIn("advertises the address of d0", second.text())
        self.assertIn("--advertise", second.text())

    def test_a_daemon_that_joins_while_a_job_runs_takes_part_in_the_next(self):
        cluster = self.cluster()
        cluster.start_coordinator()
        cluster.start_daemon("busy")
        cluster.wait_nodes(1)
        cluster.submit(cluster.job("long", strategy__stages=1, recipe__steps=100000, checkpoint__every=100000))
        cluster.wait_state({"running"}, "long")
        for host in (2, 3):  # hosts of their own
            cluster.start_daemon(f"late{host}", listen=f"127.0.0.{host}:0")
        cluster.wait_nodes(3)
        cluster.submit(cluster.job("next", recipe__steps=5, strategy__nodes=["late2", "late3"]))
        cluster.wait_state({"finished"}, "next")
        self.assertEqual(cluster.status("long")["state"], "running")

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
    def test_a_path_that_drops_large_packets_is_named_and_avoided(self):
        cluster = self.cluster(4, kind=WanCluster)
        cluster.wait_nodes(3)
        self.assertEqual(cluster.cli("nodes", "--wait", "3", "--timeout", "90")[0], 0)
        cluster.set("n1", "n2", "--drop-over", "1280")
        cluster.submit(cluster.job(strategy__nodes=["d1", "d2"], recipe__steps=5))
        status = cluster.wait_state({"failed"}, seconds=90)
        self.assertIn("small messages pass, but one of 4096 bytes", status["reason"])
        self.assertIn("mtu 1280", status["reason"])
        code, _, err = cluster.cli("submit", cluster.job("again", strategy__nodes=["d1", "d2"]))
        self.assertNotEqual(code, 0)
        self.assertIn("small messages pass, but one of 4096 bytes", err)
        cluster.submit(cluster.job("other", strategy__stages=2, recipe__steps=5))  # by another host
        cluster.wait_state({"finished"}, "other")
        cluster.set("n1", "n2", "--drop-over", "0")
        end = time.monotonic() + 150  # it is measured again
        while cluster.cli("plan", cluster.job("again", strategy__nodes=["d1", "d2"]))[0] != 0:
            self.assertLess(time.monotonic(), end, cluster.logs())
            time.sleep(2)

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
    def test_a_slow_link_is_measured_rather_than_refused(self):
        for rate, least in (("64kbit", 3e4), ("200kbit", 1e5)):
            cluster = self.cluster(3, rate, kind=WanCluster)
            self.assertEqual(cluster.cli("nodes", "--wait", "2", "--timeout", "90")[0], 0, cluster.logs())
            links = json.loads(cluster.cli("nodes", "--json")[1])["links"]
            self.assertEqual(len(links), 2, links)
            for link in links:
                self.assertEqual(link.get("error", ""), "", links)
                self.assertGreater(float(link["rate_bits_per_s"]), least, links)
                self.assertLess(float(link["rate_bits_per_s"]), 4 * least, links)
            cluster.close()

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
    def test_auto_takes_fewer_bits_of_the_tied_embedding_on_a_slow_line(self):
        sent = {}
        # Steps of some compute: of short ones even a fast line takes a share, as large as the load of the machine makes it.
        longer = {"model__hidden": 128, "model__context": 128}
        for rate, bits in (("1Gbit", 8), ("2Mbit", 4)):
            cluster = self.cluster(3, rate, "5ms", kind=WanCluster)
            self.assertEqual(cluster.cli("nodes", "--wait", "2", "--timeout", "90")[0], 0, cluster.logs())
            job = cluster.job(recipe__steps=5, strategy__nodes=["d1", "d2"], compression__tied="auto", **longer)
            code, out, err = cluster.cli("plan", job)
            self.assertEqual(code, 0, err)
            self.assertIn(f"quant({bits}, token, symmetric)", out)
            cluster.submit(job)
            status = cluster.wait_state({"finished"}, seconds=180)
            tied = [b for b in status["boundaries"] if b["link_id"] == "tied"]
            self.assertEqual(len(tied), 2, status["boundaries"])
            sent[rate] = sum(int(b["wire_bytes"]) for b in tied)
            cluster.close()
        self.assertLess(1.6 * sent["2Mbit"], sent["1Gbit"], "half of the bits, and frames' headers")

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/net/tun"), "the emulator needs root and /dev/net/tun")
    def test_a_lossy_line_that_one_connection_does_not_fill_gets_several(self):
        # One connection of a congestion control that takes losses for a full line has about 3 Mbit/s of the 100. How soon the first packet is lost is luck.
        cluster = self.cluster(3, "100Mbit", "25ms", "1%", "reno", kind=WanCluster)
        self.assertEqual(cluster.cli("nodes", "--wait", "2", "--timeout", "120")[0], 0, cluster.logs())
        links = json.loads(cluster.cli("nodes", "--json")[1])["links"]
        most = max(link.get("connections", 0) for link in links)
        self.assertGreaterEqual(most, 2, links)
        self.assertIn("TCP connections side by side", cluster.cli("nodes")[1])
        cluster.submit(cluster.job(recipe__steps=5, strategy__nodes=["d1", "d2"]))
        cluster.wait_state({"finished"}, seconds=180)
        plan = cluster.status()["plan"]
        self.assertEqual({link.get("connections", 0) for link in plan["links"]}, {most}, plan["links"])
        self.assertIn("TCP connections side by side were measured", "\n".join(plan["explanation"]))


if __name__ == "__main__":
    main()
