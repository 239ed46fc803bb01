"""Collects the pages of the documentation site: site_pages.py ROOT OUT

Copies docs/ to OUT, with the READMEs and project files that the pages link to beside it, and rewrites links between
them. A link to a file that is not a page, such as a script, becomes its name. Only Python's standard library is used.
"""
import os
import pathlib
import re
import shutil
import sys

# Pages outside of docs/, and where they are on the site.
OTHERS = {name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "THIRD_PARTY.md",
                                  "data/README.md", "checkpoints/README.md")}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def place_on_site(root, file):
    """Where a file of the project is on the site; None when it is not there."""
    if file.is_relative_to(root / "docs"):
        return file.relative_to(root / "docs")
    if not file.is_relative_to(root):
        return None
    name = str(file.relative_to(root))
    if name == "README.md":
        return pathlib.Path("index.md")
    return pathlib.Path(OTHERS[name]) if name in OTHERS else None


def rewrite(root, source, target, text):
    def change(match):
        image, words, link = match.groups()
        where, mark, heading = link.partition("#")
        if re.match(r"[a-z]+:", link) or not where:
            return match[0]
        place = place_on_site(root, (source.parent / where).resolve())
        if place is None:
            return words if words.startswith("`") else f"`{words}`"
        return f"{image}[{words}]({os.path.relpath(place, target.parent)}{mark}{heading})"

    out, fenced = [], False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        out.append(line if fenced else LINK.sub(change, line))
    return "".join(out)


def collect(root, out):
    if out.exists():
        shutil.rmtree(out)
    files = [file for file in sorted((root / "docs").rglob("*")) if file.is_file()] + [root / name for name in OTHERS]
    for file in files:
        target = place_on_site(root, file)
        (out / target).parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = rewrite(root, file, target, file.read_text(encoding="utf-8"))
            (out / target).write_text(text, encoding="utf-8")
        elif file.suffix in (".svg", ".css", ".png", ".json", ".jsonl"):
            shutil.copy(file, out / target)


if __name__ == "__main__":
    collect(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve())
