"""What the codecs of all protocols share: frame values, byte buffers, WebSocket frames. Nothing here does IO."""
