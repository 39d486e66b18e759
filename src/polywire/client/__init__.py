"""What the clients of all protocols share: addresses, connections, reconnecting, and one face over all of them."""
