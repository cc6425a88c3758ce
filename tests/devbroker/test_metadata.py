"""Metadata, CreateTopics, ApiVersions and FindCoordinator, fed with encoded requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from bruce_mp.devbroker.apis import APIS
from bruce_mp.devbroker.codes import Code
from bruce_mp.devbroker.faults import Fault, FaultAction, TriggeredFaults
from devbroker.kit import Desk

Wanted = MetadataRequest.MetadataRequestTopic


@pytest.fixture
def desk() -> Desk:
    made = Desk(brokers=2)
    made.cluster.add_topic("hits", 3)
    return made


def ask(desk: Desk, names: list[str] | None, version: int = 12, **options: Any) -> Any:
    topics = None if names is None else [Wanted(name=name) for name in names]
    triggered = options.pop("triggered", TriggeredFaults())
    return desk.ask(MetadataRequest(version=version, topics=topics, **options), MetadataResponse, triggered=triggered)


def codes(response: Any) -> dict[str, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", range(14))
def test_every_version_returns_brokers_and_leaders(desk: Desk, version: int) -> None:
    response = ask(desk, None, version)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", 9001), (2, "127.0.0.1", 9002)]
    assert codes(response) == {"hits": 0}
    parts = response.topics[0].partitions
    assert [(p.partition_index, p.leader_id, p.error_code) for p in parts] == [(0, 1, 0), (1, 2, 0), (2, 1, 0)]
    assert sorted(parts[0].isr_nodes) == [1, 2]


def test_an_empty_list_means_all_in_version_0_only(desk: Desk) -> None:
    assert codes(ask(desk, [], 0)) == {"hits": 0}
    assert codes(ask(desk, [], 1)) == {}


def test_unknown_and_invalid_topics_have_error_codes(desk: Desk) -> None:
    response = ask(desk, ["hits", "none", "a/b"])
    expected = {"hits": 0, "none": Code.UNKNOWN_TOPIC_OR_PARTITION, "a/b": Code.INVALID_TOPIC_EXCEPTION}
    assert codes(response) == expected


def test_topics_are_found_by_id(desk: Desk) -> None:
    ids = [desk.cluster.topic("hits").id, UUID(int=5)]
    request = MetadataRequest(version=12, topics=[Wanted(name=None, topic_id=topic_id) for topic_id in ids])
    topics = desk.ask(request, MetadataResponse).topics
    assert [(topic.name, topic.error_code) for topic in topics] == [("hits", 0), (None, Code.UNKNOWN_TOPIC_ID)]


def test_metadata_creates_topics_where_allowed() -> None:
    desk = Desk(auto_create=2)
    assert codes(ask(desk, ["new"], allow_auto_topic_creation=False)) == {"new": Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert codes(ask(desk, ["new"])) == {"new": Code.LEADER_NOT_AVAILABLE}
    second = ask(desk, ["new"])
    assert codes(second) == {"new": 0}
    assert len(second.topics[0].partitions) == 2
    assert codes(ask(desk, ["old"], 1)) == {"old": Code.LEADER_NOT_AVAILABLE}


def test_a_stale_response_does_not_create_a_topic_twice() -> None:
    desk = Desk(auto_create=2)
    desk.cluster.freeze(2)
    assert [codes(ask(desk, ["new"])) for _ in range(3)] == [{"new": 5}, {"new": 5}, {"new": 0}]


def test_a_partition_with_a_down_leader_has_an_error_code(desk: Desk) -> None:
    desk.cluster.unregister(2)
    response = ask(desk, ["hits"])
    assert [node.node_id for node in response.brokers] == [1]
    assert [(p.leader_id, p.error_code) for p in response.topics[0].partitions] == [(1, 0), (-1, 5), (1, 0)]


def test_a_scripted_error_is_for_its_topic(desk: Desk) -> None:
    desk.cluster.add_topic("other", 1)
    triggered = TriggeredFaults((Fault(action=FaultAction.ERROR, code=29, topic="hits"),))
    assert codes(ask(desk, ["hits", "other"], triggered=triggered)) == {"hits": 29, "other": 0}


@pytest.mark.parametrize("validate_only", [False, True])
@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_returns_a_code_for_each_topic(desk: Desk, version: int, *, validate_only: bool) -> None:
    wanted = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=count, replication_factor=1)
        for name, count in (("new", 5), ("hits", 1), ("a/b", 1), ("one", -1), ("zero", 0))
    ]
    request = CreateTopicsRequest(version=version, topics=wanted, timeout_ms=1, validate_only=validate_only)
    response = desk.ask(request, CreateTopicsResponse)
    expected = [0, Code.TOPIC_ALREADY_EXISTS, Code.INVALID_TOPIC_EXCEPTION, 0, Code.INVALID_PARTITIONS]
    assert [topic.error_code for topic in response.topics] == expected
    if validate_only:
        assert list(desk.cluster.topics) == ["hits"]
    else:
        assert len(desk.cluster.topic("new").partitions) == 5


@pytest.mark.parametrize("version", range(5))
def test_api_versions_lists_the_served_apis(desk: Desk, version: int) -> None:
    request = ApiVersionsRequest(version=version, client_software_name="kit", client_software_version="1")
    response = desk.ask(request, ApiVersionsResponse)
    assert {a.api_key: (a.min_version, a.max_version) for a in response.api_keys} == {
        key: api.advertised for key, api in APIS.items()
    }


@pytest.mark.parametrize("version", range(5))
def test_find_coordinator_returns_not_available(desk: Desk, version: int) -> None:
    request = FindCoordinatorRequest(version=version, key="group", key_type=0, coordinator_keys=["group"])
    response = desk.ask(request, FindCoordinatorResponse)
    answer = response if version < 4 else response.coordinators[0]
    assert answer.error_code == Code.COORDINATOR_NOT_AVAILABLE
