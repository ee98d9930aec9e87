"""Traffic of the classifier per client and round (FedSS, Fig. 5).

Counted are the distinct classes that a client asks for. Padding is a need of the
simulation, not of the method, and costs nothing here.
"""

from typing import NamedTuple

BYTES_PER_PARAMETER = 4  # float32
_BYTES_PER_ID = 4  # int32
_BYTES_PER_COUNT = 4  # int32

# What the server sees of the clients' updates: each one, or their sum alone.
AGGREGATIONS = ("plain", "secure")


class Protocol(NamedTuple):
    """How requests and updates travel.

    Attributes:
        asks_by_id: Whether a client names the classes that it wants, which costs bytes;
            those of FullSoftmax get all of them unasked.
        requests: "sampled", "union" or "all", see `algorithms.build_fedss`.
        aggregation: One of `AGGREGATIONS`.
        threshold: Threshold of secure aggregation: rows with fewer contributors are
            dropped.
    """

    asks_by_id: bool = True
    requests: str = "sampled"
    aggregation: str = "plain"
    threshold: int = 1


class ClassifierTraffic(NamedTuple):
    """Of one client in one round; means over clients may be fractions.

    Attributes:
        parameters: Classifier parameters sent to the client (floats); as many come back
            where requests are sampled.
        ids: Ids of classes that the client sends, to ask for its columns or to name
            those that it has changed.
        bytes_down: Server to client: the parameters, and the ids of a union.
        bytes_up: Client to server: the ids, the update of its columns, and what counts
            contributors.
    """

    parameters: float
    ids: float
    bytes_down: float
    bytes_up: float


def classifier_traffic(
    classes_per_client: float,
    embedding_dim: int,
    asks_by_id: bool = True,
    protocol: Protocol | None = None,
    rows_per_client: float | None = None,
) -> ClassifierTraffic:
    """Computes the traffic of the classifier.

    An update names its classes, where the request has not. In a sum that is to tell no
    more than the sum, a client's update has a row for each that all clients have got:
    for those of the union, or for all; where requests are known, masks are needed only
    among those who have asked for a row. A masked number is counted as it is without
    its mask. The messages of the protocols themselves (keys, shares, the private set
    union) are not counted: docs/privacy.md has their cost.

    Args:
        classes_per_client: |S_k|, or its mean over clients.
        embedding_dim: d.
        asks_by_id: Of the protocol, where that is not given.
        protocol: How requests and updates travel; None: as in Algorithm 1.
        rows_per_client: How many rows a client gets; None: those that it asks for.

    Returns:
        The traffic.
    """
    protocol = protocol or Protocol(asks_by_id)
    rows_down = classes_per_client if rows_per_client is None else rows_per_client
    is_secure = protocol.aggregation == "secure"
    is_hidden = is_secure and protocol.requests != "sampled"
    rows_up = rows_down if is_hidden else classes_per_client
    ids = classes_per_client if protocol.asks_by_id and not is_hidden else 0
    parameters = rows_down * embedding_dim
    ids_down = rows_down if protocol.requests == "union" else 0
    counts = rows_up if is_secure and protocol.threshold > 1 else 0
    return ClassifierTraffic(
        parameters=parameters,
        ids=ids,
        bytes_down=BYTES_PER_PARAMETER * parameters + _BYTES_PER_ID * ids_down,
        bytes_up=BYTES_PER_PARAMETER * rows_up * embedding_dim
        + _BYTES_PER_ID * ids
        + _BYTES_PER_COUNT * counts,
    )
