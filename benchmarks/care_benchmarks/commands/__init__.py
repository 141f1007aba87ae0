"""The commands of ``care-bench``, one module each."""
