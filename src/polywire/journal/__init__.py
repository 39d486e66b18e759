"""The durable log: every message and event that passed the hub, in order, as Arrow data."""
