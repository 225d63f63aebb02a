"""What devices and server say to each other, as state machines without any I/O."""
