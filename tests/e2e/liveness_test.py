"""A coordinator that stands still, one whose uplink fails, and links that break for seconds: healthy jobs train on and nothing is thrown back."""
import os
import signal
import socket
import threading
import time
import unittest

from harness import Cluster, main

LEASE = ("--lease", "5")


class Gate:
    """A TCP proxy to `target` that can stop passing bytes: connections stay, as on a path that drops every packet."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self.target = (host, int(port))
        self.open = threading.Event()
        self.open.set()
        self.sockets = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
                upstream = socket.create_connection(self.target)
            except OSError:
                return
            self.sockets += [client, upstream]
            for s in (client, upstream):  # gRPC does so too, and steps wait for small messages
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for a, b in ((client, upstream), (upstream, client)):
                threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    def copy(self, a, b):
        try:
            while data := a.recv(65536):
                self.open.wait()
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        """Ends all connections; new ones pass nothing until it is open again."""
        self.open.clear()
        while self.sockets:
            s = self.sockets.pop()
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def close(self):
        self.open.set()
        for s in [self.server, *self.sockets]:
            s.close()


class LivenessTest(unittest.TestCase):
    def cluster(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        cluster.start_coordinator("127.0.0.1:0", *LEASE)
        return cluster

    def goes_on(self, cluster, at):
        """The job still runs its first plan, beyond step `at`, and no step is missing."""
        status = cluster.wait_state({"running"}, seconds=60, step=at)
        self.assertEqual(int(status["generation"]), 1, status)
        self.assertEqual(cluster.cli("stop", "job")[0], 0, cluster.logs())
        status = cluster.wait_state({"stopped"})
        losses = cluster.losses()
        self.assertEqual(sorted(losses), list(range(int(status["step"]))))

    def test_a_coordinator_that_stood_still_calls_nobody_lost(self):
        cluster = self.cluster()
        for name in ("d0", "d1"):
            cluster.start_daemon(name)
        cluster.wait_nodes(2)
        cluster.submit(cluster.job(recipe__steps=100000, checkpoint__every=100000))
        at = int(cluster.wait_state({"running"}, step=5)["step"])
        os.kill(cluster.coordinator.process.pid, signal.SIGSTOP)
        time.sleep(12)
        os.kill(cluster.coordinator.process.pid, signal.SIGCONT)
        cluster.coordinator.wait_for("stood still for", 20)
        self.goes_on(cluster, at + 20)
        self.assertNotIn("is lost", cluster.coordinator.text())

    def test_a_coordinator_without_its_uplink_takes_back_what_trained_on(self):
        cluster = self.cluster()
        gate = Gate(cluster.address)
        self.addCleanup(gate.close)
        for name in ("d0", "d1"):
            cluster.start_daemon(name, coordinator=gate.address)
        cluster.wait_nodes(2)
        cluster.submit(cluster.job(recipe__steps=100000, checkpoint__every=100000))
        at = int(cluster.wait_state({"running"}, step=5)["step"])
        gate.open.clear()
        cluster.coordinator.wait_for("no heartbeat for", 30)
        status = cluster.status()
        self.assertEqual(status["state"], "running", status)
        gate.open.set()
        cluster.wait_nodes(2)
        self.goes_on(cluster, at + 20)

    def test_one_daemon_without_its_way_to_the_coordinator_trains_on(self):
        cluster = self.cluster()
        gate = Gate(cluster.address)
        self.addCleanup(gate.close)
        cluster.start_daemon("d0")
        cluster.start_daemon("d1", coordinator=gate.address)
        cluster.wait_nodes(2)
        cluster.submit(cluster.job(recipe__steps=100000, checkpoint__every=100000))
        at = int(cluster.wait_state({"running"}, step=5)["step"])
        gate.open.clear()
        cluster.coordinator.wait_for("daemon d1 is lost: no heartbeat for", 30)
        time.sleep(6)  # more than a lease
        status = cluster.status()
        self.assertEqual(status["state"], "running", status)
        self.assertIn("daemon d1 is silent: nothing was heard of it for", " ".join(status["warnings"]))
        gate.open.set()
        cluster.wait_nodes(2)
        self.goes_on(cluster, at + 20)

    def test_links_whose_connections_break_for_seconds_go_on_where_they_were(self):
        cluster, gates = self.cluster(), []
        for name in ("d0", "d1"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                address = "127.0.0.1:%d" % free.getsockname()[1]
            gates.append(Gate(address))
            self.addCleanup(gates[-1].close)
            cluster.start_daemon(name, "--advertise", gates[-1].address, listen=address)
        cluster.wait_nodes(2)
        for name in ("disturbed", "undisturbed"):
            cluster.submit(cluster.job(name, recipe__steps=250, checkpoint__every=1000, strategy__nodes=["d0", "d1"],
                                       strategy__layers_per_stage=[2, 2],  # the planner's own cut follows measured steps
                                       compression__forward="delta(quant(4))", compression__backward="quant(6)"))
            generation = cluster.wait_state({"running"}, name, step=20)["generation"]
            if name == "disturbed":
                for gate in gates:
                    gate.cut()
                cluster.wait_for(lambda: "dialling again" in cluster.status("disturbed").get("reason", ""), 10)
                time.sleep(4)
                for gate in gates:
                    gate.open.set()
            status = cluster.wait_state({"finished", "paused", "failed"}, name)
            self.assertEqual((status["state"], status["generation"]), ("finished", generation), cluster.logs())
        self.assertEqual(cluster.losses("disturbed"), cluster.losses("undisturbed"))
        for daemon in cluster.daemons.values():
            self.assertIn("goes on after", daemon.text())


if __name__ == "__main__":
    main()
