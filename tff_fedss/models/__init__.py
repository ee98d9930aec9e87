"""Feature extractors phi and the cosine classifier W.

Phi is MobileNetV3 in the paper (`mobilenet_v3`) and `networks.small_cnn` for small
images; `cosine_classifier` has the logits. `pretrained` reads weights,
`exported_encoder` writes and loads a trained phi; the tables below list all networks.
"""

import functools

from tff_fedss.models.cosine_classifier import (
    INITIAL_NORM,
    LOGIT_SCALE,
    UNIT_EPSILON,
    ShardedMatrix,
    adacos_scale,
    cosine_logits,
    initial_classifier,
    row_indices,
    scatter_rows,
    unit,
)
from tff_fedss.models.encoders import ImageEncoder, LstmEncoder, SparseEncoder
from tff_fedss.models.exported_encoder import (
    FORMATS,
    ExportedEncoder,
    check_output,
    save_encoder,
    with_input_and_length,
)
from tff_fedss.models.image_input import ImageInput
from tff_fedss.models.keras_tools import (
    ModelSize,
    assign,
    building_in_graphs,
    check_feature_extractor_fn,
    inference,
    model_size,
    values,
)
from tff_fedss.models.layers import (
    CountedDropout,
    GroupNormalization,
    SplitBatchNormalization,
    counted_dropouts,
    without_counts,
)
from tff_fedss.models.mobilenet_v3 import (
    NORMALIZATIONS,
    communication_saving,
    last_layer_share,
    mobilenet_v3,
    paper_feature_extractor,
)
from tff_fedss.models.networks import (
    lenet,
    mlp,
    resnet18,
    small_cnn,
    vgg16,
    wide_resnet,
)
from tff_fedss.models.pretrained import (
    LoadReport,
    fetch_imagenet,
    imagenet_file,
    load_pretrained,
    pretrained_digest,
)
from tff_fedss.models.resnet50 import BATCH_NORM_SPLITS, resnet50, with_projection_head

# By the user's names: (image shape, d, seed=...) -> phi.
FEATURE_EXTRACTORS = {
    "small_cnn": small_cnn,
    "mobilenet_v3_small": functools.partial(mobilenet_v3, size="small"),
    "mobilenet_v3_paper": paper_feature_extractor,
    "mobilenet_v3_large": functools.partial(mobilenet_v3, size="large"),
}

# By the user's names: (image shape, outputs, seed) -> a network with a linear last
# layer. Dropout is that of LEAP (4.4, 4.5).
NETWORKS = {
    "lenet": lenet,
    "resnet18": resnet18,
    "vgg16": vgg16,
    "wide_resnet_28_10": functools.partial(
        wide_resnet, depth=28, widening=10, dropout=0.3
    ),
    "wide_resnet_16_8": functools.partial(
        wide_resnet, depth=16, widening=8, dropout=0.4
    ),
}

# For contrastive learning: (image shape, seed=...) -> a model of features.
BACKBONES = {
    "resnet50": resnet50,
    "resnet50_split": functools.partial(resnet50, normalization="split"),
    "resnet50_group": functools.partial(resnet50, normalization="group"),
    "small_cnn": functools.partial(small_cnn, embedding_dim=256),
}
