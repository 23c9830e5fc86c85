"""``offsetstore assets``: files for Grafana, Prometheus, Kubernetes and systemd; ``completion``: a shell's script."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from offsetstore.cli.output import print_text
from offsetstore.errors import ConfigurationError

_FOLDERS: Final = {"grafana": "grafana", "alerts": "prometheus", "kubernetes": "kubernetes", "systemd": "systemd"}


@click.command()
@click.argument("kind", type=click.Choice(list(_FOLDERS)))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write them; made if it does not exist.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def assets(*, kind: str, out: Path, force: bool) -> None:
    """Write the files for Grafana, Prometheus, Kubernetes or systemd.

    They need no changes to be loaded, except for the names of your image, user and job in those of Kubernetes and
    systemd. The documentation's pages 'Runbook' and 'Health' say what to do about an alert or a probe.

    \b
    Kinds:
      grafana     a board to import
      alerts      rules for Prometheus, of the exporter's and the drivers' metrics
      kubernetes  the driver's pod, a manifest for each of two Spark operators,
                  and a consumer's deployment
      systemd     units for a Spark job, a consumer and a relay

    \b
    Example:
      offsetstore assets alerts --out /etc/prometheus/rules
    """  # noqa: D301 - \b is click's mark, and this is how click wants it
    folder = files("offsetstore") / "assets" / _FOLDERS[kind]
    texts = {
        out / file.name: file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda f: f.name)
    }
    there = [path for path in texts if path.exists()]
    if there and not force:
        raise ConfigurationError(
            "files of this name are there already, and nothing was written",
            found=", ".join(map(str, there)),
            next_step="Choose another --out, or overwrite them with --force.",
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
            print_text(str(path))
    except OSError as error:
        raise ConfigurationError(f"could not write to {out}", found=error.strerror) from error


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
