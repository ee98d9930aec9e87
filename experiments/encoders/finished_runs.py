"""The feature extractor that a finished run has left, of whatever program."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tff_fedss import files, models, tasks
from tff_fedss.datasets.federated.preprocessing import Preprocessing
from tff_fedss.errors import InvalidInputError
from tff_fedss.models import ImageInput
from tff_fedss.training import run_files

# Drawings are stored at their size, in grey, ink bright on dark. Omniglot's files, for
# which a reader of drawings makes that, are of dark ink on paper.
_DRAWINGS = {"omniglot": True, "glyphs": False}
# A flag that only this program's runs have.
_SIGNS = {
    "clients_per_round": "train",
    "sample_rate": "partial_fc",
    "sampler": "rf_softmax",
    "key_momentum": "moco",
}


@dataclasses.dataclass(frozen=True)
class _Trained:
    """What a program trains.

    Attributes:
        model: The name of phi.
        build: Makes phi, with any weights.
        image_input: How its images become ready.
    """

    model: str
    build: Callable[[], tf.keras.Model]
    image_input: ImageInput


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """A feature extractor, and where it comes from.

    Attributes:
        phi: With the weights that the run has ended with.
        image_input: How its images become ready.
        facts: For the metadata of the encoder, for JSON.
    """

    phi: tf.keras.Model
    image_input: ImageInput
    facts: Mapping[str, Any]


def read(results_dir: str, method: str | None = None) -> FinishedRun:
    """Reads what a run has left; its data are not needed.

    Args:
        results_dir: The run's folder.
        method: Which of its methods, as the weights METHOD.npz are called. None: the
            only one.

    Raises:
        InvalidInputError: If it is not the folder of a finished run of images, the
            method is none of its own, or a file is damaged.
    """
    folder = pathlib.Path(results_dir)
    where = f"--results_dir={results_dir}"
    if not folder.is_dir():
        raise InvalidInputError(f"{where} is no folder; expected that of a run.")
    flags = run_files.read_flags(folder / run_files.FLAGS)
    done = run_files.read_json(folder / run_files.DONE)
    if done is None:
        raise InvalidInputError(
            f"{where}: its run is not finished: give its command again first."
        )
    program = next((name for sign, name in _SIGNS.items() if sign in flags), None)
    if program is None:
        raise InvalidInputError(
            f"{where} is of a program that leaves no encoder: expected a run of train, "
            "compare, partial_fc, rf_softmax or moco."
        )
    try:
        trained = _TRAINED[program](flags, where)
    except (KeyError, ValueError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(
            f"{folder / run_files.FLAGS} is damaged, or of another version: "
            f"{files.error_text(error)}."
        ) from error
    weights = _weights_file(folder, where, method)
    phi = trained.build()
    models.load_pretrained(phi, weights)
    description = run_files.read_json(folder / run_files.RUN) or {}
    facts = {
        "method": weights.stem,
        "program": program,
        "model": trained.model,
        "class_names": done.get("class_names"),
        "weights_sha256": files.sha256(weights),
        "flags": flags,
        "run": {
            key: description[key]
            for key in ("started", "versions")
            if key in description
        },
    }
    return FinishedRun(phi, trained.image_input, facts)


def _weights_file(folder: pathlib.Path, where: str, method: str | None) -> pathlib.Path:
    found = sorted(p for p in folder.glob("*.npz") if p.name != "losses.npz")
    names = [path.stem for path in found]
    if method is None:
        if len(found) == 1:
            return found[0]
        problem = f"has the weights of {', '.join(names)}: say which by --method."
        raise InvalidInputError(
            f"{where} {problem if found else 'has no METHOD.npz, the weights.'}"
        )
    if method not in names:
        raise InvalidInputError(
            f"--method={method}: there is no {folder / method}.npz, but "
            f"{', '.join(names) or 'none'}."
        )
    return folder / f"{method}.npz"


def _feature_extractor(
    flags: Mapping[str, str], image_input: ImageInput, name: str
) -> _Trained:
    size, channels = image_input.image_size, image_input.channels
    build = functools.partial(
        models.FEATURE_EXTRACTORS[name],
        (size, size, channels),
        int(flags["embedding_dim"]),
    )
    return _Trained(name, build, image_input)


def _image_input(
    dataset: str, image_size: int, resize_size: int | None = None
) -> ImageInput:
    """How the reader of a federated data set, or of one pooled, makes images ready."""
    if dataset in _DRAWINGS:
        inverted = _DRAWINGS[dataset]
        return ImageInput(image_size, 1, resizing="box", inverted=inverted)
    sizes = Preprocessing(image_size, resize_size)
    return ImageInput(image_size, resize_size=sizes.resize_size)


def _of_train(flags: Mapping[str, str], where: str) -> _Trained:
    del where
    resize_size = flags.get("resize_size")
    image_input = _image_input(
        flags["dataset"],
        int(flags["image_size"]),
        None if resize_size is None else int(resize_size),
    )
    return _feature_extractor(flags, image_input, flags["model"])


def _of_partial_fc(flags: Mapping[str, str], where: str) -> _Trained:
    if flags["dataset"] == "generated":
        raise InvalidInputError(
            f"{where} has learnt from generated vectors: it has no encoder of images."
        )
    size = int(flags["image_size"])
    image_input = (
        _image_input("omniglot", size)
        if flags["dataset"] == "omniglot"
        else ImageInput(size, resizing="bilinear")
    )
    return _feature_extractor(flags, image_input, flags["model"])


def _of_rf_softmax(flags: Mapping[str, str], where: str) -> _Trained:
    family = tasks.FAMILIES.get(flags["task"])
    if family is None:
        raise InvalidInputError(
            f"{where} has learnt from --task={flags['task']}: it has no encoder of "
            "images."
        )
    settings = family.settings["classification"]
    image_input = _image_input(flags["task"], settings.image_size)
    return _feature_extractor(flags, image_input, settings.model)


def _of_moco(flags: Mapping[str, str], where: str) -> _Trained:
    del where
    size, name = int(flags["image_size"]), flags["backbone"]
    # Photographs are loaded larger and cut, see the program.
    is_photograph = flags["dataset"] == "imagenette"
    image_input = ImageInput(
        size,
        resize_size=round(size * 256 / 224) if is_photograph else size,
        resizing="bilinear",
        cut_square=True,
    )
    build = functools.partial(models.BACKBONES[name], (size, size, 3))
    return _Trained(name, build, image_input)


_TRAINED: Mapping[str, Callable[[Mapping[str, str], str], _Trained]] = {
    "train": _of_train,
    "partial_fc": _of_partial_fc,
    "rf_softmax": _of_rf_softmax,
    "moco": _of_moco,
}
