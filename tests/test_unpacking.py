"""Archives and models of others: read in memory, or refused in one line."""

import contextlib
import functools
import io
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.trackable import resource as trackable

from experiments.benchmarks import measured
from experiments.common import sources as run_sources
from tests import hostile_archives, imagenet21k_archive, landmarks_images
from tests.datasets.images import own_images
from tests.hostile_archives import HARMLESS, LARGE, REFUSED, REFUSED_TARS, Member
from tests.refusals import message_of
from tff_fedss import models, training, unpacking
from tff_fedss.datasets import images, omniglot, sources
from tff_fedss.datasets.central import penn_treebank
from tff_fedss.datasets.imagenet21k import class_tars
from tff_fedss.datasets.landmarks import preparation
from tff_fedss.errors import InvalidInputError

# --- Archives ---------------------------------------------------------------------

_IMAGES = own_images.images("a/0.png", "a/1.png", "b/0.png", "b/1.png")
_DRAWINGS = own_images.images(*(f"A/character01/0001_{i:02}.png" for i in (1, 2, 3)))
_TEXTS = {f"x/ptb.{part}.txt": b"a b\n" for part in ("train", "valid", "test")}
_CLASSES = imagenet21k_archive.classes([2, 3])
_CLASS_TARS = imagenet21k_archive.class_tars(_CLASSES)
_WNID = min(_CLASSES)
_LANDMARKS = {f"0/0/{i:016x}.jpg": landmarks_images.jpeg(i) for i in range(3)}
_RUNS = {f"x/seed0/{name}": b"a" for name in ("flags.txt", "metrics.csv")}


def _own_images(path):
    index = images.load_index(path)
    return [index.encoded(row) for row in range(len(index))]


def _omniglot(path):
    found = omniglot._sources(path, "data_dir")
    return [np.asarray(drawing[-1]) for drawing in omniglot._drawings(found)]


def _landmarks(path):
    ids = [pathlib.PurePath(name).stem for name in _LANDMARKS]
    try:
        read = preparation.in_shards(path.parent, ids)
        return [preparation.read_whole(read, image_id) for image_id in ids]
    except preparation.NoImageError as error:
        raise InvalidInputError(f"{error.path} {error.reason}") from error


def _imagenet(path):
    """What of the archive is read: all images, by the name of their class."""
    copies = sources.cache_folder()
    copies.mkdir(exist_ok=True)
    folder = path.parent if path.suffix == ".tar" and path.stem == _WNID else path
    found = {}
    for tar in class_tars.open_archive(folder).read(copies, set()):
        with open(tar.path, "rb") as file:
            for name, (start, size) in tar.images().items():
                found[tar.wnid, name] = os.pread(file.fileno(), size, start)
    return found


READERS = {
    f"{label} {file}": (reader, file, content)
    for label, reader, files, content in (
        (
            "own images",
            _own_images,
            ["x.zip", "x.tar", "x.tar.gz", "x.tar.xz", "x.tar.bz2"],
            _IMAGES,
        ),
        ("Omniglot", _omniglot, ["images_background.zip", "x.tar"], _DRAWINGS),
        ("PTB", penn_treebank.load, ["x.zip", "x.tar.gz"], _TEXTS),
        ("Landmarks", _landmarks, ["images_000.tar"], _LANDMARKS),
        ("ImageNet-21k's class", _imagenet, [f"{_WNID}.tar"], _CLASSES[_WNID]),
        (
            "ImageNet-21k",
            _imagenet,
            ["fall11_whole.tar", "winter21_whole.tar.gz"],
            _CLASS_TARS,
        ),
        ("published runs", run_sources.read_archive, ["runs.tar.xz"], _RUNS),
    )
    for file in files
}
ARCHIVES = [
    pytest.param(reader, fault, id=f"{reader}: {fault}")
    for reader, (_, file, _) in READERS.items()
    for fault in {**REFUSED, **HARMLESS, **({} if ".zip" in file else REFUSED_TARS)}
    # A class tar is read up to its end, however many zeros follow.
    if (file, fault) != ("fall11_whole.tar", "a bomb")
]


