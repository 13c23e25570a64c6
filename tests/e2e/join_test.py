"""Hosts join by a token as users do it: two daemons train, and every other way in is refused with words and an exit code of its own."""
import json
import os
import socket
import subprocess
import time
import unittest

from harness import BIN, Cluster, Program, main


class JoinCluster(Cluster):
    """A coordinator with an authority beside it; daemons come with a token alone."""

    def __init__(self):
        super().__init__()
        self.ca_dir = os.path.join(self.dir, "ca")
        self.ca("init")
        self.ca("issue", "coordinator", "--role", "coordinator")
        self.ca("issue", "ada", "--role", "operator")
        self.join = None

    def ca(self, *args, dir=None):
        done = subprocess.run([f"{BIN}/isthmus", "ca", *args, "--dir", dir or self.ca_dir], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"isthmus ca {args}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def tls(self, name):
        return os.path.join(self.ca_dir, "certificates", name)

    def start_coordinator(self, address="127.0.0.1:0", *flags):
        p = super().start_coordinator(address, "--tls-dir", self.tls("coordinator"), "--ca", self.ca_dir, "--join-listen", self.join or "127.0.0.1:0", *flags)
        self.join = p.wait_for("joins on", 30).split()[-1]
        return p

    def token(self, *flags, address=None, dir=None):
        return self.ca("token", "create", "--address", address or self.join, *flags, dir=dir).strip()

    def start_joining(self, state, *flags):
        p = Program(state, [f"{BIN}/isthmusd", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--state-dir", os.path.join(self.dir, state),
                            "--data-dir", self.data, "--threads", "1", *flags], os.path.join(self.dir, state + ".log"))
        self.programs.append(p)
        self.daemons[state] = p
        return p

    def cli(self, *args, seconds=120):
        r = subprocess.run([f"{BIN}/isthmus", "--coordinator", self.address, "--tls-dir", self.tls("ada"), *args], capture_output=True, timeout=seconds)
        return r.returncode, r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")


class JoinTest(unittest.TestCase):
    def refused(self, cluster, code, words, *flags, text=None):
        self.count = getattr(self, "count", 0) + 1
        state = os.path.join(cluster.dir, f"stranger{self.count}")
        done = subprocess.run([f"{BIN}/isthmusd", "--listen", "127.0.0.1:0", "--http", "", "--state-dir", state, "--data-dir", cluster.data, *flags],
                              input=text, capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, code, said)
        self.assertIn(words, said)
        self.assertFalse(os.path.exists(os.path.join(state, "tls", "cert.pem")), said)
        return said

    def test_two_hosts_join_by_one_token_and_everybody_else_is_refused(self):
        c = JoinCluster()
        self.addCleanup(c.close)
        c.start_coordinator()
        token = c.token("--uses", "2", "--name", "gpu-*")
        file = os.path.join(c.dir, "token")
        with open(file, "w") as f:
            f.write(token + "\n")
        c.start_joining("a", "--join", token)
        with open(f"/proc/{c.daemons['a'].process.pid}/cmdline", "rb") as f:
            c.daemons["a"].wait_for("listening on", 90)
            self.assertNotIn(token.encode(), f.read(), "other users could read it")
        os.environ["ISTHMUS_TLS_DIR"] = os.path.join(c.dir, "gone")  # what is typed wins
        c.start_joining("b", "--join-file", file)
        del os.environ["ISTHMUS_TLS_DIR"]
        nodes = c.wait_nodes(2)
        self.assertEqual({n["node"]["name"] for n in nodes}, {"gpu-1", "gpu-2"})
        c.submit(c.job(recipe__steps=40000, checkpoint__every=1000))
        c.wait_state({"running"}, step=1)

        self.refused(c, 5, "is used up: 2 hosts have joined by it", "--join", "-", text=token + "\n")
        once = c.token("--name", "pc")
        c.start_joining("pc", "--join", once)
        c.wait_nodes(3)
        self.refused(c, 5, "is used up: 1 host has joined by it", "--join", once)  # replayed
        self.refused(c, 5, "a certificate of pc holds already", "--join", c.token("--name", "pc"))
        soon = c.token("--life", "1s")
        id_ = [t["id"] for t in json.loads(c.ca("token", "list", "--json"))["tokens"]][-1]
        c.wait_for(lambda: json.loads(c.ca("token", "list", "--json"))["tokens"][-1]["state"] == "expired", 30)
        self.refused(c, 5, f"join token {id_} expired on", "--join", soon)
        gone = c.token()
        c.ca("token", "revoke", json.loads(c.ca("token", "list", "--json"))["tokens"][-1]["id"])
        self.refused(c, 5, "was revoked", "--join", gone)
        other = os.path.join(c.dir, "other-ca")
        c.ca("init", dir=other)
        self.refused(c, 5, "the token is of another cluster", "--join", c.token(dir=other))
        garbled = token[:60] + ("x" if token[60] != "x" else "y") + token[61:]
        self.refused(c, 2, "was mistyped or cut off", "--join", garbled)
        self.refused(c, 2, "does not begin with isthmus-join-", "--join", "-", text="hello\n")
        self.refused(c, 1, "is it the port of --join-listen?", "--join", c.token(address=c.address))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))  # and listens not
            self.refused(c, 1, "nobody answers at 127.0.0.1:", "--join", c.token(address="127.0.0.1:%d" % s.getsockname()[1]))

        # What joined needs no token any more, and is the same node again.
        self.assertEqual(c.daemons["pc"].terminate(15), 0)
        c.start_joining("pc", "--join", "spent").wait_for("joined before as pc (worker)", 60)
        self.assertEqual({n["node"]["id"] for n in c.wait_nodes(3)}, {"gpu-1", "gpu-2", "pc"})

        status = c.status()
        self.assertEqual((status["state"], status["generation"]), ("running", 1), "the job is unharmed")
        entries = [(e["call"], e["what"], e["outcome"]) for e in json.loads(c.cli("audit", "--json")[1])["entries"]]
        self.assertEqual(len([e for e in entries if e[0] == "Join.Join" and e[2] == "ok"]), 3, entries)
        self.assertTrue(any("is used up" in e[2] for e in entries), entries)
        secrets = [token[-40:]]
        for state in ("a", "b"):
            with open(os.path.join(c.dir, state, "tls", "key.pem")) as f:
                secrets.append(f.read().splitlines()[1])
        for secret in secrets:
            self.assertNotIn(secret, c.logs())
            self.assertNotIn(secret, json.dumps(entries))
        code, _, err = c.cli("stop", "job", "--now")
        self.assertIn(code, (0, 6), err)

    def test_certificates_renew_themselves_under_a_running_job(self):
        c = JoinCluster()
        self.addCleanup(c.close)
        c.start_coordinator()
        token = c.token("--uses", "2", "--certificate-life", "30s")
        for state in ("a", "b"):
            c.start_joining(state, "--join", token)
        c.wait_nodes(2)
        c.submit(c.job(recipe__steps=400000, checkpoint__every=100000))
        c.wait_state({"running"}, step=1)
        for state in ("a", "b"):
            c.daemons[state].wait_for("is renewed until", 60)
        first = [x for x in json.loads(c.ca("list", "--json"))["certificates"] if x["role"] == "worker"]
        self.assertEqual({x["name"] for x in first}, {"node-1", "node-2"})
        ended = max(min(x["until_unix_ms"] for x in first if x["name"] == name) for name in ("node-1", "node-2")) / 1000
        c.wait_for(lambda: time.time() > ended + 1, 60)
        # What the daemons dial and serve from now on is past the end of their first certificates.
        self.assertEqual(c.coordinator.terminate(15), 0)
        c.start_coordinator(c.address)
        c.wait_nodes(2)
        c.start_joining("c", "--join", c.token("--name", "c"))  # measures its links to the others
        c.wait_nodes(3)
        before = c.status()["step"]
        c.wait_for(lambda: c.status()["step"] > before, 60)
        self.assertEqual((c.status()["state"], c.status()["generation"]), ("running", 1), "the job is unharmed")
        for state in ("a", "b"):
            self.assertNotIn("expired", c.daemons[state].text())
        code, _, err = c.cli("stop", "job", "--now")
        self.assertIn(code, (0, 6), err)


if __name__ == "__main__":
    main()
