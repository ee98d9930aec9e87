import base64
import html.parser
import io
import json
import re
import shutil
import subprocess

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


def test_some_queries_are_spread_or_are_the_worst():
    points, labels = features()
    everything = neighbours.find(points, labels, 3, 100)
    worst = neighbours.find(points, labels, 3, 4, only_worst=True)
    assert worst == everything[:4]
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
    code, output, errors = run(
        neighbours,
        f"--model={encoder_file}",
        f"--images={pictures}",
        f"--output={tmp_path / 'deep' / 'page'}",
        "--num_queries=12",
    )
    assert code == 0, errors
    assert "12 queries, from 45 images of 3 classes" in output
    again = tmp_path / "deep" / "page" / "index.html"
    assert again.read_bytes() == page_file.read_bytes()


@pytest.mark.parametrize(
    "flags, names, message",
    [
        ((), ["a/1.png", "b/1.png"], "2 images have fewer than --num_neighbours=10"),
        (("--num_neighbours=1",), ["a/1.png", "b/1.png"], "alone in its class"),
        (("--num_neighbours=0",), ["a/1.png"], "--num_neighbours"),
        (("--queries=best",), ["a/1.png"], "--queries"),
    ],
)
def test_nothing_to_show_is_said(flags, names, message, run, encoder_file, tmp_path):
    folder = own_images.write(tmp_path / "few", own_images.images(*names))
    path = tmp_path / "page"
    code, output, errors = run(
        neighbours,
        f"--model={encoder_file}",
        f"--images={folder}",
        f"--output={path}",
        *flags,
    )
    assert (code, output) == (2, "") and message in errors and not path.exists()
    assert errors.count("\n") == 1


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


def test_a_page_of_many_photographs_stays_small():
    """Noise, which no format makes small, of 100 queries with 10 neighbours each."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 200, 200, 3), np.uint8)
    pictures = [own_images.encoded(p, "JPEG") for p in pixels]
    found = page._thumbnails(range(1100), lambda row: pictures[row % 20])
    assert sum(map(len, found.values())) < 2_000_000


# What a user does, by the keyboard: the result is put into the title.
PROBE = """
<script>
const queries = document.getElementById("queries");
const press = key => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const visible = () => [...queries.children].filter(a => a.offsetHeight > 0);
const choose = (id, value) => {
  const control = document.getElementById(id);
  if (control.type === "checkbox") control.checked = value; else control.value = value;
  control.dispatchEvent(new Event("change", {bubbles: true}));
};
const place = () => visible().indexOf(document.activeElement.closest("article"));
addEventListener("load", () => {
  const images = [...document.images], report = {};
  report.images = images.length;
  report.there = images.filter(i => i.complete && i.naturalWidth > 0).length;
  report.all = visible().length;
  report.right = visible().map(a => Number(a.dataset.right));
  choose("order", "best");
  report.best = visible().map(a => Number(a.dataset.right));
  choose("order", "worst");
  visible()[0].focus();
  report.keys = [];
  for (const key of ["ArrowDown", "ArrowDown", "ArrowUp", "End", "Home", "ArrowUp"]) {
    press(key);
    report.keys.push(place());
  }
  press("ArrowRight");
  press("ArrowRight");
  report.figure = [...document.activeElement.parentNode.children].indexOf(
    document.activeElement);
  press("ArrowLeft");
  press("ArrowLeft");
  report.back = document.activeElement.tagName;
  report.stops = queries.querySelectorAll('[tabindex="0"]').length;
  press("Escape");
  report.escaped = document.activeElement.id;
  choose("class", "b<i>");
  report.filtered = visible().map(a => a.dataset.class);
  report.count = document.getElementById("count").textContent;
  choose("class", "");
  document.getElementById("far").value = 0;
  document.getElementById("far").dispatchEvent(new Event("input"));
  report.near = [...document.querySelectorAll("figure")].filter(
    f => f.offsetHeight > 0).length;
  document.getElementById("far").value = 2;
  document.getElementById("far").dispatchEvent(new Event("input"));
  choose("wrong", true);
  report.wrong = visible().map(a => Number(a.dataset.wrong));
  report.frames = ["own", "right", "wrong"].map(kind => {
    const image = document.querySelector(`.${kind} img`);
    return image ? getComputedStyle(image).borderTopStyle : "none";
  });
  document.title = JSON.stringify(report);
});
</script>
"""


@pytest.mark.slow
def test_in_a_browser(page_file, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    text = page_file.read_text()
    probed = tmp_path / "index.html"
    probed.write_text(text.replace("</body>", f"{PROBE}</body>"))
    outcome = subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=10000",
            "--dump-dom",
            probed.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert outcome.returncode == 0, outcome.stderr
    (title,) = re.findall(r"<title>(.*?)</title>", outcome.stdout, re.DOTALL)
    report = json.loads(html.unescape(title))
    assert report["images"] == report["there"] == 12 * 11
    assert report["all"] == 12
    assert report["right"] == sorted(report["right"])
    assert report["best"] == report["right"][::-1]
    assert report["keys"] == [1, 2, 1, 11, 0, 0]
    assert (
        report["figure"] == 1 and report["back"] == "ARTICLE" and report["stops"] == 1
    )
    assert report["escaped"] == "class"
    # At most 0 away: the queries themselves, and copies of them.
    assert 12 <= report["near"] < 12 * 11
    num_class = sum(a["data-class"] == "b<i>" for a in Elements(text).of("article"))
    assert report["filtered"] == ["b<i>"] * num_class and 0 < num_class < 12
    assert report["count"] == f"{num_class} of 12 queries"
    wrong = [int(a["data-wrong"]) for a in Elements(text).of("article")]
    assert report["wrong"] == [count for count in wrong if count]
    assert 0 < len(report["wrong"]) < 12
    assert report["frames"] == ["solid", "solid", "dashed"]
