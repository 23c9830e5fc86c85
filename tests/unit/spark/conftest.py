"""What the tests of Spark's side share."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from py4j.clientserver import JavaClient, JavaParameters, PythonParameters  # pyright: ignore[reportMissingTypeStubs]
from py4j.java_gateway import GatewayProperty  # pyright: ignore[reportMissingTypeStubs]

from offsetstore.local.servers import free_port


@pytest.fixture
def java_is_gone() -> OSError:
    """What py4j raises, and not as an error of its own, where nobody listens any more."""
    settings: Any = GatewayProperty(auto_field=False, pool=None)
    client: Any = JavaClient(JavaParameters(port=free_port()), PythonParameters(), settings, deque[Any]())
    with pytest.raises(ConnectionRefusedError) as caught:
        client.send_command("a command")
    return caught.value
