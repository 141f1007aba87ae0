"""``care-bench golden``."""

from pathlib import Path

import click


@click.command()
@click.argument("model")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="JSON file to write.")
@click.option("--device", help="Of the document encoder.  [default: the best that is there]")
def command(model: str, output: Path, device: str | None) -> None:
    """Encode a few known texts with the document encoder of MODEL, where it can run, for the check of a server.

    \b
    Example:
      care-bench golden built-in --output golden.json
      care-bench run examples/sample --document-server http://localhost:8000/v1 --golden golden.json --output results/x
    """
    from care_benchmarks.remote import make_golden
    from care_qdrant.model import CareModel

    golden = make_golden(CareModel.load(model, device=device))
    golden.save(output)
    click.echo(f"{output}: {len(golden.texts)} vectors of {golden.fingerprint[:12]}")
