"""The query encoder without torch: exported, in int8 as well, and the gate that int8 has to pass."""
