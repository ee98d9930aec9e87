"""A round on the actors of a cluster: a queue of parts, and the sum of what comes back.

A part first says which rows it needs, gets them and then trains; where clients select
nothing it trains at once. A part belongs to the actor that has prepared it. If that is
lost, the part goes back into the queue.
"""

import collections
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow_federated as tff
from absl import logging

from tff_fedss.files import error_text
from tff_fedss.runtime import cluster_actor, cluster_hosts, frozen, parts
from tff_fedss.runtime.errors import ClientError, ServerError, WorkerError

# So often may actors die of a part before others are spared that.
_MAX_DEATHS = 3
# An actor has the next part at hand while it does one.
_PARTS_AT_ONCE = 2
_POLL_SECONDS = 1.0
# A part that takes so much longer than others is done by another actor, too.
_SLOW_SECONDS = 10.0
_SLOW_TIMES = 4.0


@dataclasses.dataclass
class Traffic:
    """What a computation has sent, in bytes of arrays.

    Attributes:
        broadcasts: What all clients get of the server, once for each machine.
        keys: What clients ask the server for.
        rows: What they get for it.
        sums: What the parts give back.
        clients: Clients' data, where they had to be sent.
    """

    broadcasts: int = 0
    keys: int = 0
    rows: int = 0
    sums: int = 0
    clients: int = 0


@dataclasses.dataclass(eq=False)
class _Part:
    """Where a part is.

    Attributes:
        index: Its number.
        clients: Which of the round's clients.
        rows: What was selected for it, in Ray's store, once it has asked.
        home: The actor that has prepared it.
        deaths: How many actors have died of it.
        sent: Its clients' data in Ray's store, if an actor needed them.
        is_done: Whether its sum is there.
    """

    index: int
    clients: slice
    rows: Any = None
    home: cluster_hosts.Member | None = None
    deaths: int = 0
    sent: Any = None
    is_done: bool = False


@dataclasses.dataclass(eq=False)
class _Task:
    """An actor at work on a part.

    Attributes:
        part: The part.
        member: The actor.
        is_preparing: Whether it prepares the part, or trains it.
        begun: When it was asked to.
    """

    part: _Part
    member: cluster_hosts.Member
    is_preparing: bool
    begun: float = dataclasses.field(default_factory=time.monotonic)


