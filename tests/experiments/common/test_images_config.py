import dataclasses

import pytest

from experiments.common import config, images_config
from tests.datasets.images import own_images
from tff_fedss.datasets import images
from tff_fedss.datasets.images import tfds_index
from tff_fedss.errors import InvalidInputError


@dataclasses.dataclass(frozen=True)
class Asked(images_config.ImagesConfig):
    """What a program on images is asked."""

    data_dir: str | None = config.flag(None, "Where they are.")
    num_clients: int | None = config.flag(None, "An option of some families.")


@pytest.mark.parametrize(
    ("dataset", "flags", "message"),
    [
        ("cifar10", {"folders": "class"}, "--folders goes with --dataset=images only"),
        ("tfds", {"folders": "class"}, "--folders goes with .*, found --dataset=tfds"),
        ("images", {"label_key": "x"}, "--label_key goes with --dataset=tfds only"),
        ("glyphs", {"test": "images"}, "--test goes with --dataset=images or tfds on"),
        ("glyphs", {"test_share": 0.1}, "--test_share goes with"),
    ],
)
def test_flags_of_other_data_sets_are_refused(dataset, flags, message):
    with pytest.raises(InvalidInputError, match=message):
        images_config.check_heeded(Asked(**flags), dataset)


def test_flags_that_are_heeded_or_not_looked_at_pass():
    asked = Asked(folders="class", test="images", test_share=0.1, num_clients=3)
    images_config.check_heeded(asked, "images")
    images_config.check_heeded(Asked(tfds_name="x", client_key="y"), "tfds")
    with pytest.raises(InvalidInputError, match="--num_clients goes with --kind="):
        images_config.check_heeded(asked, "glyphs", flag="kind", names=["num_clients"])


def test_what_is_given_reaches_the_index(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(tfds_index, "load", lambda *a, **k: found.append((a, k)))
    asked = Asked(tfds_name="mnist", data_dir="here", label_key="digit")
    images_config.open_index(asked, "tfds")
    keys = {"image_key": None, "label_key": "digit", "client_key": None}
    assert found == [(("mnist", "here"), keys)]
    names = [f"{k}/{c}/1.png" for k in "xy" for c in "ab"]
    folder = own_images.write(tmp_path, own_images.images(*names))
    with pytest.raises(InvalidInputError, match="say folders=client/class or"):
        images_config.open_index(Asked(data_dir=str(folder)), "images")
    for flags in ({"folders": "client/class"}, {"test": "clients"}):
        asked = Asked(data_dir=str(folder), **flags)
        assert images_config.open_index(asked, "images").client_names == ["x", "y"]
    asked = Asked(data_dir=str(folder), folders="class")
    assert images_config.open_index(asked, "images").client_names is None


def test_what_is_missing_is_named():
    for dataset, message in (
        ("images", "dataset=images needs `data_dir`"),
        ("tfds", "dataset=tfds needs `tfds_name`"),
        ("others", "dataset='others' must be images or tfds"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            images.open_index(dataset, None)


def test_labelled_images_by_flags(tmp_path):
    folder = own_images.of_classes(tmp_path / "own", "a", "b", sides=(16, 18))
    asked = Asked(data_dir=str(folder), test="images", test_share=0.5)
    data = images_config.load_labelled(asked, "images", 12)
    assert data.image_shape == (12, 12, 3) and len(data.test_labels) == 6
