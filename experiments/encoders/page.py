"""The page of neighbours: one HTML file that needs neither a network nor a mouse."""

import base64
import dataclasses
import html
import io
import pathlib
import string
from collections.abc import Callable, Sequence

from PIL import Image

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
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
        most_right: How many of them could be right: as many others as the class has.
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

    def article(number: int, query: Query) -> str:
        own, path = class_of(query.row), name_of(query.row)
        outcome = f"{query.num_right} of {query.most_right} right"
        figures = [figure(query.row, _text(own), f"Query: {own}, {path}", "own")]
        for rank, found in enumerate(query.neighbours, 1):
            name, word = class_of(found.row), "right" if found.is_right else "wrong"
            sign = "\N{CHECK MARK}" if found.is_right else "\N{BALLOT X}"
            caption = f"{sign} {found.distance:.3f}<br>{_text(name)}"
            alt = f"{rank}, {word}: {name}, distance {found.distance:.3f}"
            figures.append(figure(found.row, caption, alt, word))
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
        options="".join(f"<option>{_text(name)}</option>" for name in names),
        articles="\n".join(article(*numbered) for numbered in enumerate(queries)),
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
