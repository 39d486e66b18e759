"""RPC over MQTT: protobuf envelopes that carry calls and streams."""
