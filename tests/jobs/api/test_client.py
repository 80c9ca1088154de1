"""The client against a real server: the same operations, records and errors as the service itself."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from jobs.api.client import Client, find_token
from jobs.api.server.app import make_app
from jobs.errors import AuthError, ConflictError, NotFoundError, ServiceError
from jobs.model import RunFilter, RunState
from jobs.paths import token_hosts_file
from jobs.service.operations import Operations
from jobs.service.service import Service
from jobs.submission.run_request import RunRequest
from tests.jobs.api.backend_harness import BackendHarness, config_of, make_package, open_harness, served
from tests.jobs.ledger.builders import TIMEOUT_S
from trainers.errors import ConfigError, RayscribeError, ResourceError
from trainers.run_folder.attempt_status import driver_log_key

SERVICE = "http://127.0.0.1:8470"
ENDS = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[BackendHarness]:
    with open_harness(tmp_path) as harness:
        harness.fill()
        yield harness


@pytest.fixture
def client(harness: BackendHarness) -> Iterator[Client]:
    with served(make_app(harness.backend)) as url, Client(url, harness.token, retry_timeout_s=0.0) as client:
        yield client


@pytest.fixture
def direct(harness: BackendHarness) -> Service:
    """The client's service, as Ana, without HTTP."""
    return harness.backend.service.as_user("ana")


def run_request(operations: Operations, folder: Path, name: str, **job: object) -> RunRequest:
    """A run request whose package was uploaded."""
    sha256 = make_package(folder / "package.zip")
    if not operations.has_package(sha256):
        operations.put_package(sha256, folder / "package.zip")
    return RunRequest(config=config_of(name, **job), package=sha256)


def test_reading_gives_what_the_service_gives(client: Client, direct: Service, harness: BackendHarness) -> None:
    log = Path(harness.ledger.run("run-failed").run_folder) / driver_log_key(1)
    log.parent.mkdir(parents=True)
    log.write_text("grüß\nGott\n")
    calls: list[Callable[[Operations], object]] = [
        lambda runs: runs.runs(),
        lambda runs: runs.runs(RunFilter(states=[RunState.FAILED, RunState.STOPPED], tag="every"), limit=1),
        lambda runs: runs.runs(limit=2, cursor=runs.runs(limit=2).next_cursor),
        lambda runs: runs.runs(RunFilter(user="nobody", queue="nothing")),
        lambda runs: runs.run("run-queued"),
        lambda runs: runs.attempts("run-failed"),
        lambda runs: runs.events("run-failed"),
        lambda runs: runs.events("run-failed", after=3, limit=1),
        lambda runs: runs.logs("run-failed"),
        lambda runs: runs.logs("run-failed", attempt=1, source="driver", cursor=runs.logs("run-failed").cursor),
        lambda runs: runs.usage("run", run_id="run-failed"),
        lambda runs: runs.usage("tag", run_id="run-failed", since_s=1000.0),
        lambda runs: runs.has_package("0" * 64),
    ]
    for number, call in enumerate(calls):
        assert call(client) == call(direct), f"call {number}"


def test_changes_are_made_by_the_service(client: Client, harness: BackendHarness, tmp_path: Path) -> None:
    request = run_request(client, tmp_path, "new")
    assert client.has_package(request.package)
    run = client.submit(request)
    assert run == harness.ledger.run("new").model_copy(update={"reason": run.reason})
    assert client.stop("new").state == RunState.STOPPED
    assert client.resume("new").state == RunState.QUEUED
    assert harness.ledger.run("new").state == RunState.QUEUED
    assert client.health()["status"] == "ok"
    assert client.queues()["queues"][0]["name"] == "default"


def test_errors_are_those_of_the_service_itself(client: Client, direct: Service, tmp_path: Path) -> None:
    taken, large = run_request(direct, tmp_path, "run-failed"), config_of("large", queue="small")
    large["scaling"]["num_workers"] = 99
    invalid = {**config_of("invalid"), "training": {"max_steps": "many", "max_stepz": 1}}
    cases: list[tuple[type[RayscribeError], Callable[[Operations], object]]] = [
        (NotFoundError, lambda runs: runs.run("run-faild")),
        (NotFoundError, lambda runs: runs.run("räksmörgås")),
        (NotFoundError, lambda runs: runs.run("a b?c#d%2F")),
        (NotFoundError, lambda runs: runs.attempts("nothing")),
        (NotFoundError, lambda runs: runs.events("nothing")),
        (NotFoundError, lambda runs: runs.stop("nothing")),
        (NotFoundError, lambda runs: runs.usage("run", run_id="nothing")),
        (NotFoundError, lambda runs: runs.logs("run-failed", attempt=9)),
        (NotFoundError, lambda runs: runs.submit(taken.model_copy(update={"package": "0" * 64}))),
        (ConflictError, lambda runs: runs.resume("run-training")),
        (ConflictError, lambda runs: runs.logs("run-queued")),
        (ConflictError, lambda runs: runs.submit(taken)),
        (ConfigError, lambda runs: runs.runs(cursor="bm9uc2Vuc2U")),
        (ConfigError, lambda runs: runs.has_package("x")),
        (ConfigError, lambda runs: runs.submit(taken.model_copy(update={"config": invalid}))),
        (ResourceError, lambda runs: runs.submit(taken.model_copy(update={"config": large}))),
    ]
    for number, (kind, call) in enumerate(cases):
        with pytest.raises(kind) as here:
            call(direct)
        with pytest.raises(kind) as there:
            call(client)
        assert type(there.value) is type(here.value), f"case {number}"
        assert there.value.exit_code == here.value.exit_code
        if number != 13:
            assert str(there.value) == str(here.value)