def _read(reader, fault, root):
    """Writes an archive with a fault, and reads it."""
    read, file, _ = READERS[reader]
    return _written(functools.partial(_write, reader, fault), file, read, root)


def _write(reader, fault, path):
    _, file, content = READERS[reader]
    members = [Member(name, value) for name, value in content.items()]
    write = hostile_archives.write_zip if ".zip" in file else hostile_archives.write_tar
    elsewhere = path.parents[1] / "elsewhere"
    write(path, fault(members, elsewhere) if fault else members)


def _outside(root):
    """What is written somewhere else than in the cache and beside the archive."""
    return [path for path in root.rglob("*") if path.parts[len(root.parts)] != "in"]


@pytest.fixture
def root(tmp_path, monkeypatch, cache):
    root = tmp_path / "root"
    for name in ("cwd", "temporary"):
        (root / name).mkdir(parents=True)
    monkeypatch.chdir(root / "cwd")
    monkeypatch.setattr(tempfile, "tempdir", str(root / "temporary"))
    monkeypatch.setattr(unpacking, "LARGEST", 1 << 22)  # Larger ones take seconds.
    return root


@pytest.mark.parametrize("reader", READERS)
def test_good_archives_are_read(reader, root):
    assert len(_read(reader, None, root)) >= 2


@pytest.mark.parametrize("reader, fault", ARCHIVES)
def test_archives_of_others(reader, fault, root):
    before = _outside(root)
    if fault in HARMLESS:
        try:
            _read(reader, HARMLESS[fault], root)
        except InvalidInputError as error:
            assert "\n" not in str(error)
    else:
        message_of(_read, reader, {**REFUSED, **REFUSED_TARS}[fault], root)
        # What was unpacked before the bomb was found is gone.
        cache = root.parent / "cache"
        assert sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()) < 1 << 20
    assert _outside(root) == before


@pytest.mark.parametrize("read", [_own_images, unpacking.read_npz])
def test_a_long_list_of_files_is_refused(read, root, monkeypatch):
    monkeypatch.setattr(unpacking, "_LONGEST_LIST", 1 << 20)
    path = root / "x.zip"
    hostile_archives.write_zip(path, hostile_archives.many(20_000)([], root))
    assert "the list of its files has 1 MiB" in message_of(read, path)


# --- Arrays and models ------------------------------------------------------------


class _Code:
    """Runs when it is unpickled."""

    def __reduce__(self):
        return open, (str(_trace()), "w")


def _trace():
    """What is there if code of a file has run; tests run below it."""
    return pathlib.Path.cwd() / "trace"


def _npy(shape, content=b""):
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


def _zip(*members):
    return lambda path: hostile_archives.write_zip(path, members)


