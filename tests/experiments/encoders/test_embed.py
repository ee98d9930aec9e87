import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest

from experiments.encoders import embed, vectors
from tests.datasets.images import own_images
from tests.experiments.encoders.conftest import CLASSES, EACH
from tests.experiments.killing import kill_when
from tff_fedss import models
from tff_fedss.datasets import images
from tff_fedss.datasets.images import formats


def flags_of(encoder_file, pictures, output):
    return f"--model={encoder_file}", f"--images={pictures}", f"--output={output}"


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
def test_path_label_and_vector_of_each_image(
    suffix, run, encoder_file, pictures, tmp_path
):
    path = tmp_path / f"vectors{suffix}"
    flags = flags_of(encoder_file, pictures, path)
    code, output, errors = run(embed, *flags)
    assert code == 0, errors
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
    code, output, _ = run(embed, *flags)
    assert code == 0 and "done before" in output and path.read_bytes() == content


def test_images_without_classes(run, encoder_file, pictures, tmp_path):
    folder = tmp_path / "flat"
    folder.mkdir()
    for k, source in enumerate(sorted(pictures.rglob("*.png"))[:5]):
        shutil.copy(source, folder / f"{k} ü\n.png")
    for output in (tmp_path / "v.parquet", tmp_path / "v.npz"):
        code, said, errors = run(embed, *flags_of(encoder_file, folder, output))
        assert code == 0, errors
        assert "5 images without classes" in said
        assert vectors.read(output).labels is None
        assert vectors.read(output).paths[0] == "0 ü\n.png"
    code, said, _ = run(
        embed,
        *flags_of(encoder_file, pictures, tmp_path / "w.npz"),
        "--folders=none",
    )
    assert code == 0 and "45 images without classes" in said


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
def test_goes_on_to_the_same_bytes(
    suffix, run, encoder_file, pictures, tmp_path, monkeypatch
):
    monkeypatch.setattr(vectors, "_AT_ONCE", 4)
    monkeypatch.setattr(vectors, "_PER_PART", 8)
    whole, stopped = tmp_path / f"whole{suffix}", tmp_path / f"stopped{suffix}"
    assert run(embed, *flags_of(encoder_file, pictures, whole))[0] == 0

    embed_images, calls = models.ExportedEncoder.embed, []

    def stop(self, batch):
        calls.append(len(batch))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return embed_images(self, batch)

    monkeypatch.setattr(models.ExportedEncoder, "embed", stop)
    flags = flags_of(encoder_file, pictures, stopped)
    assert run(embed, *flags)[0] == 130
    parts = vectors.parts_folder(stopped)
    assert not stopped.exists() and len(list(parts.glob("*.npz"))) == 2
    assert run(embed, *flags)[0] == 0
    assert sum(calls) == 45 + 2 * 4 and not parts.exists()
    assert stopped.read_bytes() == whole.read_bytes()


@pytest.mark.slow
def test_a_killed_program_goes_on_to_the_same_bytes(encoder_file, tmp_path):
    contents = {
        f"{k % 3}/{k}.png": own_images.encoded(own_images.picture(k, (30, 30)))
        for k in range(2000)
    }
    folder = own_images.write(tmp_path / "many", contents)
    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"

    def command(output):
        module = "experiments.encoders.embed"
        flags = flags_of(encoder_file, folder, output)
        return [sys.executable, "-m", module, *flags]

    parts = vectors.parts_folder(killed)
    process = subprocess.Popen(command(killed))
    kill_when(process, lambda: list(parts.glob("0*.npz")), 120)
    assert not killed.exists()
    for output in (whole, killed):
        subprocess.run(command(output), check=True, stdin=subprocess.DEVNULL)
    assert killed.read_bytes() == whole.read_bytes()


def test_other_images_or_another_encoder_are_refused(
    run, encoder_file, pictures, tmp_path
):
    other = tmp_path / "other"
    shutil.copytree(pictures, other)
    next(other.rglob("*.png")).unlink()
    path = tmp_path / "vectors.npz"
    assert run(embed, *flags_of(encoder_file, pictures, path))[0] == 0
    code, _, errors = run(embed, *flags_of(encoder_file, other, path))
    assert code == 2 and "is there already, of another encoder or other" in errors
    begun = vectors.parts_folder(tmp_path / "begun.npz")
    encoder = models.ExportedEncoder(encoder_file)
    vectors.compute(encoder, images.load_index(pictures), begun)
    flags = flags_of(encoder_file, other, tmp_path / "begun.npz")
    code, _, errors = run(embed, *flags)
    assert code == 2 and "was begun with other images" in errors


def empty(path):
    path.mkdir()


def damaged(path):
    own_images.write(path, own_images.images("a/1.png", "b/2.png"))
    (path / "b" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\nno")


@pytest.mark.parametrize(
    "write, message",
    [
        (lambda path: None, "does not exist"),
        (empty, "found no image"),
        (lambda path: path.write_text("x"), "is a file"),
        (damaged, "2.png is cut off or damaged"),
    ],
)
def test_images_that_cannot_be_read_are_refused(
    write, message, run, encoder_file, tmp_path
):
    folder, path = tmp_path / "images", tmp_path / "v.npz"
    write(folder)
    code, output, errors = run(embed, *flags_of(encoder_file, folder, path))
    assert (code, output) == (2, "") and message in errors
    assert errors.startswith(f"error: --images={folder}")
    assert errors.count("\n") == 1 and not path.exists()


@pytest.mark.parametrize(
    "name, message",
    [
        ("v.csv", "must end in .parquet or .npz"),
        ("none/v.npz", "has no folder"),
        ("folder.npz", "is a folder"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(name, message, run, tmp_path):
    (tmp_path / "folder.npz").mkdir()
    code, _, errors = run(embed, *flags_of("x", "y", tmp_path / name))
    assert code == 2 and message in errors


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"no file of vectors", b"PK\3\4", b"PAR1"])
def test_a_damaged_file_is_not_taken_for_vectors(
    suffix, content, run, encoder_file, pictures, tmp_path
):
    path = tmp_path / f"v{suffix}"
    path.write_bytes(content)
    code, _, errors = run(embed, *flags_of(encoder_file, pictures, path))
    assert code == 2 and f"{path} is damaged, or no file of embed" in errors
    assert path.read_bytes() == content


def test_a_model_that_is_none_is_refused(run, pictures, tmp_path):
    flags = flags_of(tmp_path / "none.keras", pictures, tmp_path / "v.npz")
    code, output, errors = run(embed, *flags)
    assert (code, output) == (2, "")
    assert errors.startswith("error: --model: ") and errors.count("\n") == 1
