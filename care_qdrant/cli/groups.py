"""Two click classes that all programs of this project use: a group that imports late, help with option groups."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import click
from typing_extensions import override

CONTEXT = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used, so that ``--help`` is instant."""

    def __init__(
        self, *args: Any, modules: Mapping[str, str], entry_point_group: str | None = None, **settings: Any
    ) -> None:
        """Set up the group.

        Args:
            args: Arguments of `click.Group`.
            modules: Command name to ``module:attribute``, in the order of the help.
            entry_point_group: Entry points that add commands of other packages; None for none.
            settings: Settings of `click.Group`.
        """
        super().__init__(*args, **settings)
        self._modules = modules
        self._entry_point_group = entry_point_group

    @override
    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*self._modules, *self._added()]

    @override
    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        target = self._modules.get(name) or self._added().get(name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def _added(self) -> dict[str, str]:
        if self._entry_point_group is None:
            return {}
        return {point.name: point.value for point in entry_points(group=self._entry_point_group)}


class GroupedCommand(click.Command):
    """A command whose help lists its options in named groups, the everyday ones first."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **settings: Any) -> None:
        """Set up the command.

        Args:
            args: Of `click.Command`.
            groups: Title to parameter names (``vector_name`` for ``--vector-name``), in the order of the help. Options
                that no group names come last, under "Other options".
            settings: Of `click.Command`.
        """
        super().__init__(*args, **settings)
        self._groups = groups

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {param.name: row for param in self.get_params(ctx) if (row := param.get_help_record(ctx)) is not None}
        for title, names in {**self._groups, "Other options": list(rows)}.items():
            if listed := [rows.pop(name) for name in names if name in rows]:
                with formatter.section(title):
                    formatter.write_dl(listed)
