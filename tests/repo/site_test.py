#!/usr/bin/env python3
"""The parts of scripts/site that need no MkDocs: collecting pages, and checking the links of a built site."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
import site_links  # noqa: E402
import site_pages  # noqa: E402


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hrm_site_")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def test_links_between_pages(self):
        source, target = ROOT / "docs/a.md", pathlib.Path("a.md")
        for text, result in (("[x](../checkpoints/README.md#format)", "[x](checkpoints/README.md#format)"),
                             ("[x](metrics.md)", "[x](metrics.md)"), ("[x](../README.md)", "[x](index.md)"),
                             ("[x](https://a.b)", "[x](https://a.b)"), ("[x](#here)", "[x](#here)"),
                             ("[a script](../scripts/demo)", "`a script`"), ("![p](images/a.svg)", "![p](images/a.svg)"),
                             ("```\n[x](../scripts/demo)\n```", "```\n[x](../scripts/demo)\n```")):
            self.assertEqual(site_pages.rewrite(ROOT, source, target, text), result)
        self.assertEqual(site_pages.rewrite(ROOT, ROOT / "data/README.md", pathlib.Path("data/README.md"),
                                            "[x](../docs/tokenizer.md)"), "[x](../tokenizer.md)")

    def test_every_page_is_in_the_navigation(self):
        site_pages.collect(ROOT, self.root / "pages")
        pages = {str(file.relative_to(self.root / "pages")) for file in (self.root / "pages").rglob("*.md")}
        named = {line.strip()[2:] for line in (ROOT / "mkdocs.yml").read_text().splitlines() if line.endswith(".md")}
        self.assertEqual(pages, named)

    def test_broken_links_are_found(self):
        (self.root / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#there">b</a><a href="https://x.y">x</a>')
        (self.root / "b.html").write_text('<p id="there"><a href="a.html#top">a</a>')
        self.assertEqual(list(site_links.problems(self.root)), [])
        (self.root / "c.html").write_text('<a href="d.html">d</a><a href="a.html#bottom">a</a><img src="p.svg">'
                                          '<script src="https://x.y/z.js"></script>')
        self.assertEqual(len(list(site_links.problems(self.root))), 4)

    def test_usage(self):
        said = subprocess.run([ROOT / "scripts/site", "--wrong"], capture_output=True, text=True)
        self.assertEqual((said.returncode, len(said.stderr.splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
