"""UMQ: calls, callbacks, topics and attachments between equal peers over WebSocket messages."""
