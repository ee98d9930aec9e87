"""The cells of FedSS: Tables 1 to 4, Figure 6, and the search of the learning rate.

    ./run.sh table 1 --scale=mini --data_dir=OMNIGLOT      # or fedss/1
    ./run.sh table 2 --scale=mini --data_dir=OMNIGLOT      # Table 4 is in it
    ./run.sh table figure6 --scale=mini --data_dir=OMNIGLOT
    ./run.sh table 2 --scale=chunks --data_dir=OMNIGLOT    # clients as SOP's
    ./run.sh table rates --data_dir=OMNIGLOT     # of each method, on validation clients
    ./run.sh table spreadout --data_dir=OMNIGLOT # FedAwS's weight and margin, likewise
    ./run.sh table long --data_dir=OMNIGLOT      # 1,000 rounds
    ./run.sh table characters --data_dir=OMNIGLOT     # all 1,623: m / n as Landmarks
    ./run.sh table centralized --data_dir=OMNIGLOT    # both readings of its updates
    ./run.sh table norms         # the length of W's initial rows, n = 500 to 20,000
    ./run.sh table rates --scale=tiny_imagenet --data_dir=TINY_IMAGENET --pretrained=PHI
    ./run.sh table 1 --scale=tiny_imagenet --data_dir=TINY_IMAGENET --pretrained=PHI
    ./run.sh table 1 --scale=paper --data_dir=LANDMARKS --pretrained=imagenet.h5

Hours on 2 cores at --scale=mini, three seeds: Table 1 1.8, Table 2 with Table 4 3.1.
tiny_imagenet, photographs, begins with PHI of `./run.sh pretrain
--flagfile=experiments/fedss/pretrain_photographs.flags`: without it, nothing is learnt.
What to expect: docs/results/table1_mini and table2_mini; the paper's numbers are in
`paper_values`. --scale=paper has not been run: no such GPUs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.common.cells import Cell, table
from experiments.fedss.methods import METHODS

_PROGRAM = "experiments.fedss.train"
# A.2: what all data sets share.
_COMMON = dict(
    batch_size=32, server_learning_rate=1.0, server_momentum=0.9, embedding_dim=64
)
# 4.2 and A.2: photographs at 224 pixels, from ImageNet-1k.
_PHOTOGRAPHS = dict(**_COMMON, image_size=224, resize_size=256, warm_start_epochs=0)
_PAPER = {
    1: dict(
        dataset="landmarks",
        rounds=5000,
        clients_per_round=64,
        client_learning_rate=0.01,
        model="mobilenet_v3_large",
        rounds_per_evaluation=100,
        **_PHOTOGRAPHS,
    ),
    2: dict(
        dataset="sop",
        rounds=2000,
        clients_per_round=32,
        client_learning_rate=0.01,
        model="mobilenet_v3_large",
        rounds_per_evaluation=100,
        **_PHOTOGRAPHS,
    ),
    3: dict(
        dataset="imagenet21k",
        rounds=25000,
        clients_per_round=64,
        client_learning_rate=0.001,
        model="mobilenet_v3_paper",
        rounds_per_evaluation=500,
        **_PHOTOGRAPHS,
    ),
}
_MINI = dict(
    dataset="omniglot",
    clients_per_round=16,
    warm_start_epochs=4,
    rounds_per_evaluation=10,
)
_MINI_TABLE = dict(
    **_MINI, **_COMMON, rounds=200, model="small_cnn", runtime="in_process"
)
# Rates: docs/results/mini_learning_rate.md.
_MINI_1 = dict(_MINI_TABLE, task="classification", client_learning_rate=0.03)
_MINI_2 = dict(_MINI_TABLE, task="retrieval", client_learning_rate=0.03)
# Of 200 classes of photographs, clients have 100. Nobody has 20, to be retrieved.
_TINY_IMAGENET = dict(
    **_COMMON,
    dataset="tiny_imagenet",
    task="classification",
    rounds=400,
    clients_per_round=16,
    image_size=32,
    num_public_classes=80,
    num_unseen_classes=20,
    model="mobilenet_v3_small",
    warm_start_epochs=0,
    rounds_per_evaluation=40,
    runtime="in_process",
)


def _drawing(
    prefix: str, common: Mapping[str, Any], method: str, m: int, corrected: bool = True
) -> Cell:
    """A cell of a method that draws m negatives."""
    own = dict(method=method, num_negatives=m)
    name, title = f"{prefix}_{method}_m{m}", f"{METHODS[method].title}, m = {m}"
    if not corrected:
        own["logit_correction"] = "none"
        name, title = f"{name}_uncorrected", f"{title}, no logit correction"
    return Cell(name, {**common, **own}, title)


def _other(prefix: str, common: Mapping[str, Any], method: str) -> Cell:
    own = dict(method=method)
    if method == "fedaws":
        own["spreadout_weight"] = 1.0
    return Cell(f"{prefix}_{method}", {**common, **own}, METHODS[method].title)


def _others(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    """The methods that draw no negatives."""
    return [
        _other(prefix, common, method)
        for method in ("pos_only", "fedaws", "full_softmax", "centralized")
    ]


def _six_methods(
    prefix: str,
    common: Mapping[str, Any],
    sizes: Sequence[int] = (5, 10, 20, 40, 80),
    also_table_4: Sequence[str] = (),
) -> list[Cell]:
    """The rows of Tables 1 to 3; FedSS and NegOnly with and without Eq. 3's correction.

    Args:
        prefix: Of the cells' names.
        common: What they share.
        sizes: The values of m.
        also_table_4: Cells that measure the training images, too.
    """
    cells = [
        *(_drawing(prefix, common, "fedss", m) for m in sizes),
        *(_drawing(prefix, common, "fedss", m, corrected=False) for m in sizes),
        *(_drawing(prefix, common, "neg_only", m) for m in sizes),
        *(_drawing(prefix, common, "neg_only", m, corrected=False) for m in sizes),
        *_others(prefix, common),
    ]
    return [
        _with_train_top1(cell) if cell.name in also_table_4 else cell for cell in cells
    ]


def _with_train_top1(cell: Cell) -> Cell:
    return Cell(cell.name, {**cell.settings, "train_top1": True}, cell.title)


def _table_4(prefix: str, common: Mapping[str, Any]) -> list[Cell]:
    cells = [
        _drawing(prefix, common, "fedss", 80),
        _other(prefix, common, "full_softmax"),
        _other(prefix, common, "centralized"),
    ]
    return [_with_train_top1(cell) for cell in cells]


def _names(cells: Sequence[Cell]) -> list[str]:
    return [cell.name for cell in cells]


def _figure_6(prefix: str, common: Mapping[str, Any], positives: int) -> list[Cell]:
    """NegOnly with as many pushing classes as FedSS with m: m + |P_k| - 1."""
    sizes = [m + positives - 1 for m in (5, 10, 20, 40, 80)]
    return [
        _drawing(prefix, common, "neg_only", m, corrected)
        for corrected in (True, False)
        for m in sizes
    ]


def _rates(
    prefix: str, common: Mapping[str, Any], rates: Sequence[float]
) -> list[Cell]:
    return [
        Cell(
            f"{prefix}_{rate:g}",
            {**common, "method": "full_softmax", "client_learning_rate": rate},
            f"FullSoftmax, rate {rate:g}",
        )
        for rate in rates
    ]


def _on_validation(cells: Sequence[Cell], name: str, values: Sequence[Any]):
    """Each cell with each value of a flag, measured on validation clients."""
    return [
        Cell(
            f"{cell.name}_{value:g}",
            {**cell.settings, **_VALIDATION, name: value},
            f"{cell.title}, {name} {value:g}",
        )
        for cell in cells
        for value in values
    ]


def _one_of_each(prefix: str, common: Mapping[str, Any], m: int = 20) -> list[Cell]:
    """The six methods, those that draw negatives with one m."""
    return [
        *(_drawing(prefix, common, method, m) for method in ("fedss", "neg_only")),
        *_others(prefix, common),
    ]


# A tenth of the clients is kept apart, and measured on: nothing looks at the test.
_VALIDATION = dict(validation_share=0.1, on_validation=True)
_LONG = dict(_MINI_1, rounds=1000, rounds_per_evaluation=50)
_ALL_CHARACTERS = dict(_MINI_1, characters="all")
_NORMS = dict(
    _MINI_TABLE,
    dataset="glyphs",
    rounds=100,
    rounds_per_evaluation=25,
    client_learning_rate=0.03,
)
_PHOTOGRAPHS_1 = dict(_TINY_IMAGENET, client_learning_rate=0.01)
_PHOTOGRAPHS_SEARCH = dict(_TINY_IMAGENET, rounds=100, rounds_per_evaluation=20)
_CHUNKS = dict(_MINI_2, partition="chunks")
_TABLE_4_PAPER = _table_4("sop", _PAPER[2])
_TABLE_4_MINI = _table_4("omniglot", _MINI_2)
_SEARCH = dict(_MINI, rounds=100)

TABLES = {
    ("1", "paper"): table(
        "Table 1, Landmarks-User-160k",
        _PROGRAM,
        _six_methods("landmarks", _PAPER[1]),
        "table1_paper",
    ),
    ("1", "mini"): table(
        "Table 1 at a size for 2 cores, Omniglot",
        _PROGRAM,
        _six_methods("omniglot", _MINI_1),
        "table1_mini",
    ),
    ("1", "tiny_imagenet"): table(
        "Table 1 with photographs, Tiny-ImageNet",
        _PROGRAM,
        [
            *(
                _drawing("tiny_imagenet", _PHOTOGRAPHS_1, "fedss", m)
                for m in (5, 20, 80)
            ),
            *(
                _drawing("tiny_imagenet", _PHOTOGRAPHS_1, "neg_only", m)
                for m in (20, 80)
            ),
            *_others("tiny_imagenet", _PHOTOGRAPHS_1),
        ],
        "table1_tiny_imagenet",
    ),
    ("2", "paper"): table(
        "Table 2, Stanford Online Products",
        _PROGRAM,
        _six_methods("sop", _PAPER[2], also_table_4=_names(_TABLE_4_PAPER)),
        "table2_paper",
    ),
    ("2", "mini"): table(
        "Table 2 at a size for 2 cores, unseen characters of Omniglot",
        _PROGRAM,
        _six_methods("omniglot", _MINI_2, also_table_4=_names(_TABLE_4_MINI)),
        "table2_mini",
    ),
    ("3", "paper"): table(
        "Table 3, ImageNet-21k",
        _PROGRAM,
        _six_methods("imagenet21k", _PAPER[3], (50, 100, 200, 400, 800)),
        "table3_paper",
    ),
    # The same runs as those of Table 2.
    ("4", "paper"): table(
        "Table 4, Stanford Online Products", _PROGRAM, _TABLE_4_PAPER, "table2_paper"
    ),
    ("4", "mini"): table(
        "Table 4 at a size for 2 cores, unseen characters of Omniglot",
        _PROGRAM,
        _TABLE_4_MINI,
        "table2_mini",
    ),
    # Beside those of Table 1.
    ("figure6", "paper"): table(
        "Figure 6, Landmarks-User-160k",
        _PROGRAM,
        _figure_6("landmarks", _PAPER[1], 90),
        "table1_paper",
    ),
    ("figure6", "mini"): table(
        "Figure 6 at a size for 2 cores, Omniglot",
        _PROGRAM,
        _figure_6("omniglot", _MINI_1, 20),
        "table1_mini",
    ),
    ("2", "chunks"): table(
        "Table 2 at a size for 2 cores, a character on one or two clients",
        _PROGRAM,
        _six_methods("omniglot", _CHUNKS),
        "table2_chunks",
    ),
    ("long", "mini"): table(
        "Table 1 at a size for 2 cores, after 1,000 rounds",
        _PROGRAM,
        [
            *(_drawing("omniglot", _LONG, "neg_only", m) for m in (10, 20, 80)),
            *(_drawing("omniglot", _LONG, "fedss", m) for m in (10, 20, 80)),
            _other("omniglot", _LONG, "pos_only"),
            _other("omniglot", _LONG, "full_softmax"),
        ],
        "long_mini",
    ),
    # m of n: 0.6 to 3.7 %; Landmarks has 0.2 to 3.9 %.
    ("characters", "mini"): table(
        "Table 1 with all 1,623 characters, Omniglot",
        _PROGRAM,
        [
            *(
                _drawing("omniglot", _ALL_CHARACTERS, method, m)
                for method in ("fedss", "neg_only")
                for m in (10, 20, 40, 60)
            ),
            *_others("omniglot", _ALL_CHARACTERS),
        ],
        "characters_mini",
    ),
    ("centralized", "mini"): table(
        "What an update of Centralized is, Table 1 at a size for 2 cores",
        _PROGRAM,
        [
            Cell(
                f"omniglot_centralized_{updates}",
                dict(_MINI_1, method="centralized", centralized_updates=updates),
                f"Centralized, {title}",
            )
            for updates, title in (
                ("client_steps", "an update for each step of a client"),
                ("rounds", "one for each round"),
            )
        ],
        "centralized_mini",
    ),
    ("norms", "mini"): table(
        "The norm of W's initial rows, glyphs",
        _PROGRAM,
        [
            Cell(
                f"glyphs_n{n}/{method}_{norm:g}",
                dict(
                    _NORMS,
                    num_classes=n,
                    initial_norm=norm,
                    method=method,
                    **({"num_negatives": 40} if method == "fedss" else {}),
                ),
                f"{METHODS[method].title}, n = {n:,}, norm {norm:g}",
            )
            for n in (500, 2000, 20000)
            for method in ("full_softmax", "fedss")
            for norm in (0.1, 0.3, 1.0)
        ],
        "norms_mini",
        seeds=(0,),
    ),
    ("rates", "mini"): table(
        "The client learning rate of each method, Table 1 at a size for 2 cores",
        _PROGRAM,
        _on_validation(
            _one_of_each("omniglot", _MINI_1),
            "client_learning_rate",
            (0.01, 0.03, 0.1, 0.3),
        ),
        "rates_mini",
        seeds=(0,),
    ),
    ("retrieval_rates", "mini"): table(
        "The client learning rate of each method, Table 2 at a size for 2 cores",
        _PROGRAM,
        _on_validation(
            _one_of_each("omniglot", _MINI_2),
            "client_learning_rate",
            (0.003, 0.01, 0.03, 0.1),
        ),
        "retrieval_rates_mini",
        seeds=(0,),
    ),
    # A.2: the weight was searched; the margin is not stated.
    ("spreadout", "mini"): table(
        "FedAwS's weight and margin, Table 1 at a size for 2 cores",
        _PROGRAM,
        [
            cell
            for margin, weights in (
                (0.5, (0.1, 1.0, 10.0, 100.0)),
                (1.0, (0.1, 1.0, 10.0, 100.0)),
                (1.2, (0.001, 0.01, 0.1)),
                (1.4, (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)),
            )
            for cell in _on_validation(
                [
                    Cell(
                        f"omniglot_margin{margin:g}",
                        dict(_MINI_1, method="fedaws", spreadout_margin=margin),
                        f"FedAwS, margin {margin:g}",
                    )
                ],
                "spreadout_weight",
                weights,
            )
        ],
        "spreadout_mini",
        seeds=(0,),
    ),
    ("learning_rate", "mini"): table(
        "The client learning rate of the mini runs",
        _PROGRAM,
        [
            cell
            for task in ("classification", "retrieval")
            for cell in _rates(
                f"omniglot_{task}", dict(_SEARCH, task=task), (0.01, 0.03, 0.1, 0.3, 1)
            )
        ],
        "learning_rate_mini",
    ),
    ("rates", "tiny_imagenet"): table(
        "The client learning rate of Table 1 with photographs, Tiny-ImageNet",
        _PROGRAM,
        _on_validation(
            [
                _drawing("tiny_imagenet", _PHOTOGRAPHS_SEARCH, "fedss", 20),
                _other("tiny_imagenet", _PHOTOGRAPHS_SEARCH, "full_softmax"),
            ],
            "client_learning_rate",
            (0.003, 0.01, 0.03),
        ),
        "rates_tiny_imagenet",
        seeds=(0,),
    ),
}
