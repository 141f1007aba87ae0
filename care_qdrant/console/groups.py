"""Click classes: programs that import their commands late, options with variables, and help in two lengths."""

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import click
from typing_extensions import override

CONTEXT = {"help_option_names": ["-h", "--help"]}
_WHOLE = "care_qdrant.console.groups.whole"
"""Key of a context under which `--help-all` notes that all options are asked for."""
MAY_BE_EMPTY = ("vector_name", "title_field")
"""Parameters whose empty value has a meaning: Qdrant's unnamed vector has this name, and no title has this field."""


class Option(click.Option):
    """An option with other environment variables that its command reads."""

    def __init__(self, *args: Any, environment: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.environment = environment or {}
        """Meaning of each variable, with its default."""


class Command(click.Command):
    """A command that refuses empty values and infinite numbers, and lists the environment variables that it reads.

    Args:
        args: Arguments of `click.Command`.
        environment: Variables that no option of the command has, and what each says.
        settings: Keyword arguments of `click.Command`.
    """

    def __init__(self, *args: Any, environment: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.environment = environment or {}

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # As they were typed: an empty path is converted to the current folder, and "" is false where None is meant.
        try:
            given = self.make_parser(ctx).parse_args(args=list(args))[0]
        except click.NoSuchOption as error:
            _show_place(ctx, error.option_name)
            raise
        for param in self.params:
            value = given.get(str(param.name))
            if "" in (value if isinstance(value, list | tuple) else [value]) and param.name not in MAY_BE_EMPTY:
                name = param.make_metavar(ctx) if isinstance(param, click.Argument) else param.opts[0]
                raise click.UsageError(f"{name.strip('[].')} is empty; give a value, or leave it out", ctx)
        rest = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(str(param.name))
            # No comparison holds for NaN, so it passes every range and every guard; JSON has neither.
            if isinstance(value, float) and not math.isfinite(value):
                raise click.UsageError(f"{param.opts[0]} is {value}; give a finite number", ctx)
        return rest

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_environment(self, ctx, formatter)


def _show_place(ctx: click.Context, option: str) -> None:
    """Refuse an option of the program that was typed after the command, and show where it belongs."""
    program = ctx.parent
    while program is not None:
        if any(option in [*param.opts, *param.secondary_opts] for param in program.command.params):
            command = ctx.command_path.removeprefix(program.command_path)
            place = f"{program.command_path} {option}{command}"
            raise click.UsageError(f"{option} stands before the command: {place} …", ctx)
        program = program.parent


def _write_environment(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    readers = [*(param for param in command.get_params(ctx) if isinstance(param, Option)), command]
    if variables := {name: text for reader in readers for name, text in getattr(reader, "environment", {}).items()}:
        with formatter.section("Environment"):
            formatter.write_dl(list(variables.items()))


class Program(click.Group):
    """A group whose commands are imported when they are used, so that ``--help`` is instant.

    Args:
        args: Arguments of `click.Group`.
        modules: Commands by name, each as ``module:attribute``.
        entry_points_of: Group of entry points with commands of packages above this one.
        summaries: Titles of the help's groups, each with its commands and a summary of at most 50 characters.
        settings: Keyword arguments of `click.Group`.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str] | None = None,
        entry_points_of: str | None = None,
        summaries: Mapping[str, Mapping[str, str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self._modules = modules or {}
        self._entry_points_of = entry_points_of
        self._summaries = summaries or {}

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self._summaries:
            super().format_commands(ctx, formatter)
        there = set(self.list_commands(ctx))
        width = max((len(name) for name in there), default=0)
        for title, commands in self._summaries.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", text) for name, text in commands.items() if name in there])

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        _write_environment(self, ctx, formatter)

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._modules, *sorted(self._added()), *self.commands]

    @override
    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = self._modules.get(name) or self._added().get(name)
        if target is None:
            return super().get_command(ctx, name)
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"no such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def _added(self) -> dict[str, str]:
        if self._entry_points_of is None:
            return {}
        return {point.name: point.value for point in entry_points(group=self._entry_points_of)}


class GroupedCommand(Command):
    """A command whose ``--help`` shows the first group of its options, and whose ``--help-all`` shows all groups."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._groups = groups
        self._help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_whole_help,
            help="Show all options and exit.",
        )

    @override
    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), self._help_all]

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        rows = {option.name: row for option in options if (row := option.get_help_record(ctx)) is not None}
        first, help_option = next(iter(self._groups)), self.get_help_option(ctx)
        always = [self._help_all.name, help_option.name if help_option else None]
        groups = {**self._groups, first: [*self._groups[first], *always]}
        if not ctx.meta.get(_WHOLE):
            required = {option.name for option in options if option.required}
            rows = {name: row for name, row in rows.items() if name in {*groups[first], *required}}
        for title, names in {**groups, "Other options": list(rows)}.items():
            if listed := [rows.pop(name) for name in names if name in rows]:
                with formatter.section(title):
                    formatter.write_dl(listed)

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(_WHOLE):
            super().format_epilog(ctx, formatter)


def whole_help(context: click.Context) -> str:
    """Return the help of a command with all of its options."""
    context.meta[_WHOLE] = True
    return context.get_help()


def _show_whole_help(context: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked and not context.resilient_parsing:
        click.echo(whole_help(context), color=context.color)
        context.exit()
