"""Traffic of the classifier per client and round (FedSS, Fig. 5).

The distinct classes that a client asks for are counted. Padding is needed by the
simulation, not by the method, and is not counted.
"""

from typing import NamedTuple

BYTES_PER_PARAMETER = 4  # float32
_BYTES_PER_ID = 4  # int32
_BYTES_PER_COUNT = 4  # int32


class Protocol(NamedTuple):
    """The protocol of requests and updates.

    Attributes:
        asks_by_id: Whether a client sends the ids of its classes, which costs bytes;
            clients of FullSoftmax get all classes without a request.
        requests: "sampled", "union" or "all", see `algorithms.ClassSets`.
        aggregation: "plain", or "secure": the server sees only the sum of the updates.
        threshold: Threshold of secure aggregation: rows with fewer contributors are
            dropped.
    """

    asks_by_id: bool = True
    requests: str = "sampled"
    aggregation: str = "plain"
    threshold: int = 1


class ClassifierTraffic(NamedTuple):
    """The traffic of one client in one round; means over clients may be fractions.

    Attributes:
        parameters: Classifier parameters sent to the client (floats); the same number
            is returned if requests are sampled.
        bytes_down: Server to client: the parameters, and the ids of a union.
        bytes_up: Client to server: the ids, the update of its columns, and the counts
            of contributors.
    """

    parameters: float
    bytes_down: float
    bytes_up: float


def classifier_traffic(
    classes_per_client: float,
    embedding_dim: int,
    protocol: Protocol | None = None,
    rows_per_client: float | None = None,
) -> ClassifierTraffic:
    """Computes the traffic of the classifier.

    Ids of classes are sent at most once, in request or update. In a secure sum, a
    client's update has a row for each class that all clients got: those of the union,
    or all; if requests are known, masks are needed only among the clients that asked
    for a row. A masked number counts like an unmasked one. The messages of the
    protocols themselves (keys, shares, the private set union) are not counted:
    docs/privacy.md has their cost.

    Args:
        classes_per_client: |S_k|, or its mean over clients.
        embedding_dim: d.
        protocol: The protocol; None: that of Algorithm 1.
        rows_per_client: Number of rows that a client gets; None: those that it asks
            for.

    Returns:
        The traffic.
    """
    protocol = protocol or Protocol()
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
        bytes_down=BYTES_PER_PARAMETER * parameters + _BYTES_PER_ID * ids_down,
        bytes_up=BYTES_PER_PARAMETER * rows_up * embedding_dim
        + _BYTES_PER_ID * ids
        + _BYTES_PER_COUNT * counts,
    )
