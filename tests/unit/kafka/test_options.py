"""Spark's reader options become librdkafka's settings, or are refused by name."""

from __future__ import annotations

import re
import time

import pytest

from offsetstore import Broker
from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.kafka.java_settings import instead_of, parse_jaas
from offsetstore.kafka.settings import read_options

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "Hunter2-never-shown"
SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9092"}
SASL = {**SERVERS, "kafka.security.protocol": "SASL_SSL"}
TLS = {**SERVERS, "kafka.security.protocol": "SSL"}


def jaas(module: str, password: str = SECRET) -> str:
    return f'{module} required username="alice" password="{password}";'


@pytest.mark.parametrize(
    ("options", "topics", "partitions"),
    [
        ({}, None, None),  # left to the claim
        ({"subscribe": "payments"}, ("payments",), None),
        ({"Subscribe": " b, a ,,b"}, ("b", "a"), None),
        (
            {"assign": '{"payments": [0, 2], "refunds": [1]}'},
            ("payments", "refunds"),
            {"payments": frozenset({0, 2}), "refunds": frozenset({1})},
        ),
    ],
)
def test_topics_are_read_as_spark_reads_them(options: dict[str, object], topics: object, partitions: object) -> None:
    reader = read_options({**SERVERS, **options})
    assert (reader.topics, reader.partitions) == (topics, partitions)


@pytest.mark.behaviour("SINK-15")
@pytest.mark.parametrize("value", ["false", False, " FALSE "])
def test_losing_records_silently_is_refused_before_anything_is_asked(value: object) -> None:
    with pytest.raises(UnsupportedQuery, match="failOnDataLoss"):
        read_options({**SERVERS, "subscribe": "payments", "failOnDataLoss": value})


@pytest.mark.parametrize(("value", "expected"), [("TRUE", True), ("True", True), (True, True), ("False", False)])
def test_booleans_are_read_in_any_case(value: object, *, expected: bool) -> None:
    options = {**SERVERS, "subscribe": "payments", "INCLUDEHEADERS": value, "failOnDataLoss": "True"}
    assert read_options(options).headers is expected


@pytest.mark.behaviour("START-28")
@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("startingTimestamp", "overrides the start"),
        ("STARTINGTIMESTAMP", "overrides the start"),
        ("startingOffsetsByTimestamp", "overrides the start"),
        ("endingOffsets", "does not end"),
        ("endingoffsetsbytimestamp", "does not end"),
        ("endingTimestamp", "does not end"),
    ],
)
def test_another_start_than_the_claims_and_an_end_are_refused_by_name(option: str, told: str) -> None:
    with pytest.raises(UnsupportedQuery, match=f"(?i)kafka source has {option},.*{told}"):
        read_options({**SERVERS, "subscribe": "payments", option: 1719835200000})
    read_options({**SERVERS, "subscribe": "payments", option: None})  # as PySpark takes it: not given


PEM = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
SSL = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "https"}


