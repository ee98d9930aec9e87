"""The page of neighbours: one HTML file that needs no network, nor a mouse."""

import base64
import dataclasses
import html
import io
from collections.abc import Callable, Sequence

from PIL import Image

_THUMBNAIL = 96
# Smaller ones are drawings and icons, which a JPEG would blur.
_AS_PNG = 64
_JPEG_QUALITY = 80


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An image that was found.

    Attributes:
        row: Of the image.
        distance: Of its vector from the query's, in [0, 2].
        is_right: Whether both are of one class.
    """

    row: int
    distance: float
    is_right: bool


@dataclasses.dataclass(frozen=True)
class Query:
    """An image, and what was found for it.

    Attributes:
        row: Of the image.
        neighbours: From the nearest on.
        most_right: How many of them could be right: so many others has the class.
    """

    row: int
    neighbours: Sequence[Neighbour]
    most_right: int

    @property
    def num_right(self) -> int:
        """How many neighbours are of the query's class."""
        return sum(n.is_right for n in self.neighbours)


def render(
    title: str,
    summary: str,
    queries: Sequence[Query],
    class_of: Callable[[int], str],
    name_of: Callable[[int], str],
    encoded: Callable[[int], bytes],
) -> str:
    """Writes the page.

    Args:
        title: Of the page.
        summary: What it shows, in a sentence.
        queries: The worst first.
        class_of: The name of the class of an image, by its row.
        name_of: The path of an image.
        encoded: The bytes of an image, a JPEG or PNG.

    Returns:
        HTML, always the same for the same arguments.
    """
    thumbnails: dict[int, str] = {}

    def figure(row: int, caption: str, alt: str, kind: str) -> str:
        if row not in thumbnails:
            thumbnails[row] = _thumbnail(encoded(row))
        return (
            f'<figure class="{kind}" tabindex="-1">'
            f'<img src="{thumbnails[row]}" alt="{_text(alt)}" '
            f'title="{_text(name_of(row))}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    articles = []
    for number, query in enumerate(queries):
        own = class_of(query.row)
        told = f"{query.num_right} of {query.most_right} right"
        parts = [
            figure(query.row, _text(own), f"Query: {own}, {name_of(query.row)}", "own")
        ]
        for rank, found in enumerate(query.neighbours, 1):
            name, word = class_of(found.row), "right" if found.is_right else "wrong"
            sign = "\N{CHECK MARK}" if found.is_right else "\N{BALLOT X}"
            parts.append(
                figure(
                    found.row,
                    f"{sign} {found.distance:.3f}<br>{_text(name)}",
                    f"{rank}, {word}: {name}, distance {found.distance:.3f}",
                    word,
                )
            )
        label = f"Query {own}, {name_of(query.row)}: {told}"
        articles.append(
            f'<article role="listitem" tabindex="-1" data-class="{_text(own)}" '
            f'data-number="{number}" data-right="{query.num_right}" '
            f'data-wrong="{query.most_right - query.num_right}" '
            f'aria-label="{_text(label)}"><h2>{_text(own)} '
            f"<small>{told}, {_text(name_of(query.row))}</small></h2>"
            f'<div class="row">{"".join(parts)}</div></article>'
        )
    names = sorted({class_of(query.row) for query in queries})
    options = "".join(f"<option>{_text(name)}</option>" for name in names)
    return _PAGE.format(
        title=_text(title),
        summary=_text(summary),
        style=_STYLE,
        script=_SCRIPT,
        options=options,
        articles="\n".join(articles),
    )


def _thumbnail(encoded: bytes) -> str:
    """A data URI of an image, made small."""
    image = Image.open(io.BytesIO(encoded))
    image.draft("RGB", (2 * _THUMBNAIL, 2 * _THUMBNAIL))
    image = image.convert("RGB")
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer, kind = io.BytesIO(), "png" if max(image.size) <= _AS_PNG else "jpeg"
    image.save(buffer, kind, quality=_JPEG_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _text(text: str) -> str:
    # A name may have bytes that are no UTF-8.
    return html.escape(text.encode("utf-8", "replace").decode())


_STYLE = """
:root { color-scheme: light; font: 15px/1.4 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; color: #1c1c1c; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
h2 { font-size: 1rem; margin: 0 0 .4rem; overflow-wrap: anywhere; }
small { font-weight: normal; color: #555; }
form { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 1rem;
  align-items: center; padding: .6rem 0; background: #fff;
  border-bottom: 1px solid #bbb; }
select, input { font: inherit; }
select { max-width: 16rem; }
#count { margin: 0 0 0 auto; }
article { padding: .7rem .5rem; border-bottom: 1px solid #ddd;
  scroll-margin-top: 5rem; }
article[hidden] { display: none; }
:focus { outline: none; }
:focus-visible { outline: 3px solid #1a5fb4; outline-offset: 2px; }
.row { display: flex; flex-wrap: wrap; gap: .5rem; }
figure { margin: 0; width: 6.4rem; font-size: .78rem; }
figcaption { overflow-wrap: anywhere; text-align: center; }
img { box-sizing: border-box; display: block; width: 6.4rem; height: 6.4rem;
  object-fit: contain; background: #eee; border: 4px solid #555; }
.own { margin-right: 1rem; }
.right img { border-color: #1b7a3d; }
.wrong img { border: 4px dashed #c01c28; }
.right figcaption { color: #14592d; }
.wrong figcaption { color: #9c1620; }
"""

_SCRIPT = """
"use strict";
const list = document.getElementById("queries");
const all = [...list.children];
const by = id => document.getElementById(id);
const orders = {
  worst: (a, b) => a.dataset.number - b.dataset.number,
  best: (a, b) => b.dataset.number - a.dataset.number,
  class: (a, b) => a.dataset.class < b.dataset.class ? -1 :
    a.dataset.class > b.dataset.class ? 1 : a.dataset.number - b.dataset.number,
};
let shown = all;
function makeCurrent(article) {
  for (const other of all) other.tabIndex = other === article ? 0 : -1;
}
function show() {
  const name = by("class").value, onlyWrong = by("wrong").checked;
  for (const article of all)
    article.hidden = (name !== "" && article.dataset.class !== name) ||
      (onlyWrong && article.dataset.wrong === "0");
  list.append(...all.sort(orders[by("order").value]));
  shown = all.filter(article => !article.hidden);
  makeCurrent(shown[0]);
  by("count").textContent = shown.length + " of " + all.length + " queries";
}
function go(step, from) {
  const place = shown.indexOf(from);
  const target = shown[Math.max(0, Math.min(shown.length - 1, place + step))];
  if (!target) return;
  makeCurrent(target);
  target.focus();
  target.scrollIntoView({block: "nearest"});
}
list.addEventListener("keydown", event => {
  const article = event.target.closest("article");
  const figures = article ? [...article.querySelectorAll("figure")] : [];
  const place = figures.indexOf(event.target);
  const steps = {ArrowDown: 1, ArrowUp: -1, Home: -all.length, End: all.length};
  if (event.key in steps) go(steps[event.key], article);
  else if (event.key === "ArrowRight" && place + 1 < figures.length)
    figures[place + 1].focus();
  else if (event.key === "ArrowLeft" && place >= 0)
    (place ? figures[place - 1] : article).focus();
  else if (event.key === "Escape") by("class").focus();
  else return;
  event.preventDefault();
});
list.addEventListener("focusin", event => makeCurrent(event.target.closest("article")));
for (const id of ["class", "order", "wrong"]) by(id).addEventListener("change", show);
by("controls").addEventListener("submit", event => event.preventDefault());
by("controls").hidden = false;
show();
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>{summary}</p>
<p id="keys">Green and \N{CHECK MARK}: of the query's class; red, dashed and \
\N{BALLOT X}: of another. Below each: the distance between the unit vectors (0 to 2). \
Arrow keys go from query to query and along its neighbours, Home and End to the first \
and last, Escape back to the filter.</p>
</header>
<main>
<form id="controls" hidden aria-label="Which queries to show">
<label>Class <select id="class"><option value="">all</option>{options}</select></label>
<label>Order <select id="order"><option value="worst">worst first</option>\
<option value="best">best first</option><option value="class">by class</option>\
</select></label>
<label><input type="checkbox" id="wrong"> only those with something wrong</label>
<p id="count" role="status" aria-live="polite"></p>
</form>
<div id="queries" role="list" aria-describedby="keys">
{articles}
</div>
</main>
<script>{script}</script>
</body>
</html>
"""
