"""The routing core: channels, routes, queues, calls, retained messages. It knows no protocol's bytes."""