TRANSLATED: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "tuning is left to Spark": (
        {
            "startingOffsetsByTimestampStrategy": "latest",  # it is for times alone, and none is given
            "maxOffsetsPerTrigger": 5000,
            "groupIdPrefix": "job",
            "kafka.group.id": "billing",
            "kafka.fetch.max.bytes": 1000,
            "kafka.acks": "all",
            "kafka.client.id": None,
        },
        {},
    ),
    "librdkafka's names and limits": (
        {
            "kafka.client.id": "job",
            "kafka.isolation.level": "read_committed",
            "kafka.request.timeout.ms": 900_000,
            "kafka.send.buffer.bytes": "1024",
        },
        {
            "client.id": "job",
            "isolation.level": "read_committed",
            "socket.timeout.ms": "300000",
            "socket.send.buffer.bytes": "1024",
        },
    ),
    "PEM files": (
        {
            **TLS,
            **PEM,
            "kafka.ssl.truststore.location": "/ca",
            "kafka.ssl.keystore.location": "/me",
            "kafka.ssl.key.password": SECRET,
            "kafka.ssl.endpoint.identification.algorithm": "",
        },
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "/ca",
            "ssl.certificate.location": "/me",
            "ssl.key.location": "/me",
            "ssl.key.password": SECRET,
            "ssl.endpoint.identification.algorithm": "none",
        },
    ),
    "certificates as text": (
        {
            **TLS,
            "kafka.ssl.truststore.certificates": "CA",
            "kafka.ssl.keystore.certificate.chain": "CHAIN",
            "kafka.ssl.keystore.key": "KEY",
        },
        {**SSL, "ssl.ca.pem": "CA", "ssl.certificate.pem": "CHAIN", "ssl.key.pem": "KEY"},
    ),
    "PKCS12": (
        {
            **TLS,
            "kafka.ssl.keystore.type": "PKCS12",
            "kafka.ssl.keystore.location": "/me.p12",
            "kafka.ssl.keystore.password": SECRET,
        },
        {**SSL, "ssl.keystore.location": "/me.p12", "ssl.keystore.password": SECRET},
    ),
    "a protocol that is not used": (
        {"kafka.ssl.truststore.location": "/x.jks", "kafka.sasl.mechanism": "GSSAPI"},
        {},
    ),
}


@pytest.mark.parametrize(("options", "settings"), TRANSLATED.values(), ids=TRANSLATED)
def test_settings_of_the_same_meaning_are_librdkafkas_and_those_of_spark_alone_are_left_out(
    options: dict[str, object], settings: dict[str, str]
) -> None:
    reader = read_options({**SERVERS, "subscribe": "payments", **options})
    assert dict(reader.settings) == {"bootstrap.servers": "a:9092,b:9092", **settings}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM), ("plain", f"kafkashaded.{PLAIN}")],
)
def test_a_password_is_taken_from_the_jaas_line(mechanism: str, module: str) -> None:
    reader = read_options({**SASL, "kafka.sasl.mechanism": mechanism, "kafka.sasl.jaas.config": jaas(module)})
    assert dict(reader.settings) == {
        "bootstrap.servers": "a:9092,b:9092",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "sasl.mechanism": mechanism.upper(),
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }


def test_quotes_and_escapes_in_a_password_are_read_as_java_reads_them() -> None:
    line = f"""{PLAIN} required username='al"ice' password="a\\"b\\\\c;=d" serviceName=kafka ;"""
    login = parse_jaas(line)
    assert (login.username, login.password) == ('al"ice', 'a"b\\c;=d')


