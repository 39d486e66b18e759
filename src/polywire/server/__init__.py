"""The process around the hub: configuration, listeners, start, drain and reload. It routes no messages."""
