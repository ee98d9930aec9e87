import shutil

import numpy as np
import pyarrow.parquet
import pytest

from experiments.encoders import embed, vectors
from tests.datasets.images import own_images
from tests.experiments.encoders.conftest import CLASSES, EACH
from tests.refusals import refused
from tff_fedss import models
from tff_fedss.datasets import formats


def flags_of(encoder_file, pictures, output):
    return f"--model={encoder_file}", f"--images={pictures}", f"--output={output}"


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
def test_path_label_and_vector_of_each_image(
    suffix, run, encoder_file, pictures, tmp_path
):
    path = tmp_path / f"vectors{suffix}"
    flags = flags_of(encoder_file, pictures, path)
    output, _ = run(embed, *flags).ok()
    assert "45 images of 3 classes, 16 numbers each" in output
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == ".npz":
        with np.load(path) as arrays:
            paths, labels = arrays["path"].tolist(), arrays["label"].tolist()
            found = arrays["vector"]
    else:
        columns = pyarrow.parquet.read_table(path).to_pydict()
        paths, labels = columns["path"], columns["label"]
        found = np.array(columns["vector"], np.float32)
    assert sorted(paths) == paths and len(paths) == len(CLASSES) * EACH
    assert [p.partition("/")[0] for p in paths] == labels
    encoder = models.ExportedEncoder(encoder_file)
    for k in (0, 17, 44):
        image = formats.pixels((pictures / paths[k]).read_bytes())
        np.testing.assert_allclose(found[k], encoder.embed([image])[0], atol=1e-6)

    content = path.read_bytes()
    run(embed, *flags).ok()
    assert path.read_bytes() == content


def test_images_without_classes(run, encoder_file, pictures, tmp_path):
    folder = tmp_path / "flat"
    folder.mkdir()
    for k, source in enumerate(sorted(pictures.rglob("*.png"))[:5]):
        shutil.copy(source, folder / f"{k} ü\n.png")
    for output in (tmp_path / "v.parquet", tmp_path / "v.npz"):
        said, _ = run(embed, *flags_of(encoder_file, folder, output)).ok()
        assert "5 images without classes" in said
        assert vectors.read(output).labels is None
        assert vectors.read(output).paths[0] == "0 ü\n.png"
    said, _ = run(
        embed,
        *flags_of(encoder_file, pictures, tmp_path / "w.npz"),
        "--folders=none",
    ).ok()
    assert "45 images without classes" in said


def test_a_damaged_image_is_named_before_anything_is_written(
    run, encoder_file, tmp_path
):
    folder, path = tmp_path / "images", tmp_path / "v.npz"
    own_images.write(folder, own_images.images("a/1.png", "b/2.png"))
    (folder / "b" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    outcome = run(embed, *flags_of(encoder_file, folder, path))
    line = outcome.refused("2.png is no whole JPEG")
    assert line.startswith(f"error: --images={folder}") and not path.exists()


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"no file of vectors", b"PK\3\4", b"PAR1"])
def test_a_damaged_file_is_not_taken_for_vectors(suffix, content, tmp_path):
    path = tmp_path / f"v{suffix}"
    path.write_bytes(content)
    with refused(f"{path} is damaged, or not a file of em"):
        vectors.read(path)
