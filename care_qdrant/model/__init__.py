"""`CareModel` and the CARE folder: written, verified, imported, joined, exported."""
