"""Words that would do harm where a page, a table or a terminal takes them for more than text."""

import json
from pathlib import Path

WORDS = (
    '<img src=x onerror="window.harmed=1">',
    "</script><script>window.harmed=2</script>",
    '"><svg onload=window.harmed=3>',
    "' onmouseover='window.harmed=4",
    "{{ harmed }}{% raw %}",
    "</title></style></text></svg><b id=harmed>",
    "=HYPERLINK(1)",
    "[/x][red]$(harm)`harm`",
    "\u202egnp.harm",
    "javascript:window.harmed=5//http://127.0.0.1:9/x.png",
)

# Nothing ran, nothing was made of a word, and nothing was asked for elsewhere.
HARM = """(() => ({
  ran: window.harmed === undefined ? null : window.harmed,
  made: [...document.querySelectorAll('#harmed, [onerror], [onload], [onmouseover], img[src="x"]')].map(e => e.tagName),
  scripts: [...document.scripts].filter(s => s.textContent.includes('harmed')).length,
  links: [...document.querySelectorAll('[href^="javascript:"], [src^="javascript:"]')].length,
  asked: performance.getEntriesByType('resource').map(e => e.name)
    .filter(name => !name.startsWith('data:') && !name.startsWith('blob:') && !name.startsWith(location.origin + '/')),
}))()"""
NONE: dict[str, object] = {"ran": None, "made": [], "scripts": 0, "links": 0, "asked": []}


def put(folder: Path, old: str, new: str) -> None:
    """Put a hostile word in the place of an honest one in all texts of a run folder, as their formats spell it."""
    spelt = json.dumps(new)[1:-1]
    texts = [path for path in folder.rglob("*") if path.suffix in (".json", ".jsonl", ".toml")]
    assert any(old in path.read_text("utf-8") for path in texts), old
    for path in texts:
        path.write_text(path.read_text("utf-8").replace(json.dumps(old)[1:-1], spelt), encoding="utf-8")
