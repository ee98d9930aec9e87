"""The page of neighbours: one HTML file that needs neither a network nor a mouse."""

import base64
import collections
import dataclasses
import html
import io
import json
import pathlib
import string
from collections.abc import Callable, Collection, Sequence

from PIL import Image

from tff_fedss.datasets import formats

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
# Pixels and quality of thumbnails: the first that fit into _MOST_BYTES.
_THUMBNAILS = ((96, 80), (96, 60), (80, 50), (64, 40), (48, 30))
_MOST_BYTES = 1_500_000
# Smaller images are drawings and icons, which are kept exactly.
_EXACT = 64
_MOST_CONFUSIONS = 8


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """An image near a query; its distance is that of their vectors, in [0, 2]."""

    row: int
    distance: float
    is_right: bool


@dataclasses.dataclass(frozen=True)
class Query:
    """A query image and its neighbours, the nearest first.

    As many of them as `most_right` can be right: the other images of the class.
    """

    row: int
    neighbours: Sequence[Neighbour]
    most_right: int

    @property
    def num_right(self) -> int:
        """The number of neighbours of the query's class."""
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
        summary: The content, in a sentence.
        queries: The worst first.
        class_of: The name of the class of an image, by its row.
        name_of: The path of an image.
        encoded: The bytes of an image, a JPEG or PNG.

    Returns:
        HTML, always the same for the same arguments.
    """
    rows = {found.row for query in queries for found in query.neighbours}
    thumbnails = _thumbnails(rows.union(query.row for query in queries), encoded)

    def figure(row: int, caption: str, alt: str, kind: str, distance: float) -> str:
        return (
            f'<figure class="{kind}" tabindex="-1" data-distance="{distance:.3f}">'
            f'<img data-image="{row}" alt="{_text(alt)}" '
            f'title="{_text(name_of(row))}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def article(number: int, query: Query) -> str:
        own, path = class_of(query.row), name_of(query.row)
        outcome = f"{query.num_right} of {query.most_right} right"
        figures = [figure(query.row, _text(own), f"Query: {own}, {path}", "own", 0)]
        for rank, found in enumerate(query.neighbours, 1):
            name, word = class_of(found.row), "right" if found.is_right else "wrong"
            sign = "\N{CHECK MARK}" if found.is_right else "\N{BALLOT X}"
            caption = f"{sign} {found.distance:.3f}<br>{_text(name)}"
            alt = f"{rank}, {word}: {name}, distance {found.distance:.3f}"
            figures.append(figure(found.row, caption, alt, word, found.distance))
        label = f"Query {own}, {path}: {outcome}"
        return (
            f'<article role="listitem" tabindex="-1" data-class="{_text(own)}" '
            f'data-number="{number}" data-right="{query.num_right}" '
            f'data-wrong="{query.most_right - query.num_right}" '
            f'aria-label="{_text(label)}"><h2>{_text(own)} '
            f"<small>{outcome}, {_text(path)}</small></h2>"
            f'<div class="row">{"".join(figures)}</div></article>'
        )

    names = sorted({class_of(query.row) for query in queries})
    template = string.Template(_TEMPLATE.read_text("utf-8"))
    return template.substitute(
        title=_text(title),
        summary=_text(summary),
        options="".join(
            f'<option value="{_text(name)}">{_text(name)}</option>' for name in names
        ),
        articles="\n".join(article(*numbered) for numbered in enumerate(queries)),
        confused=_confused(queries, class_of),
        thumbnails=json.dumps(thumbnails),
    )


def _confused(queries: Sequence[Query], class_of: Callable[[int], str]) -> str:
    """Lists the pairs of classes that are confused most often.

    Only a query's first `most_right` neighbours count: no more of them can be right.
    """
    counts = collections.Counter(
        (class_of(query.row), class_of(found.row))
        for query in queries
        for found in query.neighbours[: query.most_right]
        if not found.is_right
    )
    if not counts:
        return "<p>No class is taken for another.</p>"
    items = "".join(
        f"<li>{_text(own)} → {_text(other)}: {count}</li>"
        for (own, other), count in counts.most_common(_MOST_CONFUSIONS)
    )
    return (
        "<details><summary>Classes confused most (query → wrong neighbours)</summary>"
        f"<ol>{items}</ol></details>"
    )


def _thumbnails(
    rows: Collection[int], encoded: Callable[[int], bytes]
) -> dict[int, str]:
    """Returns a data URI of each image, within the limit of all together."""
    images = {row: _small(encoded(row)) for row in sorted(rows)}
    for size, quality in _THUMBNAILS:
        found = {row: _data_uri(image, size, quality) for row, image in images.items()}
        if sum(map(len, found.values())) <= _MOST_BYTES:
            break
    return found


def _small(encoded: bytes) -> Image.Image:
    size = _THUMBNAILS[0][0]
    image = Image.open(io.BytesIO(encoded))
    image.draft("RGB", (2 * size, 2 * size))
    image = formats.upright_on_white(image)
    image.thumbnail((size, size))
    return image


def _data_uri(image: Image.Image, size: int, quality: int) -> str:
    image, buffer = image.copy(), io.BytesIO()
    image.thumbnail((size, size))
    is_exact = max(image.size) <= _EXACT and quality == _THUMBNAILS[0][1]
    image.save(buffer, "webp", quality=quality, lossless=is_exact)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _text(text: str) -> str:
    # A name may have bytes that are not UTF-8.
    return html.escape(text.encode("utf-8", "replace").decode())