def test_what_cannot_travel_is_refused_before_it_does(client: Client, tmp_path: Path) -> None:
    request = run_request(client, tmp_path, "odd")
    for odd in ({"config": {"run": {"name": "\udcff"}}}, {"config": {"training": {"learning_rate": float("nan")}}}):
        with pytest.raises(ConfigError, match="not finite, or a text that is not UTF-8"):
            client.submit(request.model_copy(update=odd))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../packages"])
def test_a_name_that_would_be_another_path_is_not_found(client: Client, name: str) -> None:
    for call in (client.run, client.attempts, client.events, client.logs, client.stop, client.resume):
        with pytest.raises(NotFoundError, match="no run is named"):
            call(name)


def test_a_token_that_is_not_known_is_an_error_of_its_own(harness: BackendHarness) -> None:
    with served(make_app(harness.backend)) as url:
        for token in ("rsk_unknown", ""):
            with Client(url, token) as client:
                with pytest.raises(AuthError, match="RAYSCRIBE_TOKEN"):
                    client.runs()
                with pytest.raises(AuthError, match="RAYSCRIBE_TOKEN"):
                    client.has_package("0" * 64)


def test_a_package_that_the_service_refuses_is_a_config_error(client: Client, tmp_path: Path) -> None:
    make_package(tmp_path / "package.zip")
    with pytest.raises(ConfigError, match="SHA-256"):
        client.put_package("0" * 64, tmp_path / "package.zip")


# The service is not available.


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_service_that_never_answered_is_given_up_soon_with_the_fix() -> None:
    waited: list[float] = []
    with (
        Client(f"http://127.0.0.1:{free_port()}", "rsk_x", sleep=waited.append) as client,
        pytest.raises(ServiceError, match="rayscribe serve"),
    ):
        client.runs()
    assert sum(waited) < 1000


@contextmanager
def raw_server(responses: list[bytes]) -> Iterator[str]:
    """A server that is not the service: responds to each connection with the next of these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            for response in responses:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(response)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_another_server_is_recognized() -> None:
    with raw_server([ENDS, ENDS.replace(b"200 OK", b"404 Not Found")]) as url, Client(url, "rsk_x") as client:
        for _ in range(2):
            with pytest.raises(ServiceError, match="does not respond like a Rayscribe service of this version"):
                client.run("a")


def test_a_service_that_does_not_answer_in_time_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, "rsk_x", read_timeout_s=0.1, retry_timeout_s=0.0) as client,
            pytest.raises(ServiceError, match="timed out"),
        ):
            client.runs()


@pytest.mark.parametrize(
    "url", ["", "localhost:8470", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://a:b@x", "http://[::1"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="http://host:8470") as raised:
        Client(url, "rsk_x")
    assert "a:b" not in str(raised.value)


# The service becomes available again.


class FlakyProxy:
    """A proxy in front of a service that cuts off the next `lose` responses."""

    def __init__(self, harness: BackendHarness):
        self._app = make_app(harness.backend)
        self.lose = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves; of responses that are to be lost, only the headers are sent."""
        if scope["type"] != "http" or self.lose == 0:
            await self._app(scope, receive, send)
            return
        self.lose -= 1

        async def cut_off(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)

        await self._app(scope, receive, cut_off)


def test_a_submission_whose_response_is_lost_is_repeated_and_makes_one_run(
    harness: BackendHarness, tmp_path: Path
) -> None:
    proxy = FlakyProxy(harness)
    with served(proxy) as url, Client(url, harness.token) as client:
        request = run_request(client, tmp_path, "once")
        proxy.lose = 2
        run = client.submit(request)
    assert proxy.lose == 0
    assert run.id == "once"
    assert [event.cause for event in harness.ledger.events("once")] == ["submitted"]


def test_a_resume_whose_response_is_lost_is_not_repeated(harness: BackendHarness) -> None:
    proxy = FlakyProxy(harness)
    with served(proxy) as url, Client(url, harness.token) as client:
        client.health()
        proxy.lose = 1
        with pytest.raises(ServiceError):
            client.resume("run-failed")
        assert client.run("run-failed").state == RunState.QUEUED


