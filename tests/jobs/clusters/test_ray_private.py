"""Fails when a new Ray changes one of the private interfaces that jobs/clusters/ray_private.py uses."""

import inspect
import logging

from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
from ray.dashboard.modules.dashboard_sdk import SubmissionClient
from ray.job_submission import JobSubmissionClient
from ray.util.state import StateApiClient

from jobs.clusters.ray_private import NOISY_LOGGERS


def parameters_of(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


def test_the_base_of_ray_s_clients_takes_an_address_and_headers() -> None:
    assert issubclass(JobSubmissionClient, SubmissionClient) and issubclass(StateApiClient, SubmissionClient)
    assert {"address", "headers"} <= set(parameters_of(SubmissionClient.__init__))
    assert parameters_of(SubmissionClient._check_connection_and_version) == [
        "self",
        "min_version",
        "version_error_message",
    ]


def test_every_request_of_ray_s_clients_goes_through_one_method_that_takes_a_timeout() -> None:
    assert parameters_of(SubmissionClient._do_request)[:3] == ["self", "method", "endpoint"]
    assert parameters_of(SubmissionClient._do_request)[-1] == "kwargs"
    assert "_do_request" in inspect.getsource(JobSubmissionClient.get_job_info)
    assert "_client_ray_version" in inspect.getsource(JobSubmissionClient)


def test_the_headers_of_ray_s_clients_are_given_by_one_function() -> None:
    assert parameters_of(get_auth_headers_if_auth_enabled) == ["user_headers"]


def test_the_loggers_that_are_quieted_exist() -> None:
    assert set(NOISY_LOGGERS) <= set(logging.Logger.manager.loggerDict)
