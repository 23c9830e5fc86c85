"""docs/acls.md: its commands and its Python run as they stand there, in order, for `User:job` and a group `billing`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from offsetstore.kafka.acls import job_acls
from offsetstore.kafka.admin import create_topic
from tests.integration.cli.conftest import Run
from tests.support.authorized import JOB, Authorized
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "acls.md"


def blocks() -> list[tuple[str, str]]:
    """Each block's language and text."""
    return re.findall(r"^```(python|console)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.behaviour("OPS-14")
def test_what_the_page_says_is_so(
    run: Run,
    authorized: Authorized,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    create_topic(authorized.kafka.bootstrap_servers, "payments")
    authorized.allow_to_alter_the_cluster("User:administrator")
    monkeypatch.chdir(tmp_path)
    for file, user in (("job", "job"), ("admin", "administrator")):
        options = authorized.options(user)
        servers = options.pop("kafka.bootstrap.servers")
        Path(f"{file}.properties").write_text("".join(f"{key}={value}\n" for key, value in options.items()))
    names: dict[str, Any] = {"kafka": authorized.options(), "administrator": authorized.librdkafka("administrator")}
    needed = job_acls(JOB, topics=["payments"], groups=["billing"])
    broker = authorized.broker()
    printed: list[str] = []
    for language, text in blocks():
        if language == "python":
            exec(text, names)  # noqa: S102 - the page's own words
            continue
        for line in text.splitlines():
            prompt, command, *arguments = shlex.split(line, comments=True)
            assert (prompt, command) == ("$", "offsetstore")
            if arguments[1] == "check":  # what was created applies a moment later
                wait_until(lambda: broker.missing_acls(needed) == ())
            result = run(*arguments, brokers=servers)
            assert result.exit_code == 0, result.output
            printed.append(result.stdout)

    assert ["to be created" in text for text in printed] == [False, False, False, True, False, False]
    assert printed[4].count("created") == 2
    assert "MISSING" not in printed[5]
    assert (names["missing"], names["created"]) == ((), ())
    assert capsys.readouterr().out == "\n"
    broker.close()
