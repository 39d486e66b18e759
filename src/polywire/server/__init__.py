"""The process around the hub: sockets, TLS, configuration, start and end."""