class Round:
    """A round, or another computation over clients."""

    def __init__(
        self,
        pool: cluster_hosts.Pool,
        key: str,
        pieces: Any,
        *,
        broadcasts: Any,
        arguments: Callable[[slice], Any],
        arguments_type: tff.Type,
        num_clients: int,
        select: Callable[[Any], Any] | None,
        merge: Callable[[Any, Any], Any],
        client_fn: Callable[..., Any] | None,
        number: int,
        traffic: Traffic,
    ):
        """Makes the parts.

        Args:
            pool: The actors.
            key: A name for the computations that they do.
            pieces: These, a `cluster_actor.Pieces` in Ray's store.
            broadcasts: What all clients get, frozen.
            arguments: From some of the clients to their argument.
            arguments_type: Its type.
            num_clients: How many clients the round has.
            select: From a part's keys to its rows, frozen; None: it needs none.
            merge: Adds two sums.
            client_fn: Makes a client's data, to be sent.
            number: Of the round; no two of a process are alike.
            traffic: What is sent is counted here.
        """
        import ray

        self._ray = ray
        self._pool = pool
        self._key, self._pieces = key, pieces
        self._broadcasts = ray.put(broadcasts)
        self._broadcast_bytes = frozen.num_bytes(broadcasts)
        self._arguments, self._arguments_type = arguments, arguments_type
        self._num_clients = num_clients
        self._select = select
        self._client_fn = client_fn
        self._round_key = f"{os.getpid()}/{number}"
        self._traffic = traffic
        self._parts = [_Part(*part) for part in enumerate(parts.parts_of(num_clients))]
        self._waiting = collections.deque(self._parts)
        self._running: dict[Any, _Task] = {}
        self._sum = parts.Sum(len(self._parts), merge)
        self._seconds: list[float] = []
        self._nodes: set[str] = set()

    def run(self) -> Any:
        """Does all parts.

        Returns:
            Their sum.

        Raises:
            ComputationError: If the computation failed.
            WorkerError: If no actor can be had, or several have died of a part.
        """
        self._pool.refresh()
        left = len(self._parts)
        while left:
            self._assign()
            references = [*self._running, *self._pool.starting]
            done = []
            if references:
                done, _ = self._ray.wait(
                    references, num_returns=1, timeout=_POLL_SECONDS
                )
            else:  # All are lost, and none could be asked for.
                time.sleep(_POLL_SECONDS)
                self._pool.refresh()
            self._pool.check_start()
            for reference in done:
                if reference in self._pool.starting:
                    self._pool.started(reference)
                elif reference in self._running:  # Else its actor is lost.
                    left -= self._end(reference)
        return self._sum.result()

    def _assign(self) -> None:
        """Gives the actors something to do."""
        for depth in range(_PARTS_AT_ONCE):
            for member in self._pool.members:
                if len(member.running) == depth:
                    part = self._next(member, depth)
                    if part is not None:
                        self._begin(part, member)

    def _next(self, member: cluster_hosts.Member, depth: int) -> _Part | None:
        """Takes the part out of the queue that an actor does best."""
        for is_good in (
            lambda part: part.rows is not None and part.home is member,
            lambda part: part.home is None,
        ):
            for part in self._waiting:
                if is_good(part):
                    self._waiting.remove(part)
                    return part
        return None if depth else self._slow_part(member)

    def _slow_part(self, member: cluster_hosts.Member) -> _Part | None:
        """A part on which another actor is at work for suspiciously long."""
        if not self._seconds:
            return None
        limit = max(_SLOW_SECONDS, _SLOW_TIMES * statistics.median(self._seconds))
        by_part = collections.Counter(task.part for task in self._running.values())
        for task in self._running.values():
            if (
                task.member is not member
                and by_part[task.part] == 1
                and time.monotonic() - task.begun > limit * len(task.member.running)
            ):
                return task.part
        return None

    def _begin(self, part: _Part, member: cluster_hosts.Member) -> None:
        is_preparing = self._select is not None and part.rows is None
        given = [self._key, self._pieces, self._with_clients(part, member)]
        if is_preparing:
            reference = member.handle.prepare.remote(*given)
        else:
            if member.node not in self._nodes:
                self._nodes.add(member.node)
                self._traffic.broadcasts += self._broadcast_bytes
            rows = () if part.rows is None else part.rows
            reference = member.handle.work.remote(*given, self._broadcasts, rows)
        task = _Task(part, member, is_preparing)
        member.running.append(task)
        self._running[reference] = task

    def _with_clients(self, part: _Part, member: cluster_hosts.Member) -> Any:
        """The part with its clients: by name, if the actor can read their data."""
        if part.sent is not None and not member.reads_clients:
            return part.sent

        def freeze(client_fn):
            clients = frozen.freeze(
                self._arguments(part.clients), self._arguments_type, client_fn
            )
            return cluster_actor.Part(self._round_key, part.index, clients)

        if member.reads_clients:
            return freeze(None)
        made = freeze(self._client_fn)
        self._traffic.clients += frozen.num_bytes(made.clients)
        part.sent = self._ray.put(made)
        return part.sent

    def _end(self, reference: Any) -> int:
        """Takes what an actor gives back; returns how many parts it completes."""
        task = self._running.pop(reference)
        part, member = task.part, task.member
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except cluster_hosts.full_errors():
            raise
        except errors.RayError as error:
            self._lost(task, error)
            return 0
        member.running.remove(task)
        if isinstance(result, cluster_actor.Failure):
            self._fail(part, result)
        if part.is_done or (task.is_preparing and part.rows is not None):
            return 0  # Another actor was faster.
        self._seconds.append(time.monotonic() - task.begun)
        if task.is_preparing:
            self._traffic.keys += frozen.num_bytes(result)
            rows = self._select(result)
            self._traffic.rows += frozen.num_bytes(rows)
            part.rows, part.home = self._ray.put(rows), member
            self._waiting.appendleft(part)
            return 0
        self._traffic.sums += frozen.num_bytes(result)
        part.is_done, part.rows, part.sent = True, None, None
        if part in self._waiting:
            self._waiting.remove(part)
        self._sum.add(part.index, result)
        return 1

    def _lost(self, task: _Task, error: Exception) -> None:
        """Puts the parts of an actor that is no more back into the queue."""
        member = task.member
        tasks = list(member.running)
        self._pool.drop(member)
        reason = error_text(error)[:300]
        # It has died of the one that it had begun.
        first = tasks[0].part
        first.deaths += 1
        if first.deaths == _MAX_DEATHS:
            raise WorkerError(
                f"{_MAX_DEATHS} times an actor died of the same part of a computation "
                f"(out of memory?), the last time on {member.host}: {reason}."
            ) from error
        logging.warning(
            "Lost an actor on %s. Doing its part again. (%s)", member.host, reason
        )
        self._running = {
            r: other for r, other in self._running.items() if other.member is not member
        }
        at_work = {other.part for other in self._running.values()}
        for part in self._parts:
            if part.home is member:
                part.home = None
        for other in reversed(tasks):
            part = other.part
            if not part.is_done and part not in at_work and part not in self._waiting:
                self._waiting.appendleft(part)
        self._pool.refresh()

    def _fail(self, part: _Part, failure: cluster_actor.Failure) -> None:
        if failure.client is None:
            raise ServerError(failure.cause) from failure.cause
        client = part.clients.start + failure.client
        raise ClientError(client, self._num_clients, failure.cause) from failure.cause
