"""Process of `rayscribe serve` and `ui`: the HTTP API or the pages and, while it holds the lease, the controller."""

import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from starlette.types import ASGIApp

from jobs.addresses import is_cluster_address, is_loopback
from jobs.api.server.app import make_app, ui_app
from jobs.api.server.connection_limits import BACKLOG, LimitedProtocol
from jobs.api.server.dependencies import Backend
from jobs.api.server.middleware import check_loopback
from jobs.api.server.pages.page_access import SIGN_IN, access_by_link
from jobs.api.server.routes.package_routes import remove_stale_uploads
from jobs.clusters.managed.cluster_record import default_address
from jobs.clusters.registry import CachingClusters, Clusters
from jobs.errors import ConflictError
from jobs.ledger import Lease, Ledger
from jobs.paths import current_user, default_database, token_hosts_file
from jobs.service import standalone
from jobs.service.controller import LEASE_S, POLL_S, Controller
from jobs.service.package_store import PackageStore
from jobs.service.queues_file import find_queues
from jobs.service.service import Service
from trainers.config.storage_location import without_password
from trainers.distributed.machine import home, make_private_folder, process_has_ended, process_name
from trainers.errors import ConfigError

log = logging.getLogger(__name__)

DEFAULT_PORT = 8470
# The dashboard of `ray start --head` on this machine.
DEFAULT_ADDRESS = "http://127.0.0.1:8265"
# Longest time that active requests may take at shutdown. Seconds.
SHUTDOWN_TIMEOUT_S = 5
# Longest wait for the controller's current round at shutdown; both timeouts together are below the ten seconds that a
# container has. After a longer round, such as a large upload to Ray, the next service continues when the lease has
# expired.
ROUND_TIMEOUT_S = 4.0
# Hosts that mean all addresses of this machine; no client connects to them.
ALL_ADDRESSES = ("", "0.0.0.0", "::")
LOOPBACK = "127.0.0.1"


def served_addresses(named: Sequence[str]) -> list[str]:
    """Returns the clusters of a service: the named ones, or this machine's default. Raises ConfigError if invalid."""
    addresses = [address.rstrip("/") for address in named or (default_address() or DEFAULT_ADDRESS,)]
    for address in addresses:
        if not is_cluster_address(address):
            raise ConfigError(
                f"--address {without_password(address)}: write the URL of a cluster's dashboard, without credentials, "
                "e.g. http://host:8265, or cluster://NAME"
            )
    return addresses


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a service; defaults are in `default_database`, `served_addresses` and `find_queues`.

    Attributes:
        port: 0 for any free port.
        no_auth: Require no tokens; on a loopback address only.
        addresses: Clusters that runs may name; the first is the default.
        grows_to: Resources to which autoscalers can grow each cluster, by address, e.g.
            {"http://head:8265": {"GPU": 16}}.
        poll_s: Seconds between two rounds of the controller.
        lease_s: Seconds without a renewal of the lease after which another service takes over.
    """

    database: str | None = None
    host: str = LOOPBACK
    port: int = DEFAULT_PORT
    no_auth: bool = False
    addresses: tuple[str, ...] = ()
    queues_file: Path | None = None
    grows_to: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    poll_s: float = POLL_S
    lease_s: float = LEASE_S


def serve(settings: ServeSettings) -> None:
    """Serves until SIGTERM or SIGINT, then completes active requests and releases the lease.

    Raises:
        ConfigError: the settings are not valid; nothing was started.
        ServiceError: the ledger cannot be opened.
    """
    _log_to_stderr()
    with ExitStack() as stack:
        listener = stack.enter_context(_listening(settings))
        queues = find_queues(settings.queues_file)
        ledger = Ledger.open(settings.database or default_database())
        stack.callback(ledger.close)
        packages = PackageStore(home() / "packages")
        remove_stale_uploads(packages.folder)
        lease = ledger.lease(process_name(), ttl_s=settings.lease_s, is_dead=process_has_ended)
        grows_to = {address.rstrip("/"): growth for address, growth in settings.grows_to.items()}
        user, addresses = current_user(), served_addresses(settings.addresses)
        service = Service(ledger, CachingClusters(grows_to), packages, queues, user=user, addresses=addresses)
        backend = Backend(service, ledger, queues, packages.folder, lambda: lease.held)
        app = make_app(backend, anonymous_user=user if settings.no_auth else None)
        controller = Controller(ledger, Clusters(grows_to), packages, queues, lease=lease)

        def started() -> None:
            if not settings.no_auth:
                _print(create_first_token(ledger, home() / "token", user, time.time(), _own_hosts(settings.host)))
            lease.try_hold()
            _print(_summary(settings, addresses, listener, ledger, lease))

        _run(app, listener, controller, settings.poll_s, started=started)


def serve_ui(port: int, show: Callable[[str], None]) -> None:
    """Serves the pages of `rayscribe ui` until SIGTERM or SIGINT, for the runs of this user; no service is needed.

    The pages show the runs that `rayscribe list` shows, those of the local ledger and those without a queue.
    Meanwhile a controller advances the ledger's runs. `show` receives the URL to open, which is valid for one browser.

    Raises:
        ConfigError: the port cannot be opened.
    """
    with open_port(LOOPBACK, port) as listener, standalone.open_local() as local:
        access, token = access_by_link(current_user())
        at = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
        link = f"{at}{SIGN_IN}?{urlencode({'token': token})}"
        _run(ui_app(local, access), listener, local.controller, standalone.POLL_S, started=lambda: show(link))


class Server(uvicorn.Server):
    """Does not handle signals: uvicorn raises them again after its shutdown, which would end this process too early."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _run(
    app: ASGIApp, listener: socket.socket, controller: Controller, poll_s: float, *, started: Callable[[], None]
) -> None:
    """Serves an app until SIGTERM or SIGINT, with the limits of connections, and runs the controller in a thread.

    The controller releases the lease at the end of its last round.
    """
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        backlog=BACKLOG,
        access_log=False,  # uvicorn's would have query strings; see AccessLogMiddleware
        log_config=None,
        server_header=False,
        proxy_headers=False,  # nothing depends on the client's address
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        ws="none",
    )
    server, stop = Server(config), threading.Event()

    def end(number: int, _frame: object) -> None:
        stop.set()
        server.handle_exit(number, None)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    started()
    thread = threading.Thread(target=controller.run, args=(stop,), kwargs={"poll_s": poll_s}, daemon=True)
    thread.start()
    try:
        server.run(sockets=[listener])
    finally:
        stop.set()
        thread.join(ROUND_TIMEOUT_S)
        if thread.is_alive():
            log.warning("the controller is in a long round; another service takes over when the lease has expired")


