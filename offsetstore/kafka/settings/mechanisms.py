"""What to give a `Broker` if Java's client logs in by a mechanism that can't be translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offsetstore.errors import ConfigurationError

_OWN: Final = "Spark keeps its options; give the Broker librdkafka's own settings: "
_WITHOUT: Final = (
    " Or claim without a broker: store.claim(group, topics=[...]), and the query keeps its own checkpoint."
)
_BEARER: Final = "'security.protocol': 'SASL_SSL', 'sasl.mechanism': 'OAUTHBEARER'"
_MSK: Final = (
    f"{_OWN}Broker({{'bootstrap.servers': ..., {_BEARER}, 'oauth_cb': token}}, topics=[...]), where token(_) returns "
    "the token of MSKAuthTokenProvider.generate_auth_token(region), of the package aws-msk-iam-sasl-signer-python, and "
    f"when it expires, in seconds since 1970.{_WITHOUT}"
)
_OAUTHBEARER: Final = (
    f"{_OWN}Broker({{'bootstrap.servers': ..., {_BEARER}, 'sasl.oauthbearer.method': 'oidc', "
    "'sasl.oauthbearer.client.id': ..., 'sasl.oauthbearer.client.secret': ..., "
    "'sasl.oauthbearer.token.endpoint.url': ...}, topics=[...]); or 'oauth_cb': a function of one argument that "
    f"returns a token, and when it expires, in seconds since 1970.{_WITHOUT}"
)
_GSSAPI: Final = (
    "confluent-kafka's wheels have no Kerberos: build it with libsasl2 (pip install --no-binary confluent-kafka "
    "confluent-kafka), and give the Broker sasl.mechanism=GSSAPI, sasl.kerberos.service.name, sasl.kerberos.principal "
    f"and sasl.kerberos.keytab.{_WITHOUT}"
)
_INSTEAD: Final = {"AWS_MSK_IAM": _MSK, "OAUTHBEARER": _OAUTHBEARER, "GSSAPI": _GSSAPI}


def instead_of(mechanism: object) -> str | None:
    """What to do about a mechanism that only Java's client has, or has in another form; ``None`` for any other."""
    return _INSTEAD.get(str(mechanism).strip().upper())


def check_token_source(settings: Mapping[str, Any]) -> None:
    """Check that OAUTHBEARER has a source of tokens: without one, librdkafka would wait until the time is up.

    :raises ConfigurationError: it has none.
    """
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms"))
    ways = ("oauth_cb", "sasl.oauthbearer.method", "sasl.oauthbearer.config")
    if str(mechanism).strip().upper() == "OAUTHBEARER" and not any(settings.get(way) for way in ways):
        raise ConfigurationError(
            "sasl.mechanism is OAUTHBEARER, and nothing says where tokens come from",
            expected="oauth_cb, or sasl.oauthbearer.method=oidc",
            next_step=_OAUTHBEARER,
        )
