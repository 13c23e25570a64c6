"""A small training job that never was: serves what a coordinator and its daemons serve, for tests of the dashboards.

Run alone it prints the address of its /sd and serves until it is ended.
"""
import http.server
import json
import math
import threading
import time

NODES = ["frankfurt", "london", "virginia", "tokyo"]
RATES = {"london": 95e6, "virginia": 48e6, "tokyo": 19e6}  # of the link to the next stage, by its upper end
STEP_SECONDS = 0.5
JOB = "bible-2"
# Others that the coordinator shows, of which a page must not take the figures for JOB's: one that runs since before it,
# and one that began after it and has ended.
ELDER, ENDED = "aeneid-1", "cider-3"
ENDED_STEP = 90000


class Job:
    """Values as functions of time since the start."""

    def __init__(self):
        self.start = time.time()

    def steps(self):
        return 40 + (time.time() - self.start) / STEP_SECONDS

    def loss(self, steps):
        return 2.1 + 3.4 * math.exp(-steps / 60) + 0.03 * math.sin(steps * 1.7)

    def daemon(self, stage):
        steps, last = self.steps(), stage == len(NODES) - 1
        of_job = f'{{job="{JOB}"}}'
        wait = [0.16, 0.10, 0.05, 0.02][stage]
        parts = {"compute": 0.30, "encode": 0.02, "decode": 0.02, "send_wait": 0.2 - wait, "recv_wait": wait, "sync": 0.01}
        lines = [f'isthmus_stage_time_seconds_total{{part="{p}"}} {s * steps}' for p, s in parts.items()]
        lines += [f"isthmus_step_seconds_total {STEP_SECONDS * steps}",
                  f'isthmus_steps_total{{outcome="committed"}} {steps}', 'isthmus_steps_total{outcome="skipped"} 1',
                  f"isthmus_bubble_ratio{of_job} {1 - 0.30 / STEP_SECONDS}", f"isthmus_tokens_total {2048 * steps}",
                  f"isthmus_gradient_norm{of_job} 0.8", f"isthmus_learning_rate{of_job} 0.0006", f"isthmus_stage {stage}",
                  "isthmus_generation 3", "isthmus_session_running 1", "isthmus_heartbeat_age_seconds 0.7"]
        if last:
            lines += [f"isthmus_loss{of_job} {self.loss(steps)}", f"isthmus_validation_loss{of_job} {self.loss(steps) + 0.1}",
                      f"isthmus_validation_accuracy{of_job} 0.5"]
        for direction, boundary, bits in (("forward", stage, 3), ("backward", stage - 1, 6)):
            if not 0 <= boundary < len(NODES) - 1:
                continue
            labels = f'{{link="{boundary}-{boundary + 1}",direction="{direction}"}}'
            lines += [f"isthmus_boundary_raw_bytes_total{labels} {4e6 * steps}",
                      f"isthmus_boundary_wire_bytes_total{labels} {4e6 / 32 * (bits + 0.2) * steps}",
                      f"isthmus_late_buffer_reads_total{labels} {3 * (direction == 'forward')}"]
            if direction == "backward":
                of_link = f'{{job="{JOB}",link="{boundary}-{boundary + 1}"}}'
                lines += [f"isthmus_lazy_error_cosine{of_link} 0.03", f"isthmus_lazy_error_ratio{of_link} 0.4"]
        if stage in (0, len(NODES) - 1):  # the tied embedding
            labels = f'{{job="{JOB}",group="tied"}}'
            lines += [f"isthmus_group_reduce_seconds{labels} 0.02", f"isthmus_group_wait_seconds{labels} 0.015",
                      f"isthmus_group_raw_bytes{labels} 2097152", f"isthmus_group_wire_bytes{labels} 262144",
                      f'isthmus_group_raw_bytes_total{{group="tied"}} {2097152 * steps}',
                      f'isthmus_group_wire_bytes_total{{group="tied"}} {262144 * steps}']
        if not last:
            peer = NODES[stage + 1]
            rate = RATES[peer] * (1 + 0.03 * math.sin(time.time() / 5 + stage))
            lines += [f'isthmus_link_rate_bytes_per_second{{peer="{peer}"}} {rate / 8}',
                      f'isthmus_link_round_trip_seconds{{peer="{peer}"}} {0.015 + 0.04 * stage}',
                      "isthmus_link_reconnects_total 2", "isthmus_key_frames_total 1536", f'isthmus_buffer_bytes{{job="{JOB}",tier="memory"}} 402653184',
                      f'isthmus_buffer_bytes{{job="{JOB}",tier="disk"}} {stage * 268435456}']
        return lines + self.process("cpu")

    def coordinator(self):
        steps = self.steps()
        lines = ['isthmus_nodes{state="alive"} 4', 'isthmus_nodes{state="lost"} 0', "isthmus_nodes_drained 0", "isthmus_insecure 0",
                 'isthmus_jobs{state="running"} 2', 'isthmus_jobs{state="paused"} 0', "isthmus_checkpoint_bytes_total 52428800"]
        lines += ["isthmus_lease_seconds 15", 'isthmus_job_held{job="older-1",state="paused"} 1']
        lines += [f'isthmus_node_up{{node="{n}"}} 1' for n in NODES]
        lines += [f'isthmus_node_heartbeat_age_seconds{{node="{n}"}} {0.4 + i / 3}' for i, n in enumerate(NODES)]
        for name, value in (("step", int(steps)), ("loss", self.loss(steps)), ("validation_loss", self.loss(steps) + 0.1), ("generation", 3),
                            ("tokens_per_second", 2048 / STEP_SECONDS + 90 * math.sin(steps)),
                            ("failed_checkpoints", 0), ("recoveries", 1), ("moves", 1), ("checkpoint_step", int(steps) // 50 * 50),
                            ("kept_step", int(steps))):
            lines.append(f'isthmus_job_{name}{{job="{JOB}"}} {value}')
        for job, generation in ((ELDER, 2), (ENDED, 4)):
            lines += [f'isthmus_job_step{{job="{job}"}} {ENDED_STEP}', f'isthmus_job_generation{{job="{job}"}} {generation}', f'isthmus_job_phase{{job="{job}"}} 1',
                      f'isthmus_job_failed_checkpoints{{job="{job}"}} 0', f'isthmus_job_checkpoint_step{{job="{job}"}} {ENDED_STEP}',
                      f'isthmus_job_validation_loss{{job="{job}"}} 1.5', f'isthmus_job_validation_accuracy{{job="{job}"}} 0.5']
        lines += [f'isthmus_job_loss{{job="{ELDER}"}} 1.25', f'isthmus_job_tokens_per_second{{job="{ELDER}"}} 12000']
        return lines + self.process("none")

    def process(self, device):
        return ["process_resident_memory_bytes 734003200", f"process_start_time_seconds {self.start}",
                f'isthmus_build_info{{version="0.1.0",device="{device}"}} 1']


def serve():
    """Starts a server for each program; returns (URL of /sd, servers)."""
    job, servers, targets = Job(), [], []

    def add(role, name, lines):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                is_sd = self.path == "/sd"
                body = json.dumps(targets) if is_sd else "\n".join(lines()) + "\n"
                self.send_response(200)
                self.send_header("Content-Type", "application/json" if is_sd else "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        targets.append({"targets": [f"127.0.0.1:{server.server_port}"], "labels": {"node": name, "role": role}})
        return server

    for stage, name in enumerate(NODES):
        add("daemon", name, lambda stage=stage: job.daemon(stage))
    coordinator = add("coordinator", "coordinator", job.coordinator)
    return f"http://127.0.0.1:{coordinator.server_port}/sd", servers


if __name__ == "__main__":
    print(serve()[0], flush=True)
    threading.Event().wait()
