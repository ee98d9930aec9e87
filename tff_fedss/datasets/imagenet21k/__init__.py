"""ImageNet-21k (FedSS, Appendix A.4).

`dataset.load` makes clients from TFRecord shards. `preparation` writes the shards from
the tars in which the data set is distributed (`class_tars`).
"""

from tff_fedss.datasets.imagenet21k.dataset import default_num_clients, load
