"""A round cut into computations of the server and of parts of the clients.

TFF compiles a round to a list of calls, whose values are at the server or at the
clients. Here the list becomes several computations, so that only what clients use is
sent to other machines, and any part of the clients can run on any machine:

    serve     at the server        arguments -> what is broadcast, tables to select from
    prepare   at a part's clients  arguments -> keys, and what clients keep
    select    at the server        tables, keys -> the rows that they name
    work      at a part's clients  arguments, kept, broadcasts, rows -> the part's sum
    merge     at the server        two sums -> one
    finish    at the server        arguments, sum -> the result

Of the state of FedSS, only phi is broadcast: W and the momenta stay at the server.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_fedss.runtime import arguments, compiler, program

_Block = tff.framework.ComputationBuildingBlock
_NOTHING = tff.StructType([])


class NotCuttableError(Exception):
    """A computation must run in one piece, for the reason in the message."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """The pieces of a computation, see above.

    Attributes:
        serve: (server's arguments) -> <broadcasts, tables>.
        prepare: (clients' arguments) -> <keys, kept>; None if clients select nothing.
        select: <tables, keys> -> rows; None if clients select nothing.
        work: <clients' arguments, kept, broadcasts, rows> -> sum.
        merge: <sum, sum> -> sum.
        finish: <all arguments, of no client, and the sum> -> result.
        work_reads_arguments: Whether `work` gets clients' arguments, which it reads or
            counts. If not, it gets an empty tuple instead.
    """

    serve: tff.framework.ConcreteComputation
    prepare: tff.framework.ConcreteComputation | None
    select: tff.framework.ConcreteComputation | None
    work: tff.framework.ConcreteComputation
    merge: tff.framework.ConcreteComputation
    finish: tff.framework.ConcreteComputation
    work_reads_arguments: bool


def cut(comp: tff.framework.ConcreteComputation) -> Cut:
    """Cuts a computation with a value at the clients among its arguments.

    Raises:
        NotCuttableError: If its result stays at the clients, or an aggregation depends
            on another, or the clients' keys on what the server sent.
    """
    if arguments.has_clients(comp.type_signature.result):
        raise NotCuttableError("its result stays at the clients")
    try:
        form = tff.backends.native.compile_to_mergeable_comp_form(
            compiler.without_secure_sums(comp)
        )
    except ValueError as error:
        raise NotCuttableError(str(error)) from error
    function = compiler.compile_to_calls(form.up_to_merge)
    if not isinstance(function.result, tff.framework.Block):
        raise NotCuttableError("TFF does not compile it to a list of calls")
    # TFF's compiler drops the containers of the result.
    finish = tff.framework.ConcreteComputation.with_type(
        form.after_merge,
        tff.FunctionType(
            form.after_merge.type_signature.parameter, comp.type_signature.result
        ),
    )
    return _Cutter(function).cut(form.merge, finish)


class _Cutter:
    """Cuts the part of a computation before its sum."""

    def __init__(self, function: tff.framework.Lambda):
        self._parameter = function.parameter_name
        self._type = function.parameter_type
        self._locals: dict[str, _Block] = dict(function.result.locals)
        self._result = function.result.result
        self._broadcasts = self._calls("federated_broadcast")
        self._selects = self._calls("federated_select")

    def cut(self, merge: Any, finish: Any) -> Cut:
        """Returns the pieces, given the two that TFF has made."""
        asked = [self._argument(name) for name in self._selects]
        keys = [argument[0] for argument in asked]
        tables = [_struct(argument[1:3]) for argument in asked]
        from_server = {*self._broadcasts, *self._selects}
        prepared = self._needed_for(keys)
        if prepared & from_server:
            raise NotCuttableError("its clients' keys depend on what the server sent")
        # Values that both halves of a client's work need are computed once and kept.
        kept = [
            name
            for name in self._in_order(
                prepared & self._needed_for([self._result], from_server)
            )
            if arguments.has_clients(self._locals[name].type_signature)
        ]
        inputs = {*from_server, *kept}
        work = self._needed_for([self._result], inputs) - inputs
        served = [
            _struct(self._locals[name].argument for name in self._broadcasts),
            _struct(tables),
        ]
        # Something must tell an actor how many clients the part has.
        reads_arguments = not (kept or self._selects) or any(
            self._parameter in program.names_in(block)
            for block in (self._result, *(self._locals[name] for name in work))
        )
        clients = arguments.type_without(tff.SERVER, self._type)
        return Cut(
            serve=self._computation(
                arguments.type_without(tff.CLIENTS, self._type), served
            ),
            prepare=self._computation(
                clients, [_struct(keys), _struct(map(self._reference, kept))]
            )
            if self._selects
            else None,
            select=self._select(asked) if self._selects else None,
            work=self._work(clients if reads_arguments else _NOTHING, kept, work),
            merge=merge,
            finish=finish,
            work_reads_arguments=reads_arguments,
        )

    def _calls(self, uri: str) -> list[str]:
        """Returns the names of the calls of an intrinsic."""
        return [
            name
            for name, block in self._locals.items()
            if isinstance(block, tff.framework.Call)
            and isinstance(block.function, tff.framework.Intrinsic)
            and block.function.uri == uri
        ]

    def _argument(self, name: str) -> list[_Block]:
        """Returns the parts of the argument of a call."""
        argument = self._locals[name].argument
        if isinstance(argument, tff.framework.Struct):
            return [part for _, part in tff.structure.iter_elements(argument)]
        return _parts(argument)

    def _reference(self, name: str) -> tff.framework.Reference:
        return tff.framework.Reference(name, self._locals[name].type_signature)

    def _needed_for(
        self, blocks: Iterable[_Block], given: Collection[str] = ()
    ) -> set[str]:
        """Returns the locals that blocks depend on, except given ones and theirs."""
        found: set[str] = set()
        waiting = list(blocks)
        while waiting:
            names = program.names_in(waiting.pop()) & self._locals.keys()
            waiting += [self._locals[name] for name in names - found - {*given}]
            found |= names
        return found

    def _in_order(self, names: Collection[str]) -> list[str]:
        return [name for name in self._locals if name in names]

    def _computation(self, parameter: tff.Type, result: Sequence[_Block]) -> Any:
        """Returns a computation from some of the arguments to a struct."""
        names = self._in_order(self._needed_for(result))
        block = tff.framework.Block(
            [(name, self._locals[name]) for name in names], _struct(result)
        )
        block = _with_type(block, self._parameter, parameter)
        return _concrete(tff.framework.Lambda(self._parameter, parameter, block))

    def _select(self, asked: Sequence[Sequence[_Block]]) -> Any:
        """Returns the computation <tables, keys> -> rows."""
        functions = [argument[3] for argument in asked]
        needed = self._in_order(self._needed_for(functions))
        parameter = tff.framework.Reference(
            "given",
            tff.StructType(
                [
                    [[a[1].type_signature, a[2].type_signature] for a in asked],
                    [a[0].type_signature for a in asked],
                ]
            ),
        )
        tables, keys = map(_parts, _parts(parameter))
        rows = [
            tff.framework.Call(
                self._locals[name].function,
                _struct([own_keys, *_parts(table), function]),
            )
            for name, own_keys, table, function in zip(
                self._selects, keys, tables, functions, strict=True
            )
        ]
        block = tff.framework.Block(
            [(name, self._locals[name]) for name in needed], _struct(rows)
        )
        return _concrete(
            tff.framework.Lambda(parameter.name, parameter.type_signature, block)
        )

    def _work(
        self, clients: tff.Type, kept: Sequence[str], work: Collection[str]
    ) -> Any:
        """Returns the computation <arguments, kept, broadcasts, rows> -> sum."""
        parameter = tff.framework.Reference(
            "given",
            tff.StructType(
                [
                    clients,
                    [self._locals[name].type_signature for name in kept],
                    [
                        self._locals[name].argument.type_signature
                        for name in self._broadcasts
                    ],
                    [self._locals[name].type_signature for name in self._selects],
                ]
            ),
        )
        own, held, sent, rows = _parts(parameter)
        given = [
            (self._parameter, own),
            *zip(kept, _parts(held), strict=True),
            *(
                (name, tff.framework.Call(self._locals[name].function, value))
                for name, value in zip(self._broadcasts, _parts(sent), strict=True)
            ),
            *zip(self._selects, _parts(rows), strict=True),
        ]
        block = _with_type(
            tff.framework.Block(
                [(name, self._locals[name]) for name in self._in_order(work)],
                self._result,
            ),
            self._parameter,
            clients,
        )
        return _concrete(
            tff.framework.Lambda(
                parameter.name,
                parameter.type_signature,
                tff.framework.Block(given, block),
            )
        )


def _parts(block: _Block) -> list[_Block]:
    """Returns the elements of a block whose value is a struct."""
    return [
        tff.framework.Selection(block, index=k)
        for k in range(len(block.type_signature))
    ]


def _struct(parts: Iterable[_Block]) -> tff.framework.Struct:
    return tff.framework.Struct(list(parts))


def _with_type(block: _Block, name: str, type_spec: tff.Type) -> _Block:
    """Changes the type of all references to a name."""

    def visit(part):
        if isinstance(part, tff.framework.Reference) and part.name == name:
            return tff.framework.Reference(name, type_spec), True
        return part, False

    return tff.framework.transform_postorder(block, visit)[0]


def _concrete(function: tff.framework.Lambda) -> Any:
    return tff.framework.ConcreteComputation.from_building_block(function)
