"""Plain labelled images, for methods without clients (LEAP, contrastive learning).

Begin with `images.LabelledImages`; `loading` reads the data sets in `SOURCES`,
`indexed` takes own images.
"""

from tff_fedss.datasets.central.labelled_images.images import LabelledImages
from tff_fedss.datasets.central.labelled_images.indexed import load as from_index
from tff_fedss.datasets.central.labelled_images.loading import SOURCES, load

__all__ = ["SOURCES", "LabelledImages", "from_index", "load"]
