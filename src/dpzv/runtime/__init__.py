"""Where rounds happen: clock, gate, checkpoints, records of a run, and the simulation in one process."""
