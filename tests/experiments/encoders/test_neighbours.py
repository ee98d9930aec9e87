import base64
import html.parser
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from experiments.encoders import neighbours, page
from tests.datasets.images import own_images


@pytest.fixture(scope="module")
def page_file(encoder_file, pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages") / "page"
    neighbours.main(
        neighbours.Config(
            model=str(encoder_file),
            images=str(pictures),
            output=str(folder),
            num_queries=12,
        )
    )
    return folder / "index.html"


class Elements(html.parser.HTMLParser):
    """Lists the elements of a page: tag and attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def of(self, tag, kind=None):
        return [a for t, a in self.found if t == tag and kind in (None, a.get("class"))]


def features():
    """Four classes on a circle, the last of one image; some lie among others."""
    angles = np.array([0, 0.1, 0.2, 1.0, 1.1, 0.15, 2.0, 2.1, 2.2, 3.0])
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 3])
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32), labels


def test_queries_come_with_their_neighbours_the_worst_first():
    points, labels = features()
    found = neighbours.find(points, labels, 3, 100)
    # The one that is alone in its class is no query.
    assert sorted(query.row for query in found) == list(range(9))
    shares = [query.num_right / query.most_right for query in found]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert found[0].row == 5
    query = next(q for q in found if q.row == 0)
    assert [n.row for n in query.neighbours] == [1, 5, 2]
    assert [n.is_right for n in query.neighbours] == [True, False, True]
    assert query.most_right == 2 and query.num_right == 2
    np.testing.assert_allclose(
        [n.distance for n in query.neighbours],
        2 * np.sin(np.array([0.1, 0.15, 0.2]) / 2),
        rtol=1e-5,
    )


def test_only_what_could_be_right_is_confused():
    """Of three neighbours in classes of two images, two are of another class."""
    points = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    found = neighbours.find(points, np.array([0, 0, 1, 1]), 3, 9)
    assert "No class is taken for another" in page._confused(found, str)
    points, labels = features()
    found = neighbours.find(points, labels, 3, 9)
    text = page._confused(found, lambda row: f"class {labels[row]}")
    assert "<li>class 0 → class 1: 3</li>" in text


def test_some_queries_are_spread():
    points, labels = features()
    even = neighbours.find(points, labels, 3, 3)
    assert sorted(query.row for query in even) == [0, 3, 6]
    assert neighbours.find(points[:1], labels[:1], 3, 9) == []


def test_the_page_is_whole_and_asks_for_nothing(page_file):
    text = page_file.read_text()
    elements = Elements(text)
    articles = elements.of("article")
    assert len(articles) == 12 and len(elements.of("figure", "own")) == 12
    assert len(elements.of("figure")) == 12 * 11 == len(elements.of("img"))
    right = [int(a["data-right"]) for a in articles]
    assert right == sorted(right)
    assert len(elements.of("figure", "right")) == sum(right)
    # Each image is there once, by its number.
    thumbnails = json.loads(re.search(r"const thumbnails = (\{.*\});", text)[1])
    assert {image["data-image"] for image in elements.of("img")} == {*thumbnails}
    assert all(u.startswith("data:image/webp;base64,") for u in thumbnails.values())
    assert all(image["alt"] for image in elements.of("img"))
    assert "Classes confused most" in text
    assert all(a["aria-label"] for a in articles)
    assert "<i>" not in text and "b&lt;i&gt;" in text
    # Nothing that a browser would fetch.
    assert "default-src 'none'" in text and "http" not in text.replace("http-equiv", "")
    assert not elements.of("link")


def test_the_same_command_writes_the_same_page(
    run, encoder_file, pictures, page_file, tmp_path
):
    output, _ = run(
        neighbours,
        f"--model={encoder_file}",
        f"--images={pictures}",
        f"--output={tmp_path / 'deep' / 'page'}",
        "--num_queries=12",
    ).ok()
    assert "12 queries, from 45 images of 3 classes" in output
    again = tmp_path / "deep" / "page" / "index.html"
    assert again.read_bytes() == page_file.read_bytes()


@pytest.mark.parametrize(
    "flags, names, message",
    [
        ((), ["a/1.png", "b/1.png"], "2 images have fewer than --num_neighbours=10"),
        (("--num_neighbours=1",), ["a/1.png", "b/1.png"], "alone in its class"),
        (("--precision=mixed",), ["a/1.png", "b/1.png"], "is for training"),
    ],
)
def test_nothing_to_show_is_said(flags, names, message, run, encoder_file, tmp_path):
    folder = own_images.write(tmp_path / "few", own_images.images(*names))
    path = tmp_path / "page"
    files = (f"--model={encoder_file}", f"--images={folder}", f"--output={path}")
    run(neighbours, *files, *flags).refused(message)
    assert not path.exists()


def decoded(uri):
    content = base64.b64decode(uri.removeprefix("data:image/webp;base64,"))
    return Image.open(io.BytesIO(content)).convert("RGB")


def test_pictures_of_all_kinds_become_thumbnails():
    kinds = {0: ("PNG", (28, 28)), 1: ("JPEG", (300, 200)), 2: ("PNG", (4000, 10))}
    pictures = {
        row: own_images.encoded(own_images.picture(1, size), kind)
        for row, (kind, size) in kinds.items()
    }
    found = page._thumbnails(pictures, pictures.get)
    assert [decoded(found[row]).size for row in kinds] == [(28, 28), (64, 96), (1, 96)]
    # Drawings are kept to the pixel.
    original = Image.open(io.BytesIO(pictures[0])).convert("RGB")
    np.testing.assert_array_equal(decoded(found[0]), original)


def test_sixteen_bits_are_not_cut_off():
    ramp = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    (found,) = page._thumbnails([0], lambda row: buffer.getvalue()).values()
    assert abs(np.asarray(decoded(found)).mean() - 127.5) < 2


def test_a_page_of_many_photographs_stays_small():
    """Noise, which no format makes small, of 100 queries with 10 neighbours each."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 200, 200, 3), np.uint8)
    pictures = [own_images.encoded(p, "JPEG") for p in pixels]
    found = page._thumbnails(range(1100), lambda row: pictures[row % 20])
    assert sum(map(len, found.values())) < 2_000_000
