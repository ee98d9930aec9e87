"""Opens an index of images by the name of their origin, as programs offer it."""

import os

from tff_fedss.datasets.images import index
from tff_fedss.errors import InvalidInputError, check_choice


def open_index(
    dataset: str,
    data_dir: str | os.PathLike | None,
    *,
    folders: str | None = None,
    needs_clients: bool = False,
    tfds_name: str | None = None,
    image_key: str | None = None,
    label_key: str | None = None,
    client_key: str | None = None,
) -> index.ImageIndex:
    """Indexes images of either origin, "images" or "tfds".

    The arguments are those of `index.load`, which needs data_dir, or of
    `tfds_index.load`, which needs tfds_name. With needs_clients, folders that could be
    a client's or a part of a class ("auto") are the client's, as they must be to serve.
    """
    if dataset == "images":
        if data_dir is None:
            raise InvalidInputError("dataset=images needs `data_dir`.")
        if needs_clients and folders in (None, "auto"):
            folders = "client/class"
        return index.load(data_dir, folders=folders or "auto")
    check_choice("dataset", dataset, ("images", "tfds"))
    if tfds_name is None:
        raise InvalidInputError("dataset=tfds needs `tfds_name`, a data set of TFDS.")
    # TFDS takes seconds to import.
    from tff_fedss.datasets.images import tfds_index

    return tfds_index.load(
        tfds_name,
        data_dir,
        image_key=image_key,
        label_key=label_key,
        client_key=client_key,
    )
