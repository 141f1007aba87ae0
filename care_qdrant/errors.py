"""The errors that a caller can meet, and the exit code that each gives on the command line.

::

    CareError                     1
    ├── NotSwitched               1   nothing shows that a new model is as good; readers stay where they are
    ├── InputError                2   a path, an option or a configuration is wrong
    │   ├── NoCollection              no collection has that name
    │   └── TooFewDocuments           a collection has too few documents to learn from
    ├── ModelError                3   a CARE folder cannot be used
    │   ├── IncompleteModel           a file is missing
    │   ├── AlteredModel              a file is not the one that was saved
    │   └── NewerFormat               written by a newer version
    ├── ContractError             4   collection and model do not belong together
    │   ├── FingerprintMismatch       another model made these vectors
    │   └── SchemaMismatch            dimension, distance or kind of vector differ
    ├── QdrantError               5   Qdrant refused, is too old, or cannot be reached
    │   ├── Unreachable               gave up after bounded retries
    │   ├── Rejected                  Qdrant answered that the request is wrong; never retried
    │   ├── NotVerified               what was read back is not what was written
    │   ├── ServerTooOld              the asked feature needs a newer server
    │   └── FolderLocked              another process holds the embedded folder
    ├── EncodingError             6   an encoder gave no usable vector
    │   └── UnusableText              a text that no vector can be made of
    ├── MissingExtra              7   an optional dependency is not installed
    └── TrainingError             9   a training run cannot go on

Exit code 8 is not an error: the run finished, but rows of the corpus were rejected. 130 is an interruption by Ctrl-C.
Every message says where, what was found, what was expected, and what to do. None holds a secret: passwords in URLs,
keys in command lines and known keys are hidden in everything that is printed, logged and written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from numbers import Integral

_HIDDEN = "***"
_SHORTEST = 8
"""Characters of the shortest known secret: a shorter one may be an ordinary word, and is hidden only where the patterns
below find it."""

_PATTERNS = (
    # user:password@ of a URL with any scheme; the password may hold an @.
    (re.compile(r"(?<=://)[^/\s'\"]*@"), f"{_HIDDEN}@"),
    # The same without a scheme, as in QDRANT_URL=user:password@host:6333.
    (re.compile(r"(?<![\w/@.:-])[^\s:/@'\"=]+:[^\s/'\"]+@(?=[\w.\[])"), f"{_HIDDEN}@"),
    # user:password@host without a scheme, as a URL is often typed.
    (re.compile(r"(?<![\w/])[^\s/'\"@:]+:[^\s/'\"@]+@(?=[\w\[])"), f"{_HIDDEN}@"),
    # --api-key VALUE, --endpoint-key=VALUE, as a command line has them; --shard-key is none.
    (re.compile(r"(--(?!shard-key)[a-z-]*(?:key|token|password|secret)[= ])(?!-)\S+"), rf"\1{_HIDDEN}"),
    # ?api_key=VALUE of a URL.
    (re.compile(r"([?&](?:api[-_]?key|token|password|secret)=)[^&\s'\"]+", re.IGNORECASE), rf"\1{_HIDDEN}"),
)
_known: set[str] = set()


def remember_secret(value: str | None) -> None:
    """Let `redact` hide a value from now on; None and very short values are ignored."""
    if value is not None and len(value) >= _SHORTEST:
        _known.add(value)


def redact(text: str) -> str:
    """Return a text with ``***`` in place of secrets."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    for value in _known:
        text = re.sub(rf"(?<![\w-]){re.escape(value)}(?![\w-])", _HIDDEN, text)
    return text


class CareError(Exception):
    """The root of all errors that this package raises on purpose. Its message holds no secret."""

    exit_code = 1

    def __str__(self) -> str:
        return redact(super().__str__())


class NotSwitched(CareError):
    """Nothing shows that a new model is as good as the present one, so readers stay where they are."""


class InputError(CareError):
    """A path, an option or a configuration is wrong."""

    exit_code = 2


class NoCollection(InputError, ValueError):
    """No collection has that name; a ValueError, too, as over an embedded database in LlamaIndex's store."""

    def __init__(self, name: str, there: Sequence[str]) -> None:
        """Take the name, and the names of the collections and aliases that exist."""
        super().__init__(name, there)

    @property
    def problem(self) -> str:
        """The problem without the names of other collections, which a client of a service may not know."""
        return redact(f"there is no collection {self.args[0]!r}")

    def __str__(self) -> str:
        return redact(f"{self.problem} (existing collections: {', '.join(self.args[1]) or 'none'})")


class TooFewDocuments(InputError):
    """A collection has, at the moment, too few documents to learn from."""


class ModelError(CareError):
    """A CARE folder cannot be used."""

    exit_code = 3


class IncompleteModel(ModelError):
    """A file of the folder is missing."""


class AlteredModel(ModelError):
    """A file of the folder is not the one that was saved."""


class NewerFormat(ModelError):
    """The folder was written by a newer version of this package."""


class ContractError(CareError):
    """A collection and a model do not belong together."""

    exit_code = 4


class FingerprintMismatch(ContractError):
    """Another model made the vectors under this name: equal dimension is not equal space."""


class SchemaMismatch(ContractError):
    """Dimension, distance or kind of a named vector differ from what the model needs."""


