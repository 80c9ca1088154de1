"""Errors: one format of response, and nothing of the request in it or in the log."""

import errno
import logging
import socket
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI, Request

from jobs.api.protocol import STATUS, ErrorBody, status_of
from jobs.api.server.app import make_app
from jobs.api.server.dependencies import Backend
from jobs.api.server.error_responses import add_error_handlers
from jobs.api.server.middleware import AccessLogMiddleware, BodyLimitMiddleware
from jobs.errors import AuthError, ClusterError, JobsError, LedgerError, NotFoundError, RefusedError, ServiceError
from jobs.ledger import RunChangedError
from jobs.model import Run
from jobs.service.service import Service
from tests.jobs.api.backend_harness import BackendHarness, config_of, served
from tests.jobs.ledger.builders import wait_until
from trainers import errors as trainers_errors
from trainers.errors import RayscribeError

SECRET = "hunter2-hf_AbCdEf"


class Broken(Service):
    """A service with a bug, whose exception quotes what it was given."""

    def run(self, run_id: str) -> Run:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"cannot use {SECRET}") from error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        LedgerError("the ledger sqlite:///x does not respond: database or disk is full"),
        LedgerError('could not extend file "base/1": No space left on device'),
    ],
)
def test_a_full_disk_is_named(http: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(self: Service, *_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(Service, "put_package", full)
    response = http.put(f"/v1/packages/{'0' * 64}", content=b"x")
    assert response.status_code == 507
    body = ErrorBody.model_validate_json(response.content).error
    assert (body.type, body.exit_code) == ("ServiceError", 24)
    assert body.message.startswith("the disk of the service is full")


def test_an_unexpected_exception_is_logged_without_its_text(
    harness: BackendHarness, caplog: pytest.LogCaptureFixture
) -> None:
    service = Broken(
        harness.ledger,
        harness.backend.service._clusters,
        harness.backend.service._packages,
        harness.backend.queues,
        user="x",
        addresses=[],
    )
    backend = Backend(service, harness.ledger, harness.backend.queues, harness.backend.uploads, lambda: False)
    with served(make_app(backend)) as url:
        response = httpx.get(
            f"{url}/v1/runs/{SECRET}", headers={"Authorization": f"Bearer {harness.token}"}, timeout=30
        )
    assert response.status_code == 500
    body = ErrorBody.model_validate_json(response.content)
    assert (body.error.type, body.error.exit_code) == ("ServiceError", 24)
    assert response.headers["X-Request-Id"] in body.error.message
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 1
    assert "ValueError" in logged[0]
    assert "test_error_responses.py" in logged[0]
    assert SECRET not in logged[0] + response.text


@pytest.mark.parametrize(
    "body",
    [
        {"config": SECRET},
        {"config": {}, SECRET: 1},
        {"config": {}, "spec_path": [SECRET], "overrides": SECRET, "package": SECRET},
        {"config": [SECRET], "package": SECRET},
        {"config": {"run": {"name": "a"}, "job": {"runtime_env": {"env_vars": {"HF_TOKEN": [SECRET]}}}}},
        {"config": {"job": {"runtime_env": {"env_vars": SECRET}}}},
        {"config": {"job": {"runtime_env": {"secrets": {"HF_TOKEN": SECRET}}}}},
        [SECRET],
        SECRET,
    ],
)
def test_a_refused_submission_repeats_no_value_of_it(
    reader: httpx.Client, body: object, caplog: pytest.LogCaptureFixture
) -> None:
    if isinstance(body, dict) and isinstance(body.get("config"), dict):
        config = {**config_of("a"), **body["config"]}
        body = {"package": "0" * 64, **body, "config": config}
    with caplog.at_level(logging.DEBUG):
        response = reader.post("/v1/runs", json=body)
    assert response.status_code == 422
    assert ErrorBody.model_validate_json(response.content).error.type == "ConfigError"
    assert SECRET not in response.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"config": ' + SECRET.encode(), b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999, "b": NaN}', b'"\\ud800"'],
)
def test_a_body_that_is_no_submission_is_refused(reader: httpx.Client, content: bytes) -> None:
    response = reader.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert ErrorBody.model_validate_json(response.content).error.type == "ConfigError"
    assert SECRET not in response.text


