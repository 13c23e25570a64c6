"""Real programs over TLS: a job trains, and everybody who comes with the wrong certificate, a lost one or none is refused with words of its own."""
import json
import os
import select
import shutil
import socket
import subprocess
import unittest

from harness import BIN, Cluster, Program, main



class TlsCluster(Cluster):
    """As Cluster, with an authority; `tls` of a name is its folder."""

    def __init__(self):
        super().__init__()
        self.ca_dir = os.path.join(self.dir, "ca")
        self.ca("init")
        self.issue("coordinator", "coordinator")
        self.issue("ada", "operator")
        self.user = "ada"

    def ca(self, *args, dir=None):
        done = subprocess.run([f"{BIN}/isthmus", "ca", *args, "--dir", dir or self.ca_dir], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"isthmus ca {args}: exit {done.returncode}\n{done.stderr}")
        return done.stdout

    def issue(self, name, role):
        self.ca("issue", name, "--role", role)
        return self.tls(name)

    def tls(self, name):
        return os.path.join(self.ca_dir, "certificates", name)

    def start_coordinator(self, address="127.0.0.1:0", *flags):
        return super().start_coordinator(address, "--tls-dir", self.tls("coordinator"), *flags)

    def start_daemon(self, name, *flags, **options):
        if not os.path.exists(self.tls(name)):
            self.issue(name, "worker")
        return super().start_daemon(name, "--tls-dir", self.tls(name), *flags, **options)

    def cli(self, *args, seconds=120):
        return self.cli_as(self.tls(self.user), *args, seconds=seconds)

    def cli_as(self, folder, *args, seconds=120):
        r = subprocess.run([f"{BIN}/isthmus", "--coordinator", self.address, *(["--tls-dir", folder] if folder else []), *args],
                           capture_output=True, timeout=seconds)
        return r.returncode, r.stdout.decode(errors="replace"), r.stderr.decode(errors="replace")

    def expired(self, name, role):
        """A folder with a certificate of this authority that ended yesterday."""
        folder = os.path.join(self.dir, "expired-" + name)
        shutil.copytree(self.issue(name, role), folder)
        config = os.path.join(folder, "ca.conf")
        open(os.path.join(folder, "index.txt"), "w").close()
        with open(config, "w") as f:
            f.write("[ca]\ndefault_ca=a\n[a]\ndatabase=%s/index.txt\nnew_certs_dir=%s\nrand_serial=yes\ndefault_md=sha256\npolicy=p\nx509_extensions=e\n"
                    "[p]\nO=supplied\nCN=supplied\n[e]\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n"
                    "subjectAltName=DNS:%s.%s.isthmus\n[req]\ndistinguished_name=d\n[d]\n" % (folder, folder, name, role))
        request = os.path.join(folder, "request.pem")
        for argv in (["req", "-new", "-key", f"{folder}/key.pem", "-subj", f"/O={role}/CN={name}", "-config", config, "-out", request],
                     ["ca", "-batch", "-config", config, "-cert", f"{self.ca_dir}/ca.pem", "-keyfile", f"{self.ca_dir}/ca.key", "-in", request,
                      "-out", f"{folder}/cert.pem", "-notext", "-startdate", "20200101000000Z", "-enddate", "20200201000000Z"]):
            subprocess.run(["openssl", *argv], check=True, capture_output=True, timeout=60)
        return folder


