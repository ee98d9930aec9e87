"""Composition of a learning process with a computation of the clients' data sets."""

import collections

import tensorflow_federated as tff


def compose_dataset_computation(
    dataset_computation: tff.Computation,
    process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
    """Composes a process with a computation that makes a client's data set from its id.

    Replaces `tff.simulation.compose_dataset_computation_with_learning_process` for the
    processes of this package: TFF's expects clients that are data sets; here a client
    is a mapping with a seed beside its "data".

    Args:
        dataset_computation: A computation from T to "data", a sequence as in
            `build_fedss`. In a `tff.simulation.datasets.ClientData` T is the client's
            id, a string.
        process: From `build_fedss` or `build_fedaws`.

    Returns:
        The process whose clients have a T as their "data". It makes each data set twice
        a round, since clients do not keep it between drawing the class set and
        training.

    Raises:
        TypeError: If the data are not those that the process takes.
    """
    state_type, clients_type = process.next.type_signature.parameter
    client_type = collections.OrderedDict(
        tff.structure.iter_elements(clients_type.member)
    )
    made = dataset_computation.type_signature.result
    if not client_type["data"].is_assignable_from(made):
        raise TypeError(
            f"dataset_computation must give {client_type['data']}, the data that "
            f"clients of the process have, found {made}."
        )
    client_type["data"] = dataset_computation.type_signature.parameter

    @tff.tensorflow.computation(client_type)
    def make_data(client):
        data = dataset_computation(client["data"])
        return collections.OrderedDict(client, data=data)

    @tff.federated_computation(state_type, tff.FederatedType(client_type, tff.CLIENTS))
    def next_round(state, clients):
        return process.next(state, tff.federated_map(make_data, clients))

    return tff.learning.templates.LearningProcess(
        process.initialize,
        next_round,
        process.get_model_weights,
        process.set_model_weights,
    )