@pytest.mark.parametrize(
    "odd", ['"\\u0000"', '"\\ud800"', "NaN", "Infinity", "[" * 60 + "]" * 60, '{"\\udc00": 1}'], ids=repr
)
def test_values_that_a_database_cannot_store_are_rejected(reader: httpx.Client, odd: str) -> None:
    rest = f'"package": "{"0" * 64}"'
    content = '{"config": {"run": ' + odd + "}, " + rest + "}"
    response = reader.post("/v1/runs", content=content.encode(), headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert "the submission has" in ErrorBody.model_validate_json(response.content).error.message


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(reader: httpx.Client) -> None:
    large = b"x" * 1_500_000
    assert reader.post("/v1/runs", content=large).status_code == 413
    response = reader.post(
        "/v1/runs", content=(large[start : start + 100_000] for start in range(0, len(large), 100_000))
    )
    assert response.status_code == 413
    assert ErrorBody.model_validate_json(response.content).error.type == "ConfigError"
    assert reader.get("/v1/runs").status_code == 200


def test_a_body_that_does_not_come_is_given_up() -> None:
    app = FastAPI()
    add_error_handlers(app)

    @app.post("/")
    async def take(request: Request) -> int:
        return len(await request.body())

    app.add_middleware(BodyLimitMiddleware, timeout_s=0.3)
    app.add_middleware(AccessLogMiddleware)
    with served(app) as url, socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 30) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nonly this")
        response = b"".join(iter(lambda: slow.recv(65536), b""))
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b'"ServiceError"' in response


def test_unknown_paths_and_methods_answer_in_the_same_shape(reader: httpx.Client) -> None:
    unknown = reader.get("/v1/nothing")
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundError")
    wrong = reader.delete("/v1/runs")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "ConfigError")
    assert wrong.headers["Allow"] == "GET, POST"
    assert reader.patch(f"/v1/packages/{'0' * 64}").headers["Allow"] == "HEAD, PUT"
    assert reader.get("/v1/runs/").status_code == 404


def test_the_log_has_path_status_and_user_and_no_query(reader: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="jobs.api.server.middleware"):
        reader.get("/v1/runs", params={"tag": SECRET})
        reader.get("/v1/runs/a%0Ab")
        # Written after the response has gone; the line of the request before may come late too.
        wait_until(lambda: "a%0Ab" in caplog.text, "line of the last request")
    lines = [record.getMessage() for record in caplog.records if record.name == "jobs.api.server.middleware"][-2:]
    assert [line.split()[:3] for line in lines] == [["GET", "/v1/runs", "200"], ["GET", "/v1/runs/a%0Ab", "404"]]
    assert all(line.endswith(" ana") for line in lines)
    assert SECRET not in caplog.text


def test_a_database_that_is_gone_answers_503_and_names_no_file_of_the_service(
    harness: BackendHarness, http: httpx.Client
) -> None:
    assert http.get("/healthz").status_code == 200
    for file in Path(harness.folder).glob("ledger.db*"):
        file.write_bytes(b"no database" * 1000)
    for path in ("/healthz", "/v1/runs", "/metrics"):
        response = http.get(path)
        assert (response.status_code, response.json()["error"]["type"]) == (503, "ServiceError")
        assert "the service's database does not respond" in response.text
        assert str(harness.folder) not in response.text and "sqlite" not in response.text


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (trainers_errors.ConfigError("x"), 422, "ConfigError"),
        (trainers_errors.ResourceError("x"), 422, "ResourceError"),
        (trainers_errors.StorageError("x"), 502, "StorageError"),
        (trainers_errors.DataError("x"), 500, "DataError"),
        (NotFoundError("x"), 404, "NotFoundError"),
        (RunChangedError("x"), 409, "ConflictError"),
        (ClusterError("x"), 502, "ClusterError"),
        (RefusedError("x"), 502, "RefusedError"),
        (ServiceError("x"), 503, "ServiceError"),
        (AuthError("x"), 401, "AuthError"),
    ],
)
def test_an_error_is_raised_by_the_client_as_it_was_by_the_service(
    error: RayscribeError, status: int, kind: str
) -> None:
    assert status_of(error) == status
    body = ErrorBody.model_validate_json(ErrorBody.from_error(error).model_dump_json())
    assert body.error.type == kind
    again = body.to_error()
    assert type(again).__name__ == kind
    assert isinstance(error, type(again))
    assert (str(again), again.exit_code) == (str(error), error.exit_code)


def test_an_error_of_a_newer_service_keeps_its_message_and_exit_code() -> None:
    newer = ErrorBody.model_validate({"error": {"type": "FutureError", "message": "m", "exit_code": 42}}).to_error()
    assert isinstance(newer, JobsError)
    assert (str(newer), newer.exit_code) == ("m", 42)


def test_every_error_of_the_jobs_side_has_a_status() -> None:
    assert all(400 <= status < 600 for status in STATUS.values())
    assert {each for each in JobsError.__subclasses__() if each.__module__ == "jobs.errors"} <= STATUS.keys()
