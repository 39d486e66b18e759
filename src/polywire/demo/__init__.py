"""``polywire demo``: a greenhouse in which five protocols work together, and the tables of what happened there."""
