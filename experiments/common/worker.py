"""Starts TFF's worker on this machine, for runs that are started on another.

    ./run.sh worker --port=8000

says when it is ready, works until Ctrl-C or SIGTERM, and serves `./run.sh train
--workers=HOST:8000,...` and its like, one run at a time. The machines need the same
version of this project, and no data: clients' data come with each round.

The worker asks nobody for a password, encrypts nothing, and computes what it is sent by
anyone who reaches the port, on any address of this machine. Start it inside a trusted
network only.
"""

import dataclasses
import socket
import threading

from experiments.common import config, program
from tff_fedss import runtime
from tff_fedss.errors import InvalidInputError
from tff_fedss.runtime import worker_service


@dataclasses.dataclass(frozen=True)
class Config(config.Config):
    """What a user asks for."""

    port: int = config.flag(
        None,
        "Where to listen.",
        low=1,
        high=65535,
        needed="P is needed, where the worker listens.",
    )
    max_clients_at_once: int | None = config.flag(
        None,
        "How many clients may train at the same time; fewer need less memory. Default: "
        "all that come.",
        low=1,
    )


def main(config: Config) -> None:
    """Runs a worker until it is stopped."""
    _check_port(config.port)
    process = worker_service.start_process(
        config.port, config.max_clients_at_once or -1, None
    )
    channel = worker_service.Channel(f"localhost:{config.port}")
    try:
        is_ready = threading.Event()
        channel.ask(lambda is_there: is_there and is_ready.set(), wait_for_ready=True)
        while not is_ready.wait(0.05) and process.poll() is None:
            pass
        if is_ready.is_set():
            print(
                f"TFF worker listening on port {config.port} (process {process.pid}). "
                "Ctrl-C ends it.",
                flush=True,
            )
        process.wait()
        raise runtime.WorkerError(worker_service.describe_death(process))
    finally:
        channel.close()
        process.kill()
        process.wait()


def _check_port(port: int) -> None:
    # The worker itself would share the port with another worker and say nothing.
    with socket.socket(socket.AF_INET6) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("::", port))
        except OSError as error:
            raise InvalidInputError(
                f"--port={port} cannot be used: {error.strerror}."
            ) from error


if __name__ == "__main__":
    program.run(main, Config())
