"""A round on the actors of a cluster: a queue of parts, and the sum of their results.

A part first requests rows, gets them and then trains; if clients select nothing, it
trains at once. A part belongs to the actor that has prepared it. If the actor is lost,
the part is queued again.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff
from absl import logging

from tff_fedss import stopping
from tff_fedss.files import error_text
from tff_fedss.runtime import (
    arguments,
    cluster_actor,
    cluster_cut,
    cluster_machines,
    cluster_pool,
    frozen,
    parts,
)
from tff_fedss.runtime.errors import ClientError, ServerError, WorkerError
from tff_fedss.runtime.in_process import InProcessContext

# Number of actors that may die in a part before the round fails.
_MAX_DEATHS = 3
# An actor has one part running and the next one waiting.
_PARTS_AT_ONCE = 2
_POLL_SECONDS = 1.0


@dataclasses.dataclass
class Traffic:
    """The bytes of arrays that a computation has sent."""

    broadcasts: int = 0  # Values from the server to all clients, once for each machine.
    keys: int = 0  # The clients' requests.
    rows: int = 0  # The answers to the requests.
    sums: int = 0  # The results of the parts.
    clients: int = 0  # Clients' data that had to be sent.


@dataclasses.dataclass(eq=False)
class _Part:
    """The state of a part."""

    index: int
    clients: slice
    rows: Any = None  # Its selected rows, in Ray's store, after its request.
    home: cluster_pool.Member | None = None  # The actor that has prepared it.
    deaths: int = 0
    sent: Any = None  # Its clients' data in Ray's store, if an actor needed them.


@dataclasses.dataclass(eq=False)
class _Task:
    """An actor's work on a part."""

    part: _Part
    member: cluster_pool.Member
    is_preparing: bool  # Whether it prepares the part, or trains it.


class Computation:
    """A computation in the cluster's form.

    Attributes:
        pieces: Those pieces, a `cluster_actor.Pieces` in Ray's store.
    """

    def __init__(self, comp: tff.framework.ConcreteComputation):
        import ray

        self.cut = cluster_cut.cut(comp)
        self.parameter_type = comp.type_signature.parameter
        pieces = cluster_actor.Pieces(
            cluster_actor.serialize(self.cut.prepare),
            cluster_actor.serialize(self.cut.work),
            self.cut.work_reads_arguments,
        )
        self.key = hashlib.blake2b(
            (pieces.prepare or b"") + pieces.work, digest_size=12
        ).hexdigest()
        self.pieces = ray.put(pieces)


# Makes the keys of a process's rounds unique.
_numbers = itertools.count()


