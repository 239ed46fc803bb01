"""The page of hrm_train dashboard in headless Chromium: what its curves draw is what metrics.jsonl holds, a run that
grows, two runs, hostile names, and the exported file. Skipped where no Chromium is installed.

dashboard_page_test.py PROGRAM
"""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

import browser

PROGRAM = None
HOSTILE = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>'
CHARTS = "[...document.querySelectorAll('.chart[data-curves]')].map(c => [c.chartName, JSON.parse(c.dataset.curves)])"


@unittest.skipIf(browser.chromium() is None, "no Chromium is installed (Debian: apt-get install chromium-headless-shell)")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_page_")
        self.addCleanup(folder.cleanup)
        self.runs = pathlib.Path(folder.name, "runs")
        self.runs.mkdir()

    def write(self, run, *lines):
        folder = self.runs / run
        folder.mkdir(exist_ok=True)
        with open(folder / "metrics.jsonl", "a") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")

    def serve(self):
        process = subprocess.Popen([PROGRAM, "dashboard", self.runs, "--port", "0"], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)

        def stop():
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=20)
            process.stdout.close()
        self.addCleanup(stop)
        return process.stdout.readline().strip()

    def charts(self):
        return dict(self.browser.evaluate(CHARTS))

    def wait_for(self, key, condition):
        self.browser.wait(f"(curves => curves && ({condition}))(Object.fromEntries({CHARTS})[{json.dumps(key)}])")

    def choose_all(self):
        # The list is made anew at each click.
        for _ in range(8):
            if not self.browser.evaluate("(box => box && (box.click(), true))"
                                         "(document.querySelector('.run input:not(:checked):not(:disabled)'))"):
                return

    def test_curves_are_those_of_the_file_while_it_grows(self):
        values = [1 / (1 + i) for i in range(20)]
        self.write("a", *({"step": 10 * i, "train/loss": v, "perf/phase/forward_ms": 3.5, "train/lr": None}
                          for i, v in enumerate(values)))
        url = self.serve()
        self.browser.open(url)
        self.wait_for("train/loss", "curves[0] && curves[0].n === 20")
        curve = self.charts()["train/loss"][0]
        self.assertEqual((curve["run"], curve["x"], curve["y"]), ("a", [10 * i for i in range(20)], values))
        self.assertEqual(self.charts()["train/lr"][0]["bad"], [10 * i for i in range(20)])
        self.assertIn("forward", self.browser.evaluate("document.getElementById('parts').textContent"))
        # Drawn, not only known.
        drawn = ("(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > 0))"
                 "(document.querySelector('.chart canvas'))")
        self.assertTrue(self.browser.evaluate(drawn))
        self.write("a", {"step": 200, "train/loss": 7.25})
        self.wait_for("train/loss", "curves[0].n === 21 && curves[0].last[1] === 7.25")
        self.assertEqual(self.browser.problems, [])
        self.assertTrue(all(request.startswith((url, "data:,")) for request in self.browser.requests))

    def test_long_runs_keep_their_spikes_and_two_runs_share_a_chart(self):
        loss = [1000.0 if i == 12345 else 1 / (1 + i % 100) for i in range(30000)]
        self.write("long", *({"step": i, "train/loss": v} for i, v in enumerate(loss)))
        self.write("short", {"step": 5, "train/loss": 2.0}, {"step": 7, "train/loss": 1.0})
        self.browser.open(self.serve())
        self.browser.wait("document.querySelectorAll('.run').length === 2")
        self.choose_all()
        self.wait_for("train/loss", "curves.length === 2 && curves.every(curve => curve.n > 1)")
        curves = {curve["run"]: curve for curve in self.charts()["train/loss"]}
        self.assertEqual(curves["short"]["y"], [2.0, 1.0])
        self.assertLessEqual(curves["long"]["n"], 1400)
        self.assertEqual((curves["long"]["max"], curves["long"]["min"]), (1000.0, min(loss)))
        self.assertEqual(curves["long"]["last"], [29999, loss[-1]])
        self.assertEqual(self.browser.problems, [])

    def test_hostile_names_are_text_also_in_an_export(self):
        name = HOSTILE.replace("/", "_")
        self.write(name, {"step": 1, "train/loss": 1.0, HOSTILE: 2.0, "note": HOSTILE, "__proto__": 3.0,
                          "constructor": 4.0, "toString": [1, 2, 3, 4, 5, 6], "": 5.0})
        (self.runs / name / "solved.jsonl").write_text(json.dumps({"prompt": HOSTILE, "text": HOSTILE}) + "\n")
        (self.runs / name / "config.json").write_text(json.dumps({HOSTILE: HOSTILE}))
        exported = self.runs / "page.html"
        subprocess.run([PROGRAM, "dashboard", self.runs, "--export", exported], check=True, capture_output=True)
        for url in (self.serve(), exported.as_uri()):
            self.browser.open(url, width=390)
            self.wait_for(HOSTILE, "curves[0].last[1] === 2")
            self.browser.wait("document.getElementById('answers').textContent.includes('alert(2)')")
            self.assertEqual(self.browser.evaluate("document.querySelectorAll('img, main script').length"), 0)
            self.assertEqual(self.browser.evaluate("document.documentElement.scrollWidth"), 390)
            self.assertEqual(self.browser.problems, [])
            self.assertTrue(all(request.startswith((url, "data:,")) for request in self.browser.requests))
            self.assertIn(name, self.browser.evaluate("document.getElementById('run-list').textContent"))


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if browser.chromium() is None:
        print("skipped: no Chromium is installed (Debian: apt-get install chromium-headless-shell)")
        sys.exit(77)
    unittest.main()
