"""Several hubs that act as one: membership, links between them, and what they share."""