class Round:
    """A round or another computation over clients.

    Attributes:
        traffic: The bytes sent so far.
    """

    def __init__(
        self,
        pool: cluster_pool.Pool,
        here: InProcessContext,
        computation: Computation,
        arg: Any,
        num_clients: int,
        client_fn: Callable[..., Any] | None,
    ):
        """Does the server's first part, `here`, and cuts the clients into parts."""
        import ray

        self._ray = ray
        self._pool = pool
        self._here = here
        self._computation, self._cut = computation, computation.cut
        self._arg, self._num_clients = arg, num_clients
        self._client_fn = client_fn
        broadcasts, self._tables = here.invoke(
            self._cut.serve, arguments.of_server(arg, computation.parameter_type)
        )
        sent_type = self._cut.serve.type_signature.result[0]
        broadcasts = frozen.freeze(broadcasts, sent_type)
        self._broadcasts = ray.put(broadcasts)
        self._broadcast_bytes = frozen.num_bytes(broadcasts)
        self._round_key = f"{os.getpid()}/{next(_numbers)}"
        self.traffic = Traffic()
        self._parts = [_Part(*part) for part in enumerate(parts.parts_of(num_clients))]
        self._waiting = collections.deque(self._parts)
        self._running: dict[Any, _Task] = {}
        # The function must not refer to `self`: in a reference cycle, the objects in
        # Ray's store would be freed only by Python's next full collection.
        self._sum = parts.Sum(
            len(self._parts), functools.partial(_invoke, here, self._cut.merge)
        )
        self._nodes: set[str] = set()

    def run(self) -> Any:
        """Does all parts; returns the result of the computation.

        Raises:
            ComputationError: If the computation failed.
            WorkerError: If no actor starts, or several have died in a part.
        """
        self._pool.begin_round()
        self._left = len(self._parts)
        while self._left:
            # A part in neither place would be waited for forever.
            assert self._waiting or self._running, "a part of the round is lost"
            for member in self._pool.update():
                self._lose(member, "it does not answer")
            if self._pool.is_stalled:
                stopping.stop_if_asked()
            self._assign()
            references = [*self._running, *self._pool.starting]
            if not references:
                time.sleep(_POLL_SECONDS)
                continue
            done, _ = self._ray.wait(references, timeout=_POLL_SECONDS)
            for reference in done:
                if reference in self._pool.starting:
                    self._pool.started(reference)
                elif reference in self._running:  # Otherwise its actor is lost.
                    self._end(reference)
        parameter_type = self._computation.parameter_type
        of_nobody = arguments.without_clients(self._arg, parameter_type)
        return _invoke(self._here, self._cut.finish, of_nobody, self._sum.result())

    def _assign(self) -> None:
        """Assigns work to the actors."""
        for depth in range(_PARTS_AT_ONCE):
            for member in self._pool.members:
                if member.answers and len(member.running) == depth:
                    part = self._next(member)
                    if part is not None:
                        self._begin(part, member)

    def _next(self, member: cluster_pool.Member) -> _Part | None:
        """Takes the part from the queue that suits an actor best."""
        for is_good in (
            lambda part: part.rows is not None and part.home is member,
            lambda part: part.home is None,
        ):
            for part in self._waiting:
                if is_good(part):
                    self._waiting.remove(part)
                    return part
        return None

    def _begin(self, part: _Part, member: cluster_pool.Member) -> None:
        is_preparing = self._cut.select is not None and part.rows is None
        pieces = self._computation.key, self._computation.pieces
        given = [*pieces, self._with_clients(part, member)]
        if is_preparing:
            reference = member.handle.prepare.remote(*given)
        else:
            if member.node not in self._nodes:
                self._nodes.add(member.node)
                self.traffic.broadcasts += self._broadcast_bytes
            rows = () if part.rows is None else part.rows
            reference = member.handle.work.remote(*given, self._broadcasts, rows)
        task = _Task(part, member, is_preparing)
        member.running.append(task)
        self._running[reference] = task

    def _with_clients(self, part: _Part, member: cluster_pool.Member) -> Any:
        """Returns the part with its clients, by name if the actor reads their data."""
        if part.sent is not None and not member.reads_clients:
            return part.sent

        def freeze(client_fn):
            parameter_type = self._computation.parameter_type
            clients = frozen.freeze(
                arguments.of_clients(self._arg, parameter_type, part.clients),
                arguments.type_without(tff.SERVER, parameter_type),
                client_fn,
            )
            return cluster_actor.Part(self._round_key, part.index, clients)

        if member.reads_clients:
            return freeze(None)
        made = freeze(self._client_fn)
        self.traffic.clients += frozen.num_bytes(made.clients)
        part.sent = self._ray.put(made)
        return part.sent

    def _end(self, reference: Any) -> None:
        """Handles an actor's result."""
        task = self._running.pop(reference)
        part, member = task.part, task.member
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except cluster_machines.full_errors():
            raise
        except errors.RayTaskError as error:
            if not _is_of_dying_process(error.cause):
                raise error.cause from None
            self._lose(member, error_text(error.cause))
            return
        except errors.RayError as error:
            self._lose(member, error_text(error)[:300])
            return
        member.running.remove(task)
        if isinstance(result, cluster_actor.Failure):
            self._fail(part, result)
        if task.is_preparing:
            self.traffic.keys += frozen.num_bytes(result)
            asked = tff.structure.Struct.unnamed(self._tables, result)
            rows = self._here.compute(self._cut.select, asked)
            rows = frozen.freeze(rows, self._cut.select.type_signature.result)
            self.traffic.rows += frozen.num_bytes(rows)
            part.rows, part.home = self._ray.put(rows), member
            self._waiting.appendleft(part)
            return
        self.traffic.sums += frozen.num_bytes(result)
        part.rows, part.sent = None, None
        self._sum.add(part.index, result)
        self._left -= 1

    def _lose(self, member: cluster_pool.Member, why: str) -> None:
        """Puts a lost actor's parts back into the queue."""
        self._pool.lose(member)
        self._running = {
            r: task for r, task in self._running.items() if task.member is not member
        }
        for part in self._parts:
            if part.home is member:
                part.home = None
        lost = [task.part for task in member.running]
        self._waiting.extendleft(reversed(lost))
        logging.warning(
            "Lost an actor on %s. Repeating its part. (%s)", member.host, why
        )
        if lost:  # It has died in the part that it had begun.
            lost[0].deaths += 1
            if lost[0].deaths == _MAX_DEATHS:
                raise WorkerError(
                    f"{_MAX_DEATHS} times an actor died in the same part of a "
                    f"computation (out of memory?), the last time on {member.host}: "
                    f"{why}."
                )

    def _fail(self, part: _Part, failure: cluster_actor.Failure) -> None:
        if not failure.is_of_computation:
            raise failure.cause
        if failure.client is None:
            raise ServerError(failure.cause) from failure.cause
        client = part.clients.start + failure.client
        raise ClientError(client, self._num_clients, failure.cause) from failure.cause


def _invoke(
    context: InProcessContext, comp: tff.framework.ConcreteComputation, *args: Any
) -> Any:
    return context.invoke(comp, tff.structure.Struct.unnamed(*args))


def _is_of_dying_process(error: Exception) -> bool:
    """Returns whether an actor lost its connection to Ray, as when its machine dies."""
    import ray

    is_rays_own = isinstance(error, OSError) and error.errno is None
    return is_rays_own or isinstance(error, ray.exceptions.RayError)