_NUMBER = _npy((1,), bytes(4))
# For each whether it is refused.
ARRAYS = {
    "a bomb": (
        _zip(Member("00000.npy", _npy((LARGE // 4,)), zeros=LARGE)),
        True,
    ),
    "more than there is": (_zip(Member("00000.npy", _npy((1 << 50,)))), True),
    "a pickle in it": (
        lambda path: np.savez(path, **{"00000": np.array([_Code()], object)}),
        True,
    ),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps(_Code())), True),
    "an array": (lambda path: path.write_bytes(_NUMBER), True),
    "a name that climbs": (_zip(Member("../../escaped.npy", _NUMBER)), False),
    "a name that is not UTF-8": (_zip(Member("ü.npy", _NUMBER)), False),
    "a name twice": (_zip(*[Member("00000.npy", _NUMBER)] * 2), False),
}


def _checkpoint(path):
    return training.Checkpoints(path.parent).restore([np.zeros(1, np.float32)])


def _into_small_model(path):
    model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
    models.load_pretrained(model, path, min_share=0.0)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("fault", ARRAYS)
@pytest.mark.parametrize("read", [training.read_arrays, _checkpoint, _into_small_model])
def test_arrays_of_others(fault, read, root):
    path = root / "in" / "round_1.npz"
    path.parent.mkdir()
    write, is_refused = ARRAYS[fault]
    write(path)
    before = _outside(root)
    try:
        read(path)
    except InvalidInputError as error:
        assert "\n" not in str(error)
    else:
        assert not is_refused
    assert _outside(root) == before


def _model(*layers):
    images = tf.keras.Input([4])
    outputs = tf.keras.layers.Dense(2, name="dense")(images)
    for layer in layers:
        outputs = layer(outputs)
    return tf.keras.Model(images, outputs)


def _saved(path, *layers):
    _model(*layers).save(path)
    _trace().unlink(missing_ok=True)  # It ran here.


def _lambda():
    trace = str(_trace())
    return tf.keras.layers.Lambda(lambda x: (open(trace, "w").close(), x)[1])


def _in_keras(*members):
    """Other members of a .keras file, or functions that change its description."""

    def write(path):
        _saved(path)
        with zipfile.ZipFile(path) as archive:
            kept = {
                name: Member(name, archive.read(name)) for name in archive.namelist()
            }
        for member in members:
            if callable(member):
                config = json.loads(kept["config.json"].content)
                member(config["config"])
                member = Member("config.json", json.dumps(config).encode())
            kept[member.name] = member
        hostile_archives.write_zip(path, [*kept.values()])

    return write


def _writes_a_file(config):
    """Keras calls any function of TensorFlow that a layer names."""
    node = ["_CONSTANT_VALUE", -1, str(_trace()), {"contents": "code"}]
    config["layers"].append(
        {
            "module": "keras.layers",
            "class_name": "TFOpLambda",
            "registered_name": None,
            "config": {"name": "code", "function": "io.write_file"},
            "name": "code",
            "inbound_nodes": [node],
        }
    )


def _imports_a_module(config):
    (pathlib.Path.cwd() / "foreign.py").write_text(f"open({str(_trace())!r}, 'w')")
    config["layers"][1]["config"]["activation"] = {
        "class_name": "function",
        "config": "x",
        "module": "foreign",
        "registered_name": "x",
    }


def _hdf5(change):
    """A weights file of Keras whose kernel is changed."""

    def write(path):
        _model().save_weights(path)
        with h5py.File(path, "a") as file:
            group = file["dense/dense"]
            del group["kernel:0"]
            change(group)

    return write


def _nothing_large(group):
    shape = (LARGE // 4,)
    group.create_dataset("kernel:0", shape, "f4", chunks=(1 << 20,), compression="gzip")


def _of_another_file(group):
    external = [("/etc/passwd", 0, 32)]
    group.create_dataset("kernel:0", (4, 2), "f4", external=external)


def _linked(group):
    other = str(_trace().with_name("other.h5"))
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros([4, 2], np.float32)
    group["kernel:0"] = h5py.ExternalLink(other, "x")


class _Initialized(trackable.CapturableResource):
    """A resource of a SavedModel, such as a table, that is initialized when loaded."""

    def _create_resource(self):
        return tf.raw_ops.MutableHashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

    def _initialize(self):
        tf.io.write_file(str(_trace()), "code")
        return tf.constant(1)


def _initializes(path):
    model = _model()
    model.resource = _Initialized()
    model.resource._resource_handle = model.resource._create_resource()
    tf.saved_model.save(model, str(path))
    assert not _trace().exists()
    tf.saved_model.load(str(path))
    _saved(path.with_name("unused.keras"))  # TensorFlow has run it.


# For each: the file's name, what writes it, and whether it is refused.
MODELS = {
    "a Lambda": ("x.keras", lambda path: _saved(path, _lambda()), True),
    "a function that writes": ("x.keras", _in_keras(_writes_a_file), True),
    "a module": ("x.keras", _in_keras(_imports_a_module), True),
    "a bomb": ("x.keras", _in_keras(Member("assets/x", zeros=LARGE)), True),
    "weights of zeros": (
        "x.keras",
        _in_keras(Member("model.weights.h5", zeros=LARGE)),
        True,
    ),
    "a description of zeros": (
        "x.keras",
        _in_keras(Member("config.json", zeros=LARGE)),
        True,
    ),
    "a name that climbs": ("x.keras", _in_keras(Member("../../escaped")), False),
    "a Lambda with weights": ("x.h5", lambda path: _saved(path, _lambda()), False),
    "zeros": ("x.h5", _hdf5(_nothing_large), True),
    "another file's bytes": ("x.h5", _hdf5(_of_another_file), True),
    "a link to another file": ("x.h5", _hdf5(_linked), True),
    "a Lambda's graph": ("saved", lambda path: _saved(path, _lambda()), False),
    "a graph that initializes": ("saved", _initializes, False),
}


@pytest.mark.parametrize("fault", MODELS)
def test_models_of_others(fault, root):
    name, write, is_refused = MODELS[fault]
    path = root / "in" / name
    path.parent.mkdir()
    write(path)
    before = _outside(root)
    if is_refused:
        message_of(models.load_pretrained, _model(), path)
    else:
        model = _model()
        report = models.load_pretrained(model, path)
        assert report.loaded == ("dense",)
    assert _outside(root) == before
    if path.suffix == ".keras" and is_refused:
        facts = {"encoder": "keras", "embedding_dim": 2}
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("tff_fedss.json", json.dumps(facts))
        message = message_of(models.ExportedEncoder, path)
        assert "no encoder" not in message
        assert _outside(root) == before


# --- Memory -----------------------------------------------------------------------

_MOST_MEMORY = 10**9


def _write_in_a_child(reader, fault, path):
    """Writing a million members takes memory of its own."""
    child = multiprocessing.get_context("fork").Process(
        target=_write, args=(reader, fault, path)
    )
    child.start()
    child.join()
    assert child.exitcode == 0


def _measure(root):
    """Reads all that is above, in this process; prints what had most memory."""
    os.environ["TFF_FEDSS_CACHE"] = str(root / "cache")
    (root / "cwd").mkdir()
    os.chdir(root / "cwd")
    cases = [
        (
            f"{reader}: {fault}",
            functools.partial(_write_in_a_child, reader, function),
            file,
            read,
        )
        for reader, (read, file, _) in READERS.items()
        for fault, function in (
            *REFUSED.items(),
            *({} if ".zip" in file else REFUSED_TARS).items(),
            ("very many members", hostile_archives.many(1_000_000)),
        )
    ]
    cases += [
        (f"{read.__name__}: {fault}", write, "round_1.npz", read)
        for read in (training.read_arrays, _checkpoint, _into_small_model)
        for fault, (write, _) in ARRAYS.items()
    ]
    cases += [
        (f"load_pretrained: {fault}", write, name, _into_small_model)
        for fault, (name, write, _) in MODELS.items()
    ]
    for number, (label, write, name, read) in enumerate(cases):
        (root / str(number)).mkdir()
        before = measured.memory_bytes("VmHWM")
        with contextlib.suppress(InvalidInputError):
            _written(write, name, read, root / str(number))
        after = measured.memory_bytes("VmHWM")
        shutil.rmtree(root / str(number))
        shutil.rmtree(root / "cache", ignore_errors=True)
        if after > before or not number:
            print(f"{after} {label}", flush=True)


def _written(write, name, read, root):
    path = root / "in" / name
    path.parent.mkdir()
    write(path)
    return read(path)


@pytest.mark.slow
def test_none_of_them_takes_much_memory(tmp_path):
    """With the limits as they are, and very many members, in a process of its own."""
    code = "import pathlib; from tests import test_unpacking; test_unpacking._measure("
    done = subprocess.run(
        [sys.executable, "-c", f"{code}pathlib.Path({str(tmp_path)!r}))"],
        cwd=pathlib.Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    print(done.stdout)
    most, name = done.stdout.splitlines()[-1].split(" ", 1)
    assert int(most) < _MOST_MEMORY, name
