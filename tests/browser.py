"""What a real browser makes of a page: how wide it gets, which texts collide, what it loads."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--virtual-time-budget=20000",
)

# Runs inside the page. Boxes of texts are shrunk a little: neighbours may touch.
_PROBE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(each => { each.open = true; });
  const wide = [], small = [], hits = [];
  for (const each of document.querySelectorAll("body *")) {
    if (each.closest(".scroll") && !each.matches(".scroll")) continue;
    if (each.getBoundingClientRect().right > innerWidth + 1) wide.push(each.outerHTML.slice(0, 80));
  }
  for (const svg of document.querySelectorAll("svg")) {
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    const edge = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter(each => each.textContent.trim());
    const boxes = texts.map(each => each.getBoundingClientRect());
    texts.forEach((each, i) => {
      small.push(parseFloat(getComputedStyle(each).fontSize) * scale);
      const a = boxes[i];
      if (a.left < edge.left - 2 || a.right > edge.right + 2 || a.top < edge.top - 2)
        hits.push("cut off: " + each.textContent);
      for (let j = 0; j < i; j++) {
        const b = boxes[j];
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
          hits.push(each.textContent + " on " + texts[j].textContent);
      }
    });
  }
  const page = document.documentElement;
  parent.postMessage({
    viewport: innerWidth, scroll: Math.max(page.scrollWidth, document.body.scrollWidth),
    wide, hits, figures: document.querySelectorAll("svg").length,
    smallest: small.length ? Math.min(...small) : null,
    loaded: performance.getEntriesByType("resource").map(each => each.name),
    ran: window.hostile === true, text: document.body.innerText,
  }, "*");
});
</script>
"""

_FRAME = """<!doctype html><meta charset="utf-8"><body><script>
const found = [];
addEventListener("message", event => {
  found.push(event.data);
  if (found.length === %d) {
    const out = document.createElement("pre");
    out.id = "found";
    out.textContent = JSON.stringify(found);
    document.body.append(out);
  }
});
</script>%s</body>"""


def measure(html: str, folder: Path, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Open a page at several widths at once; one dictionary a width (see `_PROBE`).

    The page's own policy forbids all scripts, so the copy that is opened goes without it.
    """
    browser = shutil.which("chromium")
    if browser is None:
        # `make test` installs it; where that is what runs, a page that nobody opened is a failure.
        leave = pytest.fail if os.environ.get("CI") else pytest.skip
        leave("the command chromium is missing; `make chromium` installs it")
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    (folder / "page.html").write_text(free.replace("</body>", _PROBE + "</body>"), "utf-8")
    # Frames, because a browser's window cannot be made as narrow as a phone.
    frames = [f'<iframe src="page.html" width="{w}" height="900"></iframe>' for w in widths]
    (folder / "frame.html").write_text(_FRAME % (len(widths), "".join(frames)), "utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    done = subprocess.run(
        [browser, *_FLAGS, profile, "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    assert match is not None, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(unescape(match[1]))
    return sorted(found, key=lambda each: -each["viewport"])
