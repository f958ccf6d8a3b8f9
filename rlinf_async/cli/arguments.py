"""The common parts of the commands: arguments, consoles, and an end without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console, ConsoleDimensions

from rlinf_async.observe.ending import CONFIG_ERROR

if TYPE_CHECKING:
    from omegaconf import DictConfig

Result = TypeVar("Result")

LEAST_WIDTH = 60
"""Fewest columns of an output. In fewer, rich cuts words and leaves out whole columns of tables; lines that
the terminal breaks can be read, and copied."""


class WideConsole(Console):
    """A console with at least `LEAST_WIDTH` columns, whatever the terminal or `COLUMNS` says."""

    @property  # type: ignore[misc]  # rich's property has a setter, which nothing calls
    def size(self) -> ConsoleDimensions:
        size = super().size
        return ConsoleDimensions(max(size.width, LEAST_WIDTH), size.height)


console = WideConsole(highlight=False)
errors = WideConsole(stderr=True, highlight=False)


def _complete_name(incomplete: str) -> list[str]:
    """The names of configs that begin with `incomplete`, for the shell."""
    from rlinf_async.compose import packaged_names

    return [name for name in packaged_names() if name.startswith(incomplete)]


ConfigName = Annotated[
    str | None,
    typer.Option(
        "--config-name", "-n", help="The config, as for Hydra's scripts.", autocompletion=_complete_name
    ),
]
ConfigDir = Annotated[
    Path | None, typer.Option("--config-dir", help="The folder of the config; default: this package.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CONFIG | OVERRIDES",
        help="A config by name, or a file such as the config.yaml of a run; Hydra overrides, such as "
        "async.mode=full.",
        autocompletion=_complete_name,
    ),
]
RUN_DIR = typer.Argument(help="The directory of a run: runner.logger.log_path, or vla.run_dir.")
RunDir = Annotated[Path, RUN_DIR]


def _several(is_set: bool) -> None:
    if is_set:
        fail("this command runs one setting; to compare several: rlinf-async sweep CONFIG --vary KEY=A,B")


Multirun = Annotated[
    bool, typer.Option("--multirun", "-m", hidden=True, is_eager=True, callback=_several, help="See sweep.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print plain data.")]


@dataclass(frozen=True)
class Chosen:
    """The config of a command, and its overrides."""

    name: str
    """The name of a config, or a file."""
    directory: Path | None
    overrides: list[str]

    @classmethod
    def of(cls, name: str | None, directory: Path | None, words: list[str] | None) -> Chosen:
        """Choose by `--config-name`, or by the first of `words` if it is no override. Without either the
        command ends."""
        words = words or []
        if name is None and words and not _is_override(words[0]):
            name, *words = words
        if name is None:
            fail("a config is missing, as in: rlinf-async train metaworld_ppo_mlp; see rlinf-async configs")
        return cls(name, directory, words)

    @property
    def place(self) -> tuple[str, Path | None]:
        """(name, directory) for Hydra; a missing file ends the command."""
        from rlinf_async.compose import locate

        return or_exit(locate, self.name, self.directory)

    def compose(self) -> DictConfig:
        """Compose the config; an error in it or in the overrides ends the command."""
        return compose(*self.place, overrides=self.overrides)


def _is_override(word: str) -> bool:
    return "=" in word or word.startswith(("~", "+"))


def compose(name: str, directory: Path | None, *, overrides: list[str] | None) -> DictConfig:
    """Compose the config `name` with Hydra overrides; an error in one of them ends the command."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from rlinf_async.compose import compose_config

    try:
        return compose_config(name, overrides or [], directory)
    except (HydraException, OmegaConfBaseException) as error:
        fail(_why_not_composed(error, name, directory, overrides or []))
    except RecursionError:
        fail(
            f"the defaults lists of {name} name each other in a circle, or one of its values is nested too "
            "deeply; take out what leads back"
        )
    except YAMLError as error:
        from rlinf_async.config_files import unreadable_yaml

        fail(unreadable_yaml(error))
    except ValueError as error:
        # Last, as some of OmegaConf's errors are ValueErrors, too.
        from rlinf_async.config_errors import refusal

        fail(refusal(error, overrides or []))


def _why_not_composed(error: Exception, name: str, directory: Path | None, overrides: list[str]) -> str:
    """Return the sentence on an error of Hydra or OmegaConf."""
    from rlinf_async.compose import compose_config, names_in, packaged_names, unresolved
    from rlinf_async.config_errors import recognised_file, sentence
    from rlinf_async.core.config_keys import dotted

    if directory is not None and (message := recognised_file(directory / f"{name}.yaml")):
        return message
    return sentence(
        error,
        name,
        overrides=overrides,
        known_configs=packaged_names() if directory is None else names_in(directory),
        known_keys=lambda: dotted(unresolved(compose_config(name, [], directory))),
    )


def or_exit(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call `function`; a ValueError, which names the remedy, ends the command without a traceback.

    So does an error of OmegaConf, with the first line of its message.
    """
    try:
        return function(*arguments)
    except _refusals() as error:
        # By module: some of OmegaConf's errors are ValueErrors as well, and have several lines.
        if type(error).__module__.partition(".")[0] != "omegaconf":
            fail(str(error))
        from rlinf_async.config_errors import unreadable_config

        fail(unreadable_config(error))


def _refusals() -> tuple[type[Exception], ...]:
    try:
        from omegaconf.errors import OmegaConfBaseException
    except ModuleNotFoundError:  # an installation without a framework
        return (ValueError,)
    return (ValueError, OmegaConfBaseException)


def fail(message: str) -> NoReturn:
    """End a command that cannot begin, with an error and status 2."""
    say_error(message)
    raise typer.Exit(CONFIG_ERROR)


def say_error(message: str) -> None:
    """Print the reason for a failure on standard error."""
    errors.print("[bold red]error:[/] ", end="")
    errors.print(message, markup=False, soft_wrap=True)
