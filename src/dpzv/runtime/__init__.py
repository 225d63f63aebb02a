"""Where rounds happen: clock, gate, checkpoints, what a run writes down, and the simulation in one process."""
