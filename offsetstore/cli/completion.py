"""``offsetstore completion``: the script with which a shell completes commands, options and the names of groups."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

_PROGRAM: Final = "offsetstore"
_VARIABLE: Final = "_OFFSETSTORE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the script that completes commands in a shell.

    It completes commands, options and their values, and after -g the names of the store's groups: for these it asks
    the database at OFFSETSTORE_URL or --url, for two seconds at most.

    \b
    In ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish:
      source <(offsetstore completion bash)
      source <(offsetstore completion zsh)
      offsetstore completion fish | source
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    # The argument's choices are shells that click knows.
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, _PROGRAM, _VARIABLE).source())
