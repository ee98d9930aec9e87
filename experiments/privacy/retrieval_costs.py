"""What it would cost to hide requests by cryptography, beside sending all of W.

    ./run.sh retrieval_costs --results_dir=results/retrieval_costs

Nothing is run or measured: published figures, put into the sizes of FedSS. Three ways:

    SimplePIR, DoublePIR   private retrieval of each row from one server
    DPF                    the same from two servers that do not collude
    union                  a private set union over the cohort, then the union's rows

Writes retrieval_costs.md and .csv, in a second.
"""

import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import NamedTuple

from experiments.common import (
    config,
    launch,
    output_files,
    program,
    table,
    table_header,
)

_FLOAT, _COUNT, _DIM = 4, 4, 64


class Setting(NamedTuple):
    """A size of FedSS.

    Attributes:
        title: What has it.
        num_classes: n.
        request: |S_k|.
        cohort: K.
    """

    title: str
    num_classes: int
    request: int
    cohort: int

    @property
    def bytes_of_w(self) -> int:
        """Of W in float32, d = 64: what broadcasting costs a client and round."""
        return self.num_classes * _DIM * _FLOAT


# |S_k| of the paper's tables at their largest m; K of A.2, and 64 where it has none.
SETTINGS = (
    Setting("Landmarks, m = 80", 2_028, 170, 64),
    Setting("SOP, m = 80", 11_318, 100, 32),
    Setting("ImageNet-21k, m = 800", 21_841, 1_300, 64),
    Setting("n = 1,000,000", 1_000_000, 500, 64),
)


class Cost(NamedTuple):
    """Of one client in one round.

    Attributes:
        way: By which the request is hidden.
        fixed: Bytes that do not depend on the number of keys.
        per_key: Bytes for each key, up and down; None where keys are not paid one by
            one.
        total: Bytes in all.
        break_even: The |S_k| at which W whole would cost as much; 0: it never costs
            more.
        server: Multiplications and additions of the servers for each key; None where
            there are none but the aggregation's.
    """

    way: str
    fixed: float
    per_key: float | None
    total: float
    break_even: float
    server: float | None


class SingleServer(NamedTuple):
    """A published scheme: Henzinger et al., USENIX Security 2023, abstract.

    Attributes:
        name: Of it.
        hint: Bytes that a client downloads of a database of 1 GB before it asks. It
            depends on the database, so that with W it changes in every round.
        query: Bytes of a query and its answer.
    """

    name: str
    hint: float
    query: float


SINGLE_SERVER = (
    SingleServer("SimplePIR", 121e6, 242e3),
    SingleServer("DoublePIR", 16e6, 345e3),
)
_PUBLISHED_DATABASE = 1e9
# Boyle, Gilboa and Ishai, CCS 2016: a key of a distributed point function over n points
# has log2(n) (lambda + 2) + lambda + 1 bits, here with lambda = 128.
_SECURITY = 128


def single_server(setting: Setting, scheme: SingleServer) -> Cost:
    """Private retrieval from one server, scaled down to W.

    Both parts of SimplePIR grow with the square root of the database; so does the query
    of DoublePIR, whose hint does not depend on the size. The server multiplies and adds
    at most once for each byte of the database, for each key.
    """
    scale = math.sqrt(setting.bytes_of_w / _PUBLISHED_DATABASE)
    hint = scheme.hint * (scale if scheme.name == "SimplePIR" else 1.0)
    per_key = scheme.query * scale
    return Cost(
        scheme.name,
        hint,
        per_key,
        hint + setting.request * per_key,
        max(setting.bytes_of_w - hint, 0.0) / per_key,
        2 * setting.bytes_of_w,
    )


def two_servers(setting: Setting) -> Cost:
    """Private retrieval from two servers: a key to each, a row-sized share from each.

    Each server evaluates its key at all n classes and adds up the rows that it selects:
    n d additions for each key, beside 2 n calls of a block cipher.
    """
    depth = math.ceil(math.log2(setting.num_classes))
    key = math.ceil((depth * (_SECURITY + 2) + _SECURITY + 1) / 8)
    per_key = 2.0 * (key + _DIM * _FLOAT)
    return Cost(
        "DPF, two servers",
        0.0,
        per_key,
        setting.request * per_key,
        setting.bytes_of_w / per_key,
        2.0 * setting.num_classes * _DIM,
    )


def expected_union(setting: Setting) -> float:
    """Returns the size of a cohort's union, were requests uniform sets of classes."""
    share = setting.request / setting.num_classes
    return setting.num_classes * (1 - (1 - share) ** setting.cohort)


