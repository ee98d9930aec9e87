"""Other people's images: folders, archives, tables and TFDS, as this project's data."""

from tff_fedss.datasets.images.by_name import open_index
from tff_fedss.datasets.images.clients import PARTITIONS, ClientOptions
from tff_fedss.datasets.images.federated import ImageOptions
from tff_fedss.datasets.images.federated import load as federated
from tff_fedss.datasets.images.held_out import TESTS
from tff_fedss.datasets.images.index import FileIndex, ImageIndex
from tff_fedss.datasets.images.index import load as load_index
from tff_fedss.datasets.images.layout import FOLDERS

__all__ = [
    "FOLDERS",
    "PARTITIONS",
    "TESTS",
    "ClientOptions",
    "FileIndex",
    "ImageIndex",
    "ImageOptions",
    "federated",
    "load_index",
    "open_index",
]
