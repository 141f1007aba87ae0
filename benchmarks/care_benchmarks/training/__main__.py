"""``python -m care_benchmarks.training``: what training costs, and what each part of the recipe gives."""

import click

from care_benchmarks.training.commands import cost, grid, pretrained


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def training() -> None:
    """Measure training: its cost, and the paper's ablations.

    \b
    Example:
      python -m care_benchmarks.training cost examples/sample/corpus.jsonl --output training.json
    """


for command in (cost, pretrained, grid):
    training.add_command(command)

if __name__ == "__main__":
    training()
