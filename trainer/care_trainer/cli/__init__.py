"""``care-train``: thin commands; torch is imported when one runs, never for ``--help``."""

import click

from care_qdrant.console import run as run_program
from care_qdrant.console.groups import CONTEXT, Program
from care_qdrant.console.logs import log_options
from care_trainer.cli.data import data, mine, terms
from care_trainer.cli.run import configs, presets, rehearse, run
from care_trainer.cli.start import start


@click.group(cls=Program, context_settings=CONTEXT)
@log_options
def care_train() -> None:
    """Train an asymmetric model, from base models to a CARE folder.

    \b
    Example:
      care train start faq.jsonl --output faq
      care train run nano --set data_root=data
    """


for command in (start, rehearse, run, configs, presets, data, mine, terms):
    care_train.add_command(command)


def main() -> None:
    """Run `care-train`."""
    run_program(care_train)
