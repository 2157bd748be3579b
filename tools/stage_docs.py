"""Lay out the documentation site's pages in build/docs, where MkDocs builds them.

    python tools/stage_docs.py

The pages in docs/ are written for a git host: they link to files all over the repository. Here README.md becomes the
home page, other Markdown files that are linked become pages, and a linked source file becomes a page that shows it.
A notebook becomes a page too, with a link to the file itself.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
STAGED = ROOT / "build" / "docs"
COPIED = (".png", ".jpg", ".svg", ".css", ".js")
ASIDE = ("table.md", "recipes.md")  # beside a page of results; the search leaves them out
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json"}
FENCED = re.compile(r"(^`{3,}.*?^`{3,}$)", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE = re.compile(r"`[^`\n]+`")
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"
WIDE = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n\n"


def place(path: PurePosixPath) -> PurePosixPath:
    """Return where a file of the repository goes in the site."""
    if path == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    if path == PurePosixPath("SECURITY.md"):  # docs/security.md is the same file where case does not count
        return PurePosixPath("vulnerabilities.md")
    if path.suffix == ".ipynb":
        path = path.with_suffix(".md")
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if path.suffix in (".md", *COPIED):
        return path
    return PurePosixPath("source") / f"{path}.md"


def linked(page: PurePosixPath, link: str) -> PurePosixPath:
    """Return the file that a page links to, by its path in the repository."""
    return PurePosixPath(os.path.normpath(page.parent / link))


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page with whether each is prose; the others are blocks of code."""
    for number, part in enumerate(FENCED.split(text)):
        yield part, number % 2 == 0


def links(page: PurePosixPath, text: str) -> set[PurePosixPath]:
    """Return the files of the repository that a page links to."""
    found = (match[1] for part, is_prose in prose(text) if is_prose for match in LINK.finditer(part))
    return {linked(page, link) for link in found if not re.match(r"[a-z]+:", link)}


def rewritten(page: PurePosixPath, text: str) -> str:
    """Return a page with its links as they are in the site; in code MkDocs wants the pipes of tables unescaped."""
    here = place(page).parent

    def to_site(match: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", match[1]):
            return match[0]
        target = os.path.relpath(place(linked(page, match[1])), here)
        return f"]({PurePosixPath(target)}{match[2] or ''})"

    def mended(part: str) -> str:
        return LINK.sub(to_site, CODE.sub(lambda code: code[0].replace(r"\|", "|"), part))

    return "".join(mended(part) if is_prose else part for part, is_prose in prose(text))


def shown(path: PurePosixPath, text: str) -> str:
    """Return a page that shows a source file."""
    return f"{WIDE}# `{path}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"


def notebook_page(text: str) -> str:
    """Return a notebook's cells as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells) + "\n"


def stage(root: Path, out: Path) -> list[PurePosixPath]:
    """Write all pages and what they link to; return their paths in the repository."""
    shutil.rmtree(out, ignore_errors=True)
    docs = root / "docs"
    first = [*root.glob("*.md"), *docs.rglob("*.md"), *docs.rglob("*.ipynb"), *docs.glob("*.css"), *docs.glob("*.js")]
    waiting = [PurePosixPath(path.relative_to(root).as_posix()) for path in sorted(first)]
    done: list[PurePosixPath] = []
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.append(path)
        target = out / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in COPIED:
            shutil.copy(root / path, target)
            continue
        text = (root / path).read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            shutil.copy(root / path, target.with_suffix(".ipynb"))
            text = notebook_page(text)
            waiting += links(path, text)
            download = f"\nThis page as a notebook: [{path.name}]({path.name})\n"
            target.write_text(rewritten(path, text) + download, encoding="utf-8")
        elif path.suffix == ".md":
            waiting += links(path, text)
            aside = UNSEARCHED if path.name in ASIDE else ""
            target.write_text(aside + rewritten(path, text), encoding="utf-8")
        else:
            target.write_text(shown(path, text), encoding="utf-8")
    return done


if __name__ == "__main__":
    print(f"{len(stage(ROOT, STAGED))} files in {STAGED.relative_to(ROOT)}")