def private_union(setting: Setting, false_positives: float = 1e-3) -> Cost:
    """The union by a sum of masked vectors, then its rows (Niu et al., MobiCom 2020).

    A client sends a vector with a random number at each place that stands for a class
    of its own, and zero elsewhere; what is not zero in the sum is in the union. The
    vector is a Bloom filter of the union's size, -ln(f) / ln(2)^2 places for each
    class, or has a place for each of the n classes where that is shorter. Masks cost no
    bytes here; keys and shares are not counted.

    Args:
        setting: The size.
        false_positives: f, of the Bloom filter: so many further rows are sent.
    """
    union = expected_union(setting)
    places = union * -math.log(false_positives) / math.log(2) ** 2
    rows = union
    if places < setting.num_classes:
        rows += false_positives * (setting.num_classes - union)
    vector = _COUNT * min(places, setting.num_classes)
    total = vector + rows * (_DIM * _FLOAT + _COUNT)
    # The request at which the union's rows and its vector are all of W.
    low, high = 0.0, float(setting.num_classes)
    for _ in range(60):
        middle = (low + high) / 2
        trial = setting._replace(request=middle)
        found = expected_union(trial)
        cost = _COUNT * setting.num_classes + found * (_DIM * _FLOAT + _COUNT)
        low, high = (middle, high) if cost < setting.bytes_of_w else (low, middle)
    return Cost("union over the cohort", vector, None, total, low, None)


def costs(setting: Setting) -> Iterator[Cost]:
    """Yields all ways to hide a request, at a size."""
    for scheme in SINGLE_SERVER:
        yield single_server(setting, scheme)
    yield two_servers(setting)
    yield private_union(setting)


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    results_dir: str = launch.results_dir()


def main(config: Config) -> None:
    """Writes and prints the table."""
    folder = output_files.create_folder(config.results_dir, "results_dir")
    rows, lines = [], []
    for setting in SETTINGS:
        sampled = setting.request * _DIM * _FLOAT
        lines.append(
            [
                setting.title,
                "nothing hidden",
                "",
                f"{_DIM * _FLOAT + _COUNT:,}",
                f"{sampled + setting.request * _COUNT:,}",
                f"{sampled / setting.bytes_of_w:.3f}",
                "",
                "",
            ]
        )
        for cost in costs(setting):
            rows.append({"setting": setting.title, **cost._asdict()})
            lines.append(
                [
                    setting.title,
                    cost.way,
                    f"{cost.fixed:,.0f}" if cost.fixed else "",
                    "" if cost.per_key is None else f"{cost.per_key:,.0f}",
                    f"{cost.total:,.0f}",
                    f"{cost.total / setting.bytes_of_w:.3g}",
                    f"{cost.break_even:,.0f}" if cost.break_even else "never",
                    "" if cost.server is None else f"{cost.server:.2g}",
                ]
            )
        lines.append(
            [setting.title, "all of W", "", "", f"{setting.bytes_of_w:,}", "1", "", ""]
        )
    header = ["", "", "bytes, fixed", "bytes a key", "bytes", "of W", "break-even"]
    header.append("server, operations a key")
    output_files.write_csv(folder / "retrieval_costs.csv", rows)
    command = ["./run.sh", "retrieval_costs", *sys.argv[1:]]
    head = "\n".join(
        [
            "# Hiding requests by cryptography, beside sending all of W",
            "",
            table_header.of_this_process(config.deciding(), command)[0],
        ]
    )
    text = f"{head}\n\n{table.as_markdown(header, lines)}\n\n{_NOTE}\n"
    output_files.write_text(folder / "retrieval_costs.md", text)
    print(text)


_NOTE = """\
Of a client in a round, down and up together, without the update; d = 64, float32.
Computed, not measured. Break-even: below that |S_k| the way costs less than all of W;
for the union, below that mean |S_k| of K = 64 (SOP: 32) clients with requests at
random. Sources:

- SimplePIR, DoublePIR: Henzinger, Hong, Corrigan-Gibbs, Meiklejohn, Vaikuntanathan, One
  Server for the Price of Two, USENIX Security 2023, abstract: for 1 GB a hint of 121 MB
  and 242 KB a query, or 16 MB and 345 KB; at most one multiplication and one addition
  for each byte of the database. Scaled to the bytes of W by the square root, as the
  papers' costs grow (DoublePIR's hint stays). The hint is of the database: W is another
  one in each round. DoublePIR answers with single entries, of which a row has many: its
  line is a lower bound.
- DPF: Boyle, Gilboa, Ishai, Function Secret Sharing: Improvements and Extensions, CCS
  2016: keys of log2(n) (lambda + 2) + lambda + 1 bits. Two servers must not collude;
  FedSS has one.
- Union: Niu et al., Billion-scale federated learning on mobile clients, MobiCom 2020,
  arXiv 1911.02254: Bloom filters under secure aggregation. Their own measurements are
  of Taobao's data and are not repeated here; the lengths are those of a Bloom filter
  (Bloom, 1970) with false positives of 0.001. Of the clients' requests the server
  learns the union, and by who takes part, over the rounds, more (docs/privacy.md).
- Secure aggregation itself, which the union needs and the update after it: 1.73 times
  the bytes in the clear for 2^10 clients and vectors of 2^20 numbers of 16 bits, 1.98
  times for 2^14 clients and 2^24 numbers (Bonawitz et al., CCS 2017, abstract). Not in
  the table.
- SecEmb (arXiv 2505.12453), PREAMBLE (2503.11897), Wang and Ulukus (2301.07686) could
  not be read here: no figures of theirs."""


if __name__ == "__main__":
    program.run(main, Config(results_dir="results/retrieval_costs"), topics=())
