"""Checks the built documentation site: site_links.py FOLDER

Every link and picture leads to a file of the site, every anchor exists, and no page loads anything from another host.
Prints one line for each problem and exits with 1 when there is one. Only Python's standard library is used.
"""
import html.parser
import pathlib
import sys
import urllib.parse


class Page(html.parser.HTMLParser):
    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.loaded = set(), [], []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if values.get("id"):
            self.ids.add(values["id"])
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in ("img", "script", "iframe", "source") and values.get("src"):
            self.loaded.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "preconnect", "dns-prefetch"):
            self.loaded.append(values.get("href", ""))


def problems(folder):
    pages = {file: Page(file) for file in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder}: there is no page"
    for file, page in pages.items():
        name = file.relative_to(folder)
        for target in page.loaded:
            if urllib.parse.urlsplit(target).netloc:
                yield f"{name}: loads {target} from another host"
        for target in page.links + page.loaded:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path = urllib.parse.unquote(parts.path)
            # The page for unknown addresses is shown at any depth, so its links begin at the top.
            base = folder if file.name == "404.html" else file.parent
            goal = (base / path.lstrip("/")).resolve() if path else file
            if goal.is_dir():
                goal = goal / "index.html"
            if not goal.exists():
                yield f"{name}: {target} leads nowhere"
            elif parts.fragment and goal in pages and urllib.parse.unquote(parts.fragment) not in pages[goal].ids:
                yield f"{name}: {target}: there is no such heading"


def main():
    folder = pathlib.Path(sys.argv[1]).resolve()
    found = list(problems(folder))
    for problem in found:
        print(problem)
    print(f"site_links: {len(list(folder.rglob('*.html')))} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
