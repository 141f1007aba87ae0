"""``python -m care_trainer.cli``: what torchrun starts (``torchrun --nproc-per-node 2 -m care_trainer.cli run …``)."""

from care_trainer.cli import main

main()