def let_in(address, *args):
    """Whether openssl's own client gets as far as the first bytes of HTTP/2, and what it says."""
    p = subprocess.Popen(["openssl", "s_client", "-connect", address, "-alpn", "h2", "-quiet", "-ign_eof", *args],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        ready = select.select([p.stdout], [], [], 30)[0]
        data = os.read(p.stdout.fileno(), 1) if ready else None
    finally:
        p.kill()
        words = p.communicate()[1].decode(errors="replace")
    if data is None:
        raise AssertionError(f"neither an answer nor an end within 30 s: {words}")
    return data != b"", words


class TlsTest(unittest.TestCase):
    def cluster(self):
        cluster = TlsCluster()
        self.addCleanup(cluster.close)
        return cluster

    def refused(self, code, words, ended):
        self.assertEqual(ended[0], code, ended)
        self.assertIn(words, ended[2])

    def test_a_job_trains_and_whoever_should_not_is_refused(self):
        c = self.cluster()
        c.start(2)
        c.submit(c.job(recipe__steps=40000, checkpoint__every=1000))
        c.wait_state({"running"}, step=1)

        # Over gRPC, by our own programs.
        self.refused(5, f"{c.address} speaks TLS alone, and this program has no certificate", c.cli_as(None, "list"))
        other = os.path.join(c.dir, "other-ca")
        c.ca("init", dir=other)
        c.ca("issue", "ada", "--role", "operator", dir=other)
        self.refused(5, f"the certificate at {c.address} (coordinator (coordinator)) is of another authority",
                     c.cli_as(os.path.join(other, "certificates", "ada"), "list"))
        self.refused(5, "the certificate of eve (operator) expired on 2020-02-01", c.cli_as(c.expired("eve", "operator"), "list"))
        c.issue("bob", "viewer")
        code, out, err = c.cli_as(c.tls("bob"), "status", "job")
        self.assertEqual(code, 0, err)
        self.refused(5, "bob (viewer) may not call Jobs.Stop: that takes a certificate of role operator", c.cli_as(c.tls("bob"), "stop", "job"))
        self.refused(2, "is the certificate of d0 (worker); this program needs one of role operator or viewer", c.cli_as(c.tls("d0"), "list"))
        c.issue("mallory", "operator")
        c.ca("revoke", "mallory")
        c.wait_for(lambda: c.cli_as(c.tls("mallory"), "list")[0] != 0, 30)
        self.refused(5, "the certificate of mallory (operator), serial ", c.cli_as(c.tls("mallory"), "list"))
        # The right authority, the name of another's node.
        c.issue("d7", "worker")
        thief = Program("thief", [f"{BIN}/isthmusd", "--coordinator", c.address, "--listen", "127.0.0.1:0", "--http", "", "--name", "d0", "--tls-dir",
                                  c.tls("d7"), "--state-dir", os.path.join(c.dir, "thief"), "--data-dir", c.data], os.path.join(c.dir, "thief.log"))
        self.addCleanup(thief.close)
        self.assertEqual(thief.process.wait(60), 2)
        self.assertIn("the certificate in --tls-dir is that of node d7", thief.text())

        # By programs of others.
        self.assertTrue(shutil.which("openssl") and shutil.which("curl"))
        mine = ["-cert", f"{c.tls('ada')}/cert.pem", "-key", f"{c.tls('ada')}/key.pem", "-CAfile", f"{c.ca_dir}/ca.pem", "-verify_return_error"]
        self.assertEqual(let_in(c.address, *mine, "-verify_hostname", "coordinator.isthmus")[0], True)
        self.assertEqual(let_in(c.address, *mine, "-verify_hostname", "d0.worker.isthmus")[0], False, "a client that means another")
        self.assertEqual(let_in(c.address)[0], False, "without a certificate")
        for folder in (c.expired("late", "operator"), os.path.join(other, "certificates", "ada")):
            got, words = let_in(c.address, "-cert", f"{folder}/cert.pem", "-key", f"{folder}/key.pem")
            self.assertFalse(got, f"{folder}: {words}")
        for argv in (["-k", f"https://{c.address}/"], [f"http://{c.address}/"]):
            done = subprocess.run(["curl", "-sS", "--http2-prior-knowledge" if argv[0].startswith("http:") else "--http2", "--max-time", "20", *argv],
                                  capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0, done.stdout)
        with socket.create_connection(c.address.rsplit(":", 1), timeout=20) as s:
            s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            s.settimeout(20)
            try:
                answer = s.recv(100)
            except ConnectionError:
                answer = b""
            self.assertNotIn(b"\x04", answer[3:4], "no SETTINGS frame comes over plain text")

        status = c.status()
        self.assertEqual((status["state"], status["generation"]), ("running", 1), "the job is unharmed")
        who = [(e["who"], e["call"], e["outcome"]) for e in json.loads(c.cli("audit", "--json")[1])["entries"]]
        self.assertEqual(who[0], ("ada", "Jobs.Submit", "ok"))
        self.assertTrue(any(w == "bob" and call == "Jobs.Stop" and "may not" in o for w, call, o in who), who)
        self.assertTrue(any(w == "mallory" and "revoked" in o for w, call, o in who), who)
        secrets = []
        for name in ("coordinator", "d0", "d1", "ada"):
            with open(os.path.join(c.tls(name), "key.pem")) as f:
                secrets.append(f.read().splitlines()[1])
        for secret in secrets:
            self.assertNotIn(secret, c.logs())
        code, _, err = c.cli("stop", "job", "--now")
        self.assertIn(code, (0, 6), err)

    def test_a_revoked_daemon_leaves_its_running_job(self):
        c = self.cluster()
        c.start(2)
        c.submit(c.job(recipe__steps=40000, checkpoint__every=50, recovery__automatic=True))
        c.wait_for(lambda: c.status()["checkpoint_step"] >= 50, 120)  # parts go to the coordinator over TLS
        c.ca("revoke", "d1")
        c.wait_for(lambda: c.daemons["d1"].process.poll() is not None)
        self.assertEqual(c.daemons["d1"].process.poll(), 5)
        self.assertIn("the certificate of d1 (worker), serial ", c.daemons["d1"].text())
        c.wait_for(lambda: "the certificate of daemon d1, serial " in c.status()["reason"])
        c.start_daemon("d2")
        c.wait_for(lambda: c.status()["generation"] > 1 and c.status()["state"] == "running", 120)
        plan = c.status()["plan"]
        self.assertGreaterEqual(plan["start_step"], 50, "what the others had stored is fetched over TLS")
        self.assertEqual({r["node_name"] for r in plan["ranks"]}, {"d0", "d2"})
        code, _, err = c.cli("stop", "job", "--now")
        self.assertIn(code, (0, 6), err)


class InsecureTest(unittest.TestCase):
    def test_off_loopback_it_refuses_or_says_so(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        state = ["--http", "", "--state-dir", os.path.join(cluster.dir, "s")]
        done = subprocess.run([f"{BIN}/isthmus-coordinator", "--listen", "0.0.0.0:0", *state], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        for command in ("isthmus ca init", "isthmus ca issue coordinator --role coordinator", "--tls-dir isthmus-ca/certificates/coordinator"):
            self.assertIn(command, done.stderr)
        done = subprocess.run([f"{BIN}/isthmusd", "--listen", "0.0.0.0:0", "--data-dir", cluster.data, *state], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("isthmus ca issue NAME --role worker", done.stdout + done.stderr)
        cluster.start_coordinator("0.0.0.0:0", "--insecure")
        cluster.address = cluster.address.replace("0.0.0.0", "127.0.0.1")
        code, out, err = cluster.cli("nodes")
        self.assertEqual(code, 0, err)
        self.assertIn("warning: the coordinator runs with --insecure", out)
        page = subprocess.run(["curl", "-sS", "--max-time", "20", f"http://{cluster.http}/metrics"], capture_output=True, text=True, timeout=60).stdout
        self.assertIn("isthmus_insecure 1", page)


if __name__ == "__main__":
    main()