class QdrantError(CareError):
    """Qdrant refused, is too old, or cannot be reached."""

    exit_code = 5


class Unreachable(QdrantError):
    """Bounded retries on named transport errors are used up."""


class Rejected(QdrantError):
    """Qdrant answered that the request is wrong; a retry would give the same answer."""


class NotVerified(QdrantError):
    """Points that were read back differ from those that were written."""


class ServerTooOld(QdrantError):
    """The asked feature needs a newer Qdrant server."""


class FolderLocked(QdrantError):
    """Another process holds the embedded Qdrant folder."""


class EncodingError(CareError):
    """An encoder gave a vector that is not finite, has no length, or has the wrong shape."""

    exit_code = 6


class UnusableText(EncodingError):
    """No vector can be made of some texts of a call; the others could have one."""

    def __init__(self, problems: Mapping[int, str], names: Mapping[int, str] | None = None) -> None:
        """Say what is wrong with the first one.

        Args:
            problems: Fault of each text, by its place in the call.
            names: The caller's names of the texts, such as ``document 'd7'``; None counts them.
        """
        self.problems, self._names = dict(problems), names
        first, others = min(problems), len(problems) - 1
        name = f"text {first}" if names is None else names[first]
        more = f"; {others} more of the call are as unusable" if others else ""
        super().__init__(f"{name} {problems[first]}: leave it out, or fix it{more}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self._names)

    def named(self, names: Sequence[str]) -> "UnusableText":
        """Return the error of the same texts under the caller's names, one for each text of the call."""
        return UnusableText(self.problems, {place: names[place] for place in self.problems})


class MissingExtra(CareError):
    """An optional dependency is not installed."""

    exit_code = 7


INSTALL = "pip install '.[{extra}]' in a clone of care-qdrant"
"""Command that installs an extra; at the first release, ``pip install 'care-qdrant[{extra}]'``."""
REJECTED_ROWS_EXIT_CODE = 8
INTERRUPTED_EXIT_CODE = 130


class TrainingError(CareError):
    """A training run cannot go on: its loss is not finite, or its checkpoint cannot be written."""

    exit_code = 9


def extra_of(package: str) -> str | None:
    """Return the extra that installs a package, by its import name; None for one that belongs to no extra."""
    from importlib.metadata import PackageNotFoundError, requires  # half of what `import care_qdrant` costs

    try:
        requirements = requires("care-qdrant") or []
    except PackageNotFoundError:  # run from a source tree that is not installed
        return None
    name = re.escape(package.partition(".")[0]).replace("_", "[-_.]")
    extras = [match[1] for line in requirements if (match := re.search(r"extra == ['\"]([\w-]+)", line))]
    lists_it = re.compile(rf"{name}\b[^;]*;.*extra == ['\"]([\w-]+)", re.IGNORECASE)
    candidates = [match[1] for line in requirements if (match := lists_it.match(line))]
    return min(candidates, key=extras.count, default=None)  # the one that installs the least


def require_packages(extra: str, what: str, *packages: str) -> None:
    """Refuse an installation that lacks a package; imports none."""
    with needs_extra(extra, what):
        for package in packages:
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Turn an ImportError inside the block into one line that says what to install."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"{what} needs {error.name or 'a package'}, which is not installed: {INSTALL.format(extra=extra)}"
        ) from error


_OF_ONE = {"are": "is", "have": "has", "were": "was"}


def require_counts(**counts: int | None) -> None:
    """Refuse a count that is not a whole number from 1 on; None is one that was not given.

    Raises:
        InputError: A count is 0, negative or no whole number.
    """
    for name, count in counts.items():
        if count is not None and (not isinstance(count, Integral) or count < 1):
            raise InputError(f"{name} is {count!r}; expected a whole number from 1 on")


def require_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Refuse a setting that is not one of the choices, which a misspelt value would leave to a default.

    Raises:
        InputError: It is none of them.
    """
    if value not in choices:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(map(str, choices))}")


def counted(number: int, noun: str, verb: str = "", *, of: int | None = None) -> str:
    """Return a number of things as people write it: ``1 point is``, ``1,200 points are``, ``1 of 3 points has``."""
    share = "" if of is None else f"{number:,} of "
    all_of_them = number if of is None else of
    said = f"{share}{all_of_them:,} {noun if all_of_them == 1 else _plural(noun)}"
    return f"{said} {_OF_ONE.get(verb, f'{verb}s') if number == 1 else verb}" if verb else said


def _plural(noun: str) -> str:
    if noun.endswith(("s", "ch")):
        return f"{noun}es"
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeou" else f"{noun}s"


COMPLETE: ContextVar[Callable[[str, bool], str] | None] = ContextVar("care_complete", default=None)
"""Completes a command by the options with which the running one reached its database and, where asked, its model; None
outside of commands."""


def next_command(words: str, *, model: bool = True) -> str:
    """Return a command that fixes the problem of a message, with the options that it needs, for the message's end.

    Args:
        words: The command, such as ``care attach articles``.
        model: Whether it needs the same ``--model``.
    """
    if (complete := COMPLETE.get()) is not None:
        return f"with: {complete(words, model)}"
    return f"with the same {'--model and ' if model else ''}--path/--url: {words}"
