"""The cells of FedSS: Tables 1 to 4, Figure 6, and searches of rates and settings.

    ./run.sh table 1 --scale=mini --data_dir=OMNIGLOT      # or fedss/1

README.md has all tables with their hours; docs/results the results, and paper.csv the
paper's numbers. --scale=paper has run on miniature data only.
"""

from collections.abc import Sequence

from experiments.common import option_words
from experiments.common.cells import Cell, Table
from experiments.fedss import cell_rows, pages
from experiments.fedss.cell_rows import OTHERS, SIX_AT_20, of_methods
from experiments.fedss.methods import METHODS, WORDS

# A tenth of the clients is held out and measured on: nothing looks at the test.
_VALIDATION = dict(validation_share=0.1, on_validation=True)

# A.2: what all data sets share.
_COMMON = dict(batch_size=32, embedding_dim=64)
# 4.2 and A.2: photographs at 224 pixels, from ImageNet-1k: give the table --pretrained.
_PAPER = dict(
    _COMMON,
    image_size=224,
    warm_start_epochs=0,
    clients_per_round=64,
    client_learning_rate=0.01,
    model="mobilenet_v3_large",
    rounds_per_evaluation=100,
)
_LANDMARKS = dict(_PAPER, dataset="landmarks:resize_size=256", rounds=5000)
_SOP = dict(
    _PAPER,
    dataset="sop:resize_size=256",
    task="retrieval",
    rounds=2000,
    clients_per_round=32,
)
_IMAGENET21K = dict(
    _PAPER,
    dataset="imagenet21k:resize_size=256",
    rounds=25000,
    client_learning_rate=0.001,
    model="mobilenet_v3_paper",
    rounds_per_evaluation=500,
)

_MINI = dict(
    dataset="omniglot",
    clients_per_round=16,
    warm_start_epochs=4,
    rounds_per_evaluation=10,
)
# Rates: docs/results/searches.
_MINI_TABLE = dict(
    **_MINI,
    **_COMMON,
    rounds=200,
    model="small_cnn",
    runtime="in_process",
    client_learning_rate=0.03,
)
_MINI_1 = dict(_MINI_TABLE, task="classification")
_MINI_2 = dict(_MINI_TABLE, task="retrieval")
_CHUNKS = dict(_MINI_2, partition="chunks")
_LONG = dict(_MINI_1, rounds=1000, rounds_per_evaluation=50)
_ALL_CHARACTERS = dict(_MINI_1, dataset="omniglot:characters=all")
_NORMS = dict(_MINI_TABLE, dataset="glyphs", rounds=100, rounds_per_evaluation=25)
# As many classes as Landmarks has: each turn of a character is one, n = 2,636 (for
# retrieval 3,856). docs/results/table1_turned: why 1,000 rounds.
_TURNED = dict(
    _COMMON,
    dataset="omniglot:rotations=true",
    rounds=1000,
    clients_per_round=32,
    client_learning_rate=0.1,
    model="small_cnn",
    warm_start_epochs=3,
    rounds_per_evaluation=50,
    runtime="in_process",
)
_TURNED_1 = dict(_TURNED, task="classification")
_TURNED_2 = dict(
    _TURNED,
    task="retrieval",
    partition="chunks",
    client_learning_rate=0.03,
    rounds_per_evaluation=100,
)
# Every turned character, n = 6,492; phi starts from glyphs. |S_k| is 70, 420 and 820,
# as in Table 3.
_TURNED_3 = dict(_TURNED_1, dataset="omniglot:characters=all,rotations=true")
# By `rates` on validation clients; others keep 0.1, which is best or level with it.
_TURNED_RATES = {"fedss": 0.1, "neg_only": 0.01, "full_softmax": 0.1}
_TURNED_SEARCH = dict(_TURNED_1, rounds=100)
# By `retrieval_rates` on validation clients.
_TURNED_2_SEARCH = dict(_TURNED_2, rounds=100, rounds_per_evaluation=50)
_TURNED_2_RATES = {
    "fedss": 0.03,
    "neg_only": 0.003,
    "pos_only": 0.01,
    "fedaws": 0.01,
    "centralized": 0.1,
}
# A client takes part about once. Rate and norm: docs/results/hundred_thousand.
_HUNDRED_THOUSAND = dict(
    _TURNED_1,
    dataset="glyphs:num_classes=100000",
    rounds=300,
    clients_per_round=64,
    client_learning_rate=0.01,
    initial_norm=0.03,
)
# Photographs: of 200 classes clients have 100, 80 are public, 20 are unseen.
_TINY_IMAGENET = dict(
    _COMMON,
    dataset="tiny_imagenet:num_public_classes=80,num_unseen_classes=20",
    task="classification",
    rounds=400,
    clients_per_round=16,
    client_learning_rate=0.01,
    image_size=32,
    model="mobilenet_v3_small",
    warm_start_epochs=0,
    logit_scale=20.0,
    gradient_clip_norm=0.0,
    initial_norm=0.3,
    rounds_per_evaluation=40,
    runtime="in_process",
)
_TINY_SEARCH = dict(_TINY_IMAGENET, rounds=100, rounds_per_evaluation=20)