def test_a_service_that_restarts_in_the_middle_is_waited_for(harness: BackendHarness, tmp_path: Path) -> None:
    port = free_port()
    with served(make_app(harness.backend), port) as url:
        client = Client(url, harness.token)
        request = run_request(client, tmp_path, "across")
    outcome: list[object] = []
    thread = threading.Thread(target=lambda: outcome.append(client.submit(request)), daemon=True)
    thread.start()
    with served(make_app(harness.backend), port):
        thread.join(TIMEOUT_S)
    client.close()
    assert [run.id for run in outcome] == ["across"]  # type: ignore[attr-defined]
    assert len(harness.ledger.events("across")) == 1


def test_a_database_that_comes_back_is_waited_for() -> None:
    error = b'{"error": {"type": "ServiceError", "message": "the ledger does not respond", "exit_code": 24}}'
    silent = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(error), error)
    proxy = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad"
    good = b'HTTP/1.1 200 OK\r\nContent-Length: 34\r\n\r\n{"runs": [],   "next_cursor": null}'
    good = good.replace(b"34", str(len(good.partition(b"\r\n\r\n")[2])).encode())
    with raw_server([silent, proxy, good]) as url, Client(url, "rsk_x") as client:
        assert client.runs().runs == []


def test_an_answer_that_a_cluster_is_down_is_an_answer() -> None:
    error = b'{"error": {"type": "ClusterError", "message": "http://head: no response", "exit_code": 23}}'
    down = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%s" % (len(error), error)
    with (
        raw_server([down]) as url,
        Client(url, "rsk_x") as client,
        pytest.raises(RayscribeError, match="http://head: no response") as raised,
    ):
        client.run("a")
    assert raised.value.exit_code == 23


# Tokens.


@pytest.fixture
def token_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token, and no variables."""
    for name in ("RAYSCRIBE_TOKEN", "RAYSCRIBE_TOKEN_FILE", "RAYSCRIBE_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    return tmp_path


def test_the_token_is_found_where_it_is_nearest(token_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_token(SERVICE) is None
    (token_home / "token").write_text("rsk_home\n")
    assert find_token(SERVICE) == "rsk_home"
    (token_home / "named").write_text("rsk_named")
    monkeypatch.setenv("RAYSCRIBE_TOKEN_FILE", str(token_home / "named"))
    assert find_token(SERVICE) == "rsk_named"
    monkeypatch.setenv("RAYSCRIBE_TOKEN", "rsk_env")
    assert find_token(SERVICE) == "rsk_env"


@pytest.mark.parametrize("content", [b"", b"two words", "rsk_ü".encode(), b"\xff\xfe", b"a\nb"])
def test_a_file_that_holds_no_token_is_refused_without_showing_it(token_home: Path, content: bytes) -> None:
    (token_home / "token").write_bytes(content)
    with pytest.raises(ConfigError, match=r"token does not have a token") as raised:
        find_token(SERVICE)
    assert "words" not in str(raised.value)


def test_a_token_file_that_is_not_there_is_named(token_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_TOKEN_FILE", str(token_home / "missing"))
    with pytest.raises(ConfigError, match="missing"):
        find_token(SERVICE)
    monkeypatch.setenv("RAYSCRIBE_TOKEN_FILE", str(token_home))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_token(SERVICE)


def test_a_token_is_sent_to_the_host_of_its_service_only(token_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (token_home / "token").write_text("rsk_home")
    assert find_token("http://elsewhere:8470") == "rsk_home", "nobody has said whose it is"
    token_hosts_file(token_home / "token").write_text("node-1\n10.0.0.1\n")
    for url in ("http://127.0.0.1:1", "http://Node-1:8470", "https://10.0.0.1"):
        assert find_token(url) == "rsk_home"
    with pytest.raises(ConfigError, match=r"token is for the service on node-1, and is sent to no other host"):
        find_token("http://elsewhere:8470")
    monkeypatch.setenv("RAYSCRIBE_TOKEN", "rsk_env")
    assert find_token("http://elsewhere:8470") == "rsk_env"
    monkeypatch.setenv("RAYSCRIBE_SERVICE", "https://rayscribe.example.org")
    assert find_token("https://rayscribe.example.org/") == "rsk_env"
    with pytest.raises(ConfigError, match=r"RAYSCRIBE_SERVICE, https://rayscribe.example.org, and is sent to no other"):
        find_token("http://elsewhere:8470")


def test_the_client_uses_the_token_that_it_finds(harness: BackendHarness, token_home: Path) -> None:
    (token_home / "token").write_text(harness.token)
    with served(make_app(harness.backend)) as url, Client(url) as client:
        assert client.runs().runs
