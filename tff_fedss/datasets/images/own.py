"""Federated data sets of other people's images, from where these lie."""

import os
from typing import Any, Literal

from tff_fedss.datasets.federated.dataset import FederatedDataset
from tff_fedss.datasets.federated.partitioners import Natural
from tff_fedss.datasets.images import index, layout
from tff_fedss.datasets.images.federated import AnyPartitioner
from tff_fedss.datasets.images.federated import load as federated
from tff_fedss.errors import InvalidInputError


def load_folder(
    data_dir: str | os.PathLike | None,
    *,
    folders: Literal[layout.FOLDERS] = "auto",
    **options: Any,
) -> FederatedDataset:
    """Loads images of a folder, an archive or a table.

    Args:
        data_dir: See `index.load`.
        folders: What the folders above an image are. "auto": its class, unless that
            could also be client/class; where clients are needed, client/class.
        **options: See `federated.load`.

    Raises:
        InvalidInputError: As `index.load` and `federated.load`.
    """
    return federated(open_folder(data_dir, folders, **options), **options)


def load_tfds(
    data_dir: str | os.PathLike | None = None,
    *,
    name: str,
    image: str | None = None,
    label: str | None = None,
    client: str | None = None,
    **options: Any,
) -> FederatedDataset:
    """Loads images of a data set of TFDS.

    Args:
        data_dir: TFDS's folder; None: TFDS's own default.
        name: NAME[/CONFIG][:VERSION].
        image: The feature with the image; by default the only image.
        label: The feature with the class, a number or a text; by default the only class
            label.
        client: The feature with the client, for partition=natural and test=clients.
        **options: See `federated.load`.

    Raises:
        InvalidInputError: As `tfds_index.load` and `federated.load`.
    """
    # TFDS takes seconds to import.
    from tff_fedss.datasets.images import tfds_index

    images = tfds_index.load(name, data_dir, image=image, label=label, client=client)
    return federated(images, **options)


def open_folder(
    data_dir: str | os.PathLike | None,
    folders: str = "auto",
    *,
    test: str | None = None,
    partition: AnyPartitioner | None = None,
    **options: Any,
) -> index.ImageIndex:
    """Indexes the images of a folder, an archive or a table.

    Args:
        data_dir: See `index.load`.
        folders: See `load_folder`.
        test: See `federated.load`; "clients" needs clients.
        partition: See there; `Natural` needs clients.
        **options: Others of `federated.load`, which decide nothing here.

    Raises:
        InvalidInputError: As `index.load`; if there is no data_dir.
    """
    if data_dir is None:
        raise InvalidInputError(
            "own images need `data_dir`: a folder, archive or table."
        )
    if folders == "auto" and (test == "clients" or isinstance(partition, Natural)):
        folders = "client/class"
    return index.load(data_dir, folders=folders)