@contextmanager
def _listening(settings: ServeSettings) -> Iterator[socket.socket]:
    """Opens the port before anything else, so that a port that is in use is reported at once."""
    if settings.no_auth:
        check_loopback(settings.host)
    with open_port(settings.host, settings.port) as listener:
        if settings.no_auth:
            check_loopback(str(listener.getsockname()[0]))
        yield listener


def open_port(host: str, port: int) -> socket.socket:
    """Opens a port; raises ConfigError if that fails."""
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # Unlike socket.create_server, with an explicit protocol, without which asyncio leaves on Nagle's algorithm; it
        # would delay each small response by 40 ms.
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"--port {port}: cannot listen at {host}:{port} ({error.strerror}); another service may use it: "
            "stop that service, or choose another --port"
        ) from None
    return listener


def _own_hosts(host: str) -> list[str]:
    """Returns the names and addresses at which clients may connect to a service on this machine."""
    names = [host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()]
    with suppress(OSError):
        names += [str(found[4][0]) for found in socket.getaddrinfo(names[1], None, type=socket.SOCK_STREAM)]
    return list(dict.fromkeys(name for name in names if name not in ALL_ADDRESSES))


def _summary(
    settings: ServeSettings, addresses: Sequence[str], listener: socket.socket, ledger: Ledger, lease: Lease
) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    role = "active: holds the lease" if lease.epoch is not None else "standby: another service holds the lease"
    access = "without authentication" if settings.no_auth else "with token authentication"
    warning = "" if is_loopback(host) else " · unencrypted: put a TLS proxy in front of it"
    clusters = ", ".join(addresses)
    endpoint = f"http://{shown}:{port} · {access}{warning}"
    return f"Rayscribe serves {endpoint} · database {ledger.url} · clusters {clusters} · {role}"


def _print(line: str | None) -> None:
    if line is not None:
        print(line, flush=True)


class LogFormatter(logging.Formatter):
    """Escapes control characters, which users' texts may have, and indents all lines of a record but the first."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record).replace("\n", "\n    ")
        return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger(__name__.partition(".api.")[0]).setLevel(logging.INFO)


def create_first_token(ledger: Ledger, path: Path, user: str, now_s: float, hosts: Sequence[str] = ()) -> str | None:
    """Creates a token if the ledger has none, and writes it to a file that only its owner can read.

    An existing file is renamed, since it may be for another service. The `hosts` are names and addresses of the host
    where the service runs; clients send the token to no other host.

    Returns:
        A message that says where the token is or, if the ledger only has other users' tokens, how to create one. It
        does not contain the token. None if no message is needed.

    Raises:
        ConfigError: the file cannot be written; no token was created.
    """
    names = [token.name for token in ledger.tokens.all()]
    if names:
        others_only = user not in names and not path.exists()
        fix = f"create yours with `rayscribe token add {user}` and set RAYSCRIBE_TOKEN"
        return f"there are tokens for {', '.join(names[:10])}; {fix}" if others_only else None
    backup = path.with_name(f"{path.name}.before")
    try:
        make_private_folder(path.parent)
        # The file comes first, since a token that cannot be written would be lost. Only its owner can read the file.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(ledger.tokens.add(user, now_s) + "\n")
            renamed = path.exists()
            if renamed:
                path.replace(backup)
            # Written before the token, so that the token never exists without its hosts.
            token_hosts_file(path).write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
            Path(new).replace(path)
        finally:
            Path(new).unlink(missing_ok=True)
    except ConflictError:  # another service, started at the same time, has created it
        return None
    except OSError as error:
        raise ConfigError(f"{path}: the first token cannot be written: {error.strerror}; set RAYSCRIBE_HOME") from None
    note = f"; the previous file is now {backup.name}" if renamed else ""
    return f"created the first token, for {user}, in {path}, where `rayscribe` on this machine finds it{note}"
