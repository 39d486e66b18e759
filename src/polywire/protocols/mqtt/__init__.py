"""MQTT 3.1.1, both sides."""
