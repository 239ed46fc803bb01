"""scripts/plot_run: the picture holds what the metrics hold, and bad input gives one sentence and its exit code."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


class PlotRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_plot_")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.run_folder = self.folder / "a<b"
        self.run_folder.mkdir()
        self.metrics = self.run_folder / "metrics.jsonl"
        self.write(self.metrics,
                   {"step": 10, "train/accuracy": 0.2, "train/halted_per_step": 1.0, "train/lm_loss": 2.0},
                   {"step": 20, "train/accuracy": 0.4, "train/halted_per_step": 1.0, "train/lm_loss": None},
                   {"step": 20, "eval/accuracy": 0.3},
                   {"step": 21, "train/accuracy": 0.0, "train/halted_per_step": 0.0, "train/lm_loss": 1.0})

    def write(self, file, *records):
        file.write_text("".join(json.dumps(record) + "\n" for record in records))

    def plot(self, *arguments):
        return subprocess.run([sys.executable, ROOT / "scripts/plot_run", *map(str, arguments)], capture_output=True,
                              text=True, timeout=60)

    def picture(self, *arguments):
        result = self.plot(*arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return ElementTree.parse(result.stdout.strip()).getroot()

    def curves(self, root):
        paths = [p.get("d") for p in root.iter(f"{SVG}path") if p.get("stroke-linejoin") == "round"]
        return [[tuple(map(float, point.split())) for point in path[1:].split("L")] for path in paths]

    def test_seeds_share_a_colour(self):
        names = ["ours, seed 0", "ours, seed 1", "official, seed 0", "alone", "alone"]
        root = self.picture(*(f"{name}={self.metrics}" for name in names), "--plot", "accuracy",
                            "--out", self.folder / "seeds.svg")
        looks = [(p.get("stroke"), p.get("stroke-dasharray")) for p in root.iter(f"{SVG}path")
                 if p.get("stroke-linejoin") == "round"]
        colours = [colour for colour, _ in looks]
        self.assertEqual(colours[0], colours[1])
        self.assertEqual(len(set(colours)), 3)
        self.assertEqual([dash is not None for _, dash in looks], [False, True, False, False, True])
        entries = [t for t in root.iter(f"{SVG}text") if t.text in names]
        self.assertEqual(sorted(t.text for t in entries), sorted(names))
        self.assertEqual(len({(t.get("x"), t.get("y")) for t in entries}), len(names), "no entry hides another")

    def test_draws_every_value_once(self):
        reference = self.folder / "official.jsonl"
        self.write(reference, {"step": 20, "eval/accuracy": 0.35})
        root = self.picture(self.run_folder, "--plot", "accuracy,lm_loss", "--compare", f"official={reference}")
        self.assertTrue((self.run_folder / "plot.svg").exists())
        accuracy, loss = self.curves(root)
        # No sample halted in the third line, so its accuracy is an average of nothing; the null loss is left out.
        self.assertEqual((len(accuracy), len(loss)), (2, 2))
        self.assertLess(accuracy[0][0], accuracy[1][0])
        self.assertGreater(accuracy[0][1], accuracy[1][1], "a higher share stands higher in the picture")
        self.assertEqual(len(list(root.iter(f"{SVG}circle"))), 2, "one evaluation and one legend entry")
        self.assertEqual(sum(p.get("d").count("l6.5 6.5") for p in root.iter(f"{SVG}path")), 2)
        words = [t.text for t in root.iter(f"{SVG}text")]
        self.assertIn("a<b", words)
        self.assertIn("official", words)

    def test_one_field(self):
        root = self.picture("name=" + str(self.metrics), "--plot", "train/lm_loss", "--out", self.folder / "x.svg")
        self.assertEqual(len(self.curves(root)), 1)
        self.assertIn("name", [t.text for t in root.iter(f"{SVG}text")])

    def assert_error(self, result, code, part):
        self.assertEqual((result.returncode, result.stderr.count("\n")), (code, 1), result.stderr)
        self.assertRegex(result.stderr, "^error: .*" + re.escape(part))

    def test_bad_input(self):
        self.assert_error(self.plot(self.folder / "nowhere"), 4, "nowhere cannot be read")
        self.assert_error(self.plot(self.run_folder, "--plot", "acuracy"), 4, "nothing to draw for 'acuracy'")
        self.assert_error(self.plot(self.run_folder, "--plot", "accuracy", "--out", self.folder / "no" / "x.svg"), 3,
                          "cannot be written")
        for line in ("{", "[1]", '{"train/accuracy": 1}'):
            self.metrics.write_text('{"step": 1}\n' + line + "\n")
            self.assert_error(self.plot(self.run_folder), 4, "line 2")
        self.assertEqual(self.plot().returncode, 2)
        self.assertEqual(self.plot(self.run_folder, "--plot", ",").returncode, 2)


class ShippedPicture(unittest.TestCase):
    def test_is_what_the_script_draws(self):
        """docs/measurements/log.md names the command; the picture in the repository is its output."""
        words = re.search(r"^scripts/plot_run .*?--out docs/images/sudoku17_curve\.svg$",
                          (ROOT / "docs/measurements/log.md").read_text(), re.S | re.M)
        self.assertIsNotNone(words)
        with tempfile.TemporaryDirectory(prefix="hrm_plot_") as folder:
            out = pathlib.Path(folder, "curve.svg")
            command = words[0].replace("docs/images/sudoku17_curve.svg", str(out))
            subprocess.run(["bash", "-c", command], cwd=ROOT, check=True, capture_output=True, timeout=60)
            self.assertEqual(out.read_text(), (ROOT / "docs/images/sudoku17_curve.svg").read_text())


if __name__ == "__main__":
    unittest.main()
