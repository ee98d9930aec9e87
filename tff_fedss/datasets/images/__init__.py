"""A user's images as this project's data: folders, archives, tables and TFDS.

Begin with `index`: an `ImageIndex` lists the images. `layout` reads classes, clients
and splits from paths or a table; `federated` makes client data of an index.
"""

from tff_fedss.datasets.images.federated import load as federated
from tff_fedss.datasets.images.federated import load_folder, load_tfds, open_folder
from tff_fedss.datasets.images.index import ImageIndex
from tff_fedss.datasets.images.index import load as load_index
from tff_fedss.datasets.images.layout import FOLDERS
from tff_fedss.datasets.splits import TESTS
