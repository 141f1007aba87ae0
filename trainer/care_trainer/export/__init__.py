"""The end of a run: the exported CARE folder, its model card, its curves and its upload."""
