"""MicroMsg2: negotiated extensions, reliable queues and topics with filters."""
