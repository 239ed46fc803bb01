#!/usr/bin/env python3
"""Times the dashboard on a long run: the first answer, all of the run, the page, and the server's memory.

    scripts/bench/dashboard_speed.py --program build/bin/hrm_train --lines 1000000

Writes a run of that many lines with 23 metrics into a temporary folder (0.6 GB for a million), starts the server, asks
until it has read everything, and then opens the page in headless Chromium with a server that has read nothing yet. The
page counts as usable when its first chart is drawn. Prints one JSON object.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/repo"))
import browser  # noqa: E402

KEYS = """train/loss train/halted_per_step train/accuracy train/exact_accuracy train/q_halt_accuracy train/steps
train/lm_loss train/q_halt_loss train/q_continue_loss train/lr train/grad_norm_raw train/grad_norm_clipped
train/update_ratio train/skipped_steps perf/step_ms perf/data_wait_ms perf/samples_per_s perf/mfu
perf/peak_flops_assumed perf/memory_allocated_bytes perf/memory_peak_bytes perf/memory_reserved_bytes
perf/memory_fragmentation""".split()


def write_run(folder, lines):
    source = random.Random(1)
    bodies = [",".join(f'"{key}":{source.random()!r}' for key in KEYS) for _ in range(997)]
    folder.mkdir(parents=True)
    with open(folder / "metrics.jsonl", "w") as file:
        for i in range(lines):
            file.write(f'{{"step":{i + 1},{bodies[i % len(bodies)]}}}\n')
    return (folder / "metrics.jsonl").stat().st_size


class Server:
    def __init__(self, program, runs):
        self.process = subprocess.Popen([program, "dashboard", runs, "--port", "0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        self.url = self.process.stdout.readline().strip()

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def peak_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build/bin/hrm_train", type=pathlib.Path)
    parser.add_argument("--lines", default=1_000_000, type=int)
    options = parser.parse_args()
    if not options.program.is_file():
        sys.exit(f"error: '{options.program}' is not there; build it with scripts/build, or name another with --program")
    result = {"lines": options.lines}
    with tempfile.TemporaryDirectory(prefix="hrm_dashboard_") as folder:
        runs = pathlib.Path(folder, "runs")
        result["file_mb"] = round(write_run(runs / "long", options.lines) / 1e6)
        server = Server(options.program, runs)
        run = server.get("api/runs")["runs"][0]["id"]
        begin = time.monotonic()
        answer = server.get(f"api/metrics?run={run}")
        result["first_answer_s"] = round(time.monotonic() - begin, 3)
        while not answer["done"]:
            answer = server.get(f"api/metrics?run={run}")
        result["all_read_s"] = round(time.monotonic() - begin, 3)
        keys = ",".join(str(i) for i in range(len(answer["keys"])))
        begin = time.monotonic()
        server.get(f"api/metrics?run={run}&generation={answer['generation']}&columns=700&keys={keys}")
        result["all_curves_s"] = round(time.monotonic() - begin, 3)
        begin = time.monotonic()
        middle = options.lines // 2
        server.get(f"api/metrics?run={run}&generation={answer['generation']}&columns=700&keys={keys}"
                   f"&from={middle}&to={middle + 10000}")
        result["zoom_s"] = round(time.monotonic() - begin, 3)
        result["peak_mib"] = round(server.peak_mib())
        server.stop()
        if browser.chromium():
            server = Server(options.program, runs)
            page = browser.Browser()
            begin = time.monotonic()
            page.open(server.url)
            page.wait("[...document.querySelectorAll('.chart[data-curves]')].some(c => "
                      "JSON.parse(c.dataset.curves).some(curve => curve.n > 10))", 60)
            result["page_usable_s"] = round(time.monotonic() - begin, 3)
            page.wait(f"document.getElementById('summary').textContent.includes('{options.lines}') && "
                      "!document.getElementById('summary').textContent.includes('%')", 120)
            result["page_complete_s"] = round(time.monotonic() - begin, 3)
            result["peak_mib_with_page"] = round(server.peak_mib())
            page.close()
            server.stop()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
