"""What ``benchmarks.clients`` has each client do: the same bodies, the same endings, one module per client."""

TOPIC = "sensors/room07/temperature"
BODY = b'{"sensor": "room07", "celsius": 21.5, "at": 1700000000, "ok": 1}'
"""64 bytes."""
