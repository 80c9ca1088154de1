from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cluster_configs.providers.aws import Aws
from cluster_configs.providers.azure import Azure
from cluster_configs.providers.gcp import Gcp
from cluster_configs.providers.provider import Cloud, Notice
from tests.cluster_configs.providers.metadata_server import MACHINE, MetadataServer, metadata_server
from trainers.distributed.preemption_agent import CLOUDS, find_cloud

NOW_S = 1_000_000.0


@pytest.fixture(params=sorted(CLOUDS))
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    # Metadata services are asked directly, whatever proxies the machine has.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with metadata_server(request.param) as found:
        yield found


class TestClouds:
    def test_each_is_found_by_its_metadata_service(self, server: MetadataServer) -> None:
        found = find_cloud(server.url)
        assert found is not None and type(found) is CLOUDS[server.cloud]

    def test_there_is_no_notice_before_the_cloud_gives_one(self, server: MetadataServer) -> None:
        cloud: Cloud = CLOUDS[server.cloud](server.url)
        assert cloud.notice(NOW_S) is None
        server.announce()
        notice = cloud.notice(NOW_S)
        assert notice is not None and notice.text.startswith(cloud.name)

    def test_nobody_answers_where_there_is_no_cloud(self) -> None:
        with metadata_server("aws") as server:
            url = server.url
        assert find_cloud(url) is None

    def test_a_service_that_fails_is_an_error_and_no_notice(self, server: MetadataServer) -> None:
        cloud: Cloud = CLOUDS[server.cloud](server.url)
        assert cloud.is_here()
        server.answers = dict.fromkeys(server.answers, "<html>busy</html>")
        server.answers["/latest/meta-data/spot/instance-action"] = "<html>busy</html>"
        if server.cloud == "gcp":
            server.answers.clear()
        with pytest.raises(OSError, match=cloud.name):
            cloud.notice(NOW_S)


class TestAws:
    def test_the_time_of_the_interruption_is_read(self) -> None:
        with metadata_server("aws") as server:
            server.announce("2026-11-22T08:22:00Z")
            notice = Aws(server.url).notice(NOW_S)
        assert notice == Notice(
            "AWS: the instance is to terminate", datetime(2026, 11, 22, 8, 22, tzinfo=UTC).timestamp()
        )

    def test_one_token_serves_many_questions_until_it_expires(self) -> None:
        with metadata_server("aws") as server:
            cloud = Aws(server.url)
            assert cloud.is_here() and cloud.notice(NOW_S) is None and cloud.notice(NOW_S) is None
            assert [item for item in server.asked if item.startswith("PUT")] == ["PUT /latest/api/token"]
            server.token = "second"
            server.announce()
            assert cloud.notice(NOW_S) is not None
            assert len([item for item in server.asked if item.startswith("PUT")]) == 2

    def test_a_recommendation_to_rebalance_is_no_notice(self) -> None:
        with metadata_server("aws") as server:
            server.answers["/latest/meta-data/events/recommendations/rebalance"] = '{"noticeTime": "2026-11-22T08:00Z"}'
            assert Aws(server.url).notice(NOW_S) is None


class TestGcp:
    @pytest.mark.parametrize(
        ("event", "left_s"),
        [("NONE", None), ("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", 60.0)],
    )
    def test_only_maintenance_that_ends_the_machine_is_a_notice(self, event: str, left_s: float | None) -> None:
        with metadata_server("gcp") as server:
            server.answers["/computeMetadata/v1/instance/maintenance-event"] = event
            notice = Gcp(server.url).notice(NOW_S)
        assert (notice.at_s - NOW_S if notice is not None else None) == left_s

    def test_a_preempted_machine_has_half_a_minute(self) -> None:
        with metadata_server("gcp") as server:
            server.announce()
            assert Gcp(server.url).notice(NOW_S) == Notice("GCP: the instance is preempted", NOW_S + 30)


class TestAzure:
    def test_events_of_other_machines_and_short_freezes_are_no_notices(self) -> None:
        with metadata_server("azure") as server:
            server.events(
                {"EventType": "Preempt", "Resources": ["gpu-1"], "NotBefore": ""},
                {"EventType": "Freeze", "Resources": [MACHINE], "NotBefore": ""},
            )
            assert Azure(server.url).notice(NOW_S) is None

    def test_the_first_of_its_events_counts(self) -> None:
        with metadata_server("azure") as server:
            server.events(
                {"EventType": "Redeploy", "Resources": [MACHINE], "NotBefore": "Sun, 22 Nov 2026 08:30:00 GMT"},
                {"EventType": "Preempt", "Resources": [MACHINE], "NotBefore": "Sun, 22 Nov 2026 08:22:00 GMT"},
            )
            notice = Azure(server.url).notice(NOW_S)
        assert notice == Notice("Azure: Preempt", datetime(2026, 11, 22, 8, 22, tzinfo=UTC).timestamp())
