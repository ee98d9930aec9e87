"""Words of --dataset: data sets with clients, and images of any origin without them.

Each program also has its own --data_dir.
"""

from collections.abc import Callable, Iterable
from typing import Any

from experiments.common import config, option_words
from experiments.common.option_words import Chosen, Word
from tff_fedss import tasks
from tff_fedss.datasets import images
from tff_fedss.datasets.central import labelled_images
from tff_fedss.errors import InvalidInputError

DATA_DIR = (
    "images: CLASS/image or CLIENT/CLASS/image, optionally below train/ and test/, "
    "in a folder, zip or tar; or an images.csv with path,label and optionally "
    "client and split. tfds: TFDS's own folder."
)
# A user's images, by their names in --dataset.
OWN_IMAGES = ("images", "tfds")
_HELD_OUT = ("test", "test_share")


def _word_of(spec: tasks.DatasetSpec) -> Word:
    functions = filter(None, (spec.load, spec.forwards_to))
    options = option_words.word(*functions, names=spec.options).options
    return Word(f"{spec.title}.", options)


# The data sets with clients; their keywords are options.
FEDERATED = option_words.WordsOf(tasks.DATASETS, _word_of)


def chosen_task(asked: config.Config) -> str:
    """Returns a program's --task, by default the first of its --dataset.

    Raises:
        InvalidInputError: If the data set does not have the task.
    """
    supported = tasks.DATASETS[asked.chosen("dataset").name].settings
    if asked.task not in (None, *supported):
        raise InvalidInputError(
            f"--task={asked.task} does not go with --dataset={asked.dataset}, which "
            f"has {' and '.join(supported)}."
        )
    return asked.task or next(iter(supported))


def partitions(spec: tasks.DatasetSpec) -> dict[str, Word]:
    """Returns the words of --partition for a data set, the default first."""
    return {
        name: Word() if kind is None else option_words.word(kind)
        for name, kind in spec.partitions.items()
    }


def keywords(dataset: Chosen, data_dir: str | None, flag: str) -> dict[str, Any]:
    """Returns the user's keywords of a data set with clients.

    Raises:
        InvalidInputError: If the data set is not read from a --data_dir.
    """
    if "data_dir" in tasks.DATASETS[dataset.name].keywords:
        return {"data_dir": data_dir, **dataset.options}
    if data_dir is not None:
        raise InvalidInputError(
            f"--data_dir={data_dir} has no effect on --{flag}={dataset.name}."
        )
    return dict(dataset.options)


def central(
    known: Iterable[str], read: Callable[..., Any] = images.federated
) -> dict[str, Word]:
    """Returns the words for data sets without clients: known ones, and `OWN_IMAGES`.

    `read` has the options of a test.
    """
    return {
        **dict.fromkeys(known, Word()),
        "images": option_words.word(
            images.load_folder, read, names=("folders", *_HELD_OUT)
        ),
        "tfds": option_words.word(
            images.load_tfds,
            read,
            names=("name", "image", "label", "client", *_HELD_OUT),
        ),
    }


def open_index(dataset: Chosen, data_dir: str | None) -> images.ImageIndex:
    """Indexes a user's images, of "tfds" or "images".

    Raises:
        InvalidInputError: If they are missing, ambiguous or damaged.
    """
    options = {k: v for k, v in dataset.options.items() if k not in _HELD_OUT}
    if dataset.name == "tfds":
        # TFDS takes seconds to import.
        from tff_fedss.datasets.images import tfds_index

        return tfds_index.load(data_dir=data_dir, **options)
    return images.open_folder(data_dir, test=dataset.options.get("test"), **options)


def held_out(dataset: Chosen) -> dict[str, Any]:
    """Returns the arguments of the test."""
    return {k: v for k, v in dataset.options.items() if k in _HELD_OUT}


def load_labelled(
    dataset: Chosen,
    data_dir: str | None,
    image_size: int | None,
    num_train: int | None = None,
) -> labelled_images.LabelledImages:
    """Loads labelled images: a user's, or known ones by their name.

    Args:
        dataset: One of `central`.
        image_size: Height and width to which they are resized; None: not resized.
        num_train: The number of training images to use, equally many of each class;
            None: all.

    Raises:
        InvalidInputError: If the data are missing, damaged, larger than memory or of
            one class.
    """
    if dataset.name in OWN_IMAGES:
        index = open_index(dataset, data_dir)
        data = labelled_images.from_index(
            index, image_size=image_size, **held_out(dataset)
        )
    else:
        data = labelled_images.load(dataset.name, data_dir, image_size=image_size)
    if data.num_classes < 2:
        raise InvalidInputError(
            f"--data_dir={data_dir} holds images of one class: expected at least two."
        )
    return data if num_train is None else data.subset(num_train)
