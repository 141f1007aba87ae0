"""Options that a project repeats, from ``care.toml`` or the table ``[tool.care]`` of ``pyproject.toml``.

::

    model = "./my-pair"          # every command that has --model
    url = "http://localhost:6333"

    [ingest]
    text-field = "body"

    [bulk.plan]
    unit-rows = 10000

The command line and the environment come first.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from care_qdrant.console.groups import MAY_BE_EMPTY
from care_qdrant.errors import InputError

FILE = "care.toml"
PROGRAM = "care"


def read_defaults(command: click.Command) -> dict[str, Any]:
    """Return click's ``default_map`` for a program, from the files of the current folder."""
    where, settings = _find()
    if not settings or command.name is None:
        return {}
    # `model` is an option of most commands, and a command: a value is the one, a table the other.
    general = {key: value for key, value in settings.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in settings.items() if isinstance(value, dict)}
    # care-ingest is another name of `care ingest`, and the rest of the file is for other commands.
    if command.name != PROGRAM:
        return _for_command(command, general, tables.get(command.name.removeprefix(f"{PROGRAM}-"), {}), where)
    commands = _commands(command)
    known = {name for child in commands.values() for name in _all_options(child)}
    if unknown := sorted(general.keys() - known):
        raise InputError(f"{where}: {unknown[0]!r} is an option of no command; known: {', '.join(sorted(known))}")
    if unknown := sorted(tables.keys() - commands.keys()):
        raise InputError(f"{where}: [{unknown[0]}] is not a command of {command.name}; known: {', '.join(commands)}")
    return {name: _for_command(child, general, tables.get(name, {}), where) for name, child in commands.items()}


def default_of(command: str, option: str) -> Any:
    """Return the value that the files of the current folder give to an option of a command; None if they give none."""
    settings = _find()[1]
    own, general = settings.get(command), settings.get(option)
    return own[option] if isinstance(own, dict) and option in own else general


def _find() -> tuple[str, Mapping[str, Any]]:
    for path, table in ((Path(FILE), None), (Path("pyproject.toml"), "tool")):
        if not path.is_file():
            continue
        try:
            # Editors of Windows put a byte order mark in front.
            content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            if table:  # another tool's file, and that tool will say so
                continue
            raise InputError(f"{path}: is not valid TOML ({error})") from error
        tools = content.get("tool") if table else {"care": content}
        settings = tools.get("care", {}) if isinstance(tools, dict) else {}
        if not isinstance(settings, dict):
            raise InputError(f"{path}: [tool] has a value 'care' where a table is expected; write [tool.care]")
        if settings:
            return str(path), settings
    return "", {}


def _for_command(
    command: click.Command, general: Mapping[str, Any], own: Mapping[str, Any], where: str
) -> dict[str, Any]:
    options, children = _options(command), _commands(command)
    if unknown := sorted(own.keys() - options.keys() - children.keys()):
        raise InputError(
            f"{where}: [{command.name}] has {unknown[0]!r}, which is not one of its options: "
            f"{', '.join(sorted([*options, *children]))}"
        )
    if tables := sorted(key for key, value in own.items() if isinstance(value, dict) and key not in children):
        raise InputError(
            f'{where}: [{command.name}] has a table {tables[0]!r} where a value is expected; write {tables[0]} = "…"'
        )
    defaults: dict[str, Any] = {}
    for key, value in {**general, **own}.items():
        if key in options and not isinstance(value, dict):
            values = value if isinstance(value, list) and options[key].multiple else [value]
            if wrong := [each for each in values if not isinstance(each, str | int | float)]:
                raise InputError(
                    f"{where}: {key!r} is of type {type(wrong[0]).__name__}; expected a text, a number or true or false"
                )
            if "" in values and options[key].name not in MAY_BE_EMPTY:
                raise InputError(f"{where}: {key!r} is empty; give a value, or leave it out")
            if isinstance(options[key].type, click.Path) or options[key].is_flag:
                # As on a command line: click takes the number of a path for an open file, and fails at one of a flag.
                values = [each if isinstance(each, bool) and options[key].is_flag else str(each) for each in values]
            defaults[str(options[key].name)] = values if options[key].multiple else values[0]
    for name, child in children.items():
        if not isinstance(own.get(name, {}), dict):
            raise InputError(f"{where}: [{command.name}] has a value {name!r} where a table is expected")
        defaults[name] = _for_command(child, general, own.get(name, {}), where)
    return defaults


def _commands(command: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group by name; none for a command."""
    if not isinstance(command, click.Group):
        return {}
    context = click.Context(command)
    commands = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return {name: child for name, child in commands if child is not None}


def _all_options(command: click.Command) -> set[str]:
    """Return the names of the options of a command and of all commands below it."""
    return {*_options(command), *(name for child in _commands(command).values() for name in _all_options(child))}


def _options(command: click.Command) -> dict[str, click.Option]:
    """Return the long options of a command by the names that a file may give them: without dashes in front."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    named = {name.removeprefix("--"): option for option in options for name in option.opts if name.startswith("--")}
    return {name: option for name, option in named.items() if name not in ("help", "version")}
