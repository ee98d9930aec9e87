"""What a client's share of the classifier costs on the wire, per round (FedSS, Fig. 5).

Counted are the distinct classes that a client asks for. Padding is a need of the
simulation, not of the method, and costs nothing here.
"""

from typing import NamedTuple

BYTES_PER_PARAMETER = 4  # float32
_BYTES_PER_ID = 4  # int32


class ClassifierTraffic(NamedTuple):
    """Of one client in one round; means over clients may be fractions.

    Attributes:
        parameters: Classifier parameters sent to the client, and as many back (floats).
        ids: Ids of classes that the client sends to ask for its columns.
        bytes_down: Server to client: the parameters.
        bytes_up: Client to server: the ids it asks for, and the update of its columns.
    """

    parameters: float
    ids: float
    bytes_down: float
    bytes_up: float


def classifier_traffic(
    classes_per_client: float, embedding_dim: int, asks_by_id: bool
) -> ClassifierTraffic:
    """Computes the traffic of the classifier.

    Args:
        classes_per_client: |S_k|, or its mean over clients.
        embedding_dim: d.
        asks_by_id: Whether the client names its classes; a client that takes all of
            them (FullSoftmax) names none.

    Returns:
        The traffic.
    """
    parameters = classes_per_client * embedding_dim
    ids = classes_per_client if asks_by_id else 0
    return ClassifierTraffic(
        parameters=parameters,
        ids=ids,
        bytes_down=BYTES_PER_PARAMETER * parameters,
        bytes_up=BYTES_PER_PARAMETER * parameters + _BYTES_PER_ID * ids,
    )