def _rates(
    title: str,
    cells: list[Cell],
    results: str,
    rates: Sequence[float] = (0.01, 0.03, 0.1, 0.3),
) -> Table:
    """A search of the client learning rate of each cell, on validation clients."""
    tried = [
        Cell(
            f"{cell.name}_{rate:g}",
            {**cell.settings, **_VALIDATION, "client_learning_rate": rate},
            f"{cell.title}, client_learning_rate {rate:g}",
        )
        for cell in cells
        for rate in rates
    ]
    title = f"The client learning rate of {title}"
    return pages.of_search(title, tried, results, seeds=(0,))


def _fedaws(weight: float, margin: float) -> str:
    """Returns a word of --method as in flags.txt, which has no defaults."""
    word = f"fedaws:weight={weight},margin={margin}"
    return str(option_words.parse("method", word, WORDS))


TABLES = {
    ("1", "paper"): pages.of_paper(
        "Table 1, Landmarks-User-160k",
        cell_rows.six_methods("landmarks", _LANDMARKS),
        "table1_paper",
    ),
    ("1", "mini"): pages.of_paper(
        "Table 1 at a size for 2 cores, Omniglot",
        cell_rows.six_methods("omniglot", _MINI_1),
        "table1_mini",
    ),
    ("1", "tiny_imagenet"): pages.of_paper(
        "Table 1 with photographs, Tiny-ImageNet",
        of_methods(
            "tiny_imagenet",
            _TINY_IMAGENET,
            {"fedss": (5, 20, 80), "neg_only": (20, 80), **OTHERS},
        ),
        "table1_tiny_imagenet",
    ),
    ("1", "turned"): pages.of_paper(
        "Table 1 with 2,636 classes, turned characters of Omniglot",
        cell_rows.turned("turned", _TURNED_1, _TURNED_RATES),
        "table1_turned",
    ),
    ("2", "turned"): pages.of_paper(
        "Table 2 with 3,856 classes, turned characters of Omniglot",
        cell_rows.turned("turned", _TURNED_2, _TURNED_2_RATES),
        "table2_turned",
    ),
    ("2", "paper"): pages.of_paper(
        "Table 2, Stanford Online Products",
        cell_rows.table_2("sop", _SOP),
        "table2_paper",
    ),
    ("2", "mini"): pages.of_paper(
        "Table 2 at a size for 2 cores, unseen characters of Omniglot",
        cell_rows.table_2("omniglot", _MINI_2),
        "table2_mini",
    ),
    ("3", "paper"): pages.of_paper(
        "Table 3, ImageNet-21k",
        cell_rows.six_methods("imagenet21k", _IMAGENET21K, (50, 100, 200, 400, 800)),
        "table3_paper",
        traffic_figure=10,
    ),
    ("3", "turned"): pages.of_paper(
        "Table 3 with 6,492 classes, turned characters of Omniglot",
        of_methods("turned", _TURNED_3, {"fedss": (50, 400, 800), "full_softmax": ()}),
        "table3_turned",
        traffic_figure=10,
    ),
    # The same runs as those of Table 2.
    ("4", "paper"): pages.of_table_4(
        "Table 4, Stanford Online Products",
        cell_rows.table_4("sop", _SOP),
        "table2_paper",
    ),
    ("4", "mini"): pages.of_table_4(
        "Table 4 at a size for 2 cores, unseen characters of Omniglot",
        cell_rows.table_4("omniglot", _MINI_2),
        "table2_mini",
    ),
    # With runs of Table 1, and beside them.
    ("figure6", "paper"): pages.of_figure_6(
        "Figure 6, Landmarks-User-160k",
        cell_rows.figure_6("landmarks", _LANDMARKS, positives=90),
        "table1_paper",
    ),
    ("figure6", "mini"): pages.of_figure_6(
        "Figure 6 at a size for 2 cores, Omniglot",
        cell_rows.figure_6("omniglot", _MINI_1, positives=20),
        "table1_mini",
    ),
    ("2", "chunks"): pages.of_paper(
        "Table 2 at a size for 2 cores, a character on one or two clients",
        cell_rows.six_methods("omniglot", _CHUNKS),
        "table2_chunks",
    ),
    ("long", "mini"): pages.of_search(
        "Table 1 at a size for 2 cores, after 1,000 rounds",
        of_methods(
            "omniglot",
            _LONG,
            {
                "neg_only": (10, 20, 80),
                "fedss": (10, 20, 80),
                "pos_only": (),
                "full_softmax": (),
            },
        ),
        "long_mini",
    ),
    # Cells of Table 1, with enough seeds to tell a gap of a point.
    ("headline", "mini"): pages.of_search(
        "FedSS beside FullSoftmax, Table 1 at a size for 2 cores, ten seeds",
        of_methods("omniglot", _MINI_1, {"fedss": (40, 80), "full_softmax": ()}),
        "headline_mini",
        seeds=tuple(range(10)),
    ),
    ("headline", "long"): pages.of_search(
        "FedSS beside FullSoftmax, Table 1 at a size for 2 cores, after 1,000 rounds",
        of_methods(
            "omniglot",
            _LONG,
            {"fedss": (20, 40, 80), "neg_only": (20, 80), "full_softmax": ()},
        ),
        "headline_long",
        seeds=tuple(range(5)),
    ),
    # m of n: 0.6 to 3.7 %; Landmarks has 0.2 to 3.9 %.
    ("characters", "mini"): pages.of_search(
        "Table 1 with all 1,623 characters, Omniglot",
        of_methods(
            "omniglot",
            _ALL_CHARACTERS,
            {"fedss": (10, 20, 40, 60), "neg_only": (10, 20, 40, 60), **OTHERS},
        ),
        "characters_mini",
    ),
    ("centralized", "mini"): pages.of_search(
        "What an update of Centralized is, Table 1 at a size for 2 cores",
        [
            Cell(
                f"omniglot_centralized_{updates}",
                dict(_MINI_1, method=method),
                f"Centralized, {title}",
            )
            for updates, method, title in (
                ("client_steps", "centralized", "an update for each step of a client"),
                ("rounds", "centralized:updates=rounds", "one for each round"),
            )
        ],
        "centralized_mini",
    ),
    ("norms", "mini"): pages.of_search(
        "The norm of W's initial rows, glyphs",
        [
            Cell(
                f"glyphs_n{n}/{method}_{norm:g}",
                dict(
                    _NORMS,
                    dataset="glyphs" if n == 500 else f"glyphs:num_classes={n}",
                    initial_norm=norm,
                    method=method,
                    **own,
                ),
                f"{METHODS[method].title}, n = {n:,}, norm {norm:g}",
            )
            for n in (500, 2000, 20000)
            for method, own in (("full_softmax", {}), ("fedss", {"num_negatives": 40}))
            for norm in (0.1, 0.3, 1.0)
        ],
        "norms_mini",
        seeds=(0,),
    ),
    ("hundred_thousand", "mini"): pages.of_search(
        "100,000 classes, glyphs",
        of_methods(
            "glyphs",
            _HUNDRED_THOUSAND,
            {"fedss": [80], "pos_only": (), "full_softmax": ()},
        ),
        "hundred_thousand",
        seeds=(0,),
    ),
    ("rates", "mini"): _rates(
        "each method, Table 1 at a size for 2 cores",
        of_methods("omniglot", _MINI_1, SIX_AT_20),
        "rates_mini",
    ),
    ("rates", "turned"): _rates(
        "each method, turned characters of Omniglot",
        of_methods("turned", _TURNED_SEARCH, SIX_AT_20),
        "rates_turned",
    ),
    ("rates", "tiny_imagenet"): _rates(
        "Table 1 with photographs, Tiny-ImageNet",
        of_methods("tiny_imagenet", _TINY_SEARCH, {"fedss": [20], "full_softmax": ()}),
        "rates_tiny_imagenet",
        (0.003, 0.01, 0.03),
    ),
    ("retrieval_rates", "mini"): _rates(
        "each method, Table 2 at a size for 2 cores",
        of_methods("omniglot", _MINI_2, SIX_AT_20),
        "retrieval_rates_mini",
        (0.003, 0.01, 0.03, 0.1),
    ),
    ("retrieval_rates", "turned"): _rates(
        "each method, retrieval with turned characters of Omniglot",
        of_methods("turned", _TURNED_2_SEARCH, SIX_AT_20),
        "retrieval_rates_turned",
        (0.003, 0.01, 0.03, 0.1),
    ),
    # A.2: the weight was searched; the margin is not stated.
    ("spreadout", "mini"): pages.of_search(
        "FedAwS's weight and margin, Table 1 at a size for 2 cores",
        [
            Cell(
                f"omniglot_margin{margin:g}_{weight:g}",
                dict(_MINI_1, **_VALIDATION, method=_fedaws(weight, margin)),
                f"FedAwS, margin {margin:g}, spreadout_weight {weight:g}",
            )
            for margin, weights in (
                (0.5, (0.1, 1.0, 10.0, 100.0)),
                (1.0, (0.1, 1.0, 10.0, 100.0)),
                (1.2, (0.001, 0.01, 0.1)),
                (1.4, (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)),
            )
            for weight in weights
        ],
        "spreadout_mini",
        seeds=(0,),
    ),
    # No part of the paper: sampled softmax beside FedProx, and under other servers.
    ("optimizers", "mini"): pages.of_search(
        "FedProx, server optimizers and a schedule, at a size for 2 cores",
        [
            Cell(
                f"omniglot_{name}",
                {
                    **_MINI_1,
                    **_VALIDATION,
                    "rounds": 100,
                    "num_negatives": 20,
                    "method": "fedss",
                    **settings,
                },
                title,
            )
            for name, title, settings in (
                ("sgdm", "FedSS, m = 20, SGD with momentum", {}),
                ("cosine", "the same, cosine schedule", {"schedule": "cosine"}),
                *(
                    (f"prox_{mu}", f"FedProx, mu {mu}", {"method": f"fedprox:mu={mu}"})
                    for mu in ("0.01", "1.0")
                ),
                *(
                    (
                        f"{kind}_{rate}",
                        f"Fed{kind.title()}, rate {rate}",
                        {"server_optimizer": f"{kind}:learning_rate={rate}"},
                    )
                    for kind in ("adam", "yogi")
                    for rate in ("0.003", "0.03")
                ),
            )
        ],
        "optimizers_mini",
        seeds=(0,),
    ),
    ("learning_rate", "mini"): pages.of_search(
        "The client learning rate of the mini runs",
        [
            Cell(
                f"omniglot_{task}_{rate:g}",
                dict(
                    _MINI,
                    rounds=100,
                    task=task,
                    method="full_softmax",
                    client_learning_rate=rate,
                ),
                f"FullSoftmax, rate {rate:g}",
            )
            for task in ("classification", "retrieval")
            for rate in (0.01, 0.03, 0.1, 0.3, 1)
        ],
        "learning_rate_mini",
    ),
}