@pytest.mark.parametrize(
    "line",
    [
        "",
        PLAIN,
        f'{PLAIN} required username="alice";',
        f'{PLAIN} required username="alice" password="{SECRET}"',
        f'{PLAIN} required username="alice" password="{SECRET};',
        f'{PLAIN} required username "{SECRET}";',
        f"{jaas(PLAIN)} {jaas(SCRAM)}",
        f'{SCRAM} required username="t" password="{SECRET}" tokenauth="true";',
        f'com.sun.security.auth.module.Krb5LoginModule required keyTab="{SECRET}";',
        f'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientSecret="{SECRET}";',
    ],
)
def test_a_jaas_line_that_cannot_be_used_is_refused_without_its_secret(line: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^kafka\.sasl\.jaas\.config: ") as refused:
        read_options({**SASL, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": line})
    assert SECRET not in str(refused.value)
    assert "Broker({" in refused.value.next_step


MSK = {
    **SASL,
    "kafka.sasl.mechanism": "AWS_MSK_IAM",
    "kafka.sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "kafka.sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
OIDC = {
    **SASL,
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.jaas.config": f'a.OAuthBearerLoginModule required clientId="a" clientSecret="{SECRET}";',
    "kafka.sasl.login.callback.handler.class": "a.OAuthBearerLoginCallbackHandler",
    "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
}
KERBEROS = {**SASL, "kafka.sasl.kerberos.service.name": "kafka"}


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize(
    ("options", "found", "way"),
    [
        (MSK, "AWS_MSK_IAM needs", "aws-msk-iam-sasl-signer-python"),
        (OIDC, "OAUTHBEARER needs", "'sasl.oauthbearer.method': 'oidc'"),
        (KERBEROS, "GSSAPI (the default) needs", "--no-binary confluent-kafka"),
        ({**KERBEROS, "kafka.sasl.mechanism": "GSSAPI"}, "GSSAPI needs", "sasl.kerberos.keytab"),
    ],
)
def test_a_way_to_log_in_that_only_java_knows_is_told_with_what_to_give_instead(
    options: dict[str, object], found: str, way: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"kafka.sasl.mechanism: {found}")) as refused:
        read_options(options)
    assert way in refused.value.next_step
    assert "store.claim(group, topics=[...])" in refused.value.next_step
    assert SECRET not in str(refused.value)


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize("mechanism", ["AWS_MSK_IAM", "GSSAPI", "OAUTHBEARER"])
def test_librdkafka_is_told_at_once_what_it_can_t_do_either(mechanism: str) -> None:
    """The wheels are built without Kerberos; without a source of tokens it would wait until the time is up."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
    began = time.monotonic()
    with pytest.raises(ConfigurationError) as refused:
        Broker(settings, topics=["payments"], timeout=60).view("billing", ["payments"])
    assert instead_of(mechanism) == refused.value.next_step
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribePattern": "pay.*"}, "Name the topics"),
        ({"subscribe": " , "}, "subscribe"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "subscribe"),
        ({"assign": "payments"}, "assign"),
        ({"assign": '{"payments": []}'}, "assign"),
        ({"assign": '{"payments": [true]}'}, "assign"),
        ({"assign": '["payments"]'}, "assign"),
        *(
            ({option: value}, f"{option} is not a boolean")
            for option, values in {"failOnDataLoss": ["yes", "", 1], "includeHeaders": ["1", "tru"]}.items()
            for value in values
        ),
        ({**SASL, "kafka.sasl.jaas.config": jaas(PLAIN)}, "kafka.sasl.mechanism"),
        ({**SASL, "kafka.sasl.mechanism": "OAUTHBEARER"}, "kafka.sasl.mechanism"),
        ({**SASL, "kafka.sasl.mechanism": "PLAIN"}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas(SCRAM)}, "kafka.sasl.jaas.config"),
        ({**SASL, "kafka.sasl.login.callback.handler.class": SECRET}, "kafka.sasl.login.callback.handler.class"),
        ({"kafka.security.protocol": SECRET}, "kafka.security.protocol"),
        ({**TLS, "kafka.ssl.truststore.location": f"/{SECRET}.jks"}, "kafka.ssl.truststore.location"),
        ({**TLS, "kafka.ssl.keystore.location": f"/{SECRET}.jks"}, "kafka.ssl.keystore.location"),
        ({**TLS, "kafka.ssl.keystore.key": SECRET}, "kafka.ssl.keystore.key"),
        ({**TLS, "kafka.ssl.cipher.suites": SECRET}, "kafka.ssl.cipher.suites"),
        ({**TLS, "kafka.ssl.endpoint.identification.algorithm": SECRET}, "kafka.ssl.endpoint.identification.algorithm"),
        ({"kafka.security.providers": SECRET}, "kafka.security.providers"),
        ({"kafka.config.providers": SECRET}, "kafka.config.providers"),
        ({"kafka.bootstrap.server": SECRET}, "kafka.bootstrap.server"),
    ],
)
def test_what_cant_be_used_is_refused_by_its_key_and_not_by_its_value(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)) as refused:
        read_options({**SERVERS, **options})
    assert SECRET not in str(refused.value)
    assert refused.value.next_step if told.startswith("kafka.") else refused.value.expected


def test_what_was_read_is_never_shown() -> None:
    line = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": jaas(PLAIN)}
    assert SECRET not in repr(read_options({**SASL, **line}))
    assert SECRET not in repr(parse_jaas(jaas(PLAIN)))


@pytest.mark.behaviour("SINK-15")
def test_spark_connect_is_refused_before_anybody_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(UnsupportedQuery, match="Spark Connect"):
        read_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "payments"})
